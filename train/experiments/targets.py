"""Targets of an evaluation: runs, model files and galleries, and baselines to compare them with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.embedder import Embedder
from retrieval.errors import InputError
from retrieval.gallery import Gallery
from retrieval.images.preprocess import Preprocess

_PIXELS_SIDE = 32
# Names of results. A run whose last epoch is not its best has the latter two instead of AFTER.
BEFORE, AFTER = "before training", "after training"
LAST_EPOCH, BEST_EPOCH = "last epoch", "best epoch on held-out images"


@dataclass(frozen=True)
class Candidate:
    """A network to evaluate.

    Attributes:
        name: Name of its result.
        preprocess: Preprocessing of images.
        embed: Maps preprocessed images, uint8 [N, H, W, 3], to unit vectors, float32 [N, D].
    """

    name: str
    preprocess: Preprocess
    embed: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Target:
    """A run, model file or gallery to evaluate.

    Attributes:
        candidates: Its networks; several for a run with different checkpoints.
        config: Settings of its training run, as plain values; empty if there was none.
        fingerprint: SHA-256 of the model file; `None` for a run.
        gallery: The gallery, if it is one.
    """

    candidates: list[Candidate]
    config: Mapping[str, Any]
    fingerprint: str | None = None
    gallery: Gallery | None = None


def open_target(target: Path, which: str | None) -> Target:
    """Open the run, gallery or model file at a path.

    Args:
        target: Folder of a run or of a gallery, or a model file.
        which: Checkpoint of a run: the "best" epoch on held-out images, the "last", or the step of a kept
            one, as in "12"; `None` for the best and the last, if they differ.

    Raises:
        InputError: It is none of these.
    """
    gallery = Gallery(target) if (target / "gallery.db").exists() else None
    if gallery is None and target.is_dir():
        return _open_run(target, which)
    if which is not None:
        raise InputError(
            f"{target}: --which selects a checkpoint of a run, and this is not a run; leave it out"
        )
    embedder = gallery.embedder if gallery is not None else Embedder(target)
    name, config = AFTER, embedder.provenance.get("config", {})
    if "source" in embedder.provenance:  # a published backbone without training
        name, config = "off the shelf", {}
    candidate = Candidate(name, embedder.preprocess, embedder.embed_pixels)
    return Target([candidate], config, embedder.fingerprint, gallery)


def _open_run(folder: Path, which: str | None) -> Target:
    from train.loop.run_folder import Run
    from train.models.embedding_model import pixel_embedder

    run = Run.open(folder)
    config = run.config
    chosen = {which or "best": AFTER}
    if which not in (None, "best", "last"):
        chosen = {which: f"step {run.checkpoint_state(which)['step']:,}"}
    if which is None:
        best, last = run.checkpoint_state("best"), run.checkpoint_state("last")
        if best["recall_at_1"] is not None and best["step"] != last["step"]:
            chosen = {"last": LAST_EPOCH, "best": BEST_EPOCH}
    candidates = [
        Candidate(name, config.preprocess, pixel_embedder(run.trained(checkpoint)))
        for checkpoint, name in chosen.items()
    ]
    return Target(candidates, config.to_dict())


def baseline(name: str, config: Mapping[str, Any]) -> Candidate:
    """Return a baseline to compare a target with.

    Args:
        name: "pixels" or "untrained".
        config: Settings that the target was trained with.

    Raises:
        InputError: The target was not trained, so there is no network before training.
    """
    if name == "pixels":
        return Candidate("raw pixels", Preprocess(size=_PIXELS_SIDE), _raw_pixels)
    if not config:
        raise InputError("--baseline untrained: this model does not come from a training run; leave it out")
    from train import settings
    from train.loop.run_folder import initial_model
    from train.models.embedding_model import pixel_embedder

    before = settings.parse_config(config)
    return Candidate(BEFORE, before.preprocess, pixel_embedder(initial_model(before)))


def _raw_pixels(pixels: np.ndarray) -> np.ndarray:
    flat = pixels.reshape(len(pixels), -1).astype(np.float32)  # [N, H W 3]
    flat -= flat.mean(1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
    return flat
