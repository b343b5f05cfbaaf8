"""Tests of update, sync and rebuild, also when interrupted or killed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retrieval import Embedder, Gallery, ImageError, InputError
from retrieval.images.location import Location
from retrieval.ingest.indexing import IngestResult
from retrieval.ingest.sync import RemovalLimit, folder_difference, sync, update
from retrieval.storage.records import Change
from retrieval.upkeep import rebuild as rebuilding
from retrieval.upkeep import successor
from retrieval.upkeep.rebuild import rebuild
from retrieval.upkeep.verify import verify
from tests.conftest import draw, lookalike_here, unzip_shared
from tests.serve.model import write_model


def items_of(gallery: Gallery) -> dict[str, tuple[str | None, str]]:
    """Return path -> (label, content) of all items; check that each has the vector of its file."""
    rows = gallery.store.select("SELECT id FROM items WHERE deleted_at IS NULL ORDER BY id")
    stored = gallery.store.items([i for (i,) in rows])
    gallery.refresh()
    if stored:
        vectors = gallery.embedder.embed([Path(item.root, item.path) for item in stored])
        np.testing.assert_allclose([gallery.vector(item.id) for item in stored], vectors, atol=1e-6)
    return {str(Path(item.root, item.path)): (item.label, item.content_sha256) for item in stored}


def files_of(folder: Path) -> dict[str, tuple[str | None, str]]:
    """Return path -> (label, content) of the images in a folder."""
    return {
        str(path): (path.parent.relative_to(folder).as_posix(), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in folder.rglob("*.png")
    }


def rows_written(gallery: Gallery) -> int:
    return sum(segment.n for segment in gallery.store.segments())


def touch(path: Path) -> None:
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 10**9))


# ---- sync


def test_sync_after_random_changes_matches_the_folder(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    """Files are written, removed, moved, copied, swapped and touched."""
    random = np.random.default_rng(5)
    other = tmp_path / "other" / "a"
    other.mkdir(parents=True)
    draw(500).save(other / "x.png")
    gallery.add([other.parent])
    for step in range(12):
        for _ in range(int(random.integers(1, 6))):
            files = sorted(photos.rglob("*.png"))
            target = photos / str(random.choice(["red", "green", "blue"])) / f"{random.integers(6)}.png"
            target.parent.mkdir(exist_ok=True)
            action = random.choice(["write", "remove", "move", "copy", "touch"])
            if action == "write" or len(files) < 3:
                draw(int(random.integers(1000))).save(target)
                touch(target)
                continue
            file = files[random.integers(len(files))]
            if action == "remove":
                file.unlink()
            elif action == "move":
                file.rename(target)
            elif action == "copy" and file != target:
                shutil.copy(file, target)
            else:
                touch(file)
        expected = folder_difference(gallery, photos)
        result = sync(gallery, photos)
        assert items_of(gallery) == {**files_of(photos), **files_of(other.parent)}, step
        assert result.added + result.moved <= expected.new + expected.changed + expected.moved
        assert (result.moved, result.removed) == (expected.moved, len(expected.gone))
        again = sync(gallery, photos)
        assert (again.added, again.moved, again.removed) == (0, 0, 0), step
    assert verify(gallery.folder).problems == []


def test_sync_does_not_embed_known_content(gallery: Gallery, photos: Path) -> None:
    sync(gallery, photos)
    before = rows_written(gallery)
    (photos / "red").rename(photos / "rouge")
    touch(photos / "green" / "0.png")
    assert vars(folder_difference(gallery, photos)) == {
        "new": 0,
        "changed": 1,
        "unchanged": 2,
        "moved": 3,
        "gone": [],
        "indexed": 6,
        "allowed": True,
    }
    result = sync(gallery, photos)
    assert (result.moved, result.removed, rows_written(gallery)) == (3, 0, before)


def test_sync_of_an_empty_folder_is_rejected(gallery: Gallery, photos: Path) -> None:
    """A disk that is not mounted must not empty the gallery."""
    sync(gallery, photos)
    shutil.rmtree(photos)
    with pytest.raises(InputError, match="no such folder"):
        sync(gallery, photos)
    photos.mkdir()
    with pytest.raises(InputError, match="no image files"):
        sync(gallery, photos)
    gallery.refresh()
    assert len(gallery) == 6


def test_sync_of_a_partly_mounted_folder_is_refused(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    """More than 10 images and more than 10% of them are gone; moved ones do not count."""
    for number in range(18):
        draw(100 + number).save(photos / "green" / f"x{number}.png")
    sync(gallery, photos)
    (photos / "green").rename(photos / "vert")
    assert folder_difference(gallery, photos).allowed
    (photos / "vert").rename(tmp_path / "away")
    draw(99).save(photos / "red" / "new.png")
    found = folder_difference(gallery, photos)
    assert (found.new, len(found.gone), found.indexed, found.allowed) == (1, 21, 24, False)
    for limit in (None, RemovalLimit(0.5, 0), RemovalLimit(0.0, 20)):
        allowed = "10% or 10 images" if limit is None else str(limit)
        message = rf"21 of 24 images \(87\.5%\).*green/0\.png.*allows {allowed};.*--max-removed 100%"
        with pytest.raises(InputError, match=message):
            sync(gallery, photos, limit=limit)
        with pytest.raises(InputError, match=message):
            update(gallery, prune=True, limit=limit)
    gallery.refresh()
    assert len(gallery) == 24, "nothing was added either"
    assert update(gallery).result.removed == 0
    assert sync(gallery, photos, limit=RemovalLimit(0.0, 21)).removed == 21
    assert items_of(gallery) == files_of(photos)


@pytest.mark.parametrize("changed", [False, True])
def test_removed_image_gets_its_id_and_metadata_back(
    gallery: Gallery, photos: Path, tmp_path: Path, changed: bool
) -> None:
    (photos / "t.csv").write_text("path,id,label,price\nred/0.png,a,scarlet,12\n")
    gallery.add([photos], metadata=photos / "t.csv")
    (photos / "t.csv").unlink()
    before = gallery.items(ids := gallery.ids_of(["a", "green/1.png"]))
    gone = [photos / "red" / "0.png", photos / "green" / "1.png"]
    for file in gone:
        file.rename(tmp_path / file.name)
    assert sync(gallery, photos).removed == 2
    for number, file in enumerate(gone):
        (tmp_path / file.name).rename(file)
        if changed:
            draw(70 + number).save(file)
    result = sync(gallery, photos)
    assert (result.added, result.replaced) == (2, 0)
    assert gallery.ids_of(["a", "green/1.png"]) == ids
    after = gallery.items(ids)
    for item, file in zip(ids, gone, strict=True):
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert after[item] == replace(before[item], content_sha256=digest)
    items_of(gallery)


@pytest.mark.parametrize(
    ("text", "removed", "code"), [("40%", 12, 2), ("50%", 12, 0), ("11", 12, 2), ("12", 12, 0), ("0", 1, 2)]
)
def test_limit_of_removed_images(photos: Path, tmp_path: Path, text: str, removed: int, code: int) -> None:
    for number in range(18):
        draw(100 + number).save(photos / "red" / f"x{number}.png")
    model, folder = str(write_model(tmp_path / "m.onnx")), str(tmp_path / "g")
    lookalike_here("index", "build", folder, str(photos), "--model", model)
    for number in range(removed):
        (photos / "red" / f"x{number}.png").unlink()
    words = ["index", "sync", folder, str(photos), "--max-removed", text]
    printed = json.loads(lookalike_here(*words, "--dry-run", "--json").stdout)
    assert (printed["removed_share"], printed["allowed"]) == (removed / 24, code == 0)
    assert ("would be refused" in lookalike_here(*words, "--dry-run").stdout) == (code != 0)
    done = lookalike_here(*words, code=code)
    assert (f"{removed} of 24 images" in done.stderr) == (code != 0)


def test_limit_is_a_share_or_a_number() -> None:
    for text in ("ten", "101%", "-1", "1.5", "%"):
        done = lookalike_here("index", "sync", "g", "f", "--max-removed", text, code=2)
        assert "is not a share such as 10% or a number of images" in done.stderr


@pytest.mark.parametrize("way", ["sync", "update"])
def test_checksum_finds_other_bytes_of_the_same_size_and_time(
    gallery: Gallery, photos: Path, way: str
) -> None:
    for number in (7, 8):
        draw(number).save(photos / "red" / f"{number}.bmp")
    gallery.add([photos])
    seven, eight = photos / "red" / "7.bmp", photos / "red" / "8.bmp"
    status = seven.stat()
    seven.write_bytes(eight.read_bytes())
    os.utime(seven, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert seven.stat().st_size == status.st_size

    def run(checksum: bool) -> IngestResult:
        if way == "update":
            return update(gallery, checksum=checksum).result
        return sync(gallery, photos, checksum=checksum)

    result = run(checksum=False)
    assert (result.added, result.unchanged) == (0, 8), "unnoticed, as documented"
    if way == "sync":
        assert folder_difference(gallery, photos).changed == 0
        assert folder_difference(gallery, photos, checksum=True).changed == 1
    result = run(checksum=True)
    assert (result.added, result.replaced, result.unchanged) == (1, 1, 7)
    ids = gallery.ids_of(["red/7.bmp", "red/8.bmp"])
    np.testing.assert_array_equal(*(gallery.vector(i) for i in ids))
    assert run(checksum=True).unchanged == 8


def test_special_files_do_not_stop_a_run(gallery: Gallery, photos: Path) -> None:
    os.mkfifo(photos / "red" / "pipe.jpg")
    result = sync(gallery, photos)
    assert (result.added, [(bad.stamp.path, bad.reason) for bad in result.bad]) == (
        6,
        [("red/pipe.jpg", ImageError.NOT_AN_IMAGE)],
    )
    result = sync(gallery, photos)
    assert (result.unchanged, len(result.bad)) == (6, 1)


def test_file_that_cannot_be_looked_up_is_not_gone(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale network file system fails with other errors than those of a missing file."""
    sync(gallery, photos)

    def fail(where: Location) -> tuple[int, int]:
        raise OSError(errno.ESTALE, "Stale file handle")

    (photos / "red" / "0.png").unlink()
    monkeypatch.setattr(Location, "stat", fail)
    assert sync(gallery, photos).removed == 0


