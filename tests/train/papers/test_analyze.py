"""`lookalike analyze`: figures of a run, a model, a gallery and an .npz file, by the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import click
import numpy as np
import pytest

from retrieval import Embedder, Gallery
from retrieval.analysis.embeddings import Embeddings
from retrieval.analysis.triplets import triplets
from tests.conftest import lookalike_here
from train.papers.analyze import analyze


def analyze_here(*words: object, code: int = 0) -> tuple[str, str]:
    """Run `lookalike analyze` in this process; return stdout and stderr."""
    done = lookalike_here("analyze", *map(str, words), code=code)
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> str:
    """--data of the shop with two splits: red and green for training, all three classes for testing."""
    folder = tmp_path_factory.mktemp("splits")
    for split, names in (("train", ("red", "green")), ("test", ("red", "green", "blue"))):
        for name in names:
            shutil.copytree(shop / name, folder / split / name)
    return f"folder:{folder}"


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, shop: Path, model_file: Path) -> Path:
    made = Gallery.create(tmp_path_factory.mktemp("g") / "shop.gallery", model_file)
    made.add([shop])
    return made.folder


def is_svg(file: Path) -> bool:
    return ElementTree.parse(file).getroot().tag.endswith("svg")


def test_help_of_every_command_starts_with_its_line_in_the_list() -> None:
    context = click.Context(analyze)
    for name in analyze.list_commands(context):
        command = analyze.get_command(context, name)
        assert command is not None
        listed = analyze._lazy[name][1]  # type: ignore[attr-defined]
        assert (command.help or "").split("\n\n")[0].replace("\n", " ") == listed
        assert f" {name}" in (analyze.help or "") or name == "embed"


def test_run_model_and_gallery_give_the_same_embeddings(
    tmp_path: Path, untrained_run: Path, model_file: Path, gallery: Path, shop: Path
) -> None:
    data = ("--data", f"folder:{shop}")
    for name, words in {
        "run": (untrained_run, *data),
        "untrained": (untrained_run, "--untrained", *data),  # trained for 0 epochs: the same
        "model": (model_file, *data),
        "gallery": (gallery,),
        "again": (gallery, *data),
    }.items():
        analyze_here("embed", *words, "--out", tmp_path / f"{name}.npz")
    files = {name: Embeddings.load(tmp_path / f"{name}.npz") for name in ("run", "untrained", "model")}
    files |= {name: Embeddings.load(tmp_path / f"{name}.npz") for name in ("gallery", "again")}
    images = sorted(map(str, shop.glob("*/*.png")))
    expected = dict(zip(images, Embedder(model_file).embed(images), strict=True))
    for name, found in files.items():
        assert found.paths is not None
        assert sorted(found.paths) == images, name
        assert [Path(path).parent.name for path in found.paths] == found.labels.tolist()
        np.testing.assert_allclose(found.vectors, [expected[path] for path in found.paths], atol=1e-5)


def test_triplets_of_both_splits_before_and_after(tmp_path: Path, untrained_run: Path, splits: str) -> None:
    out = tmp_path / "t.svg"
    words = ("triplets", untrained_run, "--data", splits, "--baseline", "untrained", "--out", out, "--png")
    printed, said = analyze_here(*words, "--json")
    facts = json.loads(printed)
    assert {split: [state["images"] for state in states] for split, states in facts.items()} == {
        "train": [16, 16],
        "test": [24, 24],
    }
    analyze_here("embed", untrained_run, "--data", splits, "--split", "train", "--out", tmp_path / "e.npz")
    share = triplets(Embeddings.load(tmp_path / "e.npz")).hard_share
    assert facts["train"][1]["hard_share"] == share
    assert [state["name"] for state in facts["test"]] == ["before training", "untrained"]
    assert is_svg(out)
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert f"written: {out}, {out.with_suffix('.png')}" in said
    first = out.read_bytes()
    assert "\ntest images " in analyze_here(*words)[0]
    assert out.read_bytes() == first


def test_triplets_of_several_sources_are_side_by_side(
    tmp_path: Path, untrained_run: Path, model_file: Path, splits: str
) -> None:
    words = ("triplets", untrained_run, model_file, "--data", splits, "--out", tmp_path / "t.svg")
    facts = json.loads(analyze_here(*words, "--json")[0])
    assert {split: len(states) for split, states in facts.items()} == {"train": 2, "test": 2}
    assert facts["test"][0]["hard_share"] == facts["test"][1]["hard_share"]
    drawn = (tmp_path / "t.svg").read_text()
    for title in ("untrained, train images", "model, test images"):
        assert f"<!-- {title} -->" in drawn
    facts = json.loads(analyze_here(*words, "--strategies", "--json")[0])
    assert [len(one["strategies"]) for one in facts["train"]] == [5, 5]


def test_triplets_of_two_sources_of_the_same_images_as_moves(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in ("before", "after"):
        labels = np.array(["a", "a", "b", "b"])
        Embeddings(name, random.normal(size=(4, 3)), labels).save(tmp_path / f"{name}.npz")
    files = (tmp_path / "before.npz", tmp_path / "after.npz")
    facts = json.loads(analyze_here("triplets", *files, "--moves", "--out", tmp_path / "t.svg", "--json")[0])
    assert [state["name"] for state in facts["all"]] == ["before", "after"]
    assert "Quiver" in (tmp_path / "t.svg").read_text()


def test_examples_before_and_after(tmp_path: Path, untrained_run: Path, splits: str) -> None:
    out = tmp_path / "e.svg"
    words = ("examples", untrained_run, "--data", splits, "--count", 2, "--out", out, "--negative", "hard")
    facts = json.loads(analyze_here(*words, "--negative", "semi-hard", "--json")[0])
    assert [len(one["selected"]) for one in facts] == [3, 3]
    assert facts[0]["label"] != facts[1]["label"]
    anchor = facts[1]["path"]
    again = json.loads(analyze_here(*words, "--anchor", anchor, "--baseline", "untrained", "--json")[0])
    assert [one["path"] for one in again] == [anchor]
    # Trained for 0 epochs, so the selected images are the same.
    before, after = again[0]["selected"][:2], again[0]["selected"][2:]
    assert [{**image, "model": "untrained"} for image in before] == after == facts[1]["selected"][:2]
    assert is_svg(out)
    assert "hard negative" in analyze_here(*words)[0]


def test_spectrum_of_several_targets(tmp_path: Path, model_file: Path, gallery: Path, shop: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        analyze_here("embed", gallery, "--out", tmp_path / name / "e.npz")
    targets = (tmp_path / "one" / "e.npz", tmp_path / "two" / "e.npz")
    printed, _ = analyze_here("spectrum", *targets, "--out", tmp_path / "s.svg", "--json")
    facts = json.loads(printed)
    assert [found["name"] for found in facts] == ["one", "two"]  # the parts of their paths that differ
    assert facts[0]["effective_rank"] == facts[1]["effective_rank"]
    assert set(facts[0]["classes"]) == {"red", "green", "blue"}
    assert is_svg(tmp_path / "s.svg")
    table, _ = analyze_here("spectrum", model_file, "--data", f"folder:{shop}", "--out", tmp_path / "s.svg")
    assert table.splitlines()[1].startswith("model ")


def test_tsne_of_a_gallery(tmp_path: Path, gallery: Path) -> None:
    out = tmp_path / "made" / "map.svg"
    printed, _ = analyze_here("tsne", gallery, "--class", "red", "--limit", 20, "--out", out, "--json")
    facts = json.loads(printed)
    assert (len(facts["points"]), facts["total"]) == (20, 24)
    assert is_svg(out)
    assert out.with_suffix(".html").read_text().count("data:image/webp;base64,") == 20


def test_heatmap_of_a_query_and_its_results(tmp_path: Path, model_file: Path, shop: Path) -> None:
    images = (shop / "red" / "0.png", shop / "blue" / "1.png", shop / "red" / "2.png")
    words = ("heatmap", model_file, *images, "--out", tmp_path / "h.svg")
    facts = json.loads(analyze_here(*words, "--json")[0])
    query, *results = Embedder(model_file).embed(images)
    for pair, result, file in zip(facts, results, images[1:], strict=True):
        assert pair["cosine"] == pytest.approx(float(query @ result), abs=1e-6)
        assert pair["result"]["path"] == str(file)
        for side in ("query", "result"):
            assert np.sum(pair[side]["contributions"]) == pytest.approx(pair["cosine"], abs=1e-5)
            assert 1 <= pair[side]["effective_locations"] <= np.size(pair[side]["contributions"])
    assert is_svg(tmp_path / "h.svg")
    assert f"{facts[0]['cosine']:.4f}" in analyze_here(*words)[0]


def test_unreadable_images_are_listed_and_left_out(tmp_path: Path, model_file: Path, shop: Path) -> None:
    shutil.copytree(shop, tmp_path / "shop")
    (tmp_path / "shop" / "red" / "0.png").write_bytes(b"not an image")
    words = (model_file, "--data", f"folder:{tmp_path / 'shop'}", "--out", tmp_path / "e.npz")
    _, said = analyze_here("embed", *words, code=3)
    assert f"left out: {tmp_path / 'shop' / 'red' / '0.png'}: it is not a" in said
    assert len(Embeddings.load(tmp_path / "e.npz")) == 23


def test_a_run_is_embedded_with_its_own_data(tmp_path: Path, untrained_run: Path, shop: Path) -> None:
    ours, given = tmp_path / "ours.npz", tmp_path / "given.npz"
    analyze_here("embed", untrained_run, "--out", ours)
    analyze_here("embed", untrained_run, "--data", f"folder:{shop}", "--out", given)
    assert np.array_equal(Embeddings.load(ours).vectors, Embeddings.load(given).vectors)
    other = tmp_path / "other"
    shutil.copytree(untrained_run, other)
    settings = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(settings.replace(f"folder:{shop}", "digits"))
    _, said = analyze_here("triplets", untrained_run, other, "--out", tmp_path / "x.svg", code=2)
    assert f"its data is digits, not folder:{shop} as before it; give --data" in said


def test_unusable_input_is_one_line_and_exit_code_2(
    tmp_path: Path, model_file: Path, shop: Path, gallery: Path, splits: str
) -> None:
    data, out = ("--data", f"folder:{shop}"), ("--out", tmp_path / "x.svg")
    some = tmp_path / "some.npz"
    Embeddings("x", np.eye(4), np.array(["a", "a", "b", "b"])).save(some)
    Embeddings("x", np.eye(4), np.array(["a", "b", "b", "a"])).save(tmp_path / "other.npz")
    for words, why in (
        (("triplets", tmp_path / "none", *out), "there is no such run, model, gallery or .npz file"),
        (("triplets", model_file, *out), "a model needs images to embed; give --data"),
        (("triplets", some, *data, *out), "--data is for runs and models"),
        (("triplets", some, "--baseline", "untrained", *out), "--baseline is for runs and models"),
        (("triplets", model_file, *data, "--split", "train", *out), "has no splits"),
        (("triplets", *[some] * 5, *out), "at most 4"),
        (("triplets", some, "--moves", *out), "give two sources"),
        (("triplets", some, some, "--moves", "--strategies", *out), "leave out --baseline and --moves"),
        (("triplets", some, model_file, *out), "a model needs images to embed; give --data"),
        (("triplets", some, tmp_path / "other.npz", "--moves", *out), "not of the same images in the same"),
        (("triplets", some, "--out", tmp_path / "x.pdf"), "call it x.svg"),
        (("selection", model_file, "--data", splits, "--split", "both", *out), "'both' is not one of"),
        (("examples", model_file, "--data", splits, "--split", "both", *out), "choose train or test"),
        (("embed", gallery, "--out", tmp_path / "x.txt"), "call it x.npz"),
        (("heatmap", gallery, shop, shop, *out), "a folder, not a model file"),
        (("heatmap", gallery, *[shop] * 7, *out), "at most 5"),
        (("heatmap", model_file, some, some, *out), "it is not a JPEG"),
    ):
        printed, said = analyze_here(*words, code=2)
        assert printed == ""
        assert why in said
        assert said.startswith("lookalike: ")
        assert len(said.splitlines()) == 1
    assert not (tmp_path / "x.svg").exists()


def test_gallery_without_labels_is_refused(tmp_path: Path, shop: Path, model_file: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    shutil.copy(shop / "red" / "0.png", loose)
    made = Gallery.create(tmp_path / "g", model_file)
    assert "none of its images has a label" in analyze_here("tsne", made.folder, "--out", "x.svg", code=2)[1]


@pytest.fixture(scope="module")
def kept_run(tmp_path_factory: pytest.TempPathFactory, splits: str) -> Path:
    """A run of six steps with the checkpoints of steps 0, 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    words = ["epochs=3", "batch.per_epoch=2", "batch.classes=2", "preprocess.size=24", "checkpoints.every=2"]
    settings = [word for text in words for word in ("--set", text)]
    lookalike_here("train", "--recipe", "scratch", "--data", splits, "--out", str(folder), *settings)
    return folder


