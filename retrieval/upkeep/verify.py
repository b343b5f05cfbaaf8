"""Verification and repair: check a gallery against its checksums, and repair damage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.files import atomic_write, has_sha256, now, sha256_of
from retrieval.galleries.files import FilesView
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.progress import Progress
from retrieval.search.calibration import NAME as CALIBRATION
from retrieval.search.calibration import CalibrationFile
from retrieval.search.detector import NAME as DETECTOR
from retrieval.storage import maintenance
from retrieval.storage.decisions import FILE as DECISIONS
from retrieval.storage.decisions import DecisionLog
from retrieval.storage.identity import model_file, own_model, probe_pixels, probes_file
from retrieval.storage.manifest import COPY, Manifest, is_outdated, read_copy, write_copy
from retrieval.storage.queries import count_items, repeated_keys
from retrieval.storage.records import GalleryState, Segment
from retrieval.storage.segments import ITEM, NUMBER
from retrieval.storage.store import Store
from retrieval.upkeep.damage import SegmentRows, quarantine, read_segment, repair_segment
from retrieval.upkeep.salvage import Salvage, salvage

_TRIES = 3
_UNSEALED = "gallery.db: the lists of segments and indexes do not match their checksum"
_SALVAGE = (
    "it is built again from the segments; facts that changed since these were written, and the history, are "
    "lost where the old file cannot be read"
)


@dataclass(frozen=True)
class Problem:
    """Damage in a gallery.

    Attributes:
        what: Description that names the file or the item.
        remedy: What a repair does about it, or what the user can do.
        repair: Repairs it, given a store inside `writing()`; "index" if a new index does, "salvage" if a
            new database does, "embed" if embedding the image again does; `None` if it cannot be repaired.
    """

    what: str
    remedy: str
    repair: Callable[[Store], None] | Literal["index", "salvage", "embed"] | None = None


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
        salvage: What was saved and what was lost, if the database was built again.
        outdated_copy: The copy of the manifest is older than the database, as after a killed process:
            nothing is lost, and the next writer renews it.
        unembedded: Ids of items in a database whose vector is missing or damaged.
        unindexed: The index of a database does not find its items.
    """

    items: int
    vectors: int
    waiting: int
    leftovers: int
    problems: list[Problem]
    left: list[Problem]
    salvage: Salvage | None = None
    outdated_copy: bool = False
    unembedded: tuple[int, ...] = ()
    unindexed: bool = False


def verify(
    folder: str | Path,
    *,
    repair: bool = False,
    runtime: Runtime | None = None,
    show_progress: bool = False,
) -> Verification:
    """Check a gallery against its checksums: database, vectors, index, model.

    Args:
        folder: Gallery folder.
        repair: Repair damage: damaged segments move to `quarantine` and their lost images wait to be
            embedded again; a damaged or missing index is built; a lost database is built from the segments.
        runtime: Device and provider on which the model is checked, and device of a new index.
        show_progress: Report progress on stderr.

    Raises:
        InputError: The folder is not a gallery.
        LookalikeError: The gallery cannot be read, another process is writing (to repair), or the index that
            was asked for cannot be built.
    """
    folder, salvaged, runtime = Path(folder), None, runtime or Runtime()
    problems = left = _find_problems(folder, runtime, show_progress)
    if repair and any(problem.repair == "salvage" for problem in problems):
        salvaged = salvage(folder, show_progress=show_progress)
        left = _find_problems(folder, runtime, show_progress)
    if repair and left:
        _repair(Store(folder), left)
    if repair and (salvaged or any(problem.repair == "index" for problem in left)):
        gallery = FilesView(folder, runtime=runtime)
        with gallery.store.writing():
            gallery.optimize_index(show_progress=show_progress)
    if repair and left:
        left = _find_problems(folder, runtime, show_progress)
    outdated = not left and is_outdated(folder, Store(folder).manifest)
    if repair and outdated:
        with Store(folder).writing():  # renews it
            outdated = False
    return Verification(*_counts(folder), problems, left, salvaged, outdated)


def _repair(store: Store, problems: Sequence[Problem]) -> None:
    """Repair problems in place; a damaged index is not used any more."""
    with store.writing(repairing=True):
        started = now()
        for problem in problems:
            if callable(problem.repair):
                problem.repair(store)
        if any(_damaged_index(store, store.state())):
            maintenance.drop_index(store)
        store.record_run("repair", started, {"problems": len(problems)})