def test_sync_keeps_items_that_it_does_not_scan(gallery: Gallery, photos: Path) -> None:
    with tarfile.open(photos / "s.tar", "w") as tar:
        tar.add(photos / "red" / "0.png", "x.png")
    (photos / "red" / "1.png").rename(photos / "picture")
    gallery.add([photos / "s.tar", photos / "picture"])
    result = sync(gallery, photos)
    assert (result.removed, len(gallery)) == (0, 7)
    (photos / "picture").unlink()
    assert sync(gallery, photos).removed == 1


def test_sync_forgets_deleted_bad_files(gallery: Gallery, photos: Path) -> None:
    (photos / "red" / "bad.png").write_text("not an image")
    assert len(sync(gallery, photos).bad) == 1
    (photos / "red" / "bad.png").unlink()
    sync(gallery, photos)
    assert gallery.contents.bad_files() == []


# ---- update


def test_update_embeds_changed_and_follows_moved_files(gallery: Gallery, photos: Path) -> None:
    gallery.add([photos])
    draw(50).save(photos / "red" / "0.png")
    touch(photos / "red" / "0.png")
    touch(photos / "red" / "1.png")
    (photos / "green" / "0.png").rename(photos / "green" / "moved.png")
    (photos / "green" / "1.png").unlink()
    draw(51).save(photos / "green" / "new.png")
    done = update(gallery)
    assert (done.result.added, done.result.replaced, done.result.moved) == (1, 1, 1)
    assert done.gone == [str(photos / "green" / "1.png")]
    assert len(gallery) == 6
    assert rows_written(gallery) == 7
    pruned = update(gallery, prune=True)
    assert (pruned.result.removed, pruned.result.added, len(gallery)) == (1, 0, 5)
    expected = files_of(photos)
    del expected[str(photos / "green" / "new.png")]
    assert items_of(gallery) == expected
    assert update(gallery).gone == []


