"""Parts of pictures as items, in every kind of gallery: boxes of a table, against crops that Pillow makes."""

from __future__ import annotations

import csv
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from retrieval import Embedder, Gallery, InputError, load_image
from retrieval.ingest.sync import RemovalLimit
from retrieval.upkeep.rebuild import rebuild
from tests.conftest import draw, lookalike_here
from tests.retrieval.galleries.conftest import Kind
from tests.serve.model import write_model

COLUMNS = ["path", "label", "box_x", "box_y", "box_width", "box_height"]
PIXELS, FRACTIONS = (8, 4, 24, 30), (0.5, 0.25, 0.5, 0.75)
KEYS = ["room.png#xywh=8,4,24,30", "room.png#xywh=percent:50,25,50,75", "whole.png"]


def write_table(file: Path, rows: Sequence[Sequence[object]]) -> Path:
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([COLUMNS, *rows])
    return file


@pytest.fixture
def rooms(tmp_path: Path) -> Path:
    """A table of two parts of one picture and of another one, which is whole."""
    folder = tmp_path / "rooms"
    folder.mkdir()
    for seed, name in enumerate(("room.png", "whole.png")):
        draw(seed, (64, 48)).save(folder / name)
    rows = [
        ["room.png", "sofa", *PIXELS],
        ["room.png", "lamp", *FRACTIONS],
        ["whole.png", "room", "", "", "", ""],
    ]
    return write_table(folder / "rooms.csv", rows)


def crops(folder: Path) -> list[Image.Image]:
    room = Image.open(folder / "room.png")
    return [room.crop((8, 4, 32, 34)), room.crop((32, 12, 64, 48)), Image.open(folder / "whole.png")]


def check_items(gallery: Gallery, model: Embedder, folder: Path) -> None:
    """Check that the items are the three of the table, with the vectors of their crops."""
    found = {item.key: item for item in gallery.items(gallery.select(where="id > 0")).values()}
    assert sorted(found) == KEYS
    vectors = gallery.vectors([found[key].id for key in KEYS])
    expected = model.embed(crops(folder))
    np.testing.assert_allclose([vectors[found[key].id] for key in KEYS], expected, atol=2e-3)
    assert found[KEYS[0]].part == pytest.approx((8 / 64, 4 / 48, 32 / 64, 34 / 48))
    assert found[KEYS[1]].part == pytest.approx((0.5, 0.25, 1, 1))
    assert found[KEYS[2]].part is None
    assert found[KEYS[0]].metadata == dict(zip(COLUMNS[2:], PIXELS, strict=True))
    assert [found[key].label for key in KEYS] == ["sofa", "lamp", "room"]
    assert {(item.width, item.height) for item in found.values()} == {(64, 48)}


def test_a_box_is_an_item_that_stays_one(kind: Kind, model: Embedder, rooms: Path, tmp_path: Path) -> None:
    gallery = kind.create(tmp_path / "g", model)
    assert gallery.add((), metadata=rooms).added == 3
    check_items(gallery, model, rooms.parent)
    again = gallery.add((), metadata=rooms)
    assert (again.added, again.unchanged) == (0, 3)
    for number, crop in enumerate(crops(rooms.parent)):
        assert gallery.search(np.asarray(crop.convert("RGB")), 1)[0].key == KEYS[number]
    (hit,) = gallery.search(
        crops(rooms.parent)[0].convert("RGB"), 5, where="box_width > 20 and label = 'sofa'"
    )
    assert hit.part == pytest.approx((8 / 64, 4 / 48, 32 / 64, 34 / 48))
    done = gallery.sync(rooms.parent)
    assert (done.added, done.removed, done.unchanged) == (0, 0, 3)
    assert gallery.update().result.unchanged == 3
    assert not gallery.verify().problems
    # A picture that changes: both of its parts are embedded again.
    draw(7, (64, 48)).save(rooms.parent / "room.png")
    os.utime(rooms.parent / "room.png", ns=(1, 1))
    done = gallery.sync(rooms.parent)
    assert (done.replaced, done.removed) == (2, 0)
    check_items(gallery, model, rooms.parent)
    # A picture that is gone takes its parts with it.
    (rooms.parent / "room.png").unlink()
    assert gallery.sync(rooms.parent).removed == 2
    assert [item.key for item in gallery.items(gallery.select(where="id > 0")).values()] == KEYS[2:]


@pytest.mark.parametrize("by_update", [False, True])
def test_parts_follow_their_picture(
    kind: Kind, model: Embedder, rooms: Path, tmp_path: Path, by_update: bool
) -> None:
    gallery = kind.create(tmp_path / "g", model)
    gallery.add((), metadata=rooms)
    before = sorted(gallery.select(where="id > 0"))
    (rooms.parent / "new").mkdir()
    (rooms.parent / "room.png").rename(rooms.parent / "new" / "hall.png")
    done = gallery.update().result if by_update else gallery.sync(rooms.parent)
    assert (done.moved, done.added, done.removed) == (2, 0, 0)
    assert sorted(gallery.select(where="id > 0")) == before
    found = {item.key: item for item in gallery.items(before).values()}
    assert sorted(found) == [f"new/hall.png{key.removeprefix('room.png')}" for key in KEYS[:2]] + KEYS[2:]
    assert found[f"new/hall.png{KEYS[0].removeprefix('room.png')}"].metadata["box_x"] == PIXELS[0]
    assert gallery.sync(rooms.parent).unchanged == 3


