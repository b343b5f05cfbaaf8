"""Operations on every kind of gallery: each works, or `retrieval.galleries.inapplicable` says why not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from retrieval import Embedder, Gallery, InputError
from retrieval.curation.leakage import find_leakage
from retrieval.curation.quality import inspect_gallery
from retrieval.curation.suspects import find_suspects
from retrieval.curation.thinning import plan_thinning
from retrieval.evaluation.calibration_fit import calibrate
from retrieval.evaluation.coverage import measure_coverage
from retrieval.galleries.inapplicable import INAPPLICABLE
from retrieval.ingest.sync import RemovalLimit, sync
from retrieval.ingest.watch import watch
from retrieval.storage.query_log import LoggedSearch, QueryLog, new_id
from retrieval.stores.engine import Engine
from tests.conftest import draw, lookalike_here
from tests.retrieval.galleries.conftest import COUNT, Catalogue, Kind, close

ANY = RemovalLimit(1.0)


def touch(path: Path) -> None:
    """Give a file a new modification time."""
    os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns + 1_000_000))


def write(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(number).save(path)
    touch(path)


def agrees(gallery: Gallery, folder: Path) -> None:
    """Check that a gallery has the files of a folder, each once and with the vector of its bytes."""
    gallery.refresh()
    items = gallery.items(gallery.select(where="id > 0"))
    files = sorted(str(path) for path in folder.rglob("*.png"))
    assert sorted(item.path for item in items.values()) == files
    vectors = gallery.vectors([*items])
    expected = gallery.embedder.embed([Path(item.path) for item in items.values()])
    np.testing.assert_allclose(np.stack([vectors[number] for number in items]), expected, atol=1e-5)


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of images that the model embeds in each call."""
    counts: list[int] = []
    embed = Embedder.embed_pixels

    def counting(self: Embedder, pixels: np.ndarray) -> np.ndarray:
        counts.append(len(pixels))
        return embed(self, pixels)

    monkeypatch.setattr(Embedder, "embed_pixels", counting)
    return counts


# ---- sync and update


def test_sync_after_random_changes(kind: Kind, model: Embedder, tmp_path: Path) -> None:
    """Files are written, removed, moved, copied and touched."""
    random, photos = np.random.default_rng(5), tmp_path / "photos"
    for number in range(4):
        write(photos / "red" / f"{number}.png", number)
    write(tmp_path / "other" / "x.png", 500)
    gallery = kind.create(tmp_path / "g", model)
    gallery.add([tmp_path / "other"])
    for step in range(8):
        for _ in range(int(random.integers(1, 6))):
            files = sorted(photos.rglob("*.png"))
            target = photos / str(random.choice(["red", "green"])) / f"{random.integers(6)}.png"
            action, file = random.choice(["write", "remove", "move", "copy", "touch"]), files[0]
            file = files[random.integers(len(files))]
            if action == "write" or len(files) < 3:
                write(target, int(random.integers(1000)))
            elif action == "remove":
                file.unlink()
            elif action == "touch":
                touch(file)
            elif file != target:
                target.parent.mkdir(exist_ok=True)
                (shutil.copy if action == "copy" else Path.rename)(file, target)
        expected = gallery.difference(photos)
        result = gallery.sync(photos, limit=ANY)
        assert (result.moved, result.removed) == (expected.moved, len(expected.gone)), step
        assert result.added + result.moved <= expected.new + expected.changed + expected.moved
        again = gallery.sync(photos)
        assert (again.added, again.moved, again.removed) == (0, 0, 0), step
        shutil.copytree(photos, tmp_path / "all" / "photos", dirs_exist_ok=True)
        gallery.refresh()
        assert len(gallery) == len([*photos.rglob("*.png")]) + 1
    gallery.remove(["x.png"])
    agrees(gallery, photos)
    assert gallery.verify().problems == []
    close(gallery)


def test_sync_embeds_no_bytes_twice(
    gallery: Gallery, catalogue: Catalogue, embedded: list[int], tmp_path: Path
) -> None:
    """Moved, touched and copied files get the vectors that are there; ids and metadata go with a file."""
    folder = catalogue.folder
    (before,) = gallery.items(gallery.ids_of(["r/9.png"])).values()
    (folder / "r" / "9.png").rename(folder / "g" / "moved.png")
    touch(folder / "r" / "15.png")
    shutil.copy(folder / "g" / "13.png", folder / "copy.png")
    found = gallery.difference(folder)
    assert (found.moved, found.gone, found.new) == (1, [], 1)
    result = gallery.sync(folder)
    assert (result.added, result.moved, result.removed, result.copied) == (1, 1, 0, 1)
    assert sum(embedded) == 0
    after = gallery.item(before.id)
    assert (after.key, after.metadata) == ("g/moved.png", before.metadata)
    (copy,) = gallery.ids_of(["copy.png"])
    np.testing.assert_array_equal(gallery.vector(copy), gallery.vector(gallery.ids_of(["g/13.png"])[0]))
    agrees(gallery, folder)