def _counts(folder: Path) -> tuple[int, int, int, int]:
    """Return the numbers of items, vectors, waiting items and leftovers; zeros if the database is damaged."""
    try:
        store = Store(folder)
        counts, vectors = count_items(store), sum(segment.n for segment in store.segments())
        leftovers = 0 if store.misfit() else len(store.leftovers())
        return counts.live, vectors, counts.waiting, leftovers
    except LookalikeError:
        return 0, 0, 0, 0


def _find_problems(folder: Path, runtime: Runtime, show_progress: bool) -> list[Problem]:
    """Return the problems of one committed state; check again if a writer changed the files meanwhile."""
    whole, lookups = maintenance.database_damage(folder)
    if whole:
        return [Problem(f"gallery.db: {whole}", _SALVAGE, "salvage")]
    store, problems = Store(folder), list[Problem]()
    if lookups:
        remedy = "its look-up tables are rebuilt"
        problems.append(Problem(f"gallery.db: {lookups}", remedy, maintenance.rebuild_lookups))
    for _ in range(_TRIES):
        store.reread_manifest()
        found = list(_check(store, runtime, show_progress))
        if not found or not store.changed():
            return problems + found
    what = f"{folder}: was changed by another process during {_TRIES} attempts"
    raise LookalikeError(f"{what}; verify a copy made with `lookalike index snapshot`, or wait for it")


def _check(store: Store, runtime: Runtime, show_progress: bool) -> Iterator[Problem]:
    state = store.state()
    if what := store.misfit():
        yield Problem(f"gallery.db: {what}", _SALVAGE, "salvage")
        return
    is_sealed = maintenance.is_sealed(store)
    found = [
        *_check_vectors(store, state, show_progress),
        *_check_keys(store),
        *_check_records(store),
        *_check_other_files(store),
        *_check_index(store, state),
        *_check_model(store, runtime),
        *check_detector(store.folder, store.manifest),
    ]
    if is_sealed:
        yield from found
    elif found:  # the database's record of the files may be damaged, rather than the files
        yield from (Problem(problem.what, _SALVAGE, "salvage") for problem in found)
        yield Problem(_UNSEALED, _SALVAGE, "salvage")
    else:
        remedy = "everything else is intact, so they are kept"
        yield Problem(_UNSEALED, remedy, maintenance.seal_again)


# ---- database


def _check_records(store: Store) -> Iterator[Problem]:
    """Check the lists of runs and of unusable files, and the copy of the manifest."""
    for table, rows in maintenance.damaged_records(store).items():
        what = f"gallery.db: {len(rows)} damaged rows in the list of {_RECORDS[table]}"

        def drop(store: Store, table: str = table, rows: Sequence[int] = rows) -> None:
            maintenance.delete_records(store, table, rows)

        yield Problem(what, "they are deleted", drop)
    copy = read_copy(store.folder)
    if copy != store.manifest and not is_outdated(store.folder, store.manifest):
        is_other = copy is not None and copy.uuid != store.manifest.uuid
        what = f"{COPY}: {'of another gallery' if is_other else state_of(store.folder / COPY)}"
        yield Problem(what, "it is written again", _rewrite_copy)


_RECORDS = {"runs": "runs", "bad": "unusable files"}


def _rewrite_copy(store: Store) -> None:
    if (store.folder / COPY).is_dir():
        quarantine(store.folder, [store.folder / COPY])
    write_copy(store.folder, store.manifest)


def state_of(file: Path) -> str:
    """Return what is wrong with a file that is not as it should be: "missing" or "damaged"."""
    return "damaged" if file.exists() else "missing"


def _check_other_files(store: Store) -> Iterator[Problem]:
    """Check the files beside the database that people's work is in: calibration and decisions."""
    file = store.folder / CALIBRATION
    try:
        CalibrationFile(store.folder).read()
    except LookalikeError:
        remedy = f"it moves to quarantine; `lookalike calibrate {store.folder}` learns it again"
        yield Problem(f"{CALIBRATION}: damaged", remedy, lambda store: quarantine(store.folder, [file]))
    log = DecisionLog(store.folder)
    if lines := log.damaged_lines():
        what = f"{DECISIONS}: line {_listed(lines)} is damaged"
        remedy = "the other lines are kept, and a copy of the file is put into quarantine"

        def repair(store: Store) -> None:
            quarantine(store.folder, [], copies=[store.folder / DECISIONS])
            log.drop(lines)

        yield Problem(what, remedy, repair)