def test_update_without_any_file_is_rejected(gallery: Gallery, photos: Path) -> None:
    gallery.add([photos])
    photos.rename(photos.with_name("away"))
    with pytest.raises(InputError, match="all image files are gone"):
        update(gallery, prune=True)
    gallery.refresh()
    assert len(gallery) == 6


# ---- rebuild


@pytest.fixture
def better(tmp_path: Path) -> Embedder:
    return Embedder(write_model(tmp_path / "better.onnx", "better"))


def facts(gallery: Gallery) -> dict[str, tuple[str | None, dict[str, object]]]:
    rows = gallery.store.select("SELECT id FROM items WHERE deleted_at IS NULL ORDER BY id")
    return {item.key: (item.label, item.metadata) for item in gallery.store.items([i for (i,) in rows])}


@pytest.fixture
def described(gallery: Gallery, photos: Path) -> Gallery:
    """A gallery whose images have ids, labels and metadata."""
    table = photos / "t.csv"
    table.write_text("path,id,label,price\nred/0.png,a,scarlet,12\nred/1.png,b,,3\n")
    gallery.add([photos], metadata=table)
    return gallery


def test_rebuild_replaces_only_the_vectors(described: Gallery, better: Embedder) -> None:
    before, reader = facts(described), Gallery(described.folder)
    done = rebuild(described, better)
    assert facts(done.gallery) == before
    assert done.gallery.fingerprint == better.fingerprint
    assert (done.result.added, done.resumed) == (6, 0)
    items_of(done.gallery)
    assert verify(done.gallery.folder).problems == []
    assert done.old == described.folder.with_name("g.old")
    assert facts(Gallery(done.old)) == before
    assert reader.replaced()
    reader.refresh()
    assert reader.embedder.fingerprint == better.fingerprint
    with pytest.raises(InputError, match=r"g\.old: already exists"):
        rebuild(done.gallery, better)
    assert rebuild(done.gallery, better, keep_old=False).old is None
    assert not list(described.folder.parent.glob(".g*"))