def test_sync_of_a_partly_mounted_folder_is_refused(gallery: Gallery, catalogue: Catalogue) -> None:
    shutil.rmtree(catalogue.folder / "r")
    with pytest.raises(InputError, match=r"nothing was changed, since 14 of 40 images \(35.0%\)"):
        gallery.sync(catalogue.folder)
    gallery.refresh()
    assert len(gallery) == COUNT
    assert gallery.sync(catalogue.folder, limit=ANY).removed == 14
    agrees(gallery, catalogue.folder)


def test_sync_of_a_folder_below_the_root(gallery: Gallery, catalogue: Catalogue) -> None:
    write(catalogue.folder / "r" / "new.png", 77)
    (catalogue.folder / "r" / "9.png").unlink()
    (catalogue.folder / "g" / "1.png").unlink()
    result = gallery.sync(catalogue.folder / "r")
    assert (result.added, result.removed, result.unchanged) == (1, 1, 13)
    assert gallery.ids_of(["r/new.png", "g/1.png"])
    gallery.refresh()
    assert len(gallery) == COUNT


@pytest.mark.parametrize("way", ["sync", "update"])
def test_checksum_finds_other_bytes_of_the_same_size_and_time(
    gallery: Gallery, catalogue: Catalogue, way: str
) -> None:
    folder = catalogue.folder
    for number in (7, 8):
        draw(number).save(folder / "r" / f"{number}.bmp")
    gallery.sync(folder)
    seven, eight = folder / "r" / "7.bmp", folder / "r" / "8.bmp"
    status = seven.stat()
    seven.write_bytes(eight.read_bytes())
    os.utime(seven, ns=(status.st_atime_ns, status.st_mtime_ns))
    run: Callable[..., Any] = (
        (lambda **options: gallery.update(**options).result)
        if way == "update"
        else (lambda **options: gallery.sync(folder, **options))
    )
    assert run().added == 0, "unnoticed, as documented"
    result = run(checksum=True)
    assert (result.added, result.replaced, result.unchanged) == (1, 1, COUNT + 1)
    np.testing.assert_array_equal(*(gallery.vector(i) for i in gallery.ids_of(["r/7.bmp", "r/8.bmp"])))


def test_update(gallery: Gallery, catalogue: Catalogue) -> None:
    folder = catalogue.folder
    (before,) = gallery.items(gallery.ids_of(["g/13.png"])).values()
    write(folder / "g" / "13.png", 50)
    touch(folder / "r" / "15.png")
    (folder / "g" / "1.png").rename(folder / "g" / "moved.png")
    (folder / "r" / "9.png").unlink()
    write(folder / "g" / "new.png", 51)
    done = gallery.update()
    assert (done.result.added, done.result.replaced, done.result.moved) == (1, 1, 1)
    assert done.gone == [str(folder / "r" / "9.png")]
    assert gallery.item(before.id).metadata == before.metadata
    gallery.refresh()
    assert len(gallery) == COUNT
    assert gallery.update(prune=True).result.removed == 1
    (folder / "g" / "new.png").unlink()
    agrees(gallery, folder)
    assert gallery.update().gone == []


def test_unusable_file_removes_its_image(gallery: Gallery, catalogue: Catalogue) -> None:
    (catalogue.folder / "r" / "9.png").write_text("not an image")
    result = gallery.sync(catalogue.folder)
    assert [file.stamp.path for file in result.bad] == ["r/9.png"]
    gallery.refresh()
    assert len(gallery) == COUNT - 1
    (catalogue.folder / "r" / "9.png").unlink()
    assert gallery.sync(catalogue.folder).removed == 0
    agrees(gallery, catalogue.folder)


def test_removed_by_hand(gallery: Gallery, catalogue: Catalogue) -> None:
    editor = gallery.editor()
    with editor.writing():
        editor.remove(gallery.ids_of(["r/9.png"]))
    assert gallery.sync(catalogue.folder).withheld == 1
    assert gallery.sync(catalogue.folder, ignore_decisions=True).added == 1
    agrees(gallery, catalogue.folder)