# ---- vectors and items


def _check_vectors(store: Store, state: GalleryState, show_progress: bool) -> Iterator[Problem]:
    """Check segments and items against their checksums and against each other."""
    table = maintenance.item_table(store)
    if table.damaged:
        what = f"gallery.db: the facts of item {_listed(table.damaged)} are damaged"
        remedy = "it is removed; adding its source restores it, without its metadata"
        yield Problem(what, remedy, lambda store: maintenance.remove_damaged_items(store, table.damaged))
    order = np.argsort(table.numbers, kind="stable")[np.count_nonzero(table.numbers == 0) :]
    numbers, items = table.numbers[order], table.ids[order]  # as the database says, by number
    confirmed = np.zeros(len(numbers), bool)
    unclaimed = [np.empty((2, 0), np.int64)]
    with Progress("checking", sum(s.n for s in state.segments), "vectors", show=show_progress) as progress:
        for segment in state.segments:
            found = read_segment(store, segment)
            if found.damaged:
                yield _segment_problem(store.folder, segment, found)
            mine = slice(*np.searchsorted(numbers, (segment.first, segment.last + 1)).tolist())
            confirmed[mine], free = _compare(found.rows, np.stack([numbers[mine], items[mine]]))
            unclaimed.append(found.rows[:, free & ~np.isin(found.rows[NUMBER], state.dead)])
            progress.update(segment.n)
    yield from _misplaced(items[~confirmed], np.concatenate(unclaimed, axis=1), table.ids)


def _check_keys(store: Store) -> Iterator[Problem]:
    """Check that no two items have the same key, which no index of the database ensures."""
    if repeated := repeated_keys(store):
        what = f"gallery.db: the key of item {_listed(repeated)} is that of a newer item as well"

        def keep_newest(store: Store) -> None:
            store.remove(repeated)

        yield Problem(what, "the newest is kept", keep_newest)


def _segment_problem(folder: Path, segment: Segment, found: SegmentRows) -> Problem:
    def repair(store: Store) -> None:
        repair_segment(store, segment, found)

    stem, files = segment.file.removesuffix(".npy"), dict[str, list[str]]()
    for suffix in sorted(found.damaged):
        state = state_of(folder / "segments" / f"{stem}{suffix}")
        is_other = found.has_foreign_facts if suffix == ".facts" else found.is_foreign
        files.setdefault("of another gallery" if is_other else state, []).append(f"segments/{stem}{suffix}")
    what = ", ".join(f"{', '.join(names)}: {state}" for state, names in files.items())
    if ".npy" in found.damaged:
        what += f", {segment.n - int(found.good.sum())} of its {segment.n} vectors lost"
        return Problem(what, "it moves to quarantine, and its lost images wait to be embedded again", repair)
    return Problem(what, "it is written again", repair)


