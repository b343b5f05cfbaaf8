"""Every kind of recipe of the papers takes two steps on a small tree in the layout of its data set.

For speed, the backbone is conv4, images are small, batches are at most 8 classes x 4 images, and recipes that
differ only in data set, label noise or numbers are represented by one of them. One step at full size runs for
each backbone, with random weights.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io

from tests.conftest import draw
from train import data, recipes, settings
from train.config import Config
from train.data import DataSet
from train.data.classes import CIFAR10_TRANSITIONS, CIFAR100_SUPER_CLASSES, STL10_TRANSITIONS
from train.loop.run_folder import Run
from train.loop.trainer import Trainer

ROWS = [row for row in recipes.all_rows() if row.reason is None]
CLASSES, IMAGES, SIZE = 8, 4, 16  # of a small tree, and of its batches


# ---- small trees


def write_images(files: Iterable[Path]) -> None:
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        draw(number, (20, 16), hue=number // IMAGES).save(file)


def numbered(classes: Iterable[Any], images: int = IMAGES) -> list[tuple[Any, int]]:
    """Classes with the numbers of their images."""
    return [(name, number) for name in classes for number in range(images)]


def cub200(root: Path, tested: Iterable[int] = (101,), images: int = IMAGES) -> None:
    home = root / "CUB_200_2011"
    every = numbered([*range(1, CLASSES + 1), *tested], images)
    found = [(species, f"{species:03d}.x/{i}.jpg") for species, i in every]
    write_images(home / "images" / name for _, name in found)
    (home / "images.txt").write_text("".join(f"{i} {name}\n" for i, (_, name) in enumerate(found)))
    (home / "image_class_labels.txt").write_text("".join(f"{i} {s}\n" for i, (s, _) in enumerate(found)))


def cars196(root: Path, tested: Iterable[int] = (99,), images: int = IMAGES) -> None:
    every = numbered([*range(1, CLASSES + 1), *tested], images)
    found = [(f"car_ims/{model}_{i}.jpg", model) for model, i in every]
    write_images(root / name for name, _ in found)
    annotations = np.array(found, [("relative_im_path", object), ("class", object)])
    names = np.array([f"Make {number}" for number in range(1, 197)], object)
    scipy.io.savemat(root / "cars_annos.mat", {"annotations": annotations, "class_names": names})


def sop(root: Path) -> None:
    home = root / "Stanford_Online_Products"
    for split, products in (("train", range(1, CLASSES + 1)), ("test", [11_319])):
        found = [(product, f"chair_final/{product}_{i}.JPG") for product, i in numbered(products)]
        write_images(home / name for _, name in found)
        lines = [f"{i} {product} 1 {name}" for i, (product, name) in enumerate(found)]
        (home / f"Ebay_{split}.txt").write_text("\n".join(["image_id class_id super_class_id path", *lines]))


def inshop(root: Path) -> None:
    found = [(f"img/id_{item}/{i}.jpg", f"id_{item}", "train") for item, i in numbered(range(CLASSES))]
    found += [("img/id_99/1.jpg", "id_99", "query"), ("img/id_99/2.jpg", "id_99", "gallery")]
    write_images(root / name for name, _, _ in found)
    lines = [str(len(found)), "image_name item_id evaluation_status", *map(" ".join, found)]
    (root / "list_eval_partition.txt").write_text("\n".join(lines))


def hotels50k(root: Path) -> None:
    hotels = numbered(range(CLASSES))
    write_images(root / f"images/train/{hotel % 2}/{hotel}/travel_website/{i}.jpg" for hotel, i in hotels)
    write_images([root / "images/test/unoccluded/1/1/traffickcam/1.jpg"])


def by_folder(classes: Iterable[str]) -> Callable[[Path], None]:
    return lambda root: write_images(
        root / split / name / f"{i}.png" for split in ("train", "test") for name, i in numbered(classes)
    )


TREES: dict[str, Callable[[Path], None]] = {
    "cub200": cub200,
    "cars196": cars196,
    "sop": sop,
    "inshop": inshop,
    "hotels50k": hotels50k,
    "cifar10": by_folder({*CIFAR10_TRANSITIONS, *CIFAR10_TRANSITIONS.values()}),
    "cifar100-20": by_folder([fine[0] for fine in CIFAR100_SUPER_CLASSES.values()][:CLASSES]),
    "stl10": by_folder({*STL10_TRANSITIONS, *STL10_TRANSITIONS.values()}),
}


@pytest.fixture(scope="module")
def data_sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataSet]:
    """Small data sets, loaded by name as published ones are, without the check of their size."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, write in TREES.items():
            root = tmp_path_factory.mktemp(name)
            write(root)
            patch.setitem(data.KNOWN, name, dataclasses.replace(data.KNOWN[name], counts={}))
            found[name] = data.load(f"{name}:{root}")
    return found


