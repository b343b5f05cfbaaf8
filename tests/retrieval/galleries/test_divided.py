"""Galleries that divide pictures by a detector, in every kind: what is added, changes, goes, and is kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval import Embedder, Gallery, InputError, LookalikeError
from retrieval.galleries.items import Item
from retrieval.images.boxes import split
from retrieval.ingest.sync import RemovalLimit
from retrieval.storage.decisions import DecisionLog
from retrieval.stores.opening import parse_address
from retrieval.upkeep.rebuild import rebuild
from retrieval.upkeep.store_rebuild import rebuild_database
from tests.conftest import draw, lookalike_here
from tests.retrieval.galleries.conftest import Kind
from tests.retrieval.search.test_detector import CELLS, write_detector
from tests.serve.model import write_model

SIDE = 128  # pixels of a board; its cells have a quarter
ANY = RemovalLimit(1.0)
Cell = tuple[int, int]  # column and row
FIRST: tuple[Cell, ...] = ((1, 1), (3, 0))
SECOND: tuple[Cell, ...] = ((0, 2), (2, 2), (3, 3))


def board(file: Path, cells: Sequence[Cell], seed: int = 0) -> Path:
    """Write a white picture with coloured things in some of its 4 x 4 cells, which the detector finds."""
    size = SIDE // CELLS
    pixels = np.full((SIDE, SIDE, 3), 255, np.uint8)
    for number, (column, row) in enumerate(cells):
        thing = np.asarray(draw(10 * seed + number, (size, size), hue=number).convert("RGB")) // 2
        pixels[row * size : (row + 1) * size, column * size : (column + 1) * size] = thing
    Image.fromarray(pixels).save(file)
    return file


def boxes(cells: Sequence[Cell]) -> list[tuple[float, ...]]:
    return sorted((x / CELLS, y / CELLS, (x + 1) / CELLS, (y + 1) / CELLS) for x, y in cells)


def items_of(gallery: Gallery, picture: str) -> list[Item]:
    every = gallery.items(gallery.select(where="id > 0")).values()
    return [item for item in every if split(item.key)[0] == picture]


def check_picture(gallery: Gallery, model: Embedder, file: Path, cells: Sequence[Cell]) -> None:
    """Check that a picture and its cells are items, with the vectors of what Pillow cuts out."""
    found = items_of(gallery, file.name)
    assert sorted(item.part for item in found if item.part) == boxes(cells)
    vectors = gallery.vectors([item.id for item in found])
    with Image.open(file) as picture:
        for item in found:
            assert item.metadata["picture"] == file.name
            box = [SIDE * side for side in item.part or (0, 0, 1, 1)]
            (expected,) = model.embed([picture.convert("RGB").crop(tuple(map(round, box)))])
            np.testing.assert_allclose(vectors[item.id], expected, atol=2e-3)


@pytest.fixture(scope="session")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_detector(tmp_path_factory.mktemp("detector") / "cells.onnx", "torchvision")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two boards, and a white picture in which the detector finds nothing."""
    made = tmp_path / "boards"
    made.mkdir()
    board(made / "first.png", FIRST, 1)
    board(made / "second.png", SECOND, 2)
    board(made / "white.png", ())
    return made


@pytest.fixture
def gallery(kind: Kind, model: Embedder, detector: Path, folder: Path, tmp_path: Path) -> Gallery:
    made = kind.create(tmp_path / "g", model)
    made.use_objects(detector)
    made.add([folder])
    return made


def test_the_parts_are_what_the_detector_finds(
    kind: Kind, gallery: Gallery, model: Embedder, detector: Path, folder: Path, tmp_path: Path
) -> None:
    assert len(gallery) == len(FIRST) + len(SECOND) + 2 + (9 + 1)  # tiles of the white one
    check_picture(gallery, model, folder / "first.png", FIRST)
    check_picture(gallery, model, folder / "second.png", SECOND)
    if kind.database is None:  # ids are in the order in which items are written: the picture is the last
        assert max(items_of(gallery, "first.png"), key=lambda item: item.id).part is None
    assert gallery.manifest.product == "picture"
    detector = shutil.copy(detector, tmp_path / "other.onnx")
    Path(detector).write_bytes(write_detector(tmp_path / "x.onnx", "rows").read_bytes())
    with pytest.raises(InputError, match="build another gallery"):
        gallery.use_objects(detector)
    # All pictures that have not changed keep their parts, without a look into them.
    kept = folder / "second.png"
    status = kept.stat()
    data = board(tmp_path / "z.png", ((0, 0),), 7).read_bytes()
    assert len(data) <= status.st_size
    kept.write_bytes(data + bytes(status.st_size - len(data)))
    os.utime(kept, ns=(status.st_mtime_ns, status.st_mtime_ns))
    for done in (gallery.add([folder]), gallery.sync(folder)):
        assert (done.added, done.removed, done.unchanged) == (0, 0, len(gallery))
    # A process that opens it divides in the same way.
    board(folder / "third.png", SECOND, 3)
    again = Gallery.open(gallery.folder)
    assert again.sync(folder).added == len(SECOND) + 1
    gallery.refresh()
    check_picture(gallery, model, folder / "third.png", SECOND)
    assert not gallery.verify().problems


