"""Verification and repair: check a gallery against its checksums, and repair damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
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
    try:
        rows = segments.rows(folder, segment)
    except segments.DamagedError:
        what = f"segments/{segments.rows_file(folder / segment.file).name}: missing or damaged"
        yield Problem(
            what, "its vectors are looked up in the database", lambda: _salvage(store, segment, None)
        )
        return
    good = _good_rows(store, segment, rows)
    if not good.all() or not _is_readable(store, segment):
        what = f"segments/{segment.file}: missing or damaged, {np.sum(~good)} of its {segment.n} vectors lost"
        remedy = "it moves to quarantine, and its lost images wait to be embedded again"
        yield Problem(what, remedy, lambda: _salvage(store, segment, rows[:, good]))


def _is_readable(store: Store, segment: Segment) -> bool:
    try:
        store.segment_vectors(segment)
    except LookalikeError:
        return False
    return True


def _raw_vectors(store: Store, segment: Segment) -> np.ndarray:
    """Read what a segment's file holds of its vectors, whatever its header: [m, D], m <= n."""
    path, dim, dtype = store.folder / "segments" / segment.file, store.manifest.dim, store.manifest.dtype
    if not path.is_file():
        return np.empty((0, dim), dtype)
    numbers = np.fromfile(path, dtype, offset=segments.HEADER)
    return numbers[: len(numbers) // dim * dim].reshape(-1, dim)[: segment.n]


def _good_rows(store: Store, segment: Segment, rows: np.ndarray) -> np.ndarray:
    """Return bool [n], True for rows that match their checksum."""
    raw, good = _raw_vectors(store, segment), np.zeros(segment.n, bool)
    found = rows[:, : len(raw)]
    good[: len(raw)] = segments.checksums(raw, found) == found[segments.CHECKSUM]
    return good


def _salvage(store: Store, segment: Segment, rows: np.ndarray | None) -> None:
    """Write the good rows, int64 [2 or more, n], into a new segment in place of the damaged one."""
    folder, new = store.folder / "segments", None
    if rows is None:  # the file of rows is lost: only a gapless segment shows which vector is whose
        rows = maintenance.listed_rows(store, segment)
        if segment.last - segment.first + 1 != segment.n:
            rows = rows[:, :0]
    raw = _raw_vectors(store, segment)
    if rows.shape[1]:
        numbers = rows[segments.NUMBER]
        if segment.last - segment.first + 1 == segment.n:
            at = numbers - segment.first
        else:
            at = np.searchsorted(store.segment_rows(segment)[segments.NUMBER], numbers)
        manifest, facts = store.manifest, maintenance.facts_of(store, rows[segments.ITEM])
        new = segments.write(folder, [raw[at]], rows[:2], facts, manifest.dim, manifest.dtype)
    maintenance.salvage_segment(store, segment, new, rows[segments.NUMBER])
    quarantine = store.folder / "quarantine"
    quarantine.mkdir(exist_ok=True)
    for name in segments.files_of(segment.file):
        if (folder / name).exists():
            (folder / name).rename(quarantine / name)


# ---- items


def _check_items(store: Store) -> Iterator[Problem]:
    """Check items against their checksums, and their vectors against the segments, which decide."""
    newest: dict[int, int] = {}
    for segment in store.segments():
        with suppress(segments.DamagedError):
            numbers, items, _ = segments.rows(store.folder / "segments", segment)
            newest |= zip(items.tolist(), numbers.tolist(), strict=True)
    for item in maintenance.item_states(store):
        number = newest.get(item.id)
        if item.number is not None and item.number != number:
            what = f"gallery.db: the vector of item {item.id} is not where the database places it"
            yield Problem(what, "it is looked up in the segments", _renumber(store, item.id, number))
        if not item.is_intact:
            what = f"gallery.db: the facts of item {item.id} are damaged"
            remedy = "it is removed; adding its source restores it, without its metadata"
            yield Problem(what, remedy, _remove_item(store, item.id))


def _renumber(store: Store, item: int, number: int | None) -> Callable[[], None]:
    return lambda: maintenance.set_number(store, item, number)


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
    for name, digest in (("index.faiss", index.sha256), ("card.json", index.card_sha256)):
        if not _matches(folder / name, digest):
            yield Problem(f"indexes/{index.folder}/{name}: missing or damaged", "the index is rebuilt", drop)


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
