"""Images of a data set in one file, small enough to be carried to a machine with a GPU: NAME.npz.

The file has the pixels, the class of every image, and for each division of the classes the part that a class
takes: 0 to test, 1 to train, 2 to train, too, but held out where the learning rate is chosen.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.experiments.data import DIVISIONS, alphabet_of, half
from retrieval.errors import InputError

TEST, TRAIN, HELD_OUT = 0, 1, 2
PACKED = {"cifar100": (32, "RGB"), "omniglot": (28, "L")}  # side in pixels, mode


@dataclass(frozen=True)
class Packed:
    """A data set in memory, sorted by class.

    Attributes:
        images: [N, side, side, C] uint8, C = 1 for grey images.
        classes: [N] number of the class.
        parts: [divisions, classes] uint8, see the module.
    """

    images: np.ndarray
    classes: np.ndarray
    parts: np.ndarray


def pack(name: str, folder: Path, out: Path) -> Path:
    """Write the images of a data set as one file; return it.

    Args:
        name: A key of `PACKED`.
        folder: Folder of `data --out`.
        out: Folder of the file; created if needed.

    Raises:
        InputError: No lists, or images that cannot be read.
    """
    side, mode = PACKED[name]
    rows = {number: _rows(folder / f"{name}-division-{number}.csv") for number in range(DIVISIONS)}
    labels = dict(sorted(rows[0].items(), key=lambda row: (row[1][0], row[0])))  # path -> (class, split)
    names = sorted({label for label, _ in labels.values()})
    place = {label: number for number, label in enumerate(names)}
    parts = np.zeros((DIVISIONS, len(names)), np.uint8)
    for number, found in rows.items():
        trained = {label for label, split in found.values() if split == "train"}
        first = half({alphabet_of(label) for label in trained}, number)
        for label in trained:
            parts[number, place[label]] = TRAIN if alphabet_of(label) in first else HELD_OUT
    try:
        images = np.stack([_pixels(folder / path, side, mode) for path in labels])
    except OSError as error:
        raise InputError(f"{folder}: {error}; prepare the data again") from error
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{name}.npz"
    classes = np.array([place[label] for label, _ in labels.values()], np.int32)
    np.savez_compressed(file, images=images, classes=classes, parts=parts)
    return file


def load_packed(name: str, folder: Path) -> Packed:
    """Read the file of a data set.

    Raises:
        InputError: It is missing.
    """
    file = folder / f"{name}.npz"
    if not file.is_file():
        raise InputError(f"{file}: no such file; write it with `python -m benchmarks.experiments pack`")
    with np.load(file) as found:
        return Packed(found["images"], found["classes"].astype(np.int64), found["parts"])


def _rows(file: Path) -> dict[str, tuple[str, str]]:
    if not file.is_file():
        raise InputError(f"{file}: no such list; write it with `python -m benchmarks.experiments data`")
    with file.open(newline="") as lines:
        return {row["path"]: (row["label"], row["split"]) for row in csv.DictReader(lines)}


def _pixels(file: Path, side: int, mode: str) -> np.ndarray:
    with Image.open(file) as image:
        grey = image.convert(mode)
        if grey.size != (side, side):
            grey = grey.resize((side, side), Image.Resampling.BOX)
        return np.asarray(grey).reshape(side, side, -1)
