"""What can be measured: runs, model files and galleries, and baselines to put beside them."""

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
# What rows are called; of a run whose last epoch is not its best there are two in place of AFTER.
BEFORE, AFTER = "before training", "after training"
LAST_EPOCH, BEST_EPOCH = "last epoch", "best epoch on held-out classes"


@dataclass(frozen=True)
class Contestant:
    """A way to turn preprocessed pictures uint8 [N, H, W, 3] into unit vectors float32 [N, D]."""

    name: str
    preprocess: Preprocess
    embed: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Target:
    """What is evaluated, and the settings it was trained with, as plain values."""

    contestants: list[Contestant]
    config: Mapping[str, Any]
    fingerprint: str | None = None
    gallery: Gallery | None = None


def open_target(target: Path, which: str | None) -> Target:
    """What lies at a path: the folder of a run or of a gallery, or a model file.

    Args:
        which: of a run, the "best" epoch on held-out classes or the "last"; `None`: both where they differ.

    Raises:
        InputError: it is none of these.
    """
    gallery = Gallery(target) if (target / "gallery.db").exists() else None
    if gallery is None and target.is_dir():
        return _open_run(target, which)
    if which is not None:
        raise InputError(f"{target}: --which chooses between the checkpoints of a run, and this is none")
    embedder = gallery.embedder if gallery is not None else Embedder(target)
    name, config = AFTER, embedder.provenance.get("config", {})
    if "source" in embedder.provenance:  # a published backbone as it is
        name, config = "off the shelf", {}
    contestant = Contestant(name, embedder.preprocess, embedder.embed_pixels)
    return Target([contestant], config, embedder.fingerprint, gallery)


def _open_run(folder: Path, which: str | None) -> Target:
    from train.loop.run_folder import Run
    from train.models.embedding_model import pixel_embedder

    run = Run.open(folder)
    config = run.config
    chosen = {which or "best": AFTER}
    if which is None:
        best, last = run.load_checkpoint("best"), run.load_checkpoint("last")
        if best["recall_at_1"] is not None and best["step"] != last["step"]:
            chosen = {"last": LAST_EPOCH, "best": BEST_EPOCH}
    contestants = [
        Contestant(name, config.preprocess, pixel_embedder(run.trained(checkpoint)))
        for checkpoint, name in chosen.items()
    ]
    return Target(contestants, config.to_dict())


def baseline(name: str, config: Mapping[str, Any]) -> Contestant:
    """What to compare a target with: "pixels" or "untrained".

    Args:
        config: the settings that the target was trained with.

    Raises:
        InputError: the network before training is asked for, and there was no training.
    """
    if name == "pixels":
        return Contestant("raw pixels", Preprocess(size=_PIXELS_SIDE), _raw_pixels)
    if not config:
        raise InputError("--baseline untrained: this model was not made by a training run")
    from train import settings
    from train.loop.run_folder import initial_model
    from train.models.embedding_model import pixel_embedder

    before = settings.parse(config)
    return Contestant(BEFORE, before.preprocess, pixel_embedder(initial_model(before)))


def _raw_pixels(pixels: np.ndarray) -> np.ndarray:
    flat = pixels.reshape(len(pixels), -1).astype(np.float32)  # [N, H W 3]
    flat -= flat.mean(1, keepdims=True)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
