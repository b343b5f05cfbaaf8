"""Inspection of a data set: counts, unreadable files, duplicates, classes with a single image."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from retrieval.errors import ImageError
from retrieval.images.decode import decode_ahead
from retrieval.images.picture import Decoded
from retrieval.images.preprocess import Preprocess
from retrieval.progress import Progress
from train.data.custom import empty_classes
from train.data.dataset import DataSet, LabelledImage


@dataclass(frozen=True)
class SplitCounts:
    """Counts of a split: images, classes, and the minimum, median and maximum of images per class."""

    images: int
    classes: int
    fewest: int
    median: float
    most: int


@dataclass(frozen=True)
class ListedImage:
    """Image as listed by the data set."""

    path: Path
    label: str
    split: str


@dataclass(frozen=True)
class Duplicate:
    """Entries whose files hold the same bytes."""

    entries: list[ListedImage]

    @property
    def across_classes(self) -> bool:
        """Whether the entries have different labels: one is wrong, or the classes overlap."""
        return len({entry.label for entry in self.entries}) > 1

    @property
    def across_splits(self) -> bool:
        """Whether the entries are in different splits: a test image was trained on, or finds itself."""
        return len({entry.split for entry in self.entries}) > 1


@dataclass(frozen=True)
class Inspection:
    """Result of `inspect_dataset`.

    Attributes:
        name: Data specification as the user wrote it.
        images: Number of distinct images in all splits.
        classes: Number of distinct classes in all splits.
        splits: Counts by split: all (data without splits), or train and test, or train, queries and gallery.
        coarse_name: Meaning of the coarser labels, or `None`.
        coarse_classes: Number of coarser labels.
        unusable: Errors of missing or unreadable files.
        duplicates: Groups of identical files, worst first.
        single: Classes with one image, by split (for queries: with none in the gallery).
        empty: Class folders without images, which are no classes.
        transitions: Wrong class by true class for asymmetric label noise; empty if undefined.
        licence: Licence of the images, or "" if unknown.
    """

    name: str
    images: int
    classes: int
    splits: dict[str, SplitCounts]
    coarse_name: str | None
    coarse_classes: int
    unusable: list[ImageError]
    duplicates: list[Duplicate]
    single: dict[str, list[str]]
    empty: list[str]
    transitions: Mapping[str, str]
    licence: str


def inspect_dataset(dataset: DataSet, *, show_progress: bool = False) -> Inspection:
    """Count images and classes and read every file once, with the loader of training and indexing."""
    splits = _splits(dataset)
    entries = defaultdict(list)
    for split, images in splits.items():
        for image in images:
            entries[image.path].append(ListedImage(image.path, image.label, split))
    unusable, duplicates = _read(entries, show_progress)
    every = [image for images in splits.values() for image in images]
    return Inspection(
        name=dataset.name,
        images=len(entries),
        classes=len({image.label for image in every}),
        splits={split: _count(images) for split, images in splits.items()},
        coarse_name=dataset.coarse_name,
        coarse_classes=len({image.coarse for image in every if image.coarse is not None}),
        unusable=unusable,
        duplicates=duplicates,
        single=_single(splits) if dataset.labelled else {},
        empty=_empty(dataset.name),
        transitions=dataset.transitions,
        licence=dataset.licence,
    )


def _splits(dataset: DataSet) -> dict[str, list[LabelledImage]]:
    if dataset.gallery is dataset.train:
        return {"train and gallery": dataset.train, "queries": dataset.test}
    if dataset.gallery is not None:
        return {"train": dataset.train, "queries": dataset.test, "gallery": dataset.gallery}
    if dataset.test is dataset.train:
        return {"all": dataset.train}
    return {"train": dataset.train, "test": dataset.test}


def _empty(data: str) -> list[str]:
    kind, _, folder = data.partition(":")
    return empty_classes(Path(folder)) if kind == "folder" else []


def _count(images: Sequence[LabelledImage]) -> SplitCounts:
    sizes = sorted(Counter(image.label for image in images).values())
    return SplitCounts(len(images), len(sizes), sizes[0], median(sizes), sizes[-1])


def _read(
    entries: Mapping[Path, list[ListedImage]], show_progress: bool
) -> tuple[list[ImageError], list[Duplicate]]:
    unusable: list[ImageError] = []
    same: dict[str, list[ListedImage]] = defaultdict(list)
    with Progress("reading", len(entries), show=show_progress) as progress:
        for path, file in zip(entries, decode_ahead(entries, Preprocess(size=1)), strict=True):
            if isinstance(file, Decoded):
                same[file.content_sha256] += entries[path]
            else:
                unusable.append(file)
            progress.update(1, f"{len(unusable)} unusable" if unusable else "")
    duplicates = [Duplicate(found) for found in same.values() if len(found) > 1]
    return unusable, sorted(duplicates, key=lambda d: (not d.across_classes, not d.across_splits))


def _single(splits: Mapping[str, list[LabelledImage]]) -> dict[str, list[str]]:
    labels = {split: Counter(image.label for image in images) for split, images in splits.items()}
    gallery = next((labels[split] for split in labels if "gallery" in split), None)
    single = {}
    for split, sizes in labels.items():
        if split == "queries" and gallery is not None:
            single[split] = sorted(label for label in sizes if label not in gallery)
        elif split != "gallery":
            single[split] = sorted(label for label, size in sizes.items() if size == 1)
    return {split: found for split, found in single.items() if found}
