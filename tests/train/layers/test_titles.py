"""A text encoder learned from titles: against peers and brute force, the command, and what follows it."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.kernel_ridge import KernelRidge

from retrieval import Embedder, Gallery, InputError
from retrieval.cli import main
from retrieval.model.archive import IMAGE, MEMBERS, ModelArchive, write_archive
from retrieval.search.calibration import NAME as CALIBRATION
from retrieval.storage.records import Change, FileStamp, IndexSpec, NewItem
from retrieval.upkeep.verify import verify
from tests.conftest import lookalike_here
from tests.retrieval.filling import DIM, contents, small_gallery
from tests.retrieval.killing import OPERATIONS, kill_at_every_step
from tests.serve.model import write_model
from tests.train.layers.test_teaching import run
from train.layers.components import fit_starts
from train.layers.folding import append_layer
from train.layers.letters import Bags, LetterEncoder, Letters, coefficients
from train.layers.titles import TextSide, Titles, chances, fit_titles, read_titles

pytest.importorskip("tokenizers", reason="tokenizers is not installed")

COLOURS = ("red", "green", "blue", "black", "white", "yellow")
STUFFS = ("oak", "steel", "glass", "leather", "cotton")
THINGS = ("chair", "kettle", "lamp", "mirror", "basket", "shelf")
PARTS = [*COLOURS, *STUFFS, *THINGS]
TITLES = [" ".join(words) for words in product(COLOURS, STUFFS, THINGS)]


def vectors_of(titles: list[str], noise: float = 1.5, seed: int = 0) -> np.ndarray:
    """Return unit vectors: each is the sum of those of the words of its title, a common one and noise."""
    random = np.random.default_rng(seed)
    basis = random.standard_normal((len(PARTS) + 1, DIM))
    sums = np.stack([basis[[PARTS.index(word) for word in title.split()]].sum(0) for title in titles])
    vectors = sums + 2 * basis[-1] + noise * random.standard_normal((len(titles), DIM))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def gallery_of(folder: Path, titles: list[str], each: int = 2, noise: float = 1.5) -> Gallery:
    """Return a gallery with some images of each title in the column `title`, and an index."""
    gallery = small_gallery(folder)
    rows = titles * each
    items = [
        NewItem(FileStamp("/photos", f"{row}.jpg", 1, 1, ""), "", 4, 3, {"title": title.title() + "!"})
        for row, title in enumerate(rows)
    ]
    with gallery.store.writing():
        gallery.store.commit(vectors_of(rows, noise), items)
        gallery.build_index(IndexSpec("sq8"))
    gallery.refresh()
    return gallery


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    return gallery_of(tmp_path, TITLES)


# ---- the encoder


def test_features_and_map_are_those_of_scikit_learn() -> None:
    """TF-IDF of character n-grams, and kernel ridge regression with weights."""
    texts = [*TITLES[:40], "crème brûlée", "красный чайник", "赤いやかん", "a"]
    letters, images = Letters(texts), np.random.default_rng(0).integers(1, 9, len(texts))
    training, rest = np.arange(30), np.arange(30, len(texts))
    features, _ = Bags(letters, texts).features(training)
    peer = TfidfVectorizer(analyzer="char", ngram_range=(2, 4), lowercase=False)
    peer.fit([f" {text} " for text in texts[:30]])
    expected = peer.transform([f" {text} " for text in texts])
    np.testing.assert_allclose(
        (features @ features.T).toarray(), (expected @ expected.T).toarray(), atol=1e-12
    )
    targets = np.random.default_rng(1).standard_normal((30, DIM))
    (found,) = coefficients(features[training], targets, images[:30], [0.3])
    ridge = KernelRidge(alpha=0.3).fit(expected[:30], targets, sample_weight=np.sqrt(images[:30]))
    np.testing.assert_allclose(
        features[rest] @ (features[training].T @ found), ridge.predict(expected[30:]), atol=1e-9
    )


def test_graph_is_the_encoder(tmp_path: Path) -> None:
    """Lower case, width and punctuation make no difference; texts beyond the context lose their end."""
    texts = [*TITLES, "crème brûlée", "красный чайник", "赤いやかん"]
    letters, images = Letters(texts), np.full(len(texts), 2)
    targets = np.random.default_rng(1).standard_normal((len(texts), DIM))
    encoder = LetterEncoder.learn(letters, Bags(letters, texts), targets, images, 0.1)
    own = Embedder(write_model(tmp_path / "model.onnx"))
    TextSide(encoder, texts).write(own, tmp_path / "pair.zip", {"columns": ["title"]})
    pair = Embedder(tmp_path / "pair.zip")
    queries = [*texts, "RED  Oak-Chair!", "ｒｅｄ oak chair", "red oak chair " * 40, "red", "unknown oak"]
    np.testing.assert_allclose(pair.embed_texts(queries), encoder(queries), atol=1e-5)
    same = pair.embed_texts(["RED  Oak-Chair!", "ｒｅｄ oak chair", "red oak chair"])
    assert np.array_equal(same[0], same[2])
    assert np.array_equal(same[1], same[2])
    features, _ = Bags(letters, texts).features(np.arange(len(texts)))
    (found,) = coefficients(features, targets, images, [0.1])
    exact = features @ (features.T @ found)
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    np.testing.assert_allclose(pair.embed_texts(texts), exact, atol=2e-3)  # the table is in half precision
    noise = np.random.default_rng(0).integers(0, 256, (5, *(own.preprocess.size,) * 2, 3), np.uint8)
    assert np.array_equal(pair.embed_pixels(noise), own.embed_pixels(noise))
    with pytest.raises(InputError, match="nothing of it is in the titles"):
        pair.embed_texts(["red", "שלום"])


# ---- the measurement


def test_chances() -> None:
    """Of images in random order, drawn often."""
    random, images, searched = np.random.default_rng(0), np.array([1, 1, 5, 30]), 60
    first = np.array(
        [[random.permutation(searched)[:count].min() for count in images] for _ in range(20_000)]
    )
    recall, reciprocal = chances(images, searched)
    assert recall == pytest.approx((first < 10).mean(), abs=0.005)
    assert reciprocal == pytest.approx((1 / (1 + first)).mean(), abs=0.005)
    assert chances(np.array([3]), 8)[0] == pytest.approx(1)


def test_held_out_titles(tmp_path: Path) -> None:
    """Recall and reciprocal rank of the whole procedure, by scikit-learn and brute force."""
    gallery = gallery_of(tmp_path, TITLES, noise=2.5)
    found = fit_titles(gallery, ["title"]).facts
    vectors = gallery.embeddings().vectors
    rows = TITLES * 2
    names = sorted(TITLES)
    parts = np.random.default_rng(0).permutation(len(names)) % 5
    centre = vectors.mean(0)
    ranks = {}
    for part in range(5):
        training = [name for name, its in zip(names, parts, strict=True) if its != part]
        peer = TfidfVectorizer(analyzer="char", ngram_range=(2, 4))
        known = peer.fit_transform([f" {name} " for name in training])
        own = {name: np.flatnonzero([row == name for row in rows]) for name in names}
        targets = np.stack([vectors[own[name]].mean(0) - centre for name in training])
        for strength in (0.1, 0.3, 1.0):
            ridge = KernelRidge(alpha=strength).fit(
                known, targets, sample_weight=np.full(len(training), np.sqrt(2))
            )
            for name in set(names) - set(training):
                scores = vectors @ ridge.predict(peer.transform([f" {name} "]))[0]
                ranks[name, strength] = int((scores > scores[own[name]].max()).sum())
    values = [
        (np.mean([ranks[n, s] < 10 for n in names]), np.mean([1 / (1 + ranks[n, s]) for n in names]))
        for s in (0.1, 0.3, 1.0)
    ]
    recalls, reciprocals = zip(*values, strict=True)
    assert min(recalls) - 1e-9 <= found["found"]["recall"] <= max(recalls) + 1e-9
    assert min(reciprocals) - 1e-9 <= found["found"]["mrr"] <= max(reciprocals) + 1e-9
    assert found["strength"] == (0.1, 0.3, 1.0)[int(np.argmax(reciprocals))]
    assert found["found"]["low"] < found["found"]["recall"] < found["found"]["high"]
    assert (found["titles"], found["images"], found["searched"]) == (180, 360, 360)


def test_titles_are_one_whatever_their_case(gallery: Gallery) -> None:
    _, titles = read_titles(gallery, ["title"])
    assert titles.texts == sorted(TITLES)
    assert titles.images.tolist() == [2] * len(TITLES)
    titled = Titles(["a", "b"], np.array([0, 1, 0, -1]), np.eye(4, dtype=np.float32))
    np.testing.assert_allclose(
        titled.targets, [[1 / 6, -1 / 3, 1 / 6, 0], [-1 / 3, 2 / 3, -1 / 3, 0]], atol=1e-7
    )


# ---- the command


def found_by(folder: Path, text: str) -> list[str]:
    """Return the titles of the first images by the command `search`."""
    (answer,) = json.loads(lookalike_here("search", str(folder), "--text", text, "-k", "4", "--json").stdout)
    return [hit["metadata"]["title"] for hit in answer["hits"]]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A title that no image has is found by its words; vectors, index, calibration stay; it can be undone."""
    kept = [title for title in TITLES if title != "blue glass lamp"]
    gallery = gallery_of(tmp_path, kept)
    folder, before = gallery.folder, contents(gallery)
    (folder / CALIBRATION).write_text("{}")
    index, number = (folder / "indexes"), sorted(path.name for path in (folder / "indexes").rglob("*"))
    facts, _ = run(capsys, str(folder), "--text-column", "title", "--dry-run")
    assert (facts["accepted"], facts["taught"]) == (True, False)
    assert not gallery.changed()
    facts, err = run(capsys, str(folder), "--text-column", "title")
    assert (facts["taught"], facts["titles"]) == (True, len(kept))
    assert facts["found"]["low"] > 5 * facts["found"]["chance"]
    assert f"{len(kept)} titles of {2 * len(kept)} images" in err
    taught = Gallery(folder)
    assert taught.fingerprint == facts["fingerprint"] != gallery.fingerprint
    assert contents(taught) == before
    assert sorted(path.name for path in index.rglob("*")) == number
    assert (taught.index_kind, taught.outside_index) == ("sq8", 0)
    assert (folder / CALIBRATION).read_text() == "{}"
    (folder / CALIBRATION).unlink()
    assert not verify(folder).problems
    assert taught.embedder.provenance["titles"]["found"] == facts["found"]
    near = [" ".join(words) for words in product(["blue"], STUFFS, ["lamp"])] + ["blue glass", "glass lamp"]
    assert all(any(part in title.lower() for part in near) for title in found_by(folder, "blue glass lamp"))
    assert found_by(folder, "Red oak chair")[0] == "Red Oak Chair!"
    gallery.refresh()
    with gallery.store.writing():
        gallery.store.commit(
            vectors_of(["blue glass lamp"]), [NewItem(FileStamp("/photos", "new.jpg", 1, 1, ""), "", 4, 3)]
        )
    assert "already exists" in run(capsys, str(folder), "--text-column", "title", code=2)[1]
    run(capsys, str(folder), "--undo")
    restored = Gallery(folder)
    assert not restored.embedder.has_text
    assert contents(restored).keys() == {*before, "new.jpg"}
    assert not verify(folder).problems