@pytest.mark.parametrize("by_sync", [False, True])
def test_a_picture_that_changes_has_other_parts(
    gallery: Gallery, model: Embedder, folder: Path, by_sync: bool
) -> None:
    board(folder / "first.png", SECOND, 4)
    os.utime(folder / "first.png", ns=(1, 1))
    count = len(gallery)
    done = gallery.sync(folder) if by_sync else gallery.add([folder])
    assert (done.added, done.removed) == (len(SECOND) + 1, len(FIRST))
    assert len(gallery) == count + len(SECOND) - len(FIRST)
    check_picture(gallery, model, folder / "first.png", SECOND)
    # One that cannot be read any more goes with all of its parts.
    (folder / "first.png").write_bytes(b"no picture")
    done = gallery.sync(folder, limit=ANY) if by_sync else gallery.add([folder])
    assert [bad.stamp.path for bad in done.bad] == ["first.png"]
    assert done.removed == len(SECOND)
    if by_sync or gallery.manifest.detector:
        assert {item.part for item in items_of(gallery, "first.png")} <= {None}


def test_a_copy_is_listed_once(gallery: Gallery, folder: Path) -> None:
    shutil.copy(folder / "first.png", folder / "copy.png")
    done = gallery.add([folder])
    assert (done.copied, done.duplicates) == (len(FIRST) + 1, [["first.png", "copy.png"]])


@pytest.mark.parametrize("at_once", [False, True])
def test_pictures_of_one_name_in_two_folders_are_two(
    kind: Kind, model: Embedder, folder: Path, tmp_path: Path, at_once: bool
) -> None:
    other = tmp_path / "others"
    other.mkdir()
    board(other / "first.png", SECOND, 5)
    made = kind.create(tmp_path / "g", model)
    made.use_objects()
    for folders in [[folder, other]] if at_once else [[folder], [other]]:
        made.add(folders)
    found = made.search(other / "first.png", 10)
    assert (found[0].path, found[0].view_count) == (str(other / "first.png"), 10)
    assert len({hit.path for hit in found}) == len(found) == 4
    # It changes, and goes, without the other one.
    board(other / "first.png", FIRST, 6)
    made.sync(other)
    hit = made.search(other / "first.png", 1)[0]
    assert (hit.path, hit.view_count, round(hit.score, 4)) == (str(other / "first.png"), 10, 1)
    made.remove([hit.id])
    assert len(made) == 3 * 10
    assert {hit.group for hit in made.search(other / "first.png", 10)} == {
        "first.png",
        "second.png",
        "white.png",
    }
    assert not made.verify().problems


def test_parts_follow_their_picture(gallery: Gallery, model: Embedder, folder: Path) -> None:
    before = sorted(item.id for item in items_of(gallery, "first.png"))
    (folder / "first.png").rename(folder / "moved.png")
    done = gallery.sync(folder)
    assert (done.moved, done.added, done.removed) == (len(FIRST) + 1, 0, 0)
    assert sorted(item.id for item in items_of(gallery, "moved.png")) == before
    check_picture(gallery, model, folder / "moved.png", FIRST)
    (folder / "second.png").unlink()
    assert gallery.sync(folder, limit=ANY).removed == len(SECOND) + 1


def test_a_run_that_was_killed_is_finished(gallery: Gallery, model: Embedder, folder: Path) -> None:
    """The picture is written last: without it, its parts are looked for again."""
    whole, *parts = sorted(items_of(gallery, "second.png"), key=lambda item: item.part is not None)
    with gallery.writer.writing():
        gallery.writer.remove([whole.id, parts[0].id])
    gallery.refresh()
    assert gallery.add([folder]).added == 2
    check_picture(gallery, model, folder / "second.png", SECOND)


