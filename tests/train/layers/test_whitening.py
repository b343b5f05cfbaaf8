"""Half-whitening: choice by copies and by labels, refusal without a gain, and the command."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from retrieval import Embedder, Gallery, InputError
from retrieval.cli import main
from retrieval.evaluation.gallery import evaluate_gallery
from retrieval.storage.records import FileStamp, NewItem
from tests.conftest import draw
from tests.retrieval.filling import small_gallery, trained_on
from train.layers.copies import augment, embed_copies
from train.layers.whitening import NO_CLASS, candidates, gain_by_copies, gain_by_labels

DIM = 48


def with_nuisance(classes: int, each: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors whose largest deviations have nothing to do with their class."""
    random = np.random.default_rng(seed)
    numbers = np.repeat(np.arange(classes), each)
    vectors = 0.3 * random.standard_normal((len(numbers), DIM))
    vectors[:, :8] += random.standard_normal((classes, 8))[numbers]
    vectors[:, 40:] += 4 * random.standard_normal((len(numbers), 8))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), numbers


def test_copies_choose_what_brings_originals_first() -> None:
    """The metric against a search one by one; a nuisance is whitened away; noise has no proven gain."""
    vectors, _ = with_nuisance(40, 3)
    random = np.random.default_rng(1)
    originals = np.sort(random.permutation(len(vectors))[:60])
    moved = vectors[originals] + np.concatenate(
        [0.02 * random.standard_normal((60, 40)), 0.4 * random.standard_normal((60, 8))], 1
    )
    copies = (moved / np.linalg.norm(moved, axis=1, keepdims=True)).astype(np.float32)
    found = candidates(vectors)
    assert {one.dim for one, _ in found} == {DIM}
    gain = gain_by_copies(vectors, copies, originals, found)
    expected = [
        1 / (1 + sum(float(v @ copy) > float(vectors[row] @ copy) + 1e-6 for v in vectors))
        for copy, row in zip(copies, originals, strict=True)
    ]
    assert gain.before == pytest.approx(np.mean(expected))
    assert (gain.metric, gain.queries, gain.is_proven) == ("MRR", 60, True)
    assert gain.chosen.power >= 0.5
    assert gain.after > gain.before

    exact = np.eye(DIM, dtype=np.float32)[np.arange(40)]
    assert not gain_by_copies(exact, exact, np.arange(40), candidates(exact)).is_proven
    with pytest.raises(InputError, match="only 5 images"):
        gain_by_copies(vectors, copies[:5], originals[:5], found)


def test_labels_choose_and_leave_dimensions_out() -> None:
    vectors, classes = with_nuisance(50, 4)
    found = candidates(vectors, (0.0, 0.5, 1.0), (24,))
    assert {one.dim for one, _ in found} == {DIM, 24}
    for one, layer in found:
        assert layer.weight.shape == (one.dim, DIM)
    gain = gain_by_labels(vectors, classes, found)
    assert gain.is_proven
    assert gain.chosen.power >= 0.5
    random = np.random.default_rng(0).permutation(classes)
    assert not gain_by_labels(vectors, random, found).is_proven
    with pytest.raises(InputError, match="fewer than 8 classes"):
        gain_by_labels(vectors, np.arange(len(vectors)), found)


def test_copies_show_part_of_their_original(tmp_path: Path, model_file: Path) -> None:
    embedder = Embedder(model_file)
    paths = []
    for number in range(6):
        paths.append(tmp_path / f"{number}.png")
        draw(number, (64, 48), hue=number % 3).save(paths[-1])
    paths[2].write_bytes(b"no image")
    vectors, rows = embed_copies(embedder, paths, 10)
    assert rows.tolist() == [0, 1, 3, 4, 5]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(vectors, embed_copies(embedder, paths, 10)[0])
    image = draw(0, (64, 48))
    shares = []
    for seed in range(50):
        copy = augment(image, np.random.default_rng(seed))
        shares.append(copy.width * copy.height / (64 * 48))
        assert copy.width <= 64
        assert copy.height <= 48
    assert 0.15 < min(shares) < 0.3 < 0.6 < max(shares) < 0.75


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    vectors, classes = with_nuisance(50, 4)
    gallery = small_gallery(tmp_path / "g")
    items = [
        NewItem(FileStamp("", "", 0, 0, f"class {number}"), "", 0, 0, key=f"{row}")
        for row, number in enumerate(classes.tolist())
    ]
    with gallery.store.writing():
        gallery.store.commit(vectors, items)
    gallery.refresh()
    return gallery


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object], str]:
    """Run the command in this process; return its exit code, facts and messages."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        main(["adapt", *words, "--json"])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), json.loads(out) if out else {}, err


def test_command(gallery: Gallery, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gallery is adapted and restored; the model file embeds as its vectors are."""
    folder = str(gallery.folder)
    before = gallery.vector(1)
    code, dry, _ = run(capsys, folder, "--dry-run")
    assert code == 0
    assert (dry["metric"], dry["accepted"], dry["adapted"]) == ("MAP@R", True, False)
    np.testing.assert_array_equal(Gallery.open(folder).vector(1), before)
    _, done, _ = run(capsys, folder, "--dim", "24")
    adapted = Gallery.open(folder)
    assert (done["adapted"], done["dim"], adapted.manifest.dim) == (True, 24, 24)
    (note,) = adapted.embedder.provenance["layers"]
    assert (note["command"], note["metric"]) == ("adapt", "MAP@R")
    code, refused, _ = run(capsys, folder, "--power", "0", "--drop-old")
    assert (code, refused["adapted"]) == (1, False)
    run(capsys, folder, "--undo")
    np.testing.assert_array_equal(Gallery.open(folder).vector(1), before)