def test_one_part_can_be_removed(kind: Kind, model: Embedder, rooms: Path, tmp_path: Path) -> None:
    gallery = kind.create(tmp_path / "g", model)
    gallery.add((), metadata=rooms)
    gallery.remove(gallery.select(where="label = 'lamp'"))
    assert gallery.sync(rooms.parent).added == 0
    assert len(gallery) == 2


def test_boxes_that_cannot_be_are_listed_with_their_row(model: Embedder, rooms: Path, tmp_path: Path) -> None:
    rows: list[list[object]] = [
        ["room.png", "", 0, 0, 64, 48],
        ["room.png", "", 0, 0, 65, 48],
        ["room.png", "", 5, 5, 0, 8],
        ["room.png", "", "-3", 5, 9, 8],
        ["room.png", "", "x", 5, 9, 8],
        ["room.png", "", "", 5, 9, 8],
        ["room.png", "", "nan", 5, 9, 8],
        ["room.png", "", "0.5", "0.5", "0.6", "0.1"],
        ["room.png", "", 5, 5, 1.5, 8],
        ["room.png", "", "1e400", 5, 9, 8],
    ]
    table = write_table(rooms.parent / "bad.csv", rows)
    gallery = Gallery.create(tmp_path / "g", model)
    found = gallery.add((), metadata=table)
    assert (found.added, len(found.bad), {bad.reason for bad in found.bad}) == (1, 9, {"box"})
    said = {bad.detail for bad in found.bad}
    for line, what in (
        (3, "reaches beyond the picture of 64 x 48 pixels"),
        (4, "is empty"),
        (5, "begins outside the picture"),
        *((line, "is not four numbers") for line in (6, 7, 8)),
        (9, "reaches beyond the picture"),
        (10, "has less than 2 x 2 of the 64 x 48 pixels"),
        (11, "is not four numbers"),
    ):
        assert f"its box {what} ({table}, line {line})" in said
    printed = lookalike_here("index", "add", str(tmp_path / "g"), "--metadata", str(table), code=3)
    assert (
        f"reaches beyond the picture of 64 x 48 pixels ({table}, line 3)" in printed.stdout + printed.stderr
    )
    # Another table of the same picture is not affected.
    assert gallery.add((), metadata=rooms).added == 3


def test_a_box_that_is_there_twice_is_refused(model: Embedder, rooms: Path, tmp_path: Path) -> None:
    write_table(rooms, [["room.png", "", *PIXELS], ["room.png", "", *map(float, PIXELS)]])
    with pytest.raises(Exception, match=r"line 3: 'room.png#xywh=8,4,24,30' is in the table twice"):
        Gallery.create(tmp_path / "g", model).add((), metadata=rooms)


def test_boxes_are_in_the_upright_picture(model: Embedder, tmp_path: Path) -> None:
    upright = draw(3, (60, 90))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    turned = upright.transpose(Image.Transpose.ROTATE_90)
    turned.save(tmp_path / "x.png", exif=exif)
    assert np.array_equal(load_image(tmp_path / "x.png"), upright)
    table = write_table(tmp_path / "x.csv", [["x.png", "", 10, 50, 40, 30], ["x.png", "", 50, 10, 30, 40]])
    gallery = Gallery.create(tmp_path / "g", model)
    found = gallery.add((), metadata=table)
    assert (found.added, len(found.bad)) == (1, 1)
    np.testing.assert_allclose(gallery.vector(1), model.embed([upright.crop((10, 50, 50, 80))])[0], atol=2e-3)


def test_a_part_of_a_large_photograph_has_enough_pixels(tmp_path: Path) -> None:
    """The photograph is decoded at a reduced size, but not below what the part needs."""
    picture = draw(5, (1600, 1200))
    picture.save(tmp_path / "x.jpg", quality=97)
    box = f"{tmp_path / 'x.jpg'}#xywh=percent:50,50,25,25"
    part = np.asarray(load_image(box, side=100), float)
    assert min(part.shape[:2]) >= 200
    expected = picture.crop((800, 600, 1200, 900)).resize(part.shape[1::-1], Image.Resampling.BOX)
    assert np.abs(part - np.asarray(expected, float)).mean() < 3
    assert load_image(box).size == (400, 300)