def test_a_picture_is_removed_with_its_parts(gallery: Gallery, folder: Path) -> None:
    whole = next(item for item in items_of(gallery, "first.png") if item.part is None)
    part = next(item for item in items_of(gallery, "second.png") if item.part)
    editor = gallery.editor()
    with editor.writing():
        editor.remove([whole.id, part.id])
    gallery.refresh()
    assert items_of(gallery, "first.png") == []
    left = {item.key for item in items_of(gallery, "second.png")}
    assert len(left) == len(SECOND)
    # Neither comes back by itself.
    for done in (gallery.add([folder]), gallery.sync(folder)):
        assert done.added == 0
    assert {item.key for item in items_of(gallery, "second.png")} == left
    # The decision was about the picture: without it, all of it comes back.
    (number,) = [one.n for one in DecisionLog(gallery.folder).read() if one.key == whole.key]
    with editor.writing():
        editor.undo([number])
    assert gallery.add([folder]).added == len(FIRST) + 1
    assert gallery.remove(["first.png"]) == len(FIRST) + 1


def test_the_label_of_a_picture_is_that_of_its_parts(gallery: Gallery, folder: Path) -> None:
    whole = next(item for item in items_of(gallery, "first.png") if item.part is None)
    editor = gallery.editor()
    with editor.writing():
        (stored,) = editor.stored_items([whole.id])
        editor.amend(stored, "hall", {"price": 5})
    gallery.refresh()
    assert {(one.label, one.metadata["price"]) for one in items_of(gallery, "first.png")} == {("hall", 5)}
    with editor.writing():
        editor.undo([one.n for one in DecisionLog(gallery.folder).read()])
    gallery.refresh()
    assert {one.label for one in items_of(gallery, "first.png")} == {whole.label}


def test_a_column_of_the_same_name_is_refused(
    kind: Kind, gallery: Gallery, model: Embedder, folder: Path, tmp_path: Path
) -> None:
    board(folder / "new.png", FIRST, 5)
    (folder / "table.csv").write_text("path,Picture\nnew.png,mine\n")
    with pytest.raises(InputError, match="give the column another name"):
        gallery.add((), metadata=folder / "table.csv")
    assert items_of(gallery, "new.png") == []
    editor = gallery.editor()
    whole = next(item for item in items_of(gallery, "first.png") if item.part is None)
    with editor.writing():
        (stored,) = editor.stored_items([whole.id])
        with pytest.raises(InputError, match="give the column another name"):
            editor.amend(stored, None, {"PICTURE": "mine"})
    mine = kind.create(tmp_path / "mine", model)
    mine.add((), metadata=folder / "table.csv")
    with pytest.raises(InputError, match="has a column 'picture'"):
        mine.use_objects()
    assert not mine.manifest.objects


def test_the_detector_goes_with_the_gallery(
    kind: Kind, gallery: Gallery, model: Embedder, folder: Path, tmp_path: Path
) -> None:
    other = Embedder(write_model(tmp_path / "other.onnx", maps=True))
    made = (rebuild if kind.database is None else rebuild_database)(gallery, other).gallery  # type: ignore
    check_picture(made, other, folder / "first.png", FIRST)
    places = [made.folder, made.folder.with_name("g.old")]
    if kind.database is None:
        Gallery.open(made.folder).snapshot(tmp_path / "copy")
        places.append(tmp_path / "copy")
    board(folder / "third.png", SECOND, 3)
    for place in places[:1] + places[2:]:
        opened = Gallery.open(place)
        assert opened.add([folder / "third.png"]).added == len(SECOND) + 1
        check_picture(opened, other, folder / "third.png", SECOND)
        assert not opened.verify().problems
    # Without its file nothing is added, and nothing is lost.
    opened, count = Gallery.open(places[0]), len(Gallery.open(places[0]))
    file = opened.folder / "detector.onnx"
    data = file.read_bytes()
    board(folder / "fourth.png", SECOND, 3)
    for spoil, what in ((lambda: file.write_bytes(b"other"), "not the detector"), (file.unlink, "missing")):
        spoil()
        fresh, said = Gallery.open(places[0]), f"{what}.*copy the ONNX file with the SHA-256"
        with pytest.raises(LookalikeError, match=said):
            fresh.add([folder])
        with pytest.raises(LookalikeError, match=said):
            fresh.sync(folder)
        assert len(fresh) == count
        assert [problem.what.partition(":")[0] for problem in fresh.verify().problems] == ["detector.onnx"]
        assert fresh.search(folder / "first.png", 1)[0].group == "first.png"
    file.write_bytes(data)
    assert Gallery.open(places[0]).add([folder]).added == len(SECOND) + 1