def ids(gallery: Gallery) -> dict[str, int]:
    return {key: gallery.ids_of([key])[0] for key in facts(gallery)}


def test_rebuild_keeps_numeric_ids(described: Gallery, better: Embedder, photos: Path) -> None:
    """Ids are those of before, with gaps, and the ids of removed items are not given to new ones."""
    draw(7).save(photos / "red" / "7.png")
    described.add([photos])
    described.remove(["red/7.png", "b", *[key for key in facts(described) if key.startswith("green/0")]])
    before = ids(described)
    highest = described.store.select("SELECT max(id) FROM items")[0][0]
    assert max(before.values()) < highest
    assert sorted(before.values()) != [*range(1, len(before) + 1)]
    done = rebuild(described, better)
    assert ids(done.gallery) == before
    draw(8).save(photos / "red" / "8.png")
    done.gallery.add([photos / "red" / "8.png"])
    assert done.gallery.ids_of(["red/8.png"])[0] > highest


def test_rebuilt_gallery_does_not_take_over_the_log_of_removals(described: Gallery, better: Embedder) -> None:
    """The log of the old gallery has vector numbers, which mean other vectors in the new one."""
    described.remove(["a", "b"])
    done = rebuild(described, better)
    expected = facts(done.gallery)
    (done.gallery.folder / "gallery.db").unlink()
    verify(done.gallery.folder, repair=True)
    assert facts(Gallery(done.gallery.folder)).keys() == expected.keys()