def _compare(rows: np.ndarray, named: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compare the rows of a segment, int64 [2, n], with those that the database names, int64 [2, m].

    Returns:
        Which of the named ones are there, bool [m], and which rows are not named, bool [n].
    """
    free = np.ones(rows.shape[1], bool)
    if not len(free):
        return np.zeros(named.shape[1], bool), free
    at = np.minimum(np.searchsorted(rows[NUMBER], named[NUMBER]), len(free) - 1)
    there: np.ndarray = (rows[:, at] == named).all(0)
    free[at[there]] = False
    return there, free


def _misplaced(items: np.ndarray, unclaimed: np.ndarray, known: np.ndarray) -> Iterator[Problem]:
    """Compare items without the vector that the database names with the vectors that no item has.

    Args:
        items: Item ids, int64 [m].
        unclaimed: Vector numbers and item ids, int64 [2, n], numbers ascending.
        known: Ids of all live items.
    """
    newest = dict(zip(unclaimed[ITEM].tolist(), unclaimed[NUMBER].tolist(), strict=True))
    places = {item: newest.get(item) for item in items.tolist()}
    if places:
        what = f"gallery.db: the vector of item {_listed([*places])} is not where the database places it"
        remedy = "it is looked up in the segments; an item without a vector waits to be embedded again"
        yield Problem(what, remedy, lambda store: maintenance.set_numbers(store, places))
    taken = np.isin(unclaimed[NUMBER], [number or 0 for number in places.values()])
    is_known = np.isin(unclaimed[ITEM], known)
    lost, extra = unclaimed[:, ~is_known], unclaimed[:, is_known & ~taken]
    if lost.shape[1]:
        what = f"gallery.db: item {_listed(lost[ITEM].tolist())} is missing, whose vector exists"
        yield Problem(what, _SALVAGE, "salvage")
    if extra.shape[1]:
        what = f"gallery.db: item {_listed(extra[ITEM].tolist())} has several vectors"
        remedy = "only the one that the database names is kept"
        yield Problem(what, remedy, lambda store: maintenance.mark_dead(store, extra))


def _listed(items: Sequence[int]) -> str:
    """Return the first item, and how many others there are."""
    return f"{items[0]} (and of {len(items) - 1} others)" if len(items) > 1 else f"{items[0]}"


# ---- index and model


def _check_index(store: Store, state: GalleryState) -> Iterator[Problem]:
    """Check that the index is intact, and of the kind that was asked for."""
    index, wanted = state.index, store.manifest.index_spec.kind
    for name in _damaged_index(store, state):
        there = (store.folder / "indexes" / name).exists()
        what = f"indexes/{name}: {'damaged, or of another state' if there else 'missing'}"
        yield Problem(what, "a new index is built", "index")
    has_vectors = sum(segment.n for segment in state.segments) > len(state.dead)
    if wanted not in (None, "auto") and has_vectors:
        kind = "flat" if index is None else index.kind
        if kind != wanted:
            found = "no index" if index is None else f"an index of kind {kind}"
            yield Problem(f"indexes: {found} instead of the kind {wanted}", "it is built", "index")


def _damaged_index(store: Store, state: GalleryState) -> Iterator[str]:
    """Yield the damaged files of the index."""
    index = state.index
    if index is not None:
        for name, digest in (("index.faiss", index.sha256), ("card.json", index.card_sha256)):
            if not has_sha256(store.folder / "indexes" / index.folder / name, digest):
                yield f"{index.folder}/{name}"


def _check_model(store: Store, runtime: Runtime) -> Iterator[Problem]:
    return check_model(
        store.folder,
        store.manifest,
        lambda: own_model(store.folder, store.manifest, runtime),
        "it is rebuilt with the model",
        partial(_rewrite_probes, runtime=runtime),
    )


def check_detector(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    """Yield the problem of the detector by which a gallery divides pictures, if any."""
    if manifest.detector is not None and not has_sha256(folder / DETECTOR, manifest.detector):
        remedy = f"put back the ONNX file with the SHA-256 {manifest.detector[:12]}..."
        yield Problem(f"{DETECTOR}: {state_of(folder / DETECTOR)}", remedy)


def check_model(
    folder: Path,
    manifest: Manifest,
    open_model: Callable[[], object],
    remedy: str,
    repair: Callable[[Store], None] | None = None,
) -> Iterator[Problem]:
    """Yield the problem of a gallery's model, if any.

    Args:
        folder: Gallery folder.
        manifest: Manifest of the gallery.
        open_model: Function that opens the model.
        remedy: What is done, or to do, if the vectors of the probe images are missing or damaged.
        repair: Does it.
    """
    if not manifest.has_model:
        return
    model, probes = model_file(folder), probes_file(folder)
    if not has_sha256(model, manifest.fingerprint):
        state = "damaged, or another model" if model.exists() else "missing"
        yield Problem(f"model/{model.name}: {state}", "restore the exported model file")
        return
    if not has_sha256(probes, manifest.probes_sha256):
        yield Problem(f"model/{probes.name}: {state_of(probes)}", remedy, repair)
        return
    try:
        open_model()
    except LookalikeError as error:
        yield Problem(str(error), "there is no automatic repair")


def _rewrite_probes(store: Store, runtime: Runtime) -> None:
    embedder = Embedder.open(model_file(store.folder), runtime)
    path = probes_file(store.folder)
    with atomic_write(path) as draft, draft.open("wb") as file:
        np.save(file, embedder.embed_pixels(probe_pixels(embedder)))
    store.update_manifest(replace(store.manifest, probes_sha256=sha256_of(path), provider=embedder.provider))
