"""Bridge to another model: a map makes its vectors from the stored ones, until each image is embedded again.

    sample embedded -> map fitted and measured -> gallery swapped -> images embedded again, in commits

Vectors get ascending numbers, so one number in the manifest says of each item which space its vector is from:
those up to it are made by the map, later ones are the model's. A commit replaces some of the former; a killed
process loses what it had not committed, and the same call continues.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from retrieval.errors import ImageError, InputError, LockedError, LookalikeError
from retrieval.files import now
from retrieval.galleries.files import FilesView
from retrieval.images.location import Location, locate_item
from retrieval.ingest.indexing import COMMIT_ITEMS, COMMIT_SECONDS, IngestResult
from retrieval.ingest.pipeline import Embedded, embed_ahead
from retrieval.model.embedder import Embedder
from retrieval.progress import Progress
from retrieval.storage.queries import bridged_ids, count_bridged, still_bridged
from retrieval.storage.records import BadFile, FileStamp, NewItem, StoredItem
from retrieval.upkeep.compact import compact
from retrieval.upkeep.rebuild import RebuildResult
from retrieval.upkeep.reprojection import draft_of, map_vectors, old_of
from retrieval.upkeep.successor import keep_predecessor

T = TypeVar("T")
LEAST_IMAGES = 50  # that a map is fitted to
_PAGE = 1000  # items read at a time
_FOLDS = 5
_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)  # of the ridge, as shares of the mean variance of a dimension
_PATIENCE = 600.0  # seconds for which another writer is waited for
_PAUSE = 0.2


@dataclass(frozen=True, eq=False)
class Sample:
    """Images that a map is fitted to and measured on.

    Attributes:
        ids: Item ids, int64 [n].
        labels: Label of each; `None` without one.
        products: Product of each, int64 [n], as in `products_of`; `None` if images are not of products.
        old: Stored vectors, float32 [n, D].
        new: Vectors of the new model, float32 [n, D'].
        bridged: What maps make of the stored vectors that were fitted without the image and without the
            others of its class or, without a label, of its product, float32 [n, D'].
    """

    ids: np.ndarray
    labels: Sequence[str | None]
    products: np.ndarray | None
    old: np.ndarray
    new: np.ndarray
    bridged: np.ndarray


def bridge(
    gallery: FilesView,
    model: Embedder,
    count: int,
    *,
    keep_old: bool = True,
    accept: Callable[[Sample], object] | None = None,
    serving: Callable[[], object] | None = None,
    show_progress: bool = False,
) -> RebuildResult:
    """Serve a gallery with another model at once, and embed its images again meanwhile.

    The lock is held for the swap and for each commit, not while images are embedded: other processes add
    images, which are embedded with the new model. Images whose file cannot be read keep the vector that the
    map made; the next call tries them again.

    Args:
        gallery: Gallery.
        model: New model.
        count: Images that the map is fitted to.
        keep_old: Keep the old gallery as NAME.old.
        accept: Called with the sample before anything is changed. If it raises an error, nothing is.
        serving: Called when the gallery is served with the new model.
        show_progress: Report progress on stderr.

    Raises:
        InputError: There are too few readable images, or NAME.old exists and the old gallery is to be kept.
        LookalikeError: The model was replaced meanwhile, another process keeps writing, or the disk is full;
            what was committed stays.
    """
    draft, old = draft_of(gallery.folder), old_of(gallery.folder)
    with gallery.store.writing():
        gallery.refresh()
        keep_predecessor(draft, old, gallery.manifest.rebuilt_from)
    resumed = 0
    if gallery.fingerprint != model.fingerprint:
        if keep_old and old.exists():
            raise InputError(f"{old}: already exists; move or delete it, or pass --drop-old")
        sample, convert = _fitted(gallery, model, count, show_progress)
        if accept is not None:
            accept(sample)
        map_vectors(gallery, convert, model, keep_old=keep_old, show_progress=show_progress)
        gallery = type(gallery)(gallery.folder, runtime=model.runtime)
        if serving is not None:
            serving()
    elif gallery.manifest.bridged is None:
        return RebuildResult(gallery, IngestResult(unchanged=len(gallery)), None, len(gallery))
    else:
        resumed = len(gallery) - count_bridged(gallery.store)
    gallery.use_model(model)
    result = _embed_all(gallery, model, show_progress)
    return RebuildResult(gallery, result, old if old.exists() else None, resumed)


# ---- the map


def _fitted(
    gallery: FilesView, model: Embedder, count: int, show_progress: bool
) -> tuple[Sample, Callable[[np.ndarray], np.ndarray]]:
    """Embed a sample of a gallery, and fit the map to it."""
    items = gallery.stored_items(_drawn(gallery, count))
    items = [item for item in items if item.path and item.vector is not None]
    home = str(gallery.folder)
    places = (locate_item(home, item.root, item.path) for item in items)
    vectors, kept = [], list[StoredItem]()
    with (
        Progress("embedding a sample", len(items), "images", show=show_progress) as progress,
        closing(embed_ahead(places, model)) as batches,
    ):
        rest = deque(items)
        for batch in batches:
            read = [rest.popleft() for _ in batch.files]
            kept += [item for item, file in zip(read, batch.files, strict=True) if isinstance(file, Embedded)]
            vectors.append(batch.vectors)
            progress.update(len(read))
    if len(kept) < LEAST_IMAGES:
        what = f"{gallery.folder}: a map needs {LEAST_IMAGES} readable images, there are {len(kept)}"
        raise InputError(f"{what}; omit --bridge")
    stored = gallery.vectors([item.id for item in kept])
    old, new = np.stack([stored[item.id] for item in kept]), np.concatenate(vectors)
    labels = [item.label for item in kept]
    ids = np.array([item.id for item in kept])
    products = gallery.products_of(ids)
    bridged, weight = fit_map(old, new, _folds(labels, ids if products is None else products))
    sample = Sample(ids, labels, products, old, new, bridged)
    return sample, lambda block: _mapped(block, weight)


def _drawn(gallery: FilesView, count: int) -> list[int]:
    """Return the ids of a sample: up to half of it are whole classes, on which it is measured."""
    labelled = gallery.writer.labelled()
    drawn = dict[int, None]()
    if labelled:
        ids, labels = zip(*labelled, strict=True)
        classes = np.unique(labels, return_inverse=True)[1]
        sizes = np.bincount(classes)
        order = np.random.default_rng(0).permutation(np.flatnonzero(sizes > 1))
        chosen = order[np.cumsum(sizes[order]) <= max(count // 2, LEAST_IMAGES)]
        drawn = dict.fromkeys(np.array(ids)[np.isin(classes, chosen)].tolist())
    for item in gallery.sample(count):
        if len(drawn) >= count:
            break
        drawn[item] = None
    return sorted(drawn)


def _folds(labels: Sequence[str | None], products: np.ndarray) -> np.ndarray:
    """Return the fold of each image, int [n]: those of a class, or else of a product, share one."""
    both = zip(labels, products.tolist(), strict=True)
    names = [f"product {product}" if label is None else f"label {label}" for label, product in both]
    groups = np.unique(names, return_inverse=True)[1]
    place = np.random.default_rng(0).permutation(groups.max() + 1)
    found: np.ndarray = place[groups] % _FOLDS
    return found


def fit_map(old: np.ndarray, new: np.ndarray, folds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit an affine map from old to new vectors by ridge regression, of the strength that serves others best.

    Args:
        old: Unit vectors, float32 [n, D].
        new: Unit vectors of the same images, float32 [n, D'].
        folds: Part of each image, int [n].

    Returns:
        What maps make of each fold that were fitted to the other ones, float32 [n, D'], unit length; and the
        weight of the map that was fitted to all, float32 [D + 1, D'], whose last row is the offset.
    """
    inputs, targets = _with_one(old).astype(np.float64), new.astype(np.float64)
    parts = [np.flatnonzero(folds == fold) for fold in np.unique(folds)]
    grams = [(inputs[part].T @ inputs[part], inputs[part].T @ targets[part]) for part in parts]
    whole = np.sum([gram for gram, _ in grams], axis=0), np.sum([cross for _, cross in grams], axis=0)
    found = np.empty((len(_STRENGTHS), *new.shape), np.float32)
    for part, (gram, cross) in zip(parts, grams, strict=True):
        for place, strength in enumerate(_STRENGTHS):
            weight = _ridge(whole[0] - gram, whole[1] - cross, strength)
            found[place, part] = _mapped(old[part], weight)
    best = int(np.einsum("snd,nd->s", found, new).argmax())
    return found[best], _ridge(*whole, _STRENGTHS[best])


def _ridge(gram: np.ndarray, cross: np.ndarray, strength: float) -> np.ndarray:
    size = len(gram) - 1
    penalty = np.diag(np.append(np.full(size, strength * np.trace(gram[:size, :size]) / size), 1e-9))
    weight: np.ndarray = np.linalg.solve(gram + penalty, cross).astype(np.float32)
    return weight


def _with_one(vectors: np.ndarray) -> np.ndarray:
    return np.hstack([vectors, np.ones((len(vectors), 1), np.float32)])


def _mapped(vectors: np.ndarray, weight: np.ndarray) -> np.ndarray:
    made: np.ndarray = _with_one(vectors) @ weight
    made /= np.maximum(np.linalg.norm(made, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return made


# ---- embedding again


@dataclass(frozen=True)
class _Read:
    """An item whose file was read: its size and modification time before, and what was found."""

    item: StoredItem
    stamp: tuple[int, int]
    file: Embedded


def _embed_all(gallery: FilesView, model: Embedder, show_progress: bool) -> IngestResult:
    """Embed the items that have a vector of the map, with periodic commits."""
    started, result = now(), IngestResult()
    waiting = deque[tuple[StoredItem, tuple[int, int]]]()
    read, vectors = list[_Read](), list[np.ndarray]()
    deadline = time.monotonic() + COMMIT_SECONDS

    def places() -> Iterator[Location]:
        home = str(gallery.folder)
        for item in _bridged_items(gallery):
            if not item.path:
                result.bad.append(BadFile(_stamp(item), "no-file", "it has a vector but no image file"))
                continue
            place = locate_item(home, item.root, item.path)
            waiting.append((item, place.stamp() or (0, 0)))
            yield place

    total = count_bridged(gallery.store)
    with (
        Progress("embedding", total, "images", show=show_progress) as progress,
        closing(embed_ahead(places(), model)) as batches,
    ):
        for batch in batches:
            for file in batch.files:
                item, stamp = waiting.popleft()
                if isinstance(file, ImageError):
                    result.bad.append(BadFile(_stamp(item), file.reason, file.detail))
                elif isinstance(file, Embedded):
                    read.append(_Read(item, stamp, file))
            vectors.append(batch.vectors)
            progress.update(len(batch.files))
            if len(read) >= COMMIT_ITEMS or time.monotonic() > deadline:
                result.replaced += _commit(gallery, model, read, np.concatenate(vectors))
                read, vectors = [], []
                deadline = time.monotonic() + COMMIT_SECONDS
    if read:
        result.replaced += _commit(gallery, model, read, np.concatenate(vectors))
    result.added = result.replaced
    _finish(gallery, model, result, started, show_progress)
    return result


def _bridged_items(gallery: FilesView) -> Iterator[StoredItem]:
    last = 0
    while len(ids := bridged_ids(gallery.store, last, _PAGE)):
        last = int(ids[-1])
        yield from gallery.store.items(ids.tolist())


def _stamp(item: StoredItem) -> FileStamp:
    return FileStamp(item.root, item.path or item.key, item.size, item.mtime_ns, item.label)


def _commit(gallery: FilesView, model: Embedder, read: Sequence[_Read], vectors: np.ndarray) -> int:
    """Replace the vectors of items that nobody has changed meanwhile; return their number."""

    def write() -> int:
        store = gallery.store
        wanted = [one.item.id for one in read]
        bridged, present = still_bridged(store, wanted), {item.id: item for item in store.items(wanted)}
        rows, items = list[int](), list[NewItem]()
        for row, one in enumerate(read):
            before, item = one.item, present.get(one.item.id)
            if item is None or item.id not in bridged:
                continue
            if (item.root, item.path) != (before.root, before.path):
                continue
            stamp = FileStamp(item.root, item.path, *one.stamp, item.label)
            rows.append(row)
            items.append(NewItem(stamp, *one.file, key=item.key))
        if rows:
            store.commit(vectors[rows], items)
            gallery.index_new(None, reindex=False, added=len(rows))
        return len(rows)

    return _locked(gallery, model, write)


def _finish(
    gallery: FilesView, model: Embedder, result: IngestResult, started: str, show_progress: bool
) -> None:
    """Index the new vectors, drop those of the map, and record the run."""

    def index() -> None:
        gallery.index_new(None, reindex=True, added=result.added, show_progress=show_progress)

    def record() -> None:
        store = gallery.store
        if not count_bridged(store):
            store.update_manifest(replace(store.manifest, bridged=None))
        store.record_run("bridge", started, {**result.counts, "bad": len(result.bad)})

    _locked(gallery, model, index)
    _waiting(lambda: compact(gallery, show_progress=show_progress))
    _locked(gallery, model, record)
    gallery.refresh()


def _locked(gallery: FilesView, model: Embedder, work: Callable[[], T]) -> T:
    """Do some work inside `writing()`, while the gallery has the model."""

    def run() -> T:
        gallery.refresh()
        with gallery.store.writing():
            if gallery.store.manifest.fingerprint != model.fingerprint:
                what = f"{gallery.folder}: got another model meanwhile; what is committed stays"
                raise LookalikeError(f"{what}; continue with its own model file")
            return work()

    return _waiting(run)


def _waiting(work: Callable[[], T]) -> T:
    """Do some work that needs the lock, and wait for another writer."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return work()
        except LockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
