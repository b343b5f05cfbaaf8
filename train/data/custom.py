"""Custom data sets: `folder:DIR`, `csv:FILE` and `images:DIR`."""

from __future__ import annotations

import csv
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import InputError
from retrieval.ingest.sources import scan
from retrieval.ingest.tables import check_columns
from retrieval.storage.planning import ImageFile
from train.data.dataset import SPLITS, LabelledImage, Splits

ROLES = ("query", "gallery")


def from_folder(folder: Path) -> Splits:
    """Read a data set with one folder per class, at any depth; top folders train and test are splits."""
    if not folder.is_dir():
        raise InputError(f"folder:{folder}: no such folder")
    stamps = [entry for entry in scan([folder]) if isinstance(entry, ImageFile) and entry.label]
    if not stamps:
        raise InputError(f"folder:{folder}: expected one folder of images for each class, found none")
    every = [LabelledImage(stamp.full, str(stamp.label)) for stamp in stamps]
    tops = [image.label.partition("/") for image in every]
    stray = [image for image, (_, _, rest) in zip(every, tops, strict=True) if not rest]
    if {top for top, _, _ in tops} != set(SPLITS) or len(stray) == len(every):
        return Splits(every, every)
    if stray:
        raise InputError(f"{stray[0].path}: is in a split but in no class; move it into a class folder")
    parts: dict[str, list[LabelledImage]] = {name: [] for name in SPLITS}
    for image, (top, _, rest) in zip(every, tops, strict=True):
        parts[top].append(LabelledImage(image.path, rest))
    return Splits(parts["train"], parts["test"])


def empty_classes(folder: Path) -> list[str]:
    """Return the folders without images and folders below a folder of classes, relative to it, sorted."""
    found = scan([folder])
    deque(found, maxlen=0)
    return sorted(found.empty)


def from_images(folder: Path) -> Splits:
    """Read a folder of images without labels, at any depth: every image is a class, named by its path."""
    if not folder.is_dir():
        raise InputError(f"images:{folder}: no such folder")
    files = [entry.full for entry in scan([folder]) if isinstance(entry, ImageFile)]
    if not files:
        raise InputError(f"images:{folder}: contains no images")
    every = [LabelledImage(file, os.path.relpath(file, folder)) for file in files]
    return Splits(every, every)


def from_csv(file: Path) -> Splits:
    """Read a CSV file with the columns path and label, and optionally split, role and coarse.

    Paths are relative to the file. `split` is train or test; `role`, for test rows, is query or gallery, and
    queries are then searched in the gallery. `coarse` is a second, coarser label.

    Raises:
        InputError: An invalid file or line, with the line number.
    """
    rows = list(_rows(file))
    if not rows:
        raise InputError(f"csv:{file}: lists no images")
    splits = {row.split for row in rows}
    if splits == {None}:
        every = [row.image for row in rows]
        return Splits(every, every)
    if None in splits:
        line = next(row.line for row in rows if row.split is None)
        raise InputError(f"csv:{file}, line {line}: no split, but other lines have one; set all or none")
    train = [row.image for row in rows if row.split == "train"]
    test = [row for row in rows if row.split == "test"]
    for name, split in zip(SPLITS, (train, test), strict=True):
        if not split:
            raise InputError(f"csv:{file}: the {name} split has no images")
    if {row.role for row in test} == {None}:
        return Splits(train, [row.image for row in test])
    parts = {role: [row.image for row in test if row.role == role] for role in ROLES}
    for row in test:
        if row.role is None:
            raise InputError(
                f"csv:{file}, line {row.line}: no role, but other test lines have one; set all or none"
            )
    for role in ROLES:
        if not parts[role]:
            raise InputError(f"csv:{file}: no test line has the role {role}; both roles are required")
    return Splits(train, parts["query"], parts["gallery"])


@dataclass(frozen=True)
class _Row:
    line: int
    image: LabelledImage
    split: str | None
    role: str | None


def _rows(file: Path) -> Iterator[_Row]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            check_columns(f"csv:{file}", reader.fieldnames or (), ("path", "label"))
            for row in reader:
                yield _row(file, reader.line_num, row)
    except FileNotFoundError:
        raise InputError(f"csv:{file}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"csv:{file}: cannot be read ({error})") from error


def _row(file: Path, line: int, row: dict[str, str]) -> _Row:
    def refuse(detail: str) -> InputError:
        return InputError(f"csv:{file}, line {line}: {detail}")

    if None in row:
        raise refuse("more fields than columns in the first line; put quotes around fields with commas")
    split, role = row.get("split") or None, row.get("role") or None
    for column in ("path", "label"):
        if not row[column]:
            raise refuse(f"no {column}")
    if split not in (None, *SPLITS):
        raise refuse(f"split is {split!r}; expected train, test, or nothing")
    if role not in (None, *ROLES):
        raise refuse(f"role is {role!r}; expected query, gallery, or nothing")
    if role and split != "test":
        raise refuse(f"the role {role} is allowed only with split test")
    image = LabelledImage(file.parent / row["path"], row["label"], row.get("coarse") or None)
    return _Row(line, image, split, role)
