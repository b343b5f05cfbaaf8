"""Verification and repair: check a gallery against its checksums, and repair damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retrieval.embedder import Embedder
from retrieval.errors import LookalikeError
from retrieval.files import atomic_write, now, sha256_of
from retrieval.gallery import Gallery
from retrieval.progress import Progress
from retrieval.storage import maintenance, segments
from retrieval.storage.identity import own_model, probe_pixels
from retrieval.storage.maintenance import RowPlace
from retrieval.storage.queries import count_items
from retrieval.storage.records import Segment
from retrieval.storage.store import Store

_TRIES = 3
_UNSEALED = "gallery.db: the lists of segments, indexes, bad files and runs do not match their checksum"
_RESTORE = "restore `gallery.db` from a copy, or build the gallery again"


@dataclass(frozen=True)
class Problem:
    """Damage in a gallery.

    Attributes:
        what: Description that names the file or the item.
        remedy: What a repair does about it, or what the user can do.
        repair: Repairs it, inside `store.writing()`; `None` if it cannot be repaired.
    """

    what: str
    remedy: str
    repair: Callable[[], None] | None = None


@dataclass(frozen=True)
class Verification:
    """Result of a verification.

    Attributes:
        items: Number of live items.
        vectors: Number of rows in the segments.
        waiting: Items whose vectors were lost; adding the same sources embeds them again.
        leftovers: Files that no row of the database names, which the next writer deletes.
        problems: Damage that was found, before the repair if there was one.
        left: Damage that remains.
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
        folder: Gallery folder.
        repair: Repair damage: damaged segments move to `quarantine` and their lost images wait to be
            embedded again; a damaged index is rebuilt.
        show_progress: Report progress on stderr.

    Raises:
        InputError: The folder is not a gallery.
        LookalikeError: The database cannot be read at all, or (to repair) another process is writing.
    """
    store = Store(Path(folder))
    problems = _find_problems(store, show_progress)
    left = problems
    if repair and problems:
        with store.writing(repairing=True):
            started = now()
            for problem in problems:
                if problem.repair is not None:
                    problem.repair()
            store.record_run("repair", started, {"problems": len(problems)})
        gallery = Gallery(store.folder)
        with gallery.store.writing():
            if gallery.index is None:
                gallery.build_index(show_progress=show_progress)
        left = list(_check(store, show_progress))
    counts, vectors = count_items(store), sum(segment.n for segment in store.segments())
    return Verification(counts.live, vectors, counts.waiting, len(store.leftovers()), problems, left)


def _find_problems(store: Store, show_progress: bool) -> list[Problem]:
    """Return the problems of one committed state; check again if a writer changed the files meanwhile."""
    problems: list[Problem] = []
    for _ in range(_TRIES):
        store.state()
        problems = list(_check(store, show_progress))
        if not problems or not store.changed():
            break
    return problems


def _check(store: Store, show_progress: bool) -> Iterator[Problem]:
    try:
        yield from _check_database(store)
        is_sealed = maintenance.is_sealed(store)
        found = [*_check_contents(store, show_progress)]
    except LookalikeError as error:
        yield Problem(str(error), _RESTORE)
        return
    if is_sealed:
        yield from found
    elif found:  # the database's record of the files may be damaged, rather than the files
        yield from (Problem(problem.what, _RESTORE) for problem in found)
        yield Problem(_UNSEALED, _RESTORE)
    else:
        yield Problem(
            _UNSEALED, "everything else is intact, so they are kept", lambda: maintenance.seal_again(store)
        )


def _check_contents(store: Store, show_progress: bool) -> Iterator[Problem]:
    listed = store.segments()
    with Progress("checking", sum(s.n for s in listed), "vectors", show=show_progress) as progress:
        for segment in listed:
            yield from _check_segment(store, segment)
            progress.update(segment.n)
    yield from _check_items(store)
    yield from _check_index(store)
    yield from _check_model(store)


def _check_database(store: Store) -> Iterator[Problem]:
    errors = maintenance.integrity_errors(store)
    if errors:
        what = f"gallery.db: {'; '.join(errors)}"
        if all("index" in line for line in errors):
            yield Problem(
                what, "its look-up tables are rebuilt", lambda: maintenance.rebuild_lookup_indexes(store)
            )
        else:
            yield Problem(what, _RESTORE)


# ---- segments


def _check_segment(store: Store, segment: Segment) -> Iterator[Problem]:
    folder = store.folder / "segments"
    vectors_match = _matches(folder / segment.file, segment.sha256)
    rows_match = _matches(folder / segment.rows_file, segment.rows_sha256)
    if vectors_match and not rows_match:
        what = f"segments/{segment.rows_file}: missing or damaged"
        yield Problem(what, "it is rebuilt from the database", lambda: _rewrite_rows(store, segment))
    if not vectors_match:
        good = _good_rows(store, segment) if rows_match else np.zeros(segment.n, bool)
        what = f"segments/{segment.file}: missing or damaged, {np.sum(~good)} of its {segment.n} vectors lost"
        remedy = "it moves to quarantine, and its lost images wait to be embedded again"
        yield Problem(what, remedy, lambda: _salvage(store, segment, good))


def _raw_vectors(store: Store, segment: Segment) -> np.ndarray:
    """Read what a segment's file holds of its vectors, whatever its header: float32 [m, D], m <= n."""
    path, dim = store.folder / "segments" / segment.file, store.manifest.dim
    if not path.is_file():
        return np.empty((0, dim), np.float32)
    numbers = np.fromfile(path, "<f4", offset=segment.bytes - 4 * segment.n * dim)
    return numbers[: len(numbers) // dim * dim].reshape(-1, dim)[: segment.n]


def _good_rows(store: Store, segment: Segment) -> np.ndarray:
    """Return bool [n], True for rows that match their checksum."""
    _, checksums = store.segment_rows(segment)
    raw = _raw_vectors(store, segment)
    good = np.zeros(segment.n, bool)
    good[: len(raw)] = segments.row_checksums(raw) == checksums[: len(raw)]
    return good


def _rewrite_rows(store: Store, segment: Segment) -> None:
    ids = np.array(maintenance.listed_ids(store, segment), np.int64)
    path = store.folder / "segments" / segment.file
    digest = segments.write_rows(path, store.segment_vectors(segment), ids)
    maintenance.set_rows_checksum(store, segment, digest)


def _salvage(store: Store, segment: Segment, good: np.ndarray) -> None:
    """Write the good rows into a new segment in place of the damaged one; the rows move."""
    folder, new, kept = store.folder / "segments", None, np.empty(0, np.int64)
    if good.any():
        kept = store.segment_rows(segment)[0][good]
        raw = _raw_vectors(store, segment)
        new = segments.write(folder, raw[good[: len(raw)]], kept)
    maintenance.salvage_segment(store, segment, new, kept)
    quarantine = store.folder / "quarantine"
    quarantine.mkdir(exist_ok=True)
    for name in (segment.file, segment.rows_file):
        if (folder / name).exists():
            (folder / name).rename(quarantine / name)


# ---- items


def _check_items(store: Store) -> Iterator[Problem]:
    """Check items against their checksums, and their places against the segments, which are authoritative."""
    places: dict[int, RowPlace] = {}
    for segment in store.segments():
        if _matches(store.folder / "segments" / segment.rows_file, segment.rows_sha256):
            ids = store.segment_rows(segment)[0].tolist()
            places |= {item: (segment.seg, row) for row, item in enumerate(ids)}
        else:
            places |= maintenance.listed_places(store, segment)
    for item in maintenance.item_states(store):
        true_place = places.pop(item.id, None)
        if item.place != true_place:
            what = f"gallery.db: the vector of item {item.id} is not where the database places it"
            yield Problem(what, "it is looked up in the segments", _move_item(store, item.id, true_place))
        if not item.is_intact:
            what = f"gallery.db: the facts of item {item.id} are damaged"
            remedy = "it is removed; adding its source restores it, without its metadata"
            yield Problem(what, remedy, _remove_item(store, item.id))
    if places:
        yield Problem(f"gallery.db: {len(places)} items are missing whose vectors exist", _RESTORE)


def _move_item(store: Store, item: int, place: RowPlace | None) -> Callable[[], None]:
    return lambda: maintenance.set_item_place(store, item, place)


def _remove_item(store: Store, item: int) -> Callable[[], None]:
    return lambda: maintenance.remove_damaged_item(store, item)


# ---- index and model


def _check_index(store: Store) -> Iterator[Problem]:
    index = store.state().index
    if index is None:
        return

    def drop() -> None:
        maintenance.drop_index(store)

    folder = store.folder / "indexes" / index.folder
    rows = sum(segment.n for segment in store.segments())
    for name, digest in (("index.faiss", index.sha256), ("card.json", index.card_sha256)):
        if not _matches(folder / name, digest):
            yield Problem(f"indexes/{index.folder}/{name}: missing or damaged", "the index is rebuilt", drop)
    if index.n > rows:
        yield Problem(f"indexes/{index.folder}: covers more vectors than exist", "it is rebuilt", drop)


def _check_model(store: Store) -> Iterator[Problem]:
    if not store.manifest.has_model:
        return
    folder = store.folder / "model"
    if not _matches(folder / "model.onnx", store.manifest.fingerprint):
        yield Problem("model/model.onnx: missing or damaged", "restore the exported model file")
        return
    if not _matches(folder / "probes.npy", store.manifest.probes_sha256):
        what = "model/probes.npy: missing or damaged"
        yield Problem(what, "it is rebuilt with the model", lambda: _rewrite_probes(store))
        return
    try:
        own_model(store.folder, store.manifest)
    except LookalikeError as error:
        yield Problem(str(error), "there is no automatic repair")


def _rewrite_probes(store: Store) -> None:
    embedder = Embedder(store.folder / "model" / "model.onnx")
    path = store.folder / "model" / "probes.npy"
    with atomic_write(path) as draft, draft.open("wb") as file:
        np.save(file, embedder.embed_pixels(probe_pixels(embedder)))
    store.update_manifest(replace(store.manifest, probes_sha256=sha256_of(path)))


def _matches(path: Path, sha256: str | None) -> bool:
    return path.is_file() and sha256_of(path) == sha256
