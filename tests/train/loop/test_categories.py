"""Batches by category: the classes of a run's batches, and data without categories."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from retrieval import InputError
from tests.conftest import draw_classes
from train import data, settings
from train.loop.process_group import join_process_group
from train.loop.training_data import TrainingData


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV of eight classes of four images in three categories, of which one has two classes."""
    folder = draw_classes(tmp_path_factory.mktemp("data") / "shop", 8, 4)
    file = folder / "shop.csv"
    with file.open("w", newline="") as opened:
        rows = csv.writer(opened)
        rows.writerow(("path", "label", "coarse"))
        for number, of_class in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
            category = ("shoe", "shoe", "shoe", "bag", "bag", "bag", "hat", "hat")[number]
            for image in sorted(of_class.iterdir()):
                rows.writerow((image.relative_to(folder), of_class.name, category))
    return file


def of_run(folder: Path, spec: str, *words: str) -> TrainingData:
    config = settings.resolve(spec, None, ["split.validation=0", *words])
    return TrainingData(data.load(config.data), config, join_process_group("cpu"), folder)


@pytest.mark.parametrize("words", [(), ("augment.symmetries=4",), ("noise.rate=0.3",)], ids=str)
def test_batches_of_a_run_take_their_classes_from_two_categories(
    table: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Rotated classes and wrong labels keep the category of the class."""
    batch = "batch={classes: 4, per_class: 2, categories: 2}"
    run = of_run(tmp_path, f"csv:{table}", batch, *words)
    names = sorted({image.label for image in run.images})
    category = {image.label: image.coarse for image in data.load(f"csv:{table}").train}
    seen = set()
    for step in range(1, 16):
        classes = run.labels[run.batch(step)][::2]
        found = [category[names[c % len(names)]] for c in classes]
        assert sorted(found.count(one) for one in set(found)) == [2, 2]
        seen |= set(found)
    assert seen == {"shoe", "bag", "hat"}


def test_data_without_categories_is_refused(shop: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"batch\.categories: .* has no coarse label"):
        of_run(tmp_path, f"folder:{shop}", "batch={classes: 2, per_class: 2, categories: 2}")