# ---- steps


def outline(value: Any) -> Any:
    """Settings with every number replaced by whether it is 0: the size of a number changes no code path."""
    if isinstance(value, dict):
        return {key: outline(part) for key, part in value.items()}
    if isinstance(value, list):
        return [outline(part) for part in value]
    return value != 0 if isinstance(value, int | float) else value


def representatives() -> list[str]:
    """Rows whose settings differ in more than numbers, on all data sets and with all kinds of label noise."""
    found: dict[str, str] = {}
    for row in ROWS:
        values = dict(row.settings)
        noise = values.pop("noise", {})
        for key in (values.pop("data"), noise.get("kind")), outline(values):
            found.setdefault(json.dumps(key), row.name)
    return list(dict.fromkeys(found.values()))


def two_steps(config: Config, dataset: DataSet, folder: Path) -> list[dict[str, Any]]:
    Trainer(Run.start(folder, config), dataset).train()
    return [record for record in Run.open(folder).metrics() if "loss" in record]


def shrunk(name: str, dataset: DataSet) -> Config:
    """The recipe on a small data set, with the changes that the docstring of this module names."""
    own = settings.resolve(dataset.name, name, [])
    scale = SIZE / own.preprocess.size
    resize, augment_resize = (
        side and math.ceil(side * scale) for side in (own.preprocess.resize, own.augment.resize)
    )
    changes = {
        "model.backbone": "conv4",
        "model.weights": None,
        "preprocess.size": SIZE,
        "preprocess.resize": resize,
        "augment.resize": augment_resize,
        "augment.padding": math.ceil(own.augment.padding * scale),
        "batch.classes": min(own.batch.classes, CLASSES),
        "batch.per_class": min(own.batch.per_class, IMAGES),
        "batch.chunk": own.batch.chunk and 8,
        "batch.per_epoch": 2,
        "mic.clusters": own.mic.clusters and min(own.mic.clusters, CLASSES),
        "epochs": 1,
        "loader.workers": 0,
        "device": "cpu",
    }
    return settings.configure(dataset.name, name, changes)


def test_every_data_set_of_the_recipes_has_a_tree() -> None:
    assert {row.data for row in ROWS} <= TREES.keys()


@pytest.mark.parametrize("name", representatives())
def test_recipe_takes_two_steps(name: str, data_sets: dict[str, DataSet], tmp_path: Path) -> None:
    dataset = data_sets[recipes.find_row(name).data]
    (record,) = two_steps(shrunk(name, dataset), dataset, tmp_path / "run")
    assert record["step"] == 2
    assert math.isfinite(record["loss"])


BACKBONES = {row.settings["model"]["backbone"]: row for row in reversed(ROWS)}


@pytest.mark.slow
@pytest.mark.parametrize("backbone", sorted(BACKBONES))
def test_step_at_full_size(backbone: str, data_sets: dict[str, DataSet], tmp_path: Path) -> None:
    """Random weights, and a batch of two pairs."""
    row = BACKBONES[backbone]
    changes = {"model.weights": None, "batch.classes": 2, "batch.per_class": 2, "batch.chunk": None}
    length = {"batch.per_epoch": 1, "epochs": 1, "loader.workers": 0, "device": "cpu"}
    dataset = data_sets[row.data]
    config = settings.configure(dataset.name, row.name, {**changes, **length})
    (record,) = two_steps(config, dataset, tmp_path / "run")
    assert math.isfinite(record["loss"])
