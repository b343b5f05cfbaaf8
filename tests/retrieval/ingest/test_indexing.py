"""Tests of indexing runs: new, changed, touched, moved, copied and unusable files; metadata tables."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval import Gallery, InputError, LookalikeError, Runtime
from retrieval.images.load import read_bytes
from retrieval.ingest import indexing
from retrieval.ingest.indexing import add_images
from retrieval.ingest.sources import Sources
from retrieval.storage.store import Store
from tests.conftest import draw
from tests.retrieval.filling import small_gallery


def items(gallery: Gallery) -> dict[str, tuple[int, str | None, dict[str, object]]]:
    """Return key -> (id, label, metadata)."""
    rows = gallery.store.select("SELECT id FROM items WHERE deleted_at IS NULL")
    return {
        item.key: (item.id, item.label, item.metadata) for item in gallery.store.items([i for (i,) in rows])
    }


def segments(gallery: Gallery) -> int:
    """Return the number of segments, which grows with every embedded or copied vector."""
    return sum(segment.n for segment in gallery.store.segments())


def touch(path: Path) -> None:
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 10**9))


def agrees(gallery: Gallery) -> bool:
    """Return whether every item has the vector of the present content of its file."""
    gallery.refresh()
    ids = [id for id, _, _ in items(gallery).values()]
    found = gallery.items(ids)
    expected = gallery.embedder.embed([found[id].path for id in ids])
    return np.allclose([gallery.vector(id) for id in ids], expected, atol=1e-6)


# ---- tables


def test_table_sets_ids_labels_and_metadata(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,id,label,brand,price\nred/0.png,a1,scarlet,acme,12\nred/1.png,a2,,,3.5\n")
    gallery.add([photos], metadata=table)
    found = items(gallery)
    assert found["a1"][1:] == ("scarlet", {"brand": "acme", "price": 12.0})
    assert found["a2"][1:] == (None, {"price": 3.5})
    assert found["red/2.png"][1:] == ("red", {})
    assert len(found) == 6


def test_metadata_without_a_file(gallery: Gallery, photos: Path) -> None:
    paths = [photos / "red" / "0.png", photos / "red" / "1.png"]
    gallery.add(paths, metadata=[{"brand": "acme", "price": 3}, {"brand": None, "label": "odd", "id": "x"}])
    assert [(key, label, metadata) for key, (_, label, metadata) in items(gallery).items()] == [
        ("0.png", None, {"brand": "acme", "price": 3}),
        ("x", "odd", {}),
    ]
    assert [hit.key for hit in gallery.search(paths[1], where="price = 3")] == ["0.png"]
    with pytest.raises(InputError, match="1 rows for 2 files"):
        gallery.add(paths, metadata=[{}])


def test_later_table_describes_existing_items(gallery: Gallery, photos: Path) -> None:
    gallery.add([photos])
    before, table = items(gallery), photos / "t.csv"
    table.write_text("path,price\nred/0.png,12\nred/1.png,3\n")
    result = gallery.add([photos], metadata=table)
    assert (result.added, result.unchanged, result.described) == (0, 6, 2)
    assert segments(gallery) == 6
    after = items(gallery)
    assert after["red/0.png"] == (before["red/0.png"][0], "red", {"price": 12})
    table.write_text("path,price\nred/0.png,12\nred/1.png,\n")
    assert gallery.add([photos], metadata=table).described == 1
    assert items(gallery)["red/1.png"][2] == {}
    assert gallery.add([photos], metadata=table).described == 0


def test_new_ids_replace_old_ones_without_embedding(gallery: Gallery, photos: Path) -> None:
    table = photos / "t.csv"
    table.write_text("path,id\nred/0.png,a\nred/1.png,b\n")
    gallery.add([], metadata=table)
    table.write_text("path,id\nred/0.png,b\nred/1.png,c\n")  # one id moves to the other file
    result = gallery.add([], metadata=table)
    assert (result.added, result.copied) == (2, 2)
    assert sorted(items(gallery)) == ["b", "c"]
    assert gallery.items([items(gallery)["b"][0]])[items(gallery)["b"][0]].path == str(
        photos / "red" / "0.png"
    )
    assert agrees(gallery)


def test_id_that_another_file_has_by_its_path(gallery: Gallery, photos: Path) -> None:
    """Both are new in one commit, and the file that has the id by its path comes first."""
    table = photos / "t.csv"
    table.write_text("path,id\nred/1.png,red/0.png\n")
    gallery.add([photos], metadata=table)
    assert sorted(set(items(gallery)) - {f"green/{n}.png" for n in range(3)}) == sorted(
        [str(photos / "red" / "0.png"), "red/0.png", "red/2.png"]
    )
    assert agrees(gallery)


def test_id_of_two_images_is_rejected(gallery: Gallery, photos: Path) -> None:
    with tarfile.open(photos / "s.tar", "w") as tar:
        for number in (0, 1):
            tar.add(photos / "red" / f"{number}.png", f"{number}.png")
            (photos / "id.json").write_text('{"id": 7}')
            tar.add(photos / "id.json", f"{number}.json")
    with pytest.raises(InputError, match="two images have the id '7'"):
        gallery.add([photos / "s.tar"])
    assert items(gallery) == {}


def test_own_label_is_kept_when_the_image_changes(gallery: Gallery, photos: Path) -> None:
    table = photos / "t.csv"
    table.write_text("path,id,label,price\nred/0.png,a,scarlet,12\n")
    gallery.add([photos], metadata=table)
    draw(77).save(photos / "red" / "0.png")
    touch(photos / "red" / "0.png")
    result = gallery.add([photos])
    assert (result.added, result.replaced) == (1, 1)
    assert items(gallery)["a"][1:] == ("scarlet", {"price": 12})
    assert agrees(gallery)


def test_column_of_two_types_is_rejected_without_changes(gallery: Gallery, photos: Path) -> None:
    table = photos / "t.csv"
    table.write_text("path,price\nred/0.png,12\n")
    gallery.add([photos / "red"], metadata=table, root=photos)
    before = items(gallery)
    table.write_text("path,price\nred/0.png,cheap\n")
    with pytest.raises(InputError, match=r"column 'price' is text here .'cheap'., but number in the gallery"):
        gallery.add([photos], metadata=table)
    assert items(gallery) == before
    table.write_text("path,id,PRICE\nred/0.png,x,12\n")
    gallery.add([photos / "red"], metadata=table, root=photos)
    assert items(gallery)["x"][2] == {"price": 12}


@pytest.mark.parametrize("column", ["width", "score", "a\nb", "x" * 200])
def test_invalid_column_names_are_rejected(gallery: Gallery, photos: Path, column: str) -> None:
    table = photos / "t.csv"
    table.write_text(f'path,"{column}"\nred/0.png,12\n')
    with pytest.raises(InputError, match="metadata column"):
        gallery.add([photos], metadata=table)
    assert items(gallery) == {}


# ---- bytes that are known


def test_touched_file_is_not_embedded_again(gallery: Gallery, photos: Path) -> None:
    gallery.add([photos])
    before = items(gallery)
    for path in photos.rglob("*.png"):
        touch(path)
    result = gallery.add([photos])
    assert (result.added, result.unchanged) == (0, 6)
    assert (items(gallery), segments(gallery)) == (before, 6)
    assert gallery.add([photos]).unchanged == 6


def test_item_follows_its_moved_file(gallery: Gallery, photos: Path) -> None:
    table = photos / "t.csv"
    table.write_text("path,id,label,price\nred/0.png,a,scarlet,12\n")
    gallery.add([photos], metadata=table)
    before = items(gallery)
    shutil.move(photos / "red", photos / "rouge")
    result = gallery.add([photos])
    assert (result.added, result.moved, segments(gallery)) == (0, 3, 6)
    after = items(gallery)
    assert after["a"] == before["a"]
    assert after["rouge/1.png"] == (before["red/1.png"][0], "rouge", {})
    assert agrees(gallery)
    assert gallery.add([photos]).unchanged == 6


def test_swapped_files(gallery: Gallery, photos: Path) -> None:
    gallery.add([photos])
    (photos / "red" / "0.png").rename(photos / "x")
    (photos / "red" / "1.png").rename(photos / "red" / "0.png")
    (photos / "x").rename(photos / "red" / "1.png")
    touch(photos / "red" / "0.png")
    touch(photos / "red" / "1.png")
    result = gallery.add([photos])
    assert (result.added, result.copied) == (2, 2)
    assert len(items(gallery)) == 6
    assert agrees(gallery)


def test_copies_are_kept_and_reported(gallery: Gallery, photos: Path) -> None:
    shutil.copy(photos / "red" / "0.png", photos / "red" / "again.png")
    assert gallery.add([photos]).duplicates == [["red/0.png", "red/again.png"]]
    shutil.copy(photos / "red" / "1.png", photos / "green" / "again.png")
    result = gallery.add([photos])
    assert (result.added, result.copied) == (1, 1)
    assert result.duplicates == [["red/1.png", "green/again.png"]]
    assert gallery.add([photos]).duplicates == [], "nothing new"
    assert len(items(gallery)) == 8
    assert agrees(gallery)


def test_same_names_in_two_folders_are_two_items(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    gallery.add([photos])
    other = tmp_path / "other"
    for path in photos.rglob("*.png"):
        target = other / path.relative_to(photos)
        target.parent.mkdir(parents=True, exist_ok=True)
        draw(int(path.stem) + 50).save(target)
    gallery.add([other])
    assert len(items(gallery)) == 12
    assert agrees(gallery)
    assert gallery.add([photos, other]).unchanged == 12


def test_overlapping_sources_are_indexed_once(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"{photos}/red/0.png\n{photos}/red/0.png\n")
    sources = Sources([photos, photos / "red", f"{photos}/**/*.png"], str(tmp_path / "list.txt"), root=photos)
    for expected in (6, 0):
        result = add_images(gallery, sources)
        assert (result.added, result.unchanged, result.duplicates) == (expected, 6 - expected, [])
    assert items(gallery)["red/0.png"][1] == "red"


# ---- several things at a time


def test_run_of_an_accelerator_adds_the_same_items(
    gallery: Gallery, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calls of the model at a time, padded runs, and a commit after each batch: nothing is mixed up."""
    for seed in range(60):
        draw(seed).save(photos / "red" / f"{seed}.png")
    (photos / "red" / "7.png").write_text("not an image")
    gallery.add([photos])
    other = small_gallery(tmp_path / "other")
    monkeypatch.setattr(other.embedder, "_run_size", None)
    monkeypatch.setattr(other.embedder, "runtime", Runtime(batch_size=5))
    monkeypatch.setattr(indexing, "COMMIT_ITEMS", 5)
    assert (other.embedder.concurrency, other.embedder.batch_size) == (2, 5)
    result = other.add([photos])
    assert (result.added, len(result.bad)) == (62, 1)
    assert items(other) == items(gallery)
    assert len(other.store.bad_files()) == 1
    monkeypatch.undo()
    assert agrees(other)


