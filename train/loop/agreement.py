"""Agreement of the processes of a run: the same software, settings and images on every machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from retrieval.errors import InputError
from train import settings
from train.config import Config
from train.data import DataSet, LabelledImage
from train.loop.processes import Processes

_PACKAGES = ("lookalike", "torch", "torchvision", "timm", "numpy", "pillow")
_LOCAL = ("data", "device")  # settings that may differ


def check_agreement(processes: Processes, config: Config, dataset: DataSet) -> None:
    """Check that all processes would train the same network on the same images.

    Compared are the versions of packages, the settings (but the device and the place of the data), and the
    names, labels and sizes of all images, relative to their common folder.

    Raises:
        InputError: A process differs from the main one; it is named.
    """
    if processes.messages is None:
        return
    images = _images(dataset) if processes.leads_machine else None  # once a machine
    own = {"versions": _versions(), "settings": config.to_dict(), "images": images}
    main, *others = processes.gather(own)
    for rank, other in enumerate(others, 1):
        if difference := _difference(main, other):
            raise InputError(f"{processes.messages.name(rank)}: differs from rank 0: {difference}")


def _difference(main: dict[str, Any], other: dict[str, Any]) -> str | None:
    """Return in what a process differs from the main one, and what to do; `None` if it does not."""
    for package, installed in main["versions"].items():
        if other["versions"][package] != installed:
            return f"{package} {other['versions'][package]}, not {installed}; install the same version"
    here, there = (
        settings.parse_config({**one["settings"], **dict.fromkeys(_LOCAL, "auto")}) for one in (main, other)
    )
    if changes := settings.differences(there, here):
        return f"{changes[0]}; give the same command on every machine"
    for split, (count, digest) in main["images"].items() if other["images"] else ():
        found, of_other = other["images"].get(split, (0, ""))
        if found != count:
            return f"{found} {split} images, not {count}; copy the data set completely"
        if of_other != digest:
            return f"{split} images of other names, labels or sizes; copy the data set completely"
    return None


def _versions() -> dict[str, str]:
    return {package: _version(package) for package in _PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package).partition("+")[0]  # builds for CPU and GPU of one version agree
    except PackageNotFoundError:  # a checkout
        return "unknown"


def _images(dataset: DataSet) -> dict[str, tuple[int, str]]:
    """Return the number of images of each split, and a digest of them."""
    splits = {"training": dataset.train, "test": dataset.test, "gallery": dataset.gallery or []}
    folders = {image.path.parent for part in splits.values() for image in part}
    root = os.path.commonpath([str(folder.absolute()) for folder in folders] or ["."])
    return {split: (len(part), _digest(part, root)) for split, part in splits.items()}


def _digest(images: Sequence[LabelledImage], root: str) -> str:
    digest = hashlib.sha256()
    for image in images:
        name = str(image.path.absolute()).removeprefix(root)
        digest.update(f"{name}\0{image.label}\0{_size(image.path)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1
