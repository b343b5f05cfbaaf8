"""Re-projection: put every stored vector of a gallery through a linear layer, with a model file that has it.

A model file that differs in its text encoder alone comes into a gallery in the same way; its vectors stay.

The new gallery is built in the hidden folder `.NAME.reprojection` beside the old one, from links to its files
and a copy of its database, and replaces it when it is complete. The old one is kept as NAME.old, from which
`undo` restores the old vectors.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from retrieval.errors import InputError
from retrieval.files import link_or_copy, now
from retrieval.galleries.files import FilesView
from retrieval.galleries.searchable import SearchableGallery
from retrieval.model.embedder import Embedder
from retrieval.model.layer import Layer
from retrieval.model.runtime import Runtime
from retrieval.progress import Progress
from retrieval.search.calibration import NAME as CALIBRATION
from retrieval.storage import maintenance, removals
from retrieval.storage.identity import (
    is_plugged,
    keep_model,
    model_file,
    probe_cosine,
    probe_pixels,
    probes_file,
)
from retrieval.storage.maintenance import Replacement
from retrieval.storage.manifest import Manifest
from retrieval.storage.merging import rewrite
from retrieval.storage.queries import count_items
from retrieval.storage.store import Store, last_number
from retrieval.system import fsync_folder
from retrieval.upkeep.snapshot import copy_gallery
from retrieval.upkeep.successor import check_successor, exchange, keep_predecessor

_MIN_COSINE = 0.9999  # between the layer's vectors of the probe images and those of the model that has it


@dataclass(frozen=True)
class Reprojection:
    """Result of a re-projection.

    Attributes:
        gallery: The new gallery, in place of the old one.
        old: Present folder of the old gallery.
        vectors: Number of vectors.
    """

    gallery: SearchableGallery
    old: Path
    vectors: int


def check_projectable(gallery: SearchableGallery, *, drop_old: bool = False) -> None:
    """Refuse a gallery that `reproject` would refuse, before a layer is learned.

    Args:
        gallery: Gallery.
        drop_old: NAME.old may be replaced.

    Raises:
        InputError: The vectors come from an external embedding, a plug-in or a bridge, or NAME.old exists.
    """
    if not gallery.manifest.has_model:
        what = f"{gallery.folder}: its vectors come from an external embedding ({gallery.manifest.embedding})"
        raise InputError(f"{what}, so that no model file can get the layer; build a gallery with a model")
    if is_plugged(gallery.folder):
        what = f"{gallery.folder}: its model is an embedder of a plug-in"
        raise InputError(f"{what}, which can get no layer; build a gallery with an ONNX file")
    gallery.check_own_vectors()
    old = old_of(gallery.folder)
    if old.exists() and not drop_old:
        raise InputError(f"{old}: already exists; move or delete it, or pass --drop-old")


def reproject(
    gallery: FilesView,
    layer: Layer | None,
    model: Embedder,
    *,
    command: str,
    counts: Mapping[str, int] | None = None,
    drop_old: bool = False,
    show_progress: bool = False,
) -> Reprojection:
    """Put every stored vector through a layer, and replace the model file by one that has the layer.

    Ids, keys, labels, metadata, unusable files, uploads, reports and vector numbers stay; removed images are
    dropped, as by a compaction; the index is built again, of the kind that was asked for; a calibration is
    that of the old vectors and does not stay. Whatever happens,
    the folder holds the old gallery or the new one. Processes that have opened the old one can use it until
    they refresh. Memory is bounded; the disk needs room for the new vectors and index.

    Args:
        gallery: Gallery whose vectors are the layer's inputs.
        layer: Layer; `None` for a model with another text encoder: vectors, index and calibration stay.
        model: The gallery's model with the layer at its end, or with the text encoder.
        command: Name of the command, for the gallery's history.
        counts: Numbers for the history.
        drop_old: Delete an earlier NAME.old.
        show_progress: Report progress on stderr.

    Raises:
        InputError: As for `check_projectable`; or layer, model and gallery do not belong together.
        LookalikeError: A stored vector is damaged, another process is writing, or the disk is full; the
            gallery is unchanged.
    """
    draft, old = draft_of(gallery.folder), old_of(gallery.folder)
    with gallery.store.writing():
        gallery.refresh()
        keep_predecessor(draft, old, gallery.manifest.projected_from)
        check_projectable(gallery, drop_old=drop_old)
        probes = checked_probes(gallery, layer, model)
        manifest = projected(gallery.manifest, model)

        def through_layer(vectors: np.ndarray, _: np.ndarray) -> np.ndarray:
            assert layer is not None
            return layer(np.asarray(vectors, np.float32))

        convert = None if layer is None else through_layer
        change = _Change(command, counts or {}, manifest, model.path, probes, convert, model.runtime)
        count = _replace(gallery, change, lambda: shutil.rmtree(old, ignore_errors=True), show_progress)
        draft.rename(old)
        fsync_folder(old.parent)
    return Reprojection(type(gallery)(gallery.folder, runtime=model.runtime), old, count)


def map_vectors(
    gallery: FilesView,
    convert: Callable[[np.ndarray], np.ndarray],
    model: Embedder,
    *,
    keep_old: bool,
    show_progress: bool = False,
) -> None:
    """Replace every stored vector by what a map makes of it in the space of another model, and the model.

    As `reproject`, but the vectors are not those of the model: the manifest says up to which number.

    Args:
        gallery: Gallery, whose folder has the new one afterwards.
        convert: Returns unit vectors, float32 [b, D'], for stored vectors, float32 [b, D].
        model: New model.
        keep_old: Keep the old gallery as NAME.old.
        show_progress: Report progress on stderr.

    Raises:
        LookalikeError: As for `reproject`.
    """
    draft, old = draft_of(gallery.folder), old_of(gallery.folder)
    with gallery.store.writing():
        gallery.refresh()
        with gallery.store.reading() as db:
            bridged = last_number(db)
        before = gallery.manifest
        manifest = replace(
            projected(before, model), rebuilt_from=before.uuid, projected_from=None, bridged=bridged
        )
        probes = model.embed_pixels(probe_pixels(model))

        def mapped(vectors: np.ndarray, _: np.ndarray) -> np.ndarray:
            return convert(np.asarray(vectors, np.float32))

        change = _Change("bridge", {}, manifest, model.path, probes, mapped, model.runtime)
        _replace(gallery, change, lambda: None, show_progress)
        if keep_old:
            draft.rename(old)
        else:
            shutil.rmtree(draft)
        fsync_folder(old.parent)


def undo(gallery: FilesView, *, show_progress: bool = False) -> FilesView:
    """Restore model and vectors of NAME.old, from before the last re-projection, and delete NAME.old.

    Changes of items since then stay: removals, labels, keys and metadata.

    Args:
        gallery: Gallery that was re-projected.
        show_progress: Report progress on stderr.

    Returns:
        The restored gallery, in place of the old one.

    Raises:
        InputError: There is no NAME.old that this gallery comes from, or images were added since, which have
            no vector of the old model.
        LookalikeError: As for `reproject`.
    """
    draft, old = draft_of(gallery.folder), old_of(gallery.folder)
    with gallery.store.writing():
        gallery.refresh()
        origin = gallery.manifest.projected_from
        keep_predecessor(draft, old, origin)
        if origin is None:
            _clear(draft, old)  # of an undoing that was interrupted after the swap
            raise InputError(
                f"{gallery.folder}: nothing to undo; no layer changed its vectors, or it was undone"
            )
        before = FilesView(old) if (old / "gallery.db").is_file() else None
        if before is None or before.manifest.uuid != origin:
            what = (
                f"{gallery.folder}: cannot be undone, because {old} is not the gallery that it was made from"
            )
            raise InputError(f"{what}; build the gallery again with the model that you want")
        snapshot, then = before.state, before.manifest
        is_text = then.probes_sha256 == gallery.manifest.probes_sha256  # the vectors of images have stayed
        if not is_text:
            _check_same_images(gallery, before)
        manifest = replace(
            gallery.manifest,
            uuid=str(uuid.uuid4()),
            fingerprint=then.fingerprint,
            dim=then.dim,
            provider=then.provider,
            precision=then.precision,
            projected_from=None,
            bridged=then.bridged,
        )

        def earlier(_: np.ndarray, numbers: np.ndarray) -> np.ndarray:
            return snapshot.vectors(snapshot.stored.rows_of(numbers))

        convert = None if is_text else earlier
        model, probes = model_file(old), np.load(probes_file(old), allow_pickle=False)
        change = _Change("undo", {}, manifest, model, probes, convert, calibration=old / CALIBRATION)
        _replace(gallery, change, lambda: None, show_progress)
        _clear(draft, old)
        fsync_folder(old.parent)
    return type(gallery)(gallery.folder, root=gallery.root)


def _clear(draft: Path, old: Path) -> None:
    """Delete the gallery that an undoing has swapped into the draft, and with it the one that it came from.

    It may be interrupted at any moment, and called again. Other drafts are deleted alone.
    """
    are_there = all((folder / "gallery.db").exists() for folder in (draft, old))
    if are_there and Store(draft).manifest.projected_from == Store(old).manifest.uuid:
        old.rename(draft / old.name)
    shutil.rmtree(draft, ignore_errors=True)


def projected(manifest: Manifest, model: Embedder) -> Manifest:
    """Return the facts about a gallery after its vectors were put through a layer that a model has."""
    return replace(
        manifest,
        uuid=str(uuid.uuid4()),
        fingerprint=model.fingerprint,
        dim=model.dim,
        provider=model.provider,
        precision=None,  # measured with the model before
        projected_from=manifest.uuid,
    )


@dataclass(frozen=True)
class _Change:
    """Change of a gallery: its new manifest, model and vectors.

    Attributes:
        command: Name of the command, for the history.
        counts: Numbers for the history.
        manifest: Manifest of the new gallery.
        model: Its model file.
        probes: Vectors of the probe images, float32 [n, D'].
        convert: Returns the new vectors of a block; see `retrieval.storage.merging.rewrite`. `None`: vectors,
            index and calibration stay.
        runtime: Device and provider on which it is checked and indexed; `None` for the default.
        calibration: Calibration of the scores of the new vectors, if there is one.
    """

    command: str
    counts: Mapping[str, int]
    manifest: Manifest
    model: Path
    probes: np.ndarray
    convert: Callable[[np.ndarray, np.ndarray], np.ndarray] | None
    runtime: Runtime | None = None
    calibration: Path | None = None


def draft_of(folder: Path) -> Path:
    """Return the folder in which the successor of a gallery is built."""
    folder = folder.resolve()
    return folder.with_name(f".{folder.name}.reprojection")


def old_of(folder: Path) -> Path:
    """Return the folder in which the predecessor of a gallery is kept."""
    folder = folder.resolve()
    return folder.with_name(f"{folder.name}.old")


def checked_probes(gallery: SearchableGallery, layer: Layer | None, model: Embedder) -> np.ndarray:
    """Return the model's vectors of the probe images, float32 [n, D'], which prove that it has the layer.

    Without a layer they are those of the gallery.
    """
    if layer is None:
        has_dim = model.dim == gallery.manifest.dim
        if not has_dim or probe_cosine(gallery.folder, gallery.manifest, model) < _MIN_COSINE:
            what = f"it is not the model of {gallery.folder} with another text encoder"
            raise InputError(f"{model.path}: {what}; learn it again")
        return np.load(probes_file(gallery.folder), allow_pickle=False)  # type: ignore[no-any-return]
    dims = layer.weight.shape
    if dims != (model.dim, gallery.manifest.dim):
        what = (
            f"the layer maps {dims[1]} to {dims[0]} dimensions, {gallery.folder} has {gallery.manifest.dim}"
        )
        raise InputError(f"{model.path}: {what}, the model {model.dim}; learn the layer again")
    found = model.embed_pixels(probe_pixels(model))
    own = gallery.embedder
    cosine = float((found * layer(own.embed_pixels(probe_pixels(own)))).sum(1).min())
    if cosine < _MIN_COSINE:
        what = f"it is not the model of {gallery.folder} with the layer (cosine {cosine:.4f})"
        raise InputError(f"{model.path}: {what}; learn the layer again")
    return found


def _check_same_images(gallery: FilesView, before: FilesView) -> None:
    """Raise an `InputError` if the gallery has vectors that an earlier state of it lacks."""
    snapshot = gallery.state
    numbers = snapshot.stored.numbers_of(snapshot.live_rows())
    added = int((before.state.stored.rows_of(numbers) < 0).sum())
    if added:
        model = model_file(before.folder)
        # With --force, as labels show that the layer finds more: a rebuild without it would refuse the model.
        remedy = f"`lookalike index rebuild {gallery.folder} --model {model} --drop-old --force`"
        raise InputError(
            f"{gallery.folder}: {added} images were added since, without a vector of the old model; "
            f"remove them, or embed all images again with {remedy}"
        )


def _replace(
    gallery: FilesView, change: _Change, before_swap: Callable[[], None], show_progress: bool
) -> int:
    """Build the successor of a gallery in its draft, swap the two, and return the number of vectors.

    Args:
        gallery: Gallery, inside `store.writing()`; afterwards it is in the folder of the draft.
        change: What changes.
        before_swap: Called when the successor is complete.
        show_progress: Report progress on stderr.
    """
    folder, draft = gallery.folder.resolve(), draft_of(gallery.folder)
    shutil.rmtree(draft, ignore_errors=True)  # of an interrupted run
    copy_gallery(folder, draft)
    new = FilesView(draft, runtime=change.runtime)
    with new.store.writing():
        try:
            count = _convert(new, change, show_progress)
            expected = count_items(gallery.store).live
            check_successor(draft, expected, change.runtime, show_progress=show_progress)
            before_swap()
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        exchange(draft, folder)
    return count


def _convert(new: FilesView, change: _Change, show_progress: bool) -> int:
    """Change the copy of a gallery, inside `store.writing()`, and return the number of its vectors."""
    store, started = new.store, now()
    if change.convert is not None:
        _convert_vectors(store, change.convert, change.manifest.dim, show_progress)
        (store.folder / CALIBRATION).unlink(missing_ok=True)
        if change.calibration is not None and change.calibration.exists():
            link_or_copy(change.calibration, store.folder / CALIBRATION)
    shutil.rmtree(store.folder / "model")  # links to the files of the old gallery
    (store.folder / "model").mkdir()
    digest = keep_model(store.folder, change.model, change.probes)
    store.update_manifest(replace(change.manifest, probes_sha256=digest))
    store.clear_leftovers()
    new.refresh()
    if change.convert is not None:
        new.optimize_index(show_progress=show_progress)
    count = sum(segment.n for segment in store.segments())
    store.record_run(change.command, started, {**change.counts, "vectors": count})
    return count


def _convert_vectors(
    store: Store,
    convert: Callable[[np.ndarray, np.ndarray], np.ndarray],
    dim: int,
    show_progress: bool,
) -> None:
    state = store.state()
    total = sum(segment.n for segment in state.segments)
    replacements = []
    with Progress("re-projecting", total, "vectors", show=show_progress) as progress:
        for segment in state.segments:
            written = rewrite(store, [segment], state.dead, dim, convert)
            replacements.append(Replacement([segment], written))
            progress.update(segment.n)
    maintenance.replace_segments(store, replacements, purge=True)
    removals.clear(store.folder)
    maintenance.drop_index(store)