def test_kept_checkpoints_are_sources_of_their_own(tmp_path: Path, kept_run: Path, splits: str) -> None:
    """Embeddings of one by --which, and all of them side by side, against those of the evaluation."""
    for step in (0, 4):
        words = (kept_run, "--data", splits, "--out", tmp_path / f"{step}.npz")
        analyze_here("embed", *words, "--which", f"step-{step}")
    before, after = (Embeddings.load(tmp_path / f"{step}.npz").vectors for step in (0, 4))
    untrained = tmp_path / "untrained.npz"
    analyze_here("embed", kept_run, "--data", splits, "--untrained", "--out", untrained)
    np.testing.assert_allclose(before, Embeddings.load(untrained).vectors, atol=1e-6)
    assert np.abs(after - before).max() > 1e-3
    words = (kept_run, "--data", splits, "--out", tmp_path / "figure.svg", "--json")
    every = json.loads(analyze_here("spectrum", *words, "--every-checkpoint")[0])
    assert [one["name"] for one in every] == ["step 0", "step 2", "step 4", "step 6"]
    two = json.loads(analyze_here("spectrum", *words, "--which", "0", "--which", "4")[0])
    assert two == [every[0], every[2]]


def test_checkpoints_that_do_not_exist_are_refused(
    tmp_path: Path, kept_run: Path, untrained_run: Path, splits: str, gallery: Path
) -> None:
    words = ("--data", splits, "--out", tmp_path / "figure.svg")
    refused = analyze_here("spectrum", kept_run, *words, "--which", "5", code=2)[1]
    assert "no such checkpoint: 5; it has best and last, and those of steps 0, 2, 4, 6" in refused
    none = analyze_here("spectrum", untrained_run, *words, "--every-checkpoint", code=2)[1]
    assert "kept no checkpoints; train with checkpoints.every" in none
    other = analyze_here("spectrum", gallery, "--out", tmp_path / "figure.svg", "--which", "5", code=2)[1]
    assert "--which and --every-checkpoint are for runs" in other


