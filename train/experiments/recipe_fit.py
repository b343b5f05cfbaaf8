"""Checks before training that a data set fits the row of a paper's table.

A row may be run on other data than its own. Settings that would silently become another experiment there are
refused: a batch larger than the data, a list of wrong classes or a second label level that does not exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from retrieval.errors import InputError
from train.config import Config
from train.data import KNOWN, DataSet
from train.data.splits import divide
from train.experiments.linear_probe import check_before_training
from train.recipes import RecipeRow, find_row, recipe_file


def check_recipe_fits(recipe: str | None, config: Config, dataset: DataSet) -> None:
    """Check that training can follow a recipe on a data set.

    Any data fits a recipe that is no row of a table.

    Args:
        recipe: Name of a recipe or of a row, or a YAML file; `None` for none.
        config: Settings of the recipe, with changes.
        dataset: Data to train on.

    Raises:
        InputError: The data does not fit; the message names recipe, data and a remedy.
    """
    if recipe is None or recipe_file(recipe) is not None:
        return
    row = find_row(recipe)
    try:
        check_before_training(config, dataset)
    except InputError as error:
        raise InputError(f"recipe {row.name}: {error}") from error
    for problem in _problems(row, config, dataset):
        raise InputError(f"recipe {row.name}: {problem}")


def _problems(row: RecipeRow, config: Config, dataset: DataSet) -> Iterator[str]:
    """Yield what prevents training, each with a remedy."""
    own = f"--data {row.data}:ROOT"
    if row.published and row.published.coarse_recall and dataset.coarse_name is None:
        yield (
            f"reports Recall@K by {KNOWN[row.data].coarse_name}, and {dataset.name} has no second label; use "
            f"{own}, or a CSV file with a column coarse"
        )
    if config.noise.rate and config.noise.kind == "asymmetric" and not dataset.transitions:
        yield (
            "asymmetric noise needs the list of classes that are mistaken for each other, and "
            f"{dataset.name} has none; use {own}, or set noise.kind=symmetric"
        )
    batch = config.batch
    sizes = Counter(image.label for image in divide(dataset, config).clean)
    classes, images = len(sizes) * config.augment.symmetries, max(sizes.values(), default=0)
    if classes < batch.classes:
        smaller = f"set batch.classes={classes}" if classes > 1 else "add classes"
        yield (
            f"its batches are of {batch.classes} classes, and {dataset.name} has {classes} to train on; use "
            f"{own}, or {smaller}"
        )
    if images < batch.per_class:
        smaller = f"set batch.per_class={images}" if images > 1 else "add images"
        yield (
            f"its batches have {batch.per_class} images of each class, and no class of {dataset.name} has "
            f"more than {images} to train on; use {own}, or {smaller}"
        )
