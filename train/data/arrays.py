"""Conversion of array data sets (CIFAR, STL-10, digits) to PNG files: SPLIT/CLASS/NNNNN.png.

CIFAR and STL-10 are read from their binary archives, because the Python archives require unpickling.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from retrieval.errors import LookalikeError
from retrieval.progress import Progress


def convert_cifar10(archives: Sequence[Path], target: Path, show_progress: bool) -> None:
    """Convert cifar-10-binary.tar.gz."""
    batches = [f"data_batch_{number}.bin" for number in range(1, 6)]
    _cifar(
        archives[0], target, "batches.meta.txt", {"train": batches, "test": ["test_batch.bin"]}, show_progress
    )


def convert_cifar100(archives: Sequence[Path], target: Path, show_progress: bool) -> None:
    """Convert cifar-100-binary.tar.gz; folders are the 100 fine classes."""
    files = {"train": ["train.bin"], "test": ["test.bin"]}
    _cifar(archives[0], target, "fine_label_names.txt", files, show_progress)


def _cifar(archive: Path, target: Path, meta: str, files: dict[str, list[str]], show_progress: bool) -> None:
    content = _read(archive, [meta, *(name for names in files.values() for name in names)])
    classes = content[meta].decode().split()
    labels = 2 if meta.startswith("fine") else 1  # label bytes before the pixels; CIFAR-100: coarse, fine
    for split, names in files.items():
        records = np.concatenate([_array(content[n], (labels + 3072,), archive) for n in names])
        pixels = records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)  # [N, H, W, 3]
        _write(target / split, pixels, [classes[i] for i in records[:, labels - 1]], show_progress)


def convert_stl10(archives: Sequence[Path], target: Path, show_progress: bool) -> None:
    """Convert the labelled images of stl10_binary.tar.gz."""
    names = [f"{split}_{what}.bin" for split in ("train", "test") for what in "Xy"]
    content = _read(archives[0], ["class_names.txt", *names])
    classes = content["class_names.txt"].decode().split()
    for split in ("train", "test"):
        stored = _array(content[f"{split}_X.bin"], (3, 96, 96), archives[0])
        pixels = stored.transpose(0, 3, 2, 1)  # [N, H, W, 3]; stored column by column
        labels = [classes[i - 1] for i in content[f"{split}_y.bin"]]
        _write(target / split, pixels, labels, show_progress)


def convert_digits(archives: Sequence[Path], target: Path, show_progress: bool) -> None:
    """Convert scikit-learn's digits, enlarged to 64 x 64 for display."""
    from sklearn.datasets import load_digits  # slow to import

    bundle = load_digits()
    for number, (pixels, label) in enumerate(zip(bundle.images, bundle.target, strict=True)):
        folder = target / ("train" if label < 5 else "test") / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray((pixels * (255 / 16)).astype(np.uint8))
        small.resize((64, 64), Image.Resampling.BICUBIC).save(folder / f"{number:04d}.png")


def _read(archive: Path, wanted: Iterable[str]) -> dict[str, bytes]:
    """Read the wanted files of a .tar.gz into memory, by base name."""
    missing, found = set(wanted), {}
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                name = member.name.rpartition("/")[2]
                file = tar.extractfile(member) if name in missing and member.isreg() else None
                if file is not None:
                    found[name] = file.read()
                    missing.discard(name)
                if not missing:
                    return found
    except (tarfile.TarError, EOFError, OSError) as error:
        raise LookalikeError(f"{archive}: cannot be read ({error}); fetch it again") from error
    raise LookalikeError(f"{archive}: {sorted(missing)[0]} is missing; fetch it again")


def _array(content: bytes, shape: tuple[int, ...], archive: Path) -> np.ndarray:
    """Return bytes as uint8 [N, *shape]."""
    if len(content) % np.prod(shape):
        raise LookalikeError(f"{archive}: its records do not have the shape {shape}; fetch it again")
    return np.frombuffer(content, np.uint8).reshape(-1, *shape)


def _write(folder: Path, pixels: np.ndarray, labels: Sequence[str], show_progress: bool) -> None:
    """Write images uint8 [N, H, W, 3] to FOLDER/CLASS/NNNNN.png."""
    for label in set(labels):
        (folder / label).mkdir(parents=True, exist_ok=True)
    with Progress(f"writing {folder.name}", len(labels), show=show_progress) as progress:
        for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            Image.fromarray(np.ascontiguousarray(image)).save(folder / label / f"{number:05d}.png")
            progress.update(1)
