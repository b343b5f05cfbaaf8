"""Readers of the unpacked official archives: class and split of each image.

Each reader takes the folder and returns `Splits`. It validates the format, not the number of images.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from retrieval.errors import InputError
from retrieval.images.load import SUFFIXES
from train.data.classes import CIFAR100_SUPER_CLASS
from train.data.dataset import LabelledImage, Splits


def by_folder(root: Path) -> Splits:
    """Read train/CLASS/* and test/CLASS/*, the layout of fetched CIFAR, STL-10 and digits."""
    train, test = ([LabelledImage(p, c) for p, (c,) in _images(root / s, 1)] for s in ("train", "test"))
    return Splits(train, test)


def cifar100(root: Path) -> Splits:
    """Read CIFAR-100 with its 20 super-classes as coarser labels."""
    train, test, _ = by_folder(root)
    return Splits(_with_super_classes(train), _with_super_classes(test))


def cifar100_20(root: Path) -> Splits:
    """Read CIFAR-100 with its 20 super-classes as classes."""
    train, test, _ = cifar100(root)
    return Splits(*([LabelledImage(i.path, str(i.coarse)) for i in images] for images in (train, test)))


def _with_super_classes(images: list[LabelledImage]) -> list[LabelledImage]:
    for image in images:
        if image.label not in CIFAR100_SUPER_CLASS:
            raise InputError(f"{image.path.parent}: {image.label!r} is no class of CIFAR-100")
    return [LabelledImage(i.path, i.label, CIFAR100_SUPER_CLASS[i.label]) for i in images]


def omniglot(root: Path) -> Splits:
    """Read images_background/ALPHABET/CHARACTER/* for training, images_evaluation/... for testing."""
    sides = (root / "images_background", root / "images_evaluation")
    return Splits(*([LabelledImage(p, "/".join(names)) for p, names in _images(side, 2)] for side in sides))


def cub200(root: Path) -> Splits:
    """Read CUB_200_2011/: images.txt, image_class_labels.txt, images/. Species 1 to 100 are for training."""
    home = _home(root, "CUB_200_2011", "images.txt")
    species = {number: int(name) for number, name in _rows(home / "image_class_labels.txt", 2)}
    splits = Splits([], [])
    for number, name in _rows(home / "images.txt", 2):
        if number not in species:
            raise InputError(f"{home / 'image_class_labels.txt'}: image {number} of images.txt is missing")
        image = LabelledImage(home / "images" / name, name.partition("/")[0])
        (splits.train if species[number] <= 100 else splits.test).append(image)
    return splits


def cars196(root: Path) -> Splits:
    """Read cars_annos.mat and car_ims/. Classes 1 to 98 are for training."""
    file = root / "cars_annos.mat"
    if not file.is_file():
        raise InputError(f"{file}: no such file")
    import scipy.io  # slow to import

    splits = Splits([], [])
    try:
        parts = scipy.io.loadmat(file, variable_names=["annotations", "class_names"], simplify_cells=True)
        for row in parts["annotations"]:
            number = int(row["class"])
            image = LabelledImage(root / str(row["relative_im_path"]), str(parts["class_names"][number - 1]))
            (splits.train if number <= 98 else splits.test).append(image)
    except Exception as error:  # the exception depends on where the file is damaged
        raise InputError(f"{file}: not the annotations of Cars196 ({error})") from error
    return splits


def sop(root: Path) -> Splits:
    """Read Stanford_Online_Products/: Ebay_train.txt, Ebay_test.txt, and one folder per kind of product."""
    home = _home(root, "Stanford_Online_Products", "Ebay_train.txt")
    files = (home / "Ebay_train.txt", home / "Ebay_test.txt")
    return Splits(
        *([LabelledImage(home / name, product) for _, product, _, name in _rows(f, 4, 1)] for f in files)
    )


def inshop(root: Path) -> Splits:
    """Read list_eval_partition.txt and img/, side by side or in Eval/ and Img/ as published."""
    name = "list_eval_partition.txt"
    file = next((f for f in (root / "Eval" / name, root / name) if f.is_file()), root / name)
    home = root / "Img" if (root / "Img").is_dir() else root
    parts: dict[str, list[LabelledImage]] = {"train": [], "query": [], "gallery": []}
    for image, item, part in _rows(file, 3, skip=2):
        if part not in parts:
            raise InputError(f"{file}: {image} is in {part!r}; expected {', '.join(parts)}")
        parts[part].append(LabelledImage(home / image, item))
    return Splits(parts["train"], parts["query"], parts["gallery"])


def hotels50k(root: Path) -> Splits:
    """Read train/CHAIN/HOTEL/SOURCE/* as gallery, test/unoccluded/CHAIN/HOTEL/SOURCE/* as queries.

    ROOT is images/ or its parent. Chain -1 means that a hotel has no chain, and so no coarser label.
    """
    home = _home(root, "images", "train")
    train, test = (
        [LabelledImage(path, hotel, None if chain == "-1" else chain) for path, (chain, hotel, _) in found]
        for found in (_images(home / "train", 3), _images(home / "test" / "unoccluded", 3))
    )
    return Splits(train, test, train)


def _home(root: Path, name: str, sign: str) -> Path:
    """Return the root of the archive: this folder, or the subfolder of its name."""
    return root if (root / sign).exists() else root / name


def _images(top: Path, depth: int) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Yield the image files `depth` folders below `top` in order, with the names of those folders."""
    if not top.is_dir():
        raise InputError(f"{top}: no such folder")
    empty = True
    for place, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        names = Path(place).relative_to(top).parts
        if len(names) == depth:
            folders.clear()
            images = sorted(f for f in files if not f.startswith(".") and f.lower().endswith(SUFFIXES))
            yield from ((Path(place, name), names) for name in images)
            empty &= not images
    if empty:
        raise InputError(f"{top}: no images {depth} folder{'s' * (depth > 1)} below it")


def _rows(file: Path, fields: int, skip: int = 0) -> Iterator[list[str]]:
    """Yield the lines of a list after the first `skip`, split at white space."""
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                row = line.split()
                if number <= skip or not row:
                    continue
                if len(row) != fields:
                    raise InputError(f"{file}, line {number}: expected {fields} fields, found {len(row)}")
                yield row
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read ({error})") from error