def test_resumed_rebuild_follows_changes_of_the_old_gallery(
    described: Gallery, better: Embedder, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two runs, items are renamed, removed and added."""
    with monkeypatch.context() as patch:
        patch.setattr(rebuilding, "exchange", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rebuild(described, better)
    draw(9).save(photos / "red" / "9.png")
    described.add([photos / "red" / "9.png"])
    described.remove(["b"])
    with described.store.writing():
        described.store.amend([Change(described.ids_of(["a"])[0], key="renamed", metadata={"price": 13})])
    described.refresh()
    before, expected = ids(described), facts(described)
    done = rebuild(described, better)
    assert done.resumed > 0
    assert ids(done.gallery) == before
    assert facts(done.gallery) == expected


def test_rebuild_reports_missing_files(described: Gallery, better: Embedder, photos: Path) -> None:
    (photos / "red" / "0.png").unlink()
    done = rebuild(described, better)
    assert [bad.stamp.path for bad in done.result.bad] == ["red/0.png"]
    assert set(facts(Gallery(done.old or ""))) - set(facts(done.gallery)) == {"a"}


@pytest.mark.parametrize("where", ["check_successor", "exchange", "shutil.rmtree", "fsync_folder"])
def test_interrupted_rebuild_leaves_one_complete_gallery(
    described: Gallery, better: Embedder, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Interrupted before each of the last steps; running it again finishes without embedding."""

    class PowerCut(BaseException):
        pass

    def cut(*_: object, **__: object) -> None:
        raise PowerCut

    before = facts(described)
    with monkeypatch.context() as patch:
        patch.setattr(rebuilding if "." not in where else rebuilding.shutil, where.rpartition(".")[2], cut)
        with pytest.raises(PowerCut):
            rebuild(described, better, keep_old=where != "shutil.rmtree")
    there = Gallery(described.folder)
    assert facts(there) == before
    assert verify(there.folder).problems == []
    swapped = where not in ("check_successor", "exchange")
    assert (there.fingerprint == better.fingerprint) == swapped
    if where != "fsync_folder":  # after that step the swap is complete
        done = rebuild(there, better)
        assert (done.result.added, done.resumed) == (0, 6)
        assert facts(done.gallery) == before
        assert done.gallery.fingerprint == better.fingerprint
    assert not list(described.folder.parent.glob(".g*"))


def test_rebuild_of_another_model_starts_over(
    described: Gallery, better: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Embedder(write_model(tmp_path / "other.onnx", "other"))
    with monkeypatch.context() as patch:
        patch.setattr(rebuilding, "exchange", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            rebuild(described, other)
    done = rebuild(described, better)
    assert (done.resumed, done.result.added) == (0, 6)
    assert done.gallery.fingerprint == better.fingerprint


def test_exchange_without_renameat2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    successor.exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b" / "a").exists()
    monkeypatch.setattr(successor.ctypes, "CDLL", lambda *_, **__: object())
    successor.exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b" / "b").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


# ---- interrupted and killed


def start(folder: Path, *words: str, more_than: int = 0) -> subprocess.Popen[str]:
    """Start a command that commits often; return when the gallery has more than some images."""
    program = (
        "import sys; from retrieval import cli; from retrieval.ingest import indexing\n"
        "indexing.COMMIT_ITEMS = 32; cli.main(sys.argv[1:])"
    )
    process = subprocess.Popen([sys.executable, "-c", program, *words], stderr=subprocess.PIPE, text=True)
    while not (folder / "gallery.db").exists() or len(Gallery(folder)) <= more_than:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    return process


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Many hard links to a few files."""
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(8):
        draw(number, (400, 300)).save(tmp_path / f"{number}.png")
    for number in range(600):
        (folder / f"{number:04}.png").symlink_to(tmp_path / f"{number % 8}.png")
    return folder


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_keeps_finished_images(many: Path, tmp_path: Path, name: str) -> None:
    """The message counts the gallery and the run; a second SIGTERM, as `timeout` sends, does not hurt."""
    model, folder = str(write_model(tmp_path / "m.onnx")), tmp_path / "g"
    draw(500).save(tmp_path / "first.png")
    lookalike_here("index", "build", str(folder), str(tmp_path / "first.png"), "--model", model)
    words = ["index", "build", str(folder), str(many), "--model", model]
    process = start(folder, *words, more_than=1)
    process.send_signal(signal.Signals[name])
    if name == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    done = len(Gallery(folder))
    assert 33 <= done < 601
    expected = f"interrupted; {done} images in the gallery, {done - 1} of this run; run the same command"
    assert expected in errors.splitlines()[-1]
    assert f"{done - 1} unchanged" in lookalike_here(*words).stdout
    assert len(Gallery(folder)) == 601


def test_killed_rebuild_keeps_the_old_gallery_and_resumes(many: Path, tmp_path: Path) -> None:
    model, folder = str(write_model(tmp_path / "m.onnx")), tmp_path / "g"
    lookalike_here("index", "build", str(folder), str(many), "--model", model)
    words = ["index", "rebuild", str(folder), "--model", str(write_model(tmp_path / "n.onnx", "new"))]
    process = start(tmp_path / ".g.rebuild", *words)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    old = Gallery(folder)
    assert len(old) == 600
    assert old.fingerprint == Embedder(model).fingerprint
    done = lookalike_here(*words)
    assert "already embedded by an earlier rebuild" in done.stderr
    assert Gallery(folder).fingerprint == Embedder(tmp_path / "n.onnx").fingerprint


@pytest.mark.slow
def test_build_from_unusual_files(tmp_path: Path) -> None:
    folder = unzip_shared("bad_inputs.zip", tmp_path / "bad")
    model = str(write_model(tmp_path / "m.onnx"))
    words = ["index", "build", str(tmp_path / "g"), str(folder), "--model", model]
    first = lookalike_here(*words, code=3)
    gallery = Gallery(tmp_path / "g")
    assert len(gallery) > 120
    assert len(gallery.contents.bad_files()) > 20
    assert all(bad.reason and bad.detail for bad in gallery.contents.bad_files())
    assert len(first.stderr.splitlines()) < 40, "further files are only counted"
    assert "nothing new to add" in lookalike_here(*words, code=3).stdout
    assert verify(gallery.folder).problems == []