def test_synthetic_curves_are_those_of_each_checkpoint(tmp_path: Path, kept_run: Path, splits: str) -> None:
    """Recall@1 over the steps for both splits, against the figure of a single checkpoint."""
    words = (kept_run, "--data", splits, "--out", tmp_path / "figure.svg", "--json")
    curves = json.loads(analyze_here("synthetic", *words, "--split", "both", "--every-checkpoint")[0])
    assert [(curve["split"], curve["steps"]) for curve in curves] == [
        ("train", [0, 2, 4, 6]),
        ("test", [0, 2, 4, 6]),
    ]
    (one,) = json.loads(analyze_here("synthetic", *words, "--split", "train", "--which", "4")[0])
    for name, values in curves[0]["recall_at_1"].items():
        assert values[2] == one["recall"][name]["1"]
    panels = json.loads(analyze_here("synthetic", *words, "--baseline", "untrained")[0])
    assert [panel["name"] for panel in panels] == ["before training", "run"]
    refused = analyze_here("synthetic", *words, "--baseline", "untrained", "--every-checkpoint", code=2)[1]
    assert "before training: not a checkpoint of a run" in refused


def test_maps_of_checkpoints_with_synthetic_points(tmp_path: Path, kept_run: Path, splits: str) -> None:
    """The same images at each step, each class's pairs twice, and no page; a page for one checkpoint."""
    words = (kept_run, "--data", splits, "--split", "train", "--synthetic", "symmetric", "--json")
    out = ("--out", tmp_path / "maps.svg")
    found = json.loads(analyze_here("tsne", *words, *out, "--which", "0", "--which", "6")[0])
    assert [one["name"] for one in found] == ["step 0", "step 6"]
    assert found[0]["paths"] == found[1]["paths"]
    assert [sum(one["synthetic"]) for one in found] == [16, 16]
    assert found[0]["points"] != found[1]["points"]
    assert not (tmp_path / "maps.html").exists()
    analyze_here("tsne", *words, *out, "--which", "6")
    assert (tmp_path / "maps.html").exists()
    for name in ("cats", "dogs"):
        Embeddings(name, np.eye(8), np.array([f"{name} {i}" for i in range(8)])).save(
            tmp_path / f"{name}.npz"
        )
    refused = analyze_here("tsne", tmp_path / "cats.npz", tmp_path / "dogs.npz", *out, code=2)[1]
    assert "dogs: has other classes than cats, and maps side by side share their colors" in refused
