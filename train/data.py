"""Labelled images on disk, and the splits of the published protocols. Needs no torch."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from PIL import Image

from retrieval.errors import InputError
from retrieval.indexing import scan

SPLITS = ("train", "test")


@dataclass(frozen=True)
class LabelledImage:
    """An image file and its class."""

    path: Path
    label: str


@dataclass(frozen=True)
class DataSet:
    """Images to train on, and images to test on.

    Attributes:
        name: as the user wrote it.
        train, test: the splits. Data that comes without a test split is all in both, and `has_test` is False.
    """

    name: str
    train: list[LabelledImage]
    test: list[LabelledImage]
    has_test: bool


@dataclass(frozen=True)
class Known:
    """A data set known by name."""

    title: str
    protocol: str
    load: Callable[[Path], tuple[list[LabelledImage], list[LabelledImage]]]
    fetch: Callable[[Path], None]
    bundled: bool = False


def load(spec: str) -> DataSet:
    """Find the images of a data set.

    Args:
        spec: `folder:DIR` (one folder a class, at any depth; top folders called train and test are
            splits), `csv:FILE` (columns path, label and optionally split; paths relative to the file),
            `NAME:ROOT` for a data set known by name, or the name alone for one that is bundled.

    Raises:
        InputError: an unknown name, or a place without labelled images.
    """
    name, _, place = spec.partition(":")
    if name in ("folder", "csv"):
        if not place:
            raise InputError(
                f"data {spec!r}: say where, as in {name}:{'DIR' if name == 'folder' else 'FILE'}"
            )
        images = (_folder if name == "folder" else _csv)(Path(place))
        return _split(spec, images)
    if name not in KNOWN:
        near = get_close_matches(name, ["folder", "csv", *KNOWN], 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: folder:DIR, csv:FILE, {', '.join(KNOWN)}"
        raise InputError(f"data {spec!r}: no data set is called {name!r}; {hint}")
    known = KNOWN[name]
    if not place and not known.bundled:
        raise InputError(f"data {spec!r}: say where it is, as in {name}:ROOT")
    root = Path(place) if place else _cache() / name
    if known.bundled and not place:
        known.fetch(root)
    train, test = known.load(root)
    return DataSet(spec, train, test, has_test=True)


def _split(spec: str, images: list[tuple[str | None, LabelledImage]]) -> DataSet:
    splits = {split for split, _ in images}
    if splits == {None}:
        every = [image for _, image in images]
        return DataSet(spec, every, every, has_test=False)
    parts = {name: [image for split, image in images if split == name] for name in SPLITS}
    empty = [name for name in SPLITS if not parts[name]]
    if empty:
        raise InputError(f"data {spec!r}: its {empty[0]} split has no images")
    return DataSet(spec, parts["train"], parts["test"], has_test=True)


def _folder(folder: Path) -> list[tuple[str | None, LabelledImage]]:
    if not folder.is_dir():
        raise InputError(f"folder:{folder}: there is no such folder")
    files = list(scan([folder]).files.values())
    tops = {stamp.path.split("/")[0] for stamp in files if stamp.label}
    found: list[tuple[str | None, LabelledImage]] = []
    for stamp in files:
        if stamp.label is None:
            continue
        top, _, rest = stamp.label.partition("/")
        if tops == set(SPLITS) and rest:
            found.append((top, LabelledImage(stamp.full, rest)))
        else:
            found.append((None, LabelledImage(stamp.full, stamp.label)))
    if not found:
        raise InputError(f"folder:{folder}: expected one folder of images for each class, found none")
    return found


def _csv(file: Path) -> list[tuple[str | None, LabelledImage]]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            missing = {"path", "label"} - set(reader.fieldnames or ())
            if missing:
                raise InputError(f"csv:{file}: no column {sorted(missing)[0]!r} in its first line")
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"csv:{file}: cannot be read ({error})") from error
    found: list[tuple[str | None, LabelledImage]] = []
    for number, row in enumerate(rows, 2):
        split = row.get("split") or None
        if not row["path"] or not row["label"] or split not in (None, *SPLITS):
            detail = f"need a path, a label, and a split that is one of {', '.join(SPLITS)} or empty"
            raise InputError(f"csv:{file}, line {number}: {detail}")
        found.append((split, LabelledImage(file.parent / row["path"], row["label"])))
    if not found:
        raise InputError(f"csv:{file}: it lists no images")
    if None in {split for split, _ in found} and len({split for split, _ in found}) > 1:
        raise InputError(f"csv:{file}: some lines have a split and some have none; give all or none")
    return found


def class_numbers(images: Sequence[LabelledImage]) -> np.ndarray:
    """Labels as numbers 0..C-1 in the order of the sorted names, int64 [N]."""
    return np.unique([image.label for image in images], return_inverse=True)[1].astype(np.int64)


# ---- scikit-learn's digits: 8 x 8 pixels, ten classes, bundled with an installed package


def _load_digits(root: Path) -> tuple[list[LabelledImage], list[LabelledImage]]:
    if not (root / "complete").is_file():
        raise InputError(
            f"digits:{root}: not there; `lookalike datasets fetch digits --root {root}` writes it"
        )
    found = _folder(root)
    images = {split: [image for s, image in found if s == split] for split in SPLITS}
    counts = tuple(len(images[split]) for split in SPLITS)
    if counts != (901, 896):
        raise InputError(
            f"digits:{root}: expected 901 + 896 images, found {counts[0]} + {counts[1]}; fetch it again"
        )
    return images["train"], images["test"]


def _fetch_digits(root: Path) -> None:
    """Write the digits as PNG files, enlarged so that people can see them."""
    if (root / "complete").is_file():
        return
    from sklearn.datasets import load_digits  # slow to import

    digits = load_digits()
    for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        folder = root / ("train" if label < 5 else "test") / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray((pixels * (255 / 16)).astype(np.uint8))
        small.resize((64, 64), Image.Resampling.BICUBIC).save(folder / f"{number:04d}.png")
    (root / "complete").touch()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lookalike"


KNOWN = {
    "digits": Known(
        "Handwritten digits of scikit-learn, 8 x 8 pixels",
        "classes 0-4 to train (901 images), 5-9 to test (896)",
        _load_digits,
        _fetch_digits,
        bundled=True,
    ),
}