def test_error_of_a_commit_ends_the_run(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(60):
        draw(seed).save(photos / "red" / f"{seed}.png")
    commit, calls = Store.commit, []

    def fails_later(store: Store, *args: Any) -> None:
        calls.append(threading.current_thread().name)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "no space left on device")
        commit(store, *args)

    monkeypatch.setattr(indexing, "COMMIT_ITEMS", 5)
    monkeypatch.setattr(Store, "commit", fails_later)
    with pytest.raises(LookalikeError, match=r"cannot be written .*committed data is safe"):
        gallery.add([photos])
    assert len(calls) == 2
    assert all(name.startswith("commit") for name in calls)
    assert not [one for one in threading.enumerate() if one.name.startswith(("commit", "embed", "decode"))]
    monkeypatch.undo()
    gallery.refresh()
    assert 0 < len(gallery) == segments(gallery) < 63
    committed = len(gallery)
    result = gallery.add([photos])
    assert (result.unchanged, result.added) == (committed, 63 - committed)
    assert agrees(gallery)


# ---- tar shards


def test_tar_shard_from_indexing_to_search(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    def pack(*names: str) -> None:
        with tarfile.open(tmp_path / "s.tar", "w") as tar:
            for name in names:
                tar.add(photos / name, name)

    pack("red/0.png", "green/1.png")
    gallery.add([tmp_path / "s.tar"])
    hit = gallery.search(photos / "green" / "1.png", 1)[0]
    assert (hit.key, hit.label) == ("s.tar/green/1.png", "green")
    assert hit.path == str(tmp_path / "s.tar" / "green" / "1.png")
    assert gallery.search(hit.path, 1)[0].id == hit.id
    assert read_bytes(Path(hit.path)) == (photos / "green" / "1.png").read_bytes()
    assert gallery.add([tmp_path / "s.tar"]).unchanged == 2
    pack("red/2.png", "red/0.png", "green/1.png")
    result = gallery.add([tmp_path / "s.tar"])
    assert (result.added, result.unchanged, segments(gallery)) == (1, 2, 3)
    assert agrees(gallery)


# ---- bad files


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_file_that_could_not_be_read_is_tried_again(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Unlike one that is no image: the disk or the permission may be right the next time."""
    (photos / "red" / "9.jpg").write_text("not an image")
    real = os.fstat

    def fail(descriptor: int) -> os.stat_result:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("green/1.png"):
            raise OSError(code, os.strerror(code))
        return real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", fail)
        first = gallery.add([photos])
    assert (first.added, len(first.bad)) == (5, 2)
    second = gallery.add([photos])
    assert (second.added, len(second.bad)) == (1, 1)
    assert len(gallery.store.bad_files()) == 1


# ---- too many bad files


def test_run_stops_at_too_many_bad_files(gallery: Gallery, photos: Path) -> None:
    for number in range(200):
        (photos / f"{number:03}.jpg").write_text("not an image")
    with pytest.raises(LookalikeError, match=r"stopped: \d+ of \d+ files were unusable.*--max-bad 1"):
        gallery.add([photos])
    assert 50 < len(gallery.store.bad_files()) < 200
    assert len(gallery.add([photos], max_bad=1).bad) == 200
    assert len(items(gallery)) == 6


def test_few_bad_files_stop_the_run_only_with_max_bad_0(gallery: Gallery, photos: Path) -> None:
    (photos / "red" / "9.jpg").write_text("not an image")
    with pytest.raises(LookalikeError, match="1 of 7 files"):
        gallery.add([photos], max_bad=0)
    assert len(items(gallery)) == 6
    assert len(gallery.add([photos]).bad) == 1


def test_table_rows_of_missing_files_are_bad_files(gallery: Gallery, photos: Path) -> None:
    (photos / "t.csv").write_text("path,price\nred/0.png,12\nred/gone.png,3\n")
    for sources in ([], [photos]):
        result = gallery.add(sources, metadata=photos / "t.csv")
        assert [(bad.stamp.path, bad.reason) for bad in result.bad] == [("red/gone.png", "missing")]
    draw(9).save(photos / "red" / "gone.png")
    assert gallery.add([], metadata=photos / "t.csv").bad == []
    assert items(gallery)["red/gone.png"][2] == {"price": 3}


def test_item_of_an_unreadable_file_is_kept(gallery: Gallery, photos: Path) -> None:
    (photos / "t.csv").write_text("path,id,price\nred/0.png,a,12\nred/1.png,b,3\n")
    gallery.add([], metadata=photos / "t.csv")
    before = items(gallery)
    (photos / "red" / "0.png").unlink()
    for sources in ([], [photos / "red"]):
        result = gallery.add(sources, metadata=photos / "t.csv", root=photos)
        assert [(bad.stamp.path, bad.reason) for bad in result.bad] == [("red/0.png", "missing")]
    assert {key: items(gallery)[key] for key in before} == before


def test_commits_of_another_process_are_seen(gallery: Gallery, photos: Path) -> None:
    other = Gallery(gallery.folder)
    gallery.add([photos])
    shutil.copy(photos / "red" / "0.png", photos / "red" / "again.png")
    assert other.add([photos]).copied == 1
    assert agrees(other)


# ---- after damage


def test_lost_vector_is_embedded_again(gallery: Gallery, photos: Path) -> None:
    (photos / "t.csv").write_text("path,id,label,price\nred/0.png,a,scarlet,12\n")
    gallery.add([photos], metadata=photos / "t.csv")
    before = items(gallery)
    with gallery.store.writing(), gallery.store.transaction() as db:
        db.execute("UPDATE items SET vector = NULL WHERE key IN ('a', 'green/0.png')")
    result = gallery.add([photos])
    assert (result.added, result.unchanged) == (2, 4)
    after = items(gallery)
    assert {key: facts[1:] for key, facts in after.items()} == {key: f[1:] for key, f in before.items()}
    assert agrees(gallery)
