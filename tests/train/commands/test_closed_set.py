"""Commands on a closed set: held-out images, wrong labels and the linear probe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from retrieval import InputError
from tests.conftest import draw_classes, lookalike_here
from train import settings
from train.data import load
from train.experiments.linear_probe import check_before_training

SMALL = ["preprocess.size=24", "model.embedding_dim=8", "batch.classes=3", "batch.per_class=4", "epochs=1"]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Four classes, six training images and three test images of each."""
    folder = tmp_path_factory.mktemp("closed")
    draw_classes(folder / "train", 4, 6)
    draw_classes(folder / "test", 4, 3, first=50)
    return f"folder:{folder}"


def changes(*more: str) -> list[str]:
    return [word for setting in (*SMALL, *more) for word in ("--set", setting)]


@pytest.fixture(scope="module")
def run(closed: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that holds out two images of every class and learns from wrong labels."""
    folder = tmp_path_factory.mktemp("runs") / "closed"
    more = ["split.by=images", "split.validation=0.34", "noise.rate=0.5", "linear_probe=noisy"]
    lookalike_here("train", "--recipe", "scratch", "--data", closed, "--out", str(folder), *changes(*more))
    return folder


def test_train_prints_the_probe_of_the_held_out_images(run: Path) -> None:
    printed = lookalike_here("train", "--out", str(run), "--resume").stdout
    facts = json.loads(lookalike_here("train", "--out", str(run), "--resume", "--json").stdout)
    assert (facts["validation_images"], facts["validation_classes"]) == (8, 4)
    assert facts["linear_probe_labels"] == "noisy"
    assert 8 * facts["linear_probe"] == pytest.approx(round(8 * facts["linear_probe"]))
    assert "MAP@R on 8 held-out images of 4 classes" in printed
    assert ("the start is kept" in printed) == (facts["best_epoch"] == 0)
    assert f"linear probe from noisy labels, on the same images: {facts['linear_probe']:.3f}" in printed


def test_train_without_held_out_images_says_where_the_probe_is_measured(closed: str, tmp_path: Path) -> None:
    words = changes("split.validation=0", "linear_probe=clean", "epochs=0")
    done = lookalike_here(
        "train", "--recipe", "scratch", "--data", closed, "--out", str(tmp_path / "run"), *words
    )
    assert "`lookalike evaluate` measures the linear probe, on the test images" in done.stdout


@pytest.mark.parametrize(
    ("words", "which"),
    [
        ([], "noisy labels of the run (symmetric, rate 0.5)"),
        (["--linear-probe"], "true labels"),
        (["--linear-probe", "clean"], "true labels"),
        (["--linear-probe", "noisy"], "noisy labels of the run"),
    ],
)
def test_evaluate_learns_from_the_labels_asked_for(
    run: Path, closed: str, words: list[str], which: str
) -> None:
    report = json.loads(lookalike_here("evaluate", str(run), "--data", closed, *words, "--json").stdout)
    assert all(0 <= result["values"]["linear_probe"] <= 1 for result in report["results"])
    (note,) = (note for note in report["notes"] if "linear probe" in note)
    assert which in note
    assert "16 training images" in note, "two of six of every class are held out"


def test_a_probe_that_cannot_be_measured_is_refused_before_training(closed: str, shop: Path) -> None:
    data = f"folder:{shop}"
    with pytest.raises(InputError, match="a linear probe needs training images apart from the test images"):
        check_before_training(settings.resolve(data, None, ["linear_probe=clean"]), load(data))
    for specification, split in ((closed, "classes"), (data, "images")):
        config = settings.resolve(specification, None, ["linear_probe=clean", f"split.by={split}"])
        check_before_training(config, load(specification))


def test_noisy_labels_need_noise() -> None:
    with pytest.raises(InputError, match=r"linear_probe: noisy labels need noise\.rate above 0; set it, or"):
        settings.resolve("digits", None, ["linear_probe=noisy"])
