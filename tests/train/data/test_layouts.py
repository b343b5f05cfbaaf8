"""Known data sets, read from small folders in the layout of the official archives."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image

from retrieval import InputError
from tests.conftest import draw, unzip_shared
from train import data
from train.data import classes, known, layouts
from train.data.dataset import Splits

PUBLISHED_SUPER_CLASSES = """
    4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 11 5
    5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 12 9 13 15 13
    16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13
"""  # the coarse label byte of each fine label, 0 to 99, in cifar-100-binary


def write_image(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draw(len(file.name), (16, 12)).save(file)


def pairs(images: list[data.LabelledImage] | None) -> list[tuple[str, str]]:
    """Return labels and file names; every file must exist."""
    assert images is not None
    assert all(image.path.is_file() for image in images)
    return [(image.label, image.path.name) for image in images]


@pytest.mark.parametrize("inside", [True, False])
def test_cub200(tmp_path: Path, inside: bool) -> None:
    home = tmp_path / "CUB_200_2011"
    names = {
        "1 001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg": "1 1",
        "2 100.Brown_Pelican/Brown_Pelican_0001_93744.jpg": "2 100",
        "3 101.White_Pelican/White_Pelican_0018_97432.jpg": "3 101",
        "4 200.Common_Yellowthroat/Common_Yellowthroat_0049_190708.jpg": "4 200",
    }
    for line in names:
        write_image(home / "images" / line.split()[1])
    (home / "images.txt").write_text("\n".join(names) + "\n")
    (home / "image_class_labels.txt").write_text("\n".join(names.values()) + "\n")
    found = layouts.cub200(home if inside else tmp_path)
    assert [label for label, _ in pairs(found.train)] == ["001.Black_footed_Albatross", "100.Brown_Pelican"]
    assert [label for label, _ in pairs(found.test)] == ["101.White_Pelican", "200.Common_Yellowthroat"]
    (home / "image_class_labels.txt").write_text("1 1\n2\n")
    with pytest.raises(InputError, match=r"image_class_labels\.txt, line 2: expected 2 fields, found 1"):
        layouts.cub200(tmp_path)


def test_cars196(tmp_path: Path) -> None:
    numbers, names = [98, 99, 1], [f"Make {number} SUV 2012" for number in range(1, 197)]
    kind = [("relative_im_path", object), ("bbox_x1", object), ("class", object), ("test", object)]
    rows = [(f"car_ims/{i:06d}.jpg", 1, number, 0) for i, number in enumerate(numbers, 1)]
    table = {"annotations": np.array([rows], kind), "class_names": np.array([names], object)}
    table["annotations"] = np.array(rows, kind).reshape(1, -1)
    scipy.io.savemat(tmp_path / "cars_annos.mat", table)
    for row in rows:
        write_image(tmp_path / str(row[0]))
    found = layouts.cars196(tmp_path)
    assert pairs(found.train) == [("Make 98 SUV 2012", "000001.jpg"), ("Make 1 SUV 2012", "000003.jpg")]
    assert pairs(found.test) == [("Make 99 SUV 2012", "000002.jpg")]
    (tmp_path / "cars_annos.mat").write_bytes(b"\x80\x04pickle")
    with pytest.raises(InputError, match="not the annotations of Cars196"):
        layouts.cars196(tmp_path)


def test_sop(tmp_path: Path) -> None:
    home = tmp_path / "Stanford_Online_Products"
    for split, product, name in (("train", 1, "111085122871_0.JPG"), ("test", 11319, "110715681235_0.JPG")):
        write_image(home / "bicycle_final" / name)
        header = "image_id class_id super_class_id path\n"
        (home / f"Ebay_{split}.txt").write_text(f"{header}1 {product} 1 bicycle_final/{name}\n")
    found = layouts.sop(tmp_path)
    assert pairs(found.train) == [("1", "111085122871_0.JPG")]
    assert pairs(found.test) == [("11319", "110715681235_0.JPG")]


@pytest.mark.parametrize("folders", [("", ""), ("Eval", "Img")])
def test_inshop(tmp_path: Path, folders: tuple[str, str]) -> None:
    lists, images = (tmp_path / folder for folder in folders)
    parts = {"02_1_front": "train", "03_1_front": "query", "03_2_side": "gallery"}
    lines = ["3", "image_name item_id evaluation_status"]
    for name, part in parts.items():
        path = f"img/WOMEN/Dresses/id_000000{name[:2]}/{name}.jpg"
        write_image(images / path)
        lines.append(f"{path}                           id_000000{name[:2]} {part}     ")
    lists.mkdir(exist_ok=True)
    (lists / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")
    found = layouts.inshop(tmp_path)
    assert pairs(found.train) == [("id_00000002", "02_1_front.jpg")]
    assert pairs(found.test) == [("id_00000003", "03_1_front.jpg")]
    assert pairs(found.gallery) == [("id_00000003", "03_2_side.jpg")]


def test_hotels50k(tmp_path: Path) -> None:
    for place in ("train/12/900/travel_website/1", "train/-1/901/traffickcam/2"):
        write_image(tmp_path / "images" / f"{place}.jpg")
    write_image(tmp_path / "images" / "test/unoccluded/12/900/traffickcam/3.jpg")
    write_image(tmp_path / "images" / "test/high_occlusions/12/900/traffickcam/3.jpg")
    found = layouts.hotels50k(tmp_path)
    assert found == layouts.hotels50k(tmp_path / "images")
    assert pairs(found.gallery) == [("901", "2.jpg"), ("900", "1.jpg")]
    assert [image.coarse for image in found.train] == [None, "12"], "chain -1 is no chain"
    assert pairs(found.test) == [("900", "3.jpg")]


@pytest.mark.slow
def test_omniglot(tmp_path: Path) -> None:
    """The whole data set; the local archive has no folders for the alphabets."""
    flat = unzip_shared("omniglot_full_105.zip", tmp_path / "flat")
    for character in flat.glob("*/*"):
        target = tmp_path / character.parent.name / character.name.replace("__", "/")
        target.parent.mkdir(parents=True, exist_ok=True)
        character.rename(target)
    found = data.load(f"omniglot:{tmp_path}")
    assert Counter(Counter(i.label for i in found.train + found.test).values()) == {20: 964 + 659}
    assert found.train[0].label == "Alphabet_of_the_Magi/character01"
    assert not {i.label.split("/")[0] for i in found.train} & {i.label.split("/")[0] for i in found.test}
    assert len({i.label.split("/")[0] for i in found.train + found.test}) == 50


@pytest.mark.slow
def test_cifar100_and_its_super_classes(tmp_path: Path) -> None:
    root = unzip_shared("cifar100_32.zip", tmp_path)
    own = data.load(f"folder:{root}")
    fine, coarse = layouts.cifar100(root), layouts.cifar100_20(root)
    assert [len(fine.train), len(fine.test)] == [len(coarse.train), len(coarse.test)] == [5000, 5000]
    assert [(i.path.resolve(), i.label) for i in own.test] == [(i.path, i.label) for i in fine.test]
    assert [image.coarse for image in fine.test] == [image.label for image in coarse.test]
    assert set(Counter(image.label for image in coarse.train).values()) == {250}
    with pytest.raises(InputError, match=r"expected 50,000 train images of 100 classes, found 5,000 of 100"):
        data.load(f"cifar100:{root}")


def test_super_classes_are_the_published_ones() -> None:
    fine = sorted(classes.CIFAR100_SUPER_CLASS)  # the archive numbers classes in alphabetical order
    coarse = sorted(classes.CIFAR100_SUPER_CLASSES)
    numbers = [coarse.index(classes.CIFAR100_SUPER_CLASS[name]) for name in fine]
    assert numbers == [int(word) for word in PUBLISHED_SUPER_CLASSES.split()]


def test_transitions_of_cifar100_are_cycles_within_super_classes() -> None:
    for name in classes.CIFAR100_TRANSITIONS:
        seen = [name]
        while len(seen) < 6:
            seen.append(classes.CIFAR100_TRANSITIONS[seen[-1]])
        assert len(set(seen)) == 5
        assert seen[-1] == name
        assert len({classes.CIFAR100_SUPER_CLASS[n] for n in seen}) == 1


@pytest.mark.parametrize("reader", [layouts.by_folder, layouts.omniglot, layouts.hotels50k])
def test_folders_without_images_are_refused(tmp_path: Path, reader: object) -> None:
    for side in ("train", "test/unoccluded", "images_background", "images_evaluation"):
        (tmp_path / side).mkdir(parents=True)
    with pytest.raises(InputError, match="no images"):
        reader(tmp_path)  # type: ignore[operator]


def test_counts_agree_with_the_number_of_images() -> None:
    for name, facts in data.KNOWN.items():
        images = sum(images for images, _ in facts.counts.values())
        assert images == facts.images or name == "hotels50k", name
        assert bool(facts.by_hand) == (facts.unpack is None), name


@pytest.mark.parametrize("name", ["cub200", "inshop"])
def test_whole_data_set_of_the_published_size_is_accepted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uses lists of the true length; no image is opened."""
    if name == "cub200":
        species = [1 + i * 100 // 5864 for i in range(5864)] + [101 + i * 100 // 5924 for i in range(5924)]
        (tmp_path / "images.txt").write_text(
            "".join(f"{i} {s:03d}.x/{i}.jpg\n" for i, s in enumerate(species))
        )
        (tmp_path / "image_class_labels.txt").write_text("".join(f"{i} {s}\n" for i, s in enumerate(species)))
        listing = tmp_path / "image_class_labels.txt"
    else:
        sizes = {
            "train": (25_882, 3_997, 0),
            "query": (14_218, 3_985, 4_000),
            "gallery": (12_612, 3_985, 4_000),
        }
        lines = [f"img/{p}{i}.jpg id_{f + i % c} {p}\n" for p, (n, c, f) in sizes.items() for i in range(n)]
        listing = tmp_path / "list_eval_partition.txt"
        listing.write_text("52712\nimage_name item_id evaluation_status\n" + "".join(lines))
    found = data.load(f"{name}:{tmp_path}")
    assert isinstance(known.read_known(name, tmp_path), Splits)
    assert len(found.train) + len(found.test) + len(found.gallery or []) == data.KNOWN[name].images
    listing.write_text(listing.read_text().rsplit("\n", 2)[0] + "\n")
    with pytest.raises(InputError, match=r"expected|is missing"):
        data.load(f"{name}:{tmp_path}")


def test_images_outside_the_layout_are_ignored(tmp_path: Path) -> None:
    for place in ("train/a/1.png", "test/a/2.png", "test/a/masks/3.png", "test/.hidden/4.png", "train/5.png"):
        write_image(tmp_path / place)
    (tmp_path / "train" / "a" / "notes.txt").write_text("not an image")
    found = layouts.by_folder(tmp_path)
    assert (pairs(found.train), pairs(found.test)) == ([("a", "1.png")], [("a", "2.png")])
    assert Image.open(found.train[0].path).size == (16, 12)