def test_a_whitened_model_has_learned_no_more_than_its_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The images of a layer are unknown, but a whitening has learned no label."""
    vectors, classes = with_nuisance(50, 4)
    gallery = small_gallery(tmp_path / "g", trained_on([hashlib.sha256(b"another").hexdigest()], ["other"]))
    names = [hashlib.sha256(b"%d" % row).hexdigest() for row in range(len(vectors))]
    stamps = [FileStamp("/photos", f"{row}.jpg", 1, 1, f"c{one}") for row, one in enumerate(classes.tolist())]
    items = [NewItem(stamp, name, 4, 3) for stamp, name in zip(stamps, names, strict=True)]
    with gallery.store.writing():
        gallery.store.commit(vectors, items)
    gallery.refresh()
    assert run(capsys, str(gallery.folder))[1]["adapted"]
    assert not [note for note in evaluate_gallery(Gallery.open(gallery.folder)).notes if "trained" in note]


def test_too_few_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gallery = small_gallery(tmp_path / "g")
    with gallery.store.writing():
        gallery.store.commit(with_nuisance(1, 1)[0], [NewItem(FileStamp("", "", 0, 0), "", 0, 0, key="0")])
    code, _, message = run(capsys, str(gallery.folder))
    assert code == 2
    assert "1 image, of which no gain can be measured; add images, 20 at least" in message


def test_images_without_a_label_are_searched() -> None:
    """The gain by labels is that among all vectors, by brute force."""
    vectors, classes = with_nuisance(50, 4)
    labels = np.where(classes < 20, classes, NO_CLASS)
    found = candidates(vectors, (0.5,), ())
    gain = gain_by_labels(vectors, labels, found)
    moved = found[0][1](vectors)
    for value, embeddings in ((gain.before, vectors), (gain.after, moved)):
        cosines = embeddings @ embeddings.T
        np.fill_diagonal(cosines, -2)
        right = classes[np.argsort(-cosines[:80], axis=1)[:, :3]] == classes[:80, None]
        expected = (right * np.cumsum(right, 1) / np.arange(1, 4)).sum(1) / 3
        assert value == pytest.approx(expected.mean())
    assert gain.queries == 80


def test_products_are_the_hits() -> None:
    """The gain by labels is that of other products by their best views, by brute force."""
    vectors, classes = with_nuisance(50, 4)
    random = np.random.default_rng(3)
    products = np.where(
        classes < 40, np.repeat(np.arange(100), 2), classes + 100
    )  # the last ten are one each
    vectors[1::2] = vectors[::2] + 0.02 * random.standard_normal((100, DIM))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = candidates(vectors, (0.5,), ())
    gain = gain_by_labels(vectors, classes, found, products=products)
    assert (gain.metric, gain.queries) == ("MAP@R of products", 160)
    moved = found[0][1](vectors)
    for value, embeddings in ((gain.before, vectors), (gain.after, moved)):
        cosines, expected = embeddings @ embeddings.T, []
        for query in range(160):
            others = [one for one in np.unique(products).tolist() if one != products[query]]
            best = {one: cosines[query, products == one].max() for one in others}
            first = max(others, key=best.__getitem__)
            expected.append(
                classes[products == first][0] == classes[query]
            )  # one other product is to be found
        assert value == pytest.approx(np.mean(expected))
    assert gain.after < gain_by_labels(vectors, classes, found).after
    with pytest.raises(InputError, match="fewer than 8 classes have two products"):
        gain_by_labels(vectors, classes, found, products=classes)


def test_model_file(tmp_path: Path, model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The adapted file is written only with a proven gain, here of copies."""
    code, _, message = run(capsys, str(model_file))
    assert code == 2
    assert "needs --images DIR and --out FILE" in message
    assert "there is no such gallery or model file" in run(capsys, "nowhere")[2]
    (tmp_path / "images").mkdir()
    for number in range(30):
        draw(number, (64, 64), hue=number % 5).save(tmp_path / "images" / f"{number}.png")
    out = tmp_path / "out.onnx"
    code, facts, message = run(
        capsys, str(model_file), "--images", str(tmp_path / "images"), "--out", str(out)
    )
    assert (facts["metric"], facts["images"], facts["queries"]) == ("MRR", 30, 30)
    assert (code, out.exists()) == ((0, True) if facts["accepted"] else (1, False)), message
