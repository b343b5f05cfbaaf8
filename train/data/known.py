"""Known data sets: published protocols, sources and sizes, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retrieval.errors import InputError
from train.data import arrays, emoji, layouts, unpack
from train.data.classes import CIFAR10_TRANSITIONS, CIFAR100_TRANSITIONS, STL10_TRANSITIONS
from train.data.dataset import Splits
from train.data.download import Archive


@dataclass(frozen=True)
class KnownDataSet:
    """Data set known by name.

    Attributes:
        title: Short description.
        protocol: Published division into training and test classes.
        images: Number of images.
        counts: (images, classes) of the splits whose size is fixed.
        read: Reads the splits from the unpacked archive.
        tops: Folders that fetching creates below ROOT.
        unpack: Creates them from the archives; `None` if the data set cannot be fetched.
        archives: Archives to download.
        by_hand: How to obtain and lay out a data set that cannot be fetched.
        bundled: Whether it needs neither download nor ROOT.
        licence: Licence of its images, or "" if their publisher states none.
        coarse_name, transitions: See `DataSet`.
    """

    title: str
    protocol: str
    images: int
    counts: Mapping[str, tuple[int, int]]
    read: Callable[[Path], Splits]
    tops: tuple[str, ...] = ()
    unpack: Callable[[Sequence[Path], Path, bool], None] | None = None
    archives: tuple[Archive, ...] = ()
    by_hand: str = ""
    bundled: bool = False
    licence: str = ""
    coarse_name: str | None = None
    transitions: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """How to obtain it: bundled, by hand, or fetch with its size."""
        if self.bundled:
            return "bundled"
        if self.unpack is None:
            return "by hand"
        size = sum(archive.size for archive in self.archives)
        return f"fetch, {size / 1e9:.1f} GB" if size >= 1e9 else f"fetch, {size / 1e6:.0f} MB"


def read_known(name: str, root: Path) -> Splits:
    """Read a known data set.

    Raises:
        InputError: It is missing or incomplete; the message says how to obtain it.
    """
    known = KNOWN[name]
    try:
        splits = known.read(root)
    except InputError as error:
        advice = known.by_hand or f"`lookalike datasets fetch {name} --root {root}` puts it there"
        raise InputError(f"{name}:{root}: {error}; {advice}") from error
    for split, (images, classes) in known.counts.items():
        found = getattr(splits, split)
        labels = len({image.label for image in found})
        if (len(found), labels) != (images, classes):
            raise InputError(
                f"{name}:{root}: expected {images:,} {split} images of {classes:,} classes, "
                f"found {len(found):,} of {labels:,}; use folder:DIR or csv:FILE for a part of it"
            )
    return splits


_CIFAR10 = Archive(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "cifar-10-binary.tar.gz",
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    170_052_171,
)
_CIFAR100 = Archive(
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    "cifar-100-binary.tar.gz",
    "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
    168_513_733,
)
_STL10 = Archive(
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
    "stl10_binary.tar.gz",
    "f31fd99273a1acb8609c8db427cebb1de3f71de77758cdc0e22956e1289b9866",
    2_640_397_119,
)
_CUB200 = Archive(
    "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
    "CUB_200_2011.tgz",
    "0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
    1_150_585_339,
)
_SOP = Archive(
    "https://drive.usercontent.google.com/download?id=1TclrpQOF_ullUP99wk_gjGN8pKvtErG8&export=download&confirm=t",
    "Stanford_Online_Products.zip",
    "b04fa78210e69fab050ce73939550e1cd0f96890bdd98ec9fee732c3b756ef48",
    3_083_860_082,
)
_OMNIGLOT = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
_OMNIGLOT_TRAIN = Archive(
    f"{_OMNIGLOT}/images_background.zip",
    "images_background.zip",
    "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
    9_464_212,
)
_OMNIGLOT_TEST = Archive(
    f"{_OMNIGLOT}/images_evaluation.zip",
    "images_evaluation.zip",
    "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
    6_462_886,
)

KNOWN = {
    "digits": KnownDataSet(
        title="handwritten digits of scikit-learn, 8 x 8 pixels",
        protocol="0-4 to train, 5-9 to test",
        images=1_797,
        counts={"train": (901, 5), "test": (896, 5)},
        read=layouts.by_folder,
        tops=("train", "test"),
        unpack=arrays.convert_digits,
        bundled=True,
    ),
    "emoji": KnownDataSet(
        title="emoji drawn by Twemoji and OpenMoji, 72 x 72 pixels",
        protocol="1,118 emoji to train, 712 others to test; a motif with all its variants is in one of them",
        images=3_660,
        counts={"train": (2_236, 1_118), "test": (1_424, 712)},
        read=layouts.by_folder,
        tops=("train", "test", emoji.LICENCE_FILE),
        unpack=emoji.convert_emoji,
        bundled=True,
        licence=emoji.LICENCE,
    ),
    "cub200": KnownDataSet(
        title="birds, CUB-200-2011",
        protocol="species 1-100 to train, 101-200 to test",
        images=11_788,
        counts={"train": (5_864, 100), "test": (5_924, 100)},
        read=layouts.cub200,
        tops=("CUB_200_2011",),
        unpack=unpack.tar_files,
        archives=(_CUB200,),
    ),
    "cars196": KnownDataSet(
        title="models of cars",
        protocol="models 1-98 to train, 99-196 to test",
        images=16_185,
        counts={"train": (8_054, 98), "test": (8_131, 98)},
        read=layouts.cars196,
        by_hand=(
            "the authors' server is gone: take cars_annos.mat and car_ims.tgz from a copy (see "
            "https://github.com/pytorch/vision/issues/7545) and unpack them to ROOT/cars_annos.mat and "
            "ROOT/car_ims/"
        ),
    ),
    "sop": KnownDataSet(
        title="Stanford Online Products",
        protocol="11,318 products to train, 11,316 others to test",
        images=120_053,
        counts={"train": (59_551, 11_318), "test": (60_502, 11_316)},
        read=layouts.sop,
        tops=("Stanford_Online_Products",),
        unpack=unpack.zip_files,
        archives=(_SOP,),
    ),
    "inshop": KnownDataSet(
        title="clothes, DeepFashion In-shop",
        protocol="3,997 items to train; of 3,985 others, 14,218 queries in a gallery of 12,612",
        images=52_712,
        counts={"train": (25_882, 3_997), "test": (14_218, 3_985), "gallery": (12_612, 3_985)},
        read=layouts.inshop,
        by_hand=(
            "its authors give it for research, on request: "
            "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html; lay it out as "
            "ROOT/list_eval_partition.txt and ROOT/img/, or in Eval/ and Img/ below ROOT as it comes"
        ),
    ),
    "hotels50k": KnownDataSet(
        title="hotel rooms, Hotels-50K",
        protocol="50,000 hotels to train and as gallery; 17,954 queries, unoccluded, of 5,000 of them",
        images=1_045_825,
        counts={"test": (17_954, 5_000)},  # of the training images, not all addresses are alive
        read=layouts.hotels50k,
        by_hand=(
            "its images come from their web addresses: run download_train.py of "
            "https://github.com/GWUvision/Hotels-50K and unpack its test.tar.gz, to ROOT/images/train/ and "
            "ROOT/images/test/"
        ),
        coarse_name="hotel chain",
    ),
    "cifar10": KnownDataSet(
        title="small images of 10 kinds, 32 x 32 pixels",
        protocol="official split, the same classes to train and to test",
        images=60_000,
        counts={"train": (50_000, 10), "test": (10_000, 10)},
        read=layouts.by_folder,
        tops=("train", "test"),
        unpack=arrays.convert_cifar10,
        archives=(_CIFAR10,),
        transitions=CIFAR10_TRANSITIONS,
    ),
    "cifar100": KnownDataSet(
        title="small images of 100 kinds, 32 x 32 pixels",
        protocol="official split, the same classes to train and to test",
        images=60_000,
        counts={"train": (50_000, 100), "test": (10_000, 100)},
        read=layouts.cifar100,
        tops=("train", "test"),
        unpack=arrays.convert_cifar100,
        archives=(_CIFAR100,),
        coarse_name="super-class",
        transitions=CIFAR100_TRANSITIONS,
    ),
    "cifar100-20": KnownDataSet(
        title="CIFAR-100 with its 20 super-classes as classes",
        protocol="official split, the same classes to train and to test",
        images=60_000,
        counts={"train": (50_000, 20), "test": (10_000, 20)},
        read=layouts.cifar100_20,
        tops=("train", "test"),
        unpack=arrays.convert_cifar100,
        archives=(_CIFAR100,),
    ),
    "stl10": KnownDataSet(
        title="images of 10 kinds, 96 x 96 pixels",
        protocol="official split, the same classes to train and to test",
        images=13_000,
        counts={"train": (5_000, 10), "test": (8_000, 10)},
        read=layouts.by_folder,
        tops=("train", "test"),
        unpack=arrays.convert_stl10,
        archives=(_STL10,),
        transitions=STL10_TRANSITIONS,
    ),
    "omniglot": KnownDataSet(
        title="handwritten characters of 50 alphabets",
        protocol="964 characters of images_background to train, 659 of images_evaluation to test",
        images=32_460,
        counts={"train": (19_280, 964), "test": (13_180, 659)},
        read=layouts.omniglot,
        tops=("images_background", "images_evaluation"),
        unpack=unpack.zip_files,
        archives=(_OMNIGLOT_TRAIN, _OMNIGLOT_TEST),
    ),
}