def test_titles_without_meaning_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gallery = gallery_of(tmp_path, TITLES)
    ids = gallery.embeddings().ids.tolist()
    shuffled = np.random.default_rng(0).permutation(TITLES * 2).tolist()
    with gallery.store.writing():
        gallery.store.amend(
            [Change(id, metadata={"title": title}) for id, title in zip(ids, shuffled, strict=True)]
        )
    before = contents(gallery)
    facts, _ = run(capsys, str(gallery.folder), "--text-column", "title", code=1)
    assert (facts["accepted"], facts["taught"]) == (False, False)
    assert contents(Gallery(gallery.folder)) == before
    assert not Gallery(gallery.folder).embedder.has_text
    assert not gallery.folder.with_name("g.old").exists()
    with pytest.raises(SystemExit):
        main(["teach", str(gallery.folder), "--text-column", "title"])
    assert "unchanged, because held-out titles do not certainly find" in capsys.readouterr().out


def test_wrong_use(gallery: Gallery, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(gallery.folder)
    assert "no column 'name'; it has label, title" in run(capsys, folder, "--text-column", "name", code=2)[1]
    words = ["--text-column", "title", "--labels", "t.csv"]
    assert "learns from titles alone" in run(capsys, folder, *words, code=2)[1]
    _, err = run(capsys, folder, "--text-column", "label", code=2)
    assert "0 different titles in label; it takes 20 at least" in err


def test_text_encoder_that_finds_more_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a pair that is not learned from these titles: here one that was learned from all of them."""
    gallery = gallery_of(tmp_path, TITLES, noise=2.5)
    run(capsys, str(gallery.folder), "--text-column", "title")
    taught = Gallery(gallery.folder)
    (tmp_path / "other").mkdir()
    pair = tmp_path / "other" / "pair.zip"
    archive = ModelArchive(taught.embedder.path)
    members = {name: archive.read(name) for name in MEMBERS}
    proto = onnx.load_model_from_string(members[IMAGE])
    properties = {entry.key: entry.value for entry in proto.metadata_props}
    properties["lookalike.provenance"] = "{}"
    onnx.helper.set_model_props(proto, properties)
    write_archive(pair, members | {IMAGE: proto.SerializeToString()})
    taught.reproject(None, Embedder(pair), command="test", drop_old=True)
    facts, _ = run(capsys, str(gallery.folder), "--text-column", "title", "--dry-run", code=1)
    assert facts["present"]["recall"] > facts["found"]["recall"]


# ---- what follows


def test_layers_go_through_the_texts(
    gallery: Gallery, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The texts give what would be learned from the new vectors, before these get unit length."""
    folder = gallery.folder
    run(capsys, str(folder), "--text-column", "title")
    earlier = Gallery(folder)
    (start,) = fit_starts(earlier.embeddings().vectors, (0.5,), 20)
    append_layer(earlier.embedder.path, start.layer, tmp_path / "layered.zip", {"command": "test"})
    model = Embedder(tmp_path / "layered.zip")
    found = model.embed_texts(TITLES)
    turned = earlier.embedder.embed_texts(TITLES) @ start.layer.weight.T
    np.testing.assert_allclose(found, turned / np.linalg.norm(turned, axis=1, keepdims=True), atol=1e-5)
    done = earlier.reproject(start.layer, model, command="adapt", drop_old=True)
    again = done.gallery.embedder.embed_texts(["red oak chair"])
    titles = [hit.metadata["title"] for hit in done.gallery.search_vectors(again, 2)[0]]
    assert titles == ["Red Oak Chair!"] * 2


def test_another_image_model_is_refused(
    gallery: Gallery, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of other vectors does not get into the gallery beside the text encoder; nor is it taken."""
    run(capsys, str(gallery.folder), "--text-column", "title")
    taught = Gallery(gallery.folder)
    with pytest.raises(InputError, match="not the model of"):
        taught.reproject(
            None, Embedder(write_model(tmp_path / "b.onnx", maps=True)), command="x", drop_old=True
        )
    with pytest.raises(InputError, match="model"):
        taught.check_model(Embedder(tmp_path / "b.onnx"))


@pytest.mark.slow
def test_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gallery has the model without texts or the one with them, with all vectors, whenever it is killed."""
    start = tmp_path / "start"
    gallery = gallery_of(start, TITLES[:30])
    letters = Letters(TITLES)
    targets = np.random.default_rng(0).standard_normal((len(TITLES), DIM))
    encoder = LetterEncoder.learn(letters, Bags(letters, TITLES), targets, np.ones(len(TITLES), int), 0.1)
    TextSide(encoder, TITLES).write(gallery.embedder, start / "pair.zip", {})
    before, seen = contents(gallery), []
    steps = kill_at_every_step(
        "reproject_texts", start, tmp_path / "killed", ["rename", "rmtree", "copyfile"]
    )
    for folder in steps:
        there = Gallery(folder / "g")
        assert not verify(there.folder).problems
        assert contents(there) == before
        seen.append(there.embedder.has_text)
        if not seen[-1]:
            OPERATIONS["reproject_texts"](folder)
        assert Gallery(folder / "g").embedder.has_text
        OPERATIONS["undo"](folder)
        restored = Gallery(folder / "g")
        assert contents(restored) == before
        assert not restored.embedder.has_text
        assert sorted(path.name for path in folder.glob("*g")) == ["g"]
    assert len(steps) > 5
    assert seen == sorted(seen)
    assert set(seen) == {False, True}


@pytest.mark.slow
def test_gallery_in_a_database(tmp_path: Path) -> None:
    pytest.importorskip("qdrant_edge", reason="qdrant-edge-py is not installed")
    source = gallery_of(tmp_path, TITLES)
    folder = tmp_path / "s"

    def process(*words: str) -> str:  # the store is open in one process at a time
        command = [sys.executable, "-m", "lookalike", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    table, model = str(tmp_path / "table.parquet"), str(source.embedder.path)
    process("index", "export", str(source.folder), table)
    store = f"qdrant://{tmp_path / 'edge'}"
    process("index", "import", str(folder), table, "--model", model, "--store", store)
    assert json.loads(process("teach", str(folder), "--text-column", "title", "--json"))["taught"]
    (answer,) = json.loads(process("search", str(folder), "--text", "red oak chair", "-k", "1", "--json"))
    assert answer["hits"][0]["metadata"]["title"] == "Red Oak Chair!"
    process("teach", str(folder), "--undo")
    assert json.loads(process("index", "info", str(folder), "--json"))["texts"] is False
