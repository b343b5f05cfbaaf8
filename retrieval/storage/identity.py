"""Model identity: the model that a gallery's vectors come from, proved by fingerprint and probe vectors."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.files import atomic_write, has_sha256, sha256_of
from retrieval.model.archive import is_archive
from retrieval.model.embedder import Embedder
from retrieval.model.plugged import is_reference
from retrieval.model.runtime import Runtime
from retrieval.storage.manifest import Manifest
from retrieval.text import print_once

_ARCHIVE, _REFERENCE = "model.zip", "model.json"
# Lowest cosine of the probe vectors of another file with the same network.
_MIN_COSINE_SAME_NETWORK = 0.9999
# Lowest cosine of the same file on another machine, whose libraries round differently.
_MIN_COSINE_OTHER_MACHINE = 0.999
# Lowest cosine of the same file on another execution provider. An int8 file computed in float32, as some
# providers do, keeps 0.997 on images; files whose precision costs 0.98 are in use.
_MIN_COSINE_OTHER_PROVIDER = 0.99


def model_file(folder: Path) -> Path:
    """Return the path of a gallery's model file, which may be missing.

    It is `model/model.zip` for an archive of image and text encoder, `model/model.json` for an embedder of a
    plug-in, else `model/model.onnx`.
    """
    others = (folder / "model" / name for name in (_ARCHIVE, _REFERENCE))
    return next((file for file in others if file.exists()), folder / "model" / "model.onnx")


def has_text(folder: Path) -> bool:
    """Return whether a gallery's model has a text encoder."""
    return model_file(folder).name == _ARCHIVE


def is_plugged(folder: Path) -> bool:
    """Return whether a gallery's model is an embedder of a plug-in."""
    return model_file(folder).name == _REFERENCE


def probes_file(folder: Path) -> Path:
    """Return the path of the vectors of the probe images by a gallery's model."""
    return folder / "model" / "probes.npy"


def keep_model(folder: Path, file: Path, probes: np.ndarray) -> str:
    """Copy a model file into the folder of a new gallery, with the vectors of the probe images.

    Args:
        folder: Gallery folder, with the folder `model`.
        file: Model file.
        probes: Vectors of the probe images, float32 [n, D].

    Returns:
        SHA-256 of the file with the vectors.
    """
    with file.open("rb") as opened:
        plugged = is_reference(opened.read(1))
    name = _ARCHIVE if is_archive(file) else _REFERENCE if plugged else "model.onnx"
    with atomic_write(folder / "model" / name) as draft:
        shutil.copyfile(file, draft)
    with atomic_write(probes_file(folder)) as draft, draft.open("wb") as target:
        np.save(target, probes)
    return sha256_of(probes_file(folder))


def own_model(folder: Path, manifest: Manifest, runtime: Runtime) -> Embedder:
    """Load a gallery's model file, and check that it still computes the stored probe vectors.

    Args:
        folder: Gallery folder.
        manifest: Manifest of the gallery.
        runtime: Device, provider, batch size and threads; TF32 is allowed if the gallery allows it.

    Raises:
        InputError: The gallery has no model, since its vectors come from an external embedding; or the model
            cannot be used.
        LookalikeError: Model or probes are damaged, or the model computes other vectors on this machine.
    """
    if not manifest.has_model:
        what = f"{folder}: the vectors come from an external embedding ({manifest.embedding}), not a model"
        raise InputError(f"{what}; search by an item of the gallery, or by vectors")
    try:
        embedder = Embedder.open(model_file(folder), replace(runtime, tf32=manifest.allows_tf32))
    except InputError as error:
        if has_sha256(model_file(folder), manifest.fingerprint):
            raise  # it is the file that the gallery was built with
        raise _damaged(model_file(folder)) from error
    if embedder.fingerprint != manifest.fingerprint:
        raise _damaged(embedder.path)
    check_vectors(folder, manifest, embedder)
    return embedder