def test_watch(gallery: Gallery, catalogue: Catalogue) -> None:
    events = watch(gallery, catalogue.folder, seconds=0.01, limit=ANY)
    (catalogue.folder / "r" / "9.png").unlink()
    assert next(events).removed == 1
    os.utime(catalogue.folder / "r" / "15.png", (1e9, 1e9))
    draw(50).save(catalogue.folder / ".new.png")
    os.utime(catalogue.folder / ".new.png", (1e9, 1e9))
    (catalogue.folder / ".new.png").rename(catalogue.folder / "new.png")
    assert next(events).added == 1
    agrees(gallery, catalogue.folder)


def test_interrupted_sync_continues(
    gallery: Gallery, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while images are embedded: those before stay, and the next sync embeds the others."""
    for number in range(5):
        write(catalogue.folder / "new" / f"{number}.png", 200 + number)
    with monkeypatch.context() as patch:
        patch.setattr(type(gallery.embedder), "embed_pixels", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            sync(gallery, catalogue.folder)
    gallery.refresh()
    assert len(gallery) == COUNT
    assert gallery.sync(catalogue.folder).added == 5
    agrees(gallery, catalogue.folder)


def _interrupt(*_: object) -> np.ndarray:
    raise KeyboardInterrupt


# ---- curation


def test_quality(gallery: Gallery, catalogue: Catalogue) -> None:
    (catalogue.folder / "r" / "9.png").unlink()
    found = inspect_gallery(gallery, {"dark": 2.0, "alone": 2.0})
    assert found.images == COUNT
    assert [item.key for item, _ in found.unreadable] == ["r/9.png"]
    by_name = {finding.fault.name: finding for finding in found.findings}
    vectors = np.stack([row.vector for row in catalogue.rows])
    near = vectors @ vectors.T - 2 * np.eye(COUNT)
    expected = {row.key: value for row, value in zip(catalogue.rows, near.max(1), strict=True)}
    alone = {item.key: value for item, value in by_name["alone"].images}
    assert alone == pytest.approx(expected, abs=1e-5)
    assert len(by_name["dark"].images) == COUNT - 1


def test_suspects_leakage_and_thinning(gallery: Gallery, catalogue: Catalogue) -> None:
    gallery.refresh()
    found = find_suspects(gallery, k=5, limit=COUNT)
    assert found.labelled == COUNT
    leaks = find_leakage(gallery, gallery, 1.0)
    assert (leaks.test_images, len(leaks.leaks)) == (COUNT, COUNT)
    groups = gallery.duplicates(1.0).groups
    thinning = plan_thinning(gallery, groups, "first", 1.0, across_labels=True)
    assert gallery.remove_surplus(thinning) == len(thinning.surplus) > 0
    gallery.refresh()
    assert len(gallery) == COUNT - len(thinning.surplus)


def test_calibration(gallery: Gallery) -> None:
    vectors, editor = gallery.vectors(gallery.select(where="id > 0")), gallery.editor()
    alike = sorted(vectors, key=lambda number: float(vectors[number][0]))
    with editor.writing():
        stored = {item.id: item for item in editor.stored_items(alike)}
        editor.relabel([stored[number] for number in alike], [f"class {n // 5}" for n in range(COUNT)])
    gallery.refresh()
    calibration, quality = calibrate(gallery, None, absent=0.5, queries=100)
    assert calibration.fingerprint == gallery.fingerprint
    assert quality.queries > 0


def test_coverage(gallery: Gallery, catalogue: Catalogue, tmp_path: Path) -> None:
    """The nearest images are those of the stored vectors, without the image that is the query."""
    by_key = {row.key: row.vector for row in catalogue.rows}
    ids = gallery.select(where="id > 0")
    items = gallery.items(ids)
    vectors = np.stack([by_key[items[number].key] for number in ids])
    queries = vectors[::3]
    log = QueryLog(tmp_path / "log")
    searches = [
        LoggedSearch(new_id(), "item", vector, (number,), None, [])
        for number, vector in zip(ids[::3], queries, strict=True)
    ]
    log.append(gallery.folder.name, gallery.fingerprint, searches)
    scores = queries @ vectors.T
    scores[np.arange(len(queries)), np.arange(0, len(ids), 3)] = -2
    found = {ids[row] for row in np.argsort(-scores, axis=1)[:, :10].ravel().tolist()}
    coverage = measure_coverage(gallery, tmp_path / "log")
    assert (coverage.searches, coverage.images, coverage.pictures) == (len(queries), COUNT, 0)
    assert abs(coverage.never - (COUNT - len(found))) <= 1, "but for images that are there twice"
    assert {*coverage.unseen}.isdisjoint(found) or coverage.never != COUNT - len(found)


# ---- repair


def test_repair_of_vectors_in_a_database(gallery: Gallery, catalogue: Catalogue) -> None:
    if not (engine := getattr(gallery, "engine", None)):
        pytest.skip("galleries in files are damaged in tests/retrieval/upkeep")
    assert isinstance(engine, Engine)
    (number,) = gallery.ids_of(["r/9.png"])
    engine.put(engine.items([number]), np.full((1, gallery.manifest.dim), 3.0, np.float32))
    if gallery.verify().problems == []:
        pytest.skip("the database scales vectors to unit length")
    done = gallery.verify(repair=True)
    assert done.problems
    assert not done.left
    agrees(gallery, catalogue.folder)


# ---- what a database does not have


def operations(gallery: Gallery, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return a call of each operation by its name in `INAPPLICABLE`."""
    return {
        "snapshot": lambda: gallery.snapshot(folder / "copy"),
        "compact": gallery.compact,
        "exact": lambda: gallery.duplicates(exact=True),
    }


def test_inapplicable_operations_say_what_to_do(gallery: Gallery, kind: Kind, tmp_path: Path) -> None:
    calls = operations(gallery, tmp_path)
    assert {*calls} == {name for name, one in INAPPLICABLE.items() if not one.where} | {"exact"}
    for name, call in calls.items() if kind.database else ():
        with pytest.raises(InputError) as caught:
            call()
        assert INAPPLICABLE[name].reason in str(caught.value)
    if kind.database is not None:
        with pytest.raises(InputError, match=r"pg_dump|snapshots|milvus-backup|copy /|the backup of"):
            gallery.snapshot(tmp_path / "copy")
        assert len(gallery) == COUNT


COMMANDS: dict[str, tuple[str, ...]] = {
    "index build": ("G", "PHOTOS"),
    "index add": ("G", "PHOTOS"),
    "index sync": ("G", "PHOTOS"),
    "index remove": ("G", "r/9.png"),
    "index rebuild": ("G", "--model", "MODEL"),
    "index optimize": ("G",),
    "index info": ("G",),
    "index verify": ("G", "--repair"),
    "index snapshot": ("G", "COPY"),
    "index export": ("G", "OUT.npy"),
    "index import": ("G", "OUT.npy", "--model", "MODEL"),
    "index connect": ("NEW", "--store", "ADDRESS", "--model", "MODEL"),
    "check overview": ("G",),
    "check duplicates": ("G",),
    "check suspects": ("G",),
    "check quality": ("G",),
    "check leakage": ("G", "G"),
    "check decide": ("G", "TABLE"),
    "check decisions": ("G",),
    "check undo": ("G", "1"),
}
REFUSED = {"index snapshot": "snapshot"}


def commands_of(*groups: str) -> set[str]:
    """Return the names of all commands of groups."""
    from retrieval.cli import cli

    found = set()
    for name in groups:
        group = cli.get_command(click.Context(cli), name)
        assert isinstance(group, click.Group)
        found |= {f"{name} {one}" for one in group.list_commands(click.Context(group))}
    return found


def test_every_command_works_or_says_why_not(
    databases: Callable[[str], Any], catalogue: Catalogue, model: Embedder, tmp_path: Path
) -> None:
    """On the embedded database, which one process at a time can open, one command after the other."""
    assert commands_of("index", "check") == {*COMMANDS}
    address = databases("qdrant-edge").new_collection()
    gallery = Gallery.create(tmp_path / "g", model, store=address)
    catalogue.add_to(gallery)
    close(gallery)
    table = tmp_path / "table.csv"
    table.write_text("id,label\nr/15.png,new\n")
    words = {"G": tmp_path / "g", "PHOTOS": catalogue.folder, "MODEL": model.path, "COPY": tmp_path / "copy"}
    words |= {"OUT.npy": tmp_path / "out.npy", "NEW": tmp_path / "new", "TABLE": table, "ADDRESS": address}
    for name, arguments in COMMANDS.items():
        given = [str(words.get(word, word)) for word in arguments]
        done = lookalike_here(*name.split(), *given, code=2 if name in REFUSED else 0)
        if name in REFUSED:
            assert INAPPLICABLE[REFUSED[name]].reason in done.stderr, name
