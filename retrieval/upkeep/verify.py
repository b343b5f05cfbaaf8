"""Check every byte of a gallery that matters, and put right what can be."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retrieval.embedder import Embedder
from retrieval.errors import LookalikeError
from retrieval.files import atomic_write, now, sha256_of
from retrieval.gallery import Gallery
from retrieval.progress import Progress
from retrieval.storage import database, schema
from retrieval.storage import segments as files
from retrieval.storage.identity import own_model, probe_pixels
from retrieval.storage.items import columns as metadata_columns
from retrieval.storage.records import Segment
from retrieval.storage.store import Store
from retrieval.upkeep.compact import swap

_TRIES = 3
_UNSEALED = "gallery.db: the lists of segments, indexes, bad files and runs are not as they were written"
_RESTORE = "put `gallery.db` back from a copy, or build the gallery again"


@dataclass(frozen=True)
class Problem:
    """Something that is wrong.

    Attributes:
        what: a sentence that names the file or the item.
        remedy: what a repair does about it, or what only a person can do.
        mend: does it, inside `store.writing()`; `None` where nothing here can.
    """

    what: str
    remedy: str
    mend: Callable[[], None] | None = None


@dataclass(frozen=True)
class Verification:
    """What a check found.

    Attributes:
        items: live items.
        vectors: rows in the segments.
        waiting: items whose vectors were lost; adding the same sources embeds them again.
        leftovers: files that no row names, which the next writer deletes.
        problems: what is wrong, or what was before the repair.
        left: what is still wrong.
    """

    items: int
    vectors: int
    waiting: int
    leftovers: int
    problems: list[Problem]
    left: list[Problem]


def verify(folder: str | Path, *, repair: bool = False, show_progress: bool = False) -> Verification:
    """Check a gallery against its checksums: database, vectors, index, model.

    Args:
        repair: put right what can be: what is damaged in a segment is set aside in `quarantine` and its
            pictures wait to be embedded again, the index is built again.
        show_progress: report on stderr.

    Raises:
        InputError: the folder is no gallery.
        LookalikeError: the database cannot be read at all, or another process is writing (to repair).
    """
    store = Store(Path(folder))
    problems = _settled(store, show_progress)
    left = problems
    if repair and problems:
        with store.writing(repairing=True):
            started = now()
            for problem in problems:
                if problem.mend is not None:
                    problem.mend()
            store.record_run("repair", started, {"problems": len(problems)})
        gallery = Gallery(store.folder)
        with gallery.store.writing():
            if gallery.index is None:
                gallery.build_index(show_progress=show_progress)
        left = list(_examine(store, show_progress))
    (items,), (waiting,) = (
        store.rows(f"SELECT count(*) FROM items WHERE deleted_at IS NULL AND {condition}")[0]
        for condition in ("1", "seg IS NULL")
    )
    vectors = sum(segment.n for segment in store.segments())
    return Verification(items, vectors, waiting, len(store.leftovers()), problems, left)


def _settled(store: Store, show_progress: bool) -> list[Problem]:
    """The problems of one state: looked for again where a writer changed the files under our eyes."""
    problems: list[Problem] = []
    for _ in range(_TRIES):
        store.state()
        problems = list(_examine(store, show_progress))
        if not problems or not store.changed():
            break
    return problems


def _examine(store: Store, show_progress: bool) -> Iterator[Problem]:
    try:
        yield from _database(store)
        with database.reading(store.folder) as db:
            is_sealed = database.sealed(db)
        found = [*_contents(store, show_progress)]
    except LookalikeError as error:
        yield Problem(str(error), _RESTORE)
        return
    if is_sealed:
        yield from found
    elif found:  # what is said about the files may be wrong, rather than the files
        yield from (Problem(problem.what, _RESTORE) for problem in found)
        yield Problem(_UNSEALED, _RESTORE)
    else:
        yield Problem(_UNSEALED, "all else fits, so that it is kept as it is", lambda: _seal(store))


def _contents(store: Store, show_progress: bool) -> Iterator[Problem]:
    segments = store.segments()
    with Progress("checking", sum(s.n for s in segments), "vectors", show=show_progress) as progress:
        for segment in segments:
            yield from _segment(store, segment)
            progress.update(segment.n)
    yield from _items(store)
    yield from _index(store)
    yield from _model(store)


def _database(store: Store) -> Iterator[Problem]:
    def reindex() -> None:
        with store.transaction() as db:
            db.execute("REINDEX")

    with database.reading(store.folder) as db:
        found = [row[0] for row in db.execute("PRAGMA integrity_check (5)")]
    if found != ["ok"]:
        what = f"gallery.db: {'; '.join(found)}"
        if all("index" in line for line in found):
            yield Problem(what, "its look-up tables are made again", reindex)
        else:
            yield Problem(what, _RESTORE)


def _seal(store: Store) -> None:
    with store.transaction():  # its commit seals what is there
        pass


def _segment(store: Store, segment: Segment) -> Iterator[Problem]:
    """Damage of a segment: its good rows move to a new one, the rest waits to be embedded again."""
    folder = store.folder / "segments"
    vectors_hold = _holds(folder / segment.file, segment.sha256)
    rows_hold = _holds(folder / segment.rows_file, segment.rows_sha256)
    if vectors_hold and not rows_hold:
        what = f"segments/{segment.rows_file}: missing or damaged"
        yield Problem(what, "it is made again from the database", lambda: _list_again(store, segment))
    if not vectors_hold:
        good = _good_rows(store, segment) if rows_hold else np.zeros(segment.n, bool)
        what = f"segments/{segment.file}: missing or damaged, {np.sum(~good)} of its {segment.n} vectors lost"
        remedy = "it is set aside, and its lost pictures wait to be embedded again"
        yield Problem(what, remedy, lambda: _set_aside(store, segment, good))


def _raw(store: Store, segment: Segment) -> np.ndarray:
    """What a segment's file holds of its vectors, float32 [m, D], m <= n, whatever its header says."""
    path, dim = store.folder / "segments" / segment.file, store.manifest.dim
    if not path.is_file():
        return np.empty((0, dim), np.float32)
    numbers = np.fromfile(path, "<f4", offset=segment.bytes - 4 * segment.n * dim)
    return numbers[: len(numbers) // dim * dim].reshape(-1, dim)[: segment.n]


def _good_rows(store: Store, segment: Segment) -> np.ndarray:
    """bool [n], True where a row has its checksum still."""
    _, checksums = store.rows_of(segment)
    raw = _raw(store, segment)
    good = np.zeros(segment.n, bool)
    good[: len(raw)] = files.row_checksums(raw) == checksums[: len(raw)]
    return good


def _list_again(store: Store, segment: Segment) -> None:
    ids = [i for (i,) in store.rows("SELECT id FROM items WHERE seg = ? ORDER BY row", (segment.seg,))]
    path = store.folder / "segments" / segment.file
    digest = files.write_rows(path, store.vectors(segment), np.array(ids, np.int64))
    with store.transaction() as db:
        db.execute("UPDATE segments SET rows_sha256 = ? WHERE seg = ?", (digest, segment.seg))


def _set_aside(store: Store, segment: Segment, good: np.ndarray) -> None:
    """Write the good rows anew and name them in the place of the damaged ones; the rows move."""
    folder, new, kept = store.folder / "segments", None, np.empty(0, np.int64)
    if good.any():
        kept = store.rows_of(segment)[0][good]
        raw = _raw(store, segment)
        new = files.write(folder, raw[good[: len(raw)]], kept)
    with store.transaction() as db:
        db.execute("UPDATE items SET seg = NULL, row = NULL WHERE seg = ?", (segment.seg,))
        swap(db, [segment], new, kept)
        db.execute("DELETE FROM indexes")
    aside = store.folder / "quarantine"
    aside.mkdir(exist_ok=True)
    for name in (segment.file, segment.rows_file):
        if (folder / name).exists():
            (folder / name).rename(aside / name)


def _items(store: Store) -> Iterator[Problem]:
    """Items against their checksums, and against the segments, which know best where a vector lies."""
    places: dict[int, tuple[int, int]] = {}
    for segment in store.segments():
        if _holds(store.folder / "segments" / segment.rows_file, segment.rows_sha256):
            ids = store.rows_of(segment)[0].tolist()
            places |= {item: (segment.seg, row) for row, item in enumerate(ids)}
        else:
            query = "SELECT id, seg, row FROM items WHERE seg = ?"
            places |= {item: (seg, row) for item, seg, row in store.rows(query, (segment.seg,))}
    with database.reading(store.folder) as db:
        yield from _each_item(store, db, places)
    if places:
        yield Problem(f"gallery.db: {len(places)} items are not there whose vectors are", _RESTORE)


def _each_item(store: Store, db: sqlite3.Connection, places: dict[int, tuple[int, int]]) -> Iterator[Problem]:
    """Look at each item, and take its place out of `places`."""
    columns = metadata_columns(db)
    facts = ", ".join(f"items.{name}" for name in schema.FACTS)
    query = (
        f"SELECT {facts}, items.crc, items.seg, items.row, items.deleted_at, metadata.* FROM items "
        "LEFT JOIN metadata ON items.id = metadata.id"
    )
    count = len(schema.FACTS)
    for row in db.execute(query):
        item, (crc, seg, place, deleted_at, owner), values = row[0], row[count : count + 5], row[count + 5 :]
        where = (seg, place) if seg is not None else None
        true_place = places.pop(item, None)
        if where != true_place:
            what = f"gallery.db: item {item} is said to lie elsewhere than it does"
            yield Problem(what, "it is looked up in the segments", _moving(store, item, true_place))
        metadata = {name: value for name, value in zip(columns, values, strict=True) if value is not None}
        if deleted_at is None and (owner != item or schema.item_crc(row[:count], metadata) != crc):
            what = f"gallery.db: what it says about item {item} is damaged"
            remedy = "it is removed; adding its source brings it back, without its metadata"
            yield Problem(what, remedy, _removing(store, item))


def _moving(store: Store, item: int, place: tuple[int, int] | None) -> Callable[[], None]:
    def mend() -> None:
        with store.transaction() as db:
            db.execute("UPDATE items SET seg = ?, row = ? WHERE id = ?", (*(place or (None, None)), item))

    return mend


def _removing(store: Store, item: int) -> Callable[[], None]:
    def mend() -> None:
        with store.transaction() as db:
            db.execute("UPDATE items SET deleted_at = ? WHERE id = ?", (now(), item))
            db.execute("INSERT OR IGNORE INTO metadata (id) VALUES (?)", (item,))

    return mend


def _index(store: Store) -> Iterator[Problem]:
    index = store.state().index
    if index is None:
        return

    def drop() -> None:
        with store.transaction() as db:
            db.execute("DELETE FROM indexes")

    folder = store.folder / "indexes" / index.folder
    rows = sum(segment.n for segment in store.segments())
    for name, digest in (("index.faiss", index.sha256), ("card.json", index.card_sha256)):
        if not _holds(folder / name, digest):
            yield Problem(
                f"indexes/{index.folder}/{name}: missing or damaged", "the index is built again", drop
            )
    if index.n > rows:
        yield Problem(f"indexes/{index.folder}: of more vectors than there are", "it is built again", drop)


def _model(store: Store) -> Iterator[Problem]:
    if not store.manifest.has_model:
        return
    folder = store.folder / "model"
    if not _holds(folder / "model.onnx", store.manifest.fingerprint):
        yield Problem("model/model.onnx: missing or damaged", "put the model file back that was exported")
        return
    if not _holds(folder / "probes.npy", store.manifest.probes_sha256):
        what = "model/probes.npy: missing or damaged"
        yield Problem(what, "it is made again with the model", lambda: _probe_again(store))
        return
    try:
        own_model(store.folder, store.manifest)
    except LookalikeError as error:
        yield Problem(str(error), "see there")


def _probe_again(store: Store) -> None:
    embedder = Embedder(store.folder / "model" / "model.onnx")
    path = store.folder / "model" / "probes.npy"
    with atomic_write(path) as draft, draft.open("wb") as file:
        np.save(file, embedder.embed_pixels(probe_pixels(embedder)))
    store.update_manifest(replace(store.manifest, probes_sha256=sha256_of(path)))


def _holds(path: Path, sha256: str | None) -> bool:
    return path.is_file() and sha256_of(path) == sha256