def test_parts_survive_export_rebuild_and_parquet(model: Embedder, rooms: Path, tmp_path: Path) -> None:
    table = rooms.with_suffix(".parquet")
    columns = {
        "path": ["room.png", "room.png", "whole.png"],
        "label": ["sofa", "lamp", "room"],
        **{name: [*pair, None] for name, *pair in zip(COLUMNS[2:], PIXELS, FRACTIONS, strict=True)},
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), table)
    gallery = Gallery.create(tmp_path / "g", model)
    assert gallery.add([rooms.parent], metadata=table).added == 3
    folder = rooms.parent
    assert [item.key for item in gallery.items([1, 2, 3]).values()] == KEYS
    exported = tmp_path / "vectors.parquet"
    lookalike_here("index", "export", str(tmp_path / "g"), str(exported))
    lookalike_here("index", "import", str(tmp_path / "h"), str(exported), "--model", str(model.path))
    copy = Gallery.open(tmp_path / "h")
    assert sorted(item.key for item in copy.items([1, 2, 3]).values()) == KEYS
    assert copy.item(1).part == gallery.item(1).part
    other = write_model(tmp_path / "other.onnx", maps=True)
    rebuild(gallery, Embedder(other))
    check = Gallery.open(tmp_path / "g")
    vectors = check.vectors([1, 2, 3])
    expected = Embedder(other).embed(crops(folder))
    np.testing.assert_allclose([vectors[n] for n in (1, 2, 3)], expected, atol=2e-3)


def test_a_sidecar_of_a_tar_shard_may_have_a_box(model: Embedder, rooms: Path, tmp_path: Path) -> None:
    sidecar = rooms.parent / "room.json"
    sidecar.write_text(json.dumps(dict(zip(COLUMNS[2:], PIXELS, strict=True))))
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for file in (rooms.parent / "room.png", sidecar):
            tar.add(file, file.name)
    gallery = Gallery.create(tmp_path / "g", model)
    assert gallery.add([tmp_path / "0.tar"]).added == 1
    assert gallery.item(1).key == f"0.tar/{KEYS[0]}"
    np.testing.assert_allclose(gallery.vector(1), model.embed(crops(rooms.parent)[:1])[0], atol=2e-3)
    assert gallery.update().gone == []


# ---- galleries of the parts of pictures


def test_a_part_finds_its_picture_once(kind: Kind, model: Embedder, rooms: Path, tmp_path: Path) -> None:
    gallery = kind.create(tmp_path / "g", model)
    gallery.use_objects()
    rooms.unlink()
    assert gallery.add([rooms.parent]).added == 2 * 13
    assert gallery.manifest.product == "picture"
    room = Image.open(rooms.parent / "room.png")
    boxes = {item.part for item in gallery.items(gallery.select(where="picture = 'room.png'")).values()}
    assert len(boxes) == 13
    assert None in boxes
    for left, top, right, bottom in filter(None, boxes):
        assert (right - left) * 64 == pytest.approx(0.4 * 48, abs=0.01)
        crop = room.crop((round(left * 64), round(top * 48), round(right * 64), round(bottom * 48)))
        first, second = gallery.search(crop.convert("RGB"), 5)
        assert first.part == pytest.approx((left, top, right, bottom), abs=1e-6)
        assert (first.group, first.view_count, second.group) == ("room.png", 13, "whole.png")
    assert [hit.group for hit in gallery.search_id("room.png", 5)] == ["whole.png"]
    # It goes on so.
    again = gallery.add([rooms.parent])
    assert (again.added, again.unchanged) == (0, 26)
    draw(9, (48, 48)).save(rooms.parent / "new.png")
    (rooms.parent / "whole.png").unlink()
    with pytest.raises(InputError, match=r"13 of 26 images .*allows none"):
        gallery.sync(rooms.parent, limit=RemovalLimit(0.0, 0))
    done = gallery.sync(rooms.parent, limit=RemovalLimit(0.0, 1))  # of one picture, with its parts
    assert (done.added, done.removed, done.unchanged) == (10, 13, 13)
    assert {hit.group for hit in gallery.search(room.convert("RGB"), 5)} == {"room.png", "new.png"}
    assert gallery.sync(rooms.parent).unchanged == 23
    assert not gallery.verify().problems


def test_a_rebuilt_gallery_of_parts_stays_one(model: Embedder, rooms: Path, tmp_path: Path) -> None:
    words = [
        "index",
        "build",
        str(tmp_path / "g"),
        str(rooms.parent),
        "--objects",
        "--model",
        str(model.path),
    ]
    lookalike_here(*words, "--objects")
    gallery = Gallery.open(tmp_path / "g")
    found = rebuild(gallery, Embedder(write_model(tmp_path / "other.onnx", maps=True))).gallery
    assert (len(found), found.manifest.objects, found.manifest.product) == (26, True, "picture")


def test_parts_have_ids_and_products_of_the_table(model: Embedder, rooms: Path, tmp_path: Path) -> None:
    rooms.write_text("path,id,sku\nroom.png,a,1\nwhole.png,b,1\nbroken.png,c,2\n")
    (rooms.parent / "broken.png").write_bytes(b"not a picture")
    gallery = Gallery.create(tmp_path / "g", model)
    gallery.use_objects()
    done = gallery.add((), metadata=rooms)
    gallery.use_products("sku")
    assert (done.added, [bad.stamp.path for bad in done.bad]) == (26, ["broken.png"])
    keys = [item.key for item in gallery.items(gallery.select(where="sku = 1")).values()]
    assert len(keys) == 26
    assert {key.partition("#")[0] for key in keys} == {"a", "b"}
    assert len(gallery.search(rooms.parent / "room.png", 5)) == 1