def test_a_bridge_keeps_the_detector(model: Embedder, detector: Path, tmp_path: Path) -> None:
    folder = tmp_path / "boards"
    folder.mkdir()
    for seed in range(20):
        board(folder / f"{seed}.png", SECOND, seed)
    gallery = Gallery.create(tmp_path / "g", model)
    gallery.use_objects(detector)
    gallery.add([folder])
    other = Embedder(write_model(tmp_path / "other.onnx", "another", maps=True))
    gallery.bridge(other, 60)
    board(folder / "new.png", FIRST, 50)
    opened = Gallery.open(tmp_path / "g")
    assert opened.add([folder / "new.png"]).added == len(FIRST) + 1
    for name, cells in (("new.png", FIRST), ("3.png", SECOND)):
        check_picture(opened, other, folder / name, cells)
    assert not opened.verify().problems


def test_an_import_goes_on_dividing(
    kind: Kind, gallery: Gallery, model: Embedder, detector: Path, folder: Path, tmp_path: Path
) -> None:
    gallery.use_products("label,picture")
    table = tmp_path / "boards.parquet"
    gallery.export(table)
    store = kind.database and parse_address(kind.database.new_collection())
    Gallery.import_vectors(tmp_path / "new", table, model=model.path, store=store)
    made = Gallery.open(tmp_path / "new")
    assert made.manifest.units == gallery.manifest.units
    assert (made.manifest.product, made.manifest.variant) == ("label", "picture")
    check_picture(made, model, folder / "first.png", FIRST)
    third = board(tmp_path / "third.png", SECOND, 3)
    with pytest.raises(LookalikeError, match="copy the ONNX file"):
        made.add([third])
    made.use_objects(detector)
    assert made.add([third]).added == len(SECOND) + 1
    check_picture(made, model, third, SECOND)
    made.remove([item.id for item in items_of(made, "first.png") if item.part is None])
    assert items_of(made, "first.png") == []
    assert not made.verify().problems


def test_near_duplicates_are_refused_by_pictures(
    kind: Kind, model: Embedder, detector: Path, folder: Path, tmp_path: Path
) -> None:
    """Parts of one picture look alike, and one that is refused has none."""
    made = kind.create(tmp_path / "g", model)
    made.use_objects(detector)
    with Image.open(board(folder / "first.png", FIRST, 1)) as picture:
        pixels = np.asarray(picture).copy()
    size = SIDE // CELLS
    pixels[3 * size :, :size] = pixels[size : 2 * size, size : 2 * size]  # the same thing twice
    Image.fromarray(pixels).save(folder / "first.png")
    done = made.add([folder / "first.png", folder / "second.png"], duplicates="refuse")
    assert (done.added, done.refused) == (len(FIRST) + 1 + 1 + len(SECOND) + 1, [])
    Image.fromarray(pixels ^ 1).save(folder / "nearly.png")
    done = made.add([folder], duplicates="refuse")
    assert [Path(one.path).name for one in done.refused] == ["nearly.png"]
    assert done.added == 10  # the white one
    assert items_of(made, "nearly.png") == []


def test_the_command_keeps_the_detector(
    model: Embedder, detector: Path, folder: Path, tmp_path: Path
) -> None:
    words = ["index", "build", str(tmp_path / "c"), str(folder), "--model", str(model.path)]
    said = lookalike_here(*words, "--detector", str(detector), code=2).stderr
    assert "--detector goes with --objects" in said
    lookalike_here(*words, "--objects", "--detector", str(detector))
    built = Gallery.open(tmp_path / "c")
    check_picture(built, model, folder / "first.png", FIRST)
    board(folder / "third.png", SECOND, 3)
    lookalike_here("index", "sync", str(tmp_path / "c"), str(folder))
    built.refresh()
    check_picture(built, model, folder / "third.png", SECOND)
    assert "detector" in lookalike_here("index", "info", str(tmp_path / "c")).stdout
