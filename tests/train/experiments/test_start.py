"""Training without a recipe: which one is taken, and what the user's settings do to it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.conftest import draw, draw_classes, lookalike_here
from train import data, defaults, settings
from train.data import DataSet
from train.defaults import HEADS, HeadDefault, head_default
from train.experiments import start
from train.experiments.start import LITE0, choose_start
from train.loop.run_folder import Run

BACKBONE = "timm:tf_efficientnet_lite0"


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    folder = draw_classes(tmp_path_factory.mktemp("photographs"), 3, 3, size=(90, 70), suffix="jpg")
    return data.load(f"folder:{folder}")


def grey(folder: Path, size: tuple[int, int] = (28, 28), kind: str = "png") -> DataSet:
    for hue in range(2):
        (folder / str(hue)).mkdir(parents=True)
        for seed in range(2):
            picture = draw(seed, size, hue).convert("L").convert("RGB")
            picture.save(folder / str(hue) / f"{seed}.{kind}")
    return data.load(f"folder:{folder}")


def chosen(images: DataSet, *words: str, gpu: bool = False) -> tuple[str, dict[str, Any]]:
    """Return the recipe and the changes, without those by the size of the data."""
    given = settings.parse_changes(words)
    found = choose_start(images, given, on_gpu=gpu)
    assert found.note.startswith(f"recipe {found.recipe}: ")
    of_size = head_default(len(images.train)).changes if found.recipe == "head" else {}
    return found.recipe, {
        name: value for name, value in found.changes.items() if name in given or name not in of_size
    }


def test_photographs_begin_with_the_weights_at_hand(photographs: DataSet) -> None:
    assert chosen(photographs) == ("head", dict(LITE0))
    assert chosen(photographs, gpu=True) == ("catalogue", dict(LITE0))
    hint = choose_start(photographs, {}, on_gpu=False).lines[0].rpartition("for the whole network: --set ")[2]
    whole = {**LITE0, **settings.parse_changes([hint])}
    assert chosen(photographs, hint) == ("catalogue", whole), "of the same weights: the recipe has others"
    assert settings.configure(photographs.name, "catalogue", whole).model.trainable is None
    assert chosen(photographs, "epochs=3", "model.embedding_dim=64") == (
        "head",
        {**LITE0, "epochs": 3, "model.embedding_dim": 64},
    )


@pytest.mark.parametrize(
    ("words", "recipe", "weights"),
    [
        (["model.backbone=resnet50"], "head", "imagenet"),  # of the library, not random
        ([f"model.backbone={BACKBONE}"], "head", "lite0"),
        (["model.backbone=resnet50", "model.weights=w.safetensors"], "head", "w.safetensors"),
        (["model={backbone: resnet50, weights: w.safetensors}"], "head", "w.safetensors"),
        (["model.weights=w.safetensors"], "head", "w.safetensors"),
        (["model.weights=null"], "scratch", None),
        (["model.backbone=resnet50", "model.weights=null"], "scratch", None),
        (["model.backbone=conv4"], "scratch", None),  # has no published weights
        (["model.backbone=bn-inception"], "scratch", None),
        (["model.backbone=timm:test_vit", "model.lora_rank=2"], "catalogue", "imagenet"),
        (["model.trainable=2"], "catalogue", "lite0"),
        (["model.trainable=0"], "head", "lite0"),
    ],
)
def test_backbone_and_weights_that_are_given_win(
    photographs: DataSet, words: list[str], recipe: str, weights: str | None
) -> None:
    found, changes = chosen(photographs, *words)
    assert found == recipe
    config = settings.configure("folder:x", found, changes)
    assert config.model.weights == weights
    given = [word.removeprefix("model.backbone=") for word in words if word.startswith("model.backbone=")]
    assert config.model.backbone == (given or [config.model.backbone])[0]


def test_loss_rate_and_start_are_those_of_the_size(
    photographs: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = HeadDefault(9, "few", init="pca", loss={"name": "triplet"}, lr=0.5)
    monkeypatch.setattr(defaults, "HEADS", (few, HeadDefault(None, "many", lr=0.25)))
    found = choose_start(photographs, {}, on_gpu=False)
    config = settings.configure("folder:x", found.recipe, found.changes)
    assert (config.model.init, config.loss, config.optimizer.lr) == ("pca", {"name": "triplet"}, 0.5)
    assert "optimizer.lr 0.5 for 9 images of 3 classes: few (docs/experiments.md)" in found.note
    larger = replace(photographs, train=photographs.train * 2)
    assert choose_start(larger, {}, on_gpu=False).changes["optimizer.lr"] == 0.25
    assert "optimizer.lr" not in choose_start(larger, {}, on_gpu=True).changes, "only of heads"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["optimizer.lr=0.03"], {"model.init", "loss"}),
        (["optimizer={lr: 0.03}"], {"model.init", "loss"}),
        (["loss={name: triplet}"], {"model.init", "optimizer.lr"}),
        (["loss.threshold=0.3"], {"model.init", "optimizer.lr"}),
        (["model.init=lda", "loss={name: triplet}", "optimizer.lr=1"], set()),
    ],
)
def test_what_is_stated_wins_over_the_size(photographs: DataSet, words: list[str], kept: set[str]) -> None:
    given = settings.parse_changes(words)
    found = choose_start(photographs, given, on_gpu=False)
    ours = {"model.init", "loss", "optimizer.lr"} - set(given)
    assert ours & set(found.changes) == kept
    assert {name: found.changes[name] for name in given} == given
    settings.configure("folder:x", found.recipe, found.changes)
    assert all((f"{name} " in found.note) == (name in kept) for name in ("model.init", "optimizer.lr"))


def test_the_table_and_the_recipe_say_the_same() -> None:
    """The measured default is that of the recipe, for all sizes."""
    recipe = settings.configure("folder:x", "head", {})
    for size in (1, 400, 401, 10**6):
        assert settings.configure("folder:x", "head", head_default(size).changes) == recipe
    assert [row.images for row in HEADS] == [400, None]


def test_explain_says_what_some_images_begin_with(photographs: DataSet) -> None:
    words = ("train", "--data", photographs.name, "--explain", "optimizer.lr")
    done = lookalike_here(*words, "--device", "cpu")
    assert "for 9 images of 3 classes: up to 400 images" in done.stderr
    assert "optimizer.lr = 0.001" in done.stdout
    assert "recipe" not in lookalike_here(*words, "--recipe", "head").stderr


def test_tiny_pictures_without_colour_are_learned_from_scratch(tmp_path: Path, photographs: DataSet) -> None:
    digits = grey(tmp_path / "png")
    assert chosen(digits)[0] == chosen(digits, gpu=True)[0] == "scratch"
    assert chosen(grey(tmp_path / "jpg", kind="jpg"))[0] == "scratch", "JPEG colours grey a little"
    assert chosen(digits, "model.weights=lite0")[0] == "head", "asked for"
    assert chosen(grey(tmp_path / "large", (65, 40)))[0] == "head"
    coloured = data.load(f"folder:{draw_classes(tmp_path, 2, 3)}")
    assert chosen(coloured)[0] == "head", "ImageNet's weights know colours, also of 48 pixels"
    (tmp_path / "png" / "0" / "bad.png").write_bytes(b"no picture")
    assert chosen(data.load(f"folder:{tmp_path / 'png'}"))[0] == "scratch"
    assert Image.open(photographs.train[0].path).size == (90, 70)


def test_without_weights_at_hand_the_loss_is_stated(
    photographs: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "PACKAGE", "a_package_that_nobody_has")
    monkeypatch.setattr(start, "needs", lambda _: "needs a package")
    assert chosen(photographs) == ("scratch", {})
    note = choose_start(photographs, {}, on_gpu=False).note
    assert "NO PRETRAINED WEIGHTS" in note
    assert "needs a package" in note
    assert chosen(photographs, "model.backbone=resnet50")[0] == "head", "its weights are downloaded"


def test_images_without_labels_and_teachers_have_their_recipes(tmp_path: Path, photographs: DataSet) -> None:
    folder = photographs.train[0].path.parents[1]
    assert chosen(data.load(f"images:{folder}", unlabelled=True)) == ("instances", dict(LITE0))
    assert chosen(photographs, "distill.teacher=large.onnx")[0] == "distill"


def test_choice_and_time_are_printed_first_and_the_run_repeats(tmp_path: Path, shop: Path) -> None:
    """config.yaml alone gives the same network; a recipe that is given is not chosen for."""
    words = [word for text in ("epochs=2", "preprocess.size=32") for word in ("--set", text)]
    source = ["train", "--data", f"folder:{shop}"]
    first = lookalike_here(*source, "--out", str(tmp_path / "a"), *words).stderr.splitlines()
    assert first[0].startswith("recipe head: EfficientNet-Lite0 with ImageNet weights")
    assert any(line.startswith("about 5 seconds") for line in first[2:6])
    run = Run.open(tmp_path / "a")
    why = (run.folder / "config.yaml").read_text().splitlines()[0]
    assert why == f"# {first[0]}; {first[1]}"
    assert max(map(len, first)) < 260, "three lines of a terminal"
    assert "images of 3 classes: up to 400 images" in why
    assert (run.config.model.backbone, run.config.model.trainable) == (BACKBONE, 0)
    assert (run.config.model.embedding_dim, run.config.preprocess.size) == (1280, 32)
    again = ("--recipe", str(tmp_path / "a" / "config.yaml"), "--out", str(tmp_path / "b"))
    assert "recipe head:" not in lookalike_here("train", *again).stderr
    ours, theirs = (Run.open(tmp_path / name).trained("best").state_dict() for name in "ab")
    assert all(value.equal(theirs[name]) for name, value in ours.items())