def check_vectors(folder: Path, manifest: Manifest, embedder: Embedder) -> None:
    """Check that the gallery's model computes the stored probe vectors here.

    Vectors of another execution provider may differ more; if they do, one line on stderr says so.

    Raises:
        LookalikeError: It computes other vectors.
    """
    cosine = probe_cosine(folder, manifest, embedder)
    if cosine >= _MIN_COSINE_OTHER_MACHINE:
        return
    built, here = manifest.provider, embedder.provider
    what = (
        f"{folder}: the model computes other vectors here, by {here}, than when the gallery was built, by "
        f"{built or 'an unknown provider'} (cosine {cosine:.4f})"
    )
    hint = "rebuild the gallery on this machine"
    if built not in (None, here):
        if cosine >= _MIN_COSINE_OTHER_PROVIDER:
            print_once(f"{what}; scores may differ in the second decimal")
            return
        hint += ", or choose the provider that it was built with by --device"
    raise LookalikeError(f"{what}; {hint}")


def check_storage(folder: Path, manifest: Manifest, storage: str | None) -> None:
    """Raise an `InputError` if a gallery stores numbers of another type than `storage`; `None` for any."""
    if storage not in (None, manifest.dtype):
        hint = f"omit --storage, or export it and import the vectors into a new one with --storage {storage}"
        raise InputError(f"{folder}: stores {manifest.dtype}; {hint}")


def check_same(folder: Path, manifest: Manifest, embedder: Embedder) -> None:
    """Refuse a model other than the gallery's.

    Args:
        folder: Gallery folder.
        manifest: Manifest of the gallery.
        embedder: Model to check.

    Raises:
        InputError: Another model file; the message states whether it computes the same vectors, as a model
            that was exported again does.
    """
    if embedder.fingerprint == manifest.fingerprint:
        return
    ours = manifest.embedding or f"model {manifest.fingerprint[:12]}"
    detail = f"it was built with {ours}, {embedder.path} is model {embedder.fingerprint[:12]}"
    hint = "use the same model, or move the gallery to another one with `lookalike index rebuild`"
    if manifest.has_model and embedder.dim == manifest.dim:
        cosine = probe_cosine(folder, manifest, embedder)
        if cosine >= _MIN_COSINE_SAME_NETWORK:
            file = model_file(folder)
            hint = f"both compute the same vectors, so use the one it was built with: {file}"
        else:
            detail += f", which computes other vectors (cosine {cosine:.4f})"
    raise InputError(f"{folder}: {detail}; {hint}")


def probe_cosine(folder: Path, manifest: Manifest, embedder: Embedder) -> float:
    """Return the lowest cosine between the stored vectors of the probe images and those of a model.

    Raises:
        LookalikeError: The stored vectors are missing or damaged.
    """
    path = probes_file(folder)
    if not has_sha256(path, manifest.probes_sha256):
        raise LookalikeError(f"{path}: missing or damaged; run `lookalike index verify {folder}`")
    stored = np.load(path, allow_pickle=False)
    return float((embedder.embed_pixels(probe_pixels(embedder)) * stored).sum(1).min())


def probe_pixels(embedder: Embedder) -> np.ndarray:
    """Return the four fixed probe images, uint8 [4, S, S, 3], by whose vectors models are compared."""
    side = embedder.preprocess.size
    y, x = np.mgrid[0:side, 0:side] / side
    waves = [np.sin(2 * np.pi * (a * x + b * y))[..., None] for a, b in ((1, 0), (0, 3), (5, 2), (11, 7))]
    tint = np.array([1.0, 0.6, 0.3])
    shades = [127.5 + 127.5 * wave * np.roll(tint, i) for i, wave in enumerate(waves)]
    return np.stack(shades).astype(np.uint8)


def _damaged(file: Path) -> LookalikeError:
    return LookalikeError(f"{file}: missing or damaged; restore the file that the gallery was built with")
