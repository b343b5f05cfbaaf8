"""Data sets of the experiments, from the archives that a reader has: images in folders, lists as CSV files.

An archive is a zip file with one folder per class: Cars196 with the class number first in the folder name
(001 to 196), the birds, furniture by type, CIFAR-100 as train/CLASS and test/CLASS, Omniglot as
images_background/ALPHABET__CHARACTER and images_evaluation/ALPHABET__CHARACTER.
"""

from __future__ import annotations

import csv
import random
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from retrieval.errors import InputError
from train.data.classes import CIFAR100_SUPER_CLASS, CIFAR100_SUPER_CLASSES

_CARS_TRAIN = 98  # of 196 classes, in the order of their numbers
_OMNIGLOT = {"images_background": "train", "images_evaluation": "test"}
_TRAINED_SUBCLASSES = 3  # of the 5 of a CIFAR-100 super-class
_SUFFIXES = {".jpg", ".png"}
DIVISIONS = 5


class Row(NamedTuple):
    """One line of a data set's CSV file."""

    path: str
    label: str
    split: str


def cars(images: list[Path]) -> Iterator[Row]:
    """Yield Cars196: the first 98 classes for training, the others for testing."""
    for path in images:
        number = int(path.parent.name.partition(".")[0])
        yield Row(str(path), path.parent.name, "train" if number <= _CARS_TRAIN else "test")


def cifar100_open(images: list[Path]) -> Iterator[Row]:
    """Yield CIFAR-100 with the classes split in halves: every second class of the sorted list is new."""
    place = {name: number for number, name in enumerate(sorted(CIFAR100_SUPER_CLASS))}
    for path in images:
        label = path.parent.name
        yield Row(str(path), label, "test" if place[label] % 2 else "train")


def cifar100_superclass_open(images: list[Path]) -> Iterator[Row]:
    """Yield CIFAR-100 labelled by its 20 super-classes: 3 classes of each to train, 2 new ones to test."""
    trained = {name for names in CIFAR100_SUPER_CLASSES.values() for name in names[:_TRAINED_SUBCLASSES]}
    for path in images:
        name = path.parent.name
        yield Row(str(path), CIFAR100_SUPER_CLASS[name], "train" if name in trained else "test")


def cifar100_closed(images: list[Path]) -> Iterator[Row]:
    """Yield CIFAR-100 labelled by its 20 super-classes, with the training and test images of the data set."""
    for path in images:
        name = path.parent.name
        yield Row(str(path), CIFAR100_SUPER_CLASS[name], path.parent.parent.name)


def omniglot(images: list[Path]) -> Iterator[Row]:
    """Yield Omniglot by character: the background alphabets for training, the evaluation ones to test."""
    for path in images:
        yield Row(str(path), path.parent.name, _OMNIGLOT[path.parent.parent.name])


def omniglot_alphabets(images: list[Path]) -> Iterator[Row]:
    """Yield Omniglot by alphabet, with the same split."""
    for row in omniglot(images):
        yield row._replace(label=alphabet_of(row.label))


def division(images: list[Path], number: int) -> Iterator[Row]:
    """Yield images by class, a random half of the classes for training and the others to test.

    Args:
        images: Images in folders of one class each.
        number: Number of the division, which is the seed of the draw.
    """
    trained = half({path.parent.name for path in images}, number)
    for path in images:
        label = path.parent.name
        yield Row(str(path), label, "train" if label in trained else "test")


def alphabet_division(images: list[Path], number: int) -> Iterator[Row]:
    """Yield Omniglot by character, with a random half of the alphabets for training and the others to test.

    Args:
        images: Images in folders ALPHABET__CHARACTER.
        number: Number of the division, which is the seed of the draw.
    """
    trained = half({alphabet_of(path.parent.name) for path in images}, number)
    for path in images:
        label = path.parent.name
        yield Row(str(path), label, "train" if alphabet_of(label) in trained else "test")


def alphabet_of(label: str) -> str:
    """Return the alphabet of a class of Omniglot; another name is its own."""
    return label.partition("__")[0]


def half(names: Iterable[str], number: int) -> set[str]:
    """Return a random half of some names, rounded down; the number is the seed of the draw."""
    ordered = sorted(names)
    return set(random.Random(number).sample(ordered, len(ordered) // 2))


# Name of the CSV file -> folder of its images and its rows.
LISTS: dict[str, tuple[str, Callable[[list[Path]], Iterator[Row]]]] = {
    "cars": ("cars", cars),
    "cifar100-open": ("cifar100", cifar100_open),
    "cifar100-superclass-open": ("cifar100", cifar100_superclass_open),
    "cifar100-closed": ("cifar100", cifar100_closed),
    "omniglot": ("omniglot", omniglot),
    "omniglot-alphabets": ("omniglot", omniglot_alphabets),
    **{
        f"{images}-division-{number}": (images, partial(division, number=number))
        for images in ("cars", "birds", "furniture", "cifar100")
        for number in range(DIVISIONS)
    },
    **{
        f"omniglot-division-{number}": ("omniglot", partial(alphabet_division, number=number))
        for number in range(DIVISIONS)
    },
}


def prepare(folder: Path, archives: dict[str, list[Path]], weights: dict[str, Path]) -> list[str]:
    """Unpack the archives, copy the weights and write the CSV files; return one line for each.

    Args:
        folder: Folder for everything; created if needed.
        archives: "cars", "birds", "furniture", "cifar100", "omniglot" -> zip files, unpacked into a folder
            of that name.
        weights: Name of the backbone -> safetensors file, copied to weights/NAME.safetensors.

    Raises:
        InputError: A missing or unreadable file, or an archive without images.
    """
    done = []
    for name, files in archives.items():
        for file in files:
            _unpack(file, folder / name)
    for name, file in weights.items():
        target = folder / "weights" / f"{name}.safetensors"
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(file, target)
        except OSError as error:
            raise InputError(f"{file}: cannot be copied ({error})") from error
        done.append(f"{target.relative_to(folder)}")
    for name, (images, rows) in LISTS.items():
        if images in archives:
            done.append(_write_list(folder, name, images, rows))
    return done


def _unpack(file: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            archive.extractall(target)
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{file}: cannot be unpacked ({error})") from error


def _write_list(folder: Path, name: str, images: str, rows: Callable[[list[Path]], Iterator[Row]]) -> str:
    found = sorted(p.relative_to(folder) for p in (folder / images).rglob("*") if p.suffix in _SUFFIXES)
    if not found:
        raise InputError(f"{folder / images}: no images; check the archive")
    lines = list(rows(found))
    with (folder / f"{name}.csv").open("w", newline="") as out:
        csv.writer(out).writerows([Row._fields, *lines])
    counts = []
    for split in ("train", "test"):
        labels = [row.label for row in lines if row.split == split]
        counts.append(f"{split} {len(labels)} images of {len(set(labels))} classes")
    return f"{name}.csv: {', '.join(counts)}"
