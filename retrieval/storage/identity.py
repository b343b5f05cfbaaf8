"""Which model a gallery's vectors come from, and whether another one would give the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from retrieval.embedder import Embedder
from retrieval.errors import InputError, LookalikeError
from retrieval.files import sha256_of
from retrieval.storage.manifest import Manifest

_SAME = 0.9999  # cosine of probes from here on: another file, the same network
_STILL = 0.999  # the same file on another machine: other libraries round otherwise


def own_model(folder: Path, manifest: Manifest, threads: int | None = None) -> Embedder:
    """The model in a gallery's folder, which must be the one, and compute here what it computed then.

    Args:
        threads: as for `Embedder`.

    Raises:
        InputError: the gallery has no model, for its vectors were made elsewhere.
        LookalikeError: model or probes are damaged, or the model gives other vectors on this machine.
    """
    if not manifest.has_model:
        what = f"{folder}: holds vectors made elsewhere ({manifest.embedding}), and no model"
        raise InputError(f"{what}: search it by one of its items, or by vectors")
    try:
        embedder = Embedder(folder / "model" / "model.onnx", threads=threads)
    except InputError as error:
        raise _damaged(folder, "model.onnx") from error
    if embedder.fingerprint != manifest.fingerprint:
        raise _damaged(folder, "model.onnx")
    cosine = probe_cosine(folder, manifest, embedder)
    if cosine < _STILL:
        what = f"the model gives other vectors here than where the gallery was made (cosine {cosine:.4f})"
        raise LookalikeError(f"{folder}: {what}; rebuild the gallery on this machine")
    return embedder


def check_same(folder: Path, manifest: Manifest, embedder: Embedder) -> None:
    """Refuse a model whose vectors would not belong into a gallery.

    Raises:
        InputError: it is another file; the message says whether its vectors are the same all the same, as
            those of a model that was exported again.
    """
    if embedder.fingerprint == manifest.fingerprint:
        return
    ours = manifest.embedding or f"model {manifest.fingerprint[:12]}"
    detail = f"it was built with {ours}, {embedder.path} is model {embedder.fingerprint[:12]}"
    hint = "use the same model, or build a new gallery"
    if manifest.has_model and embedder.dim == manifest.dim:
        cosine = probe_cosine(folder, manifest, embedder)
        if cosine >= _SAME:
            hint = (
                f"both give the same vectors, so use the one it was built with: {folder / 'model/model.onnx'}"
            )
        else:
            detail += f", whose vectors are others (cosine {cosine:.4f})"
    raise InputError(f"{folder}: {detail}; {hint}")


def probe_cosine(folder: Path, manifest: Manifest, embedder: Embedder) -> float:
    """The lowest cosine between the vectors of the probe pictures as they were stored, and a model's."""
    path = folder / "model" / "probes.npy"
    if not path.is_file() or sha256_of(path) != manifest.probes_sha256:
        raise _damaged(folder, "probes.npy")
    stored = np.load(path, allow_pickle=False)
    return float((embedder.embed_pixels(probe_pixels(embedder)) * stored).sum(1).min())


def probe_pixels(embedder: Embedder) -> np.ndarray:
    """Four fixed pictures uint8 [4, S, S, 3], whose vectors show whether a model still does what it did."""
    side = embedder.preprocess.size
    y, x = np.mgrid[0:side, 0:side] / side
    waves = [np.sin(2 * np.pi * (a * x + b * y))[..., None] for a, b in ((1, 0), (0, 3), (5, 2), (11, 7))]
    tint = np.array([1.0, 0.6, 0.3])
    shades = [127.5 + 127.5 * wave * np.roll(tint, i) for i, wave in enumerate(waves)]
    return np.stack(shades).astype(np.uint8)


def _damaged(folder: Path, name: str) -> LookalikeError:
    what = f"{folder / 'model' / name}: missing or damaged"
    return LookalikeError(f"{what}; put the file back that the gallery was made with")
