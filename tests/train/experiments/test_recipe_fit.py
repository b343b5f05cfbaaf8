"""Rows of the papers' tables on data that they do not fit: one sentence with recipe, data and remedy."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from retrieval import InputError
from tests.conftest import lookalike_here
from train import recipes, settings
from train.config import Published
from train.data import DataSet, LabelledImage
from train.experiments import recipe_fit
from train.experiments.recipe_fit import check_recipe_fits

ASYMMETRIC = "dcdl/table1/trip-asym01-cifar10"
PAIRS = "symm/table2/symm-n-pair-cars196"


def data_set(classes: int, images: int, *, closed: bool = True) -> DataSet:
    """A data set without files, whose test classes are those of training if it is closed."""
    train, test = (
        [
            LabelledImage(Path(f"{split}{c}-{i}"), f"{prefix}{c}")
            for c in range(classes)
            for i in range(images)
        ]
        for split, prefix in (("train", "class"), ("test", "class" if closed else "new"))
    )
    return DataSet("folder:mine", train, test)


def check(recipe: str, dataset: DataSet, *changes: str) -> None:
    check_recipe_fits(recipe, settings.resolve(dataset.name, recipe, changes), dataset)


@pytest.mark.parametrize(
    ("recipe", "dataset", "message", "remedy"),
    [
        (
            PAIRS,
            data_set(10, 4),
            f"recipe {PAIRS}@paper: its batches are of 64 classes, and folder:mine has 10 to train on; "
            "use --data cars196:ROOT, or set batch.classes=10",
            "batch.classes=10",
        ),
        (
            PAIRS,
            data_set(70, 1),
            f"recipe {PAIRS}@paper: its batches have 2 images of each class, and no class of folder:mine "
            "has more than 1 to train on; use --data cars196:ROOT, or add images",
            None,
        ),
        (
            ASYMMETRIC,
            data_set(10, 20),
            f"recipe {ASYMMETRIC}: asymmetric noise needs the list of classes that are mistaken for each "
            "other, and folder:mine has none; use --data cifar10:ROOT, or set noise.kind=symmetric",
            "noise.kind=symmetric",
        ),
        (
            "dcdl/table4/trip-clean-cifar10",
            data_set(10, 20, closed=False),
            "recipe dcdl/table4/trip-clean-cifar10: folder:mine: a linear probe needs a closed set, where "
            "the test classes are those of training; the training images have none of class 'new0'; "
            "set linear_probe=null, or hold out images with split.by=images and split.validation=0.1",
            "linear_probe=null",
        ),
    ],
    ids=["classes", "images", "transitions", "open set"],
)
def test_unsuitable_data_is_refused_with_a_remedy_that_works(
    recipe: str, dataset: DataSet, message: str, remedy: str | None
) -> None:
    with pytest.raises(InputError) as error:
        check(recipe, dataset)
    assert str(error.value) == message
    if remedy is not None:
        check(recipe, dataset, remedy)


def test_recall_by_coarse_label_needs_a_second_label(monkeypatch: pytest.MonkeyPatch) -> None:
    row = dataclasses.replace(
        recipes.find_row(PAIRS), data="hotels50k", published=Published(source="x", coarse_recall={1: 50})
    )
    monkeypatch.setattr(recipe_fit, "find_row", lambda name: row)
    dataset = data_set(70, 4)
    with pytest.raises(InputError, match="Recall@K by hotel chain, and folder:mine has no second label"):
        check(PAIRS, dataset)
    check(PAIRS, dataclasses.replace(dataset, coarse_name="coarse label"))


def test_other_recipes_take_any_data() -> None:
    check("catalogue", data_set(2, 1))
    check_recipe_fits(None, settings.resolve("folder:mine", None, []), data_set(2, 1))


def test_commands_refuse_before_training(shop: Path, tmp_path: Path) -> None:
    words = ["--data", f"folder:{shop}", "--recipe", PAIRS, "--out", str(tmp_path / "out")]
    for command in (["train"], ["sweep", "--variant", "one", "--seeds", "2"]):
        error = lookalike_here(*command, *words, code=2).stderr
        assert "its batches are of 64 classes" in error
        assert not (tmp_path / "out").exists()


def test_classes_held_out_do_not_count() -> None:
    dataset = data_set(66, 4)
    check(PAIRS, dataset)
    with pytest.raises(InputError, match="folder:mine has 59 to train on"):
        check(PAIRS, dataset, "split.validation=0.1")
