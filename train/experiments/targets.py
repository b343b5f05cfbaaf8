"""Targets of an evaluation: runs, model files and galleries, and baselines to compare them with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.embedder import Embedder
from retrieval.errors import InputError
from retrieval.gallery import Gallery
from retrieval.images.decode import EmbeddedFiles, embed_files
from retrieval.images.preprocess import Preprocess
from retrieval.progress import Progress
from train import settings
from train.config import FITTED_INITS, Config

if TYPE_CHECKING:
    from train.models.embedding_model import EmbeddingModel  # imports torch

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
        embed_pixels: Maps preprocessed images, uint8 [N, H, W, 3], to unit vectors, float32 [N, D].
        embed_cached: Embeds files (the first argument) from the cached features of a frozen backbone, which
            are those of all files of their split (the second); `None` for other networks.
    """

    name: str
    preprocess: Preprocess
    embed_pixels: Callable[[np.ndarray], np.ndarray]
    embed_cached: Callable[[Sequence[Path], Sequence[Path]], EmbeddedFiles] | None = None

    def embed(
        self, paths: Sequence[Path], split: Sequence[Path], title: str, *, show_progress: bool = True
    ) -> EmbeddedFiles:
        """Embed image files.

        Args:
            paths: Image files.
            split: All files of their split, or the same files.
            title: Title of the progress.
            show_progress: Report progress on stderr.
        """
        if self.embed_cached is not None:
            return self.embed_cached(paths, split)
        with Progress(title, len(paths), show=show_progress) as progress:
            return embed_files(paths, self.preprocess, self.embed_pixels, progress)


@dataclass(frozen=True)
class Target:
    """A run, model file or gallery to evaluate.

    Attributes:
        candidates: Its networks; several for a run with different checkpoints.
        config: Settings of its training run, as plain values; empty if there was none.
        untrained: Builds the network before training; `None` if there was no training.
        fingerprint: SHA-256 of the model file; `None` for a run.
        gallery: The gallery, if it is one.
    """

    candidates: list[Candidate]
    config: Mapping[str, Any]
    untrained: Callable[[], Candidate] | None = None
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
    before = partial(_initial_candidate, config) if config else None
    return Target([candidate], config, before, embedder.fingerprint, gallery)


def _open_run(folder: Path, which: str | None) -> Target:
    from train.loop.run_folder import Run

    run = Run.open(folder)
    config = run.config
    chosen = {which or "best": AFTER}
    if which not in (None, "best", "last"):
        chosen = {which: f"step {run.checkpoint_state(which)['step']:,}"}
    if which is None:
        best, last = run.checkpoint_state("best"), run.checkpoint_state("last")
        if best["recall_at_1"] is not None and best["step"] != last["step"]:
            chosen = {"last": LAST_EPOCH, "best": BEST_EPOCH}
    candidates, model = [], None
    for checkpoint, name in chosen.items():
        model = run.trained(checkpoint, like=model)
        candidates.append(model_candidate(name, model, config))
    return Target(candidates, config.to_dict(), lambda: model_candidate(BEFORE, run.untrained(), config))


def _initial_candidate(values: Mapping[str, Any]) -> Candidate:
    """Return the network before training of a model file."""
    from train.loop.run_folder import initial_model

    config = settings.parse_config(values)
    if config.model.init in FITTED_INITS:
        raise InputError(
            f"--baseline untrained: the embedding layer began with model.init={config.model.init}, fitted to "
            "the training images; evaluate the run instead of its model file, or leave it out"
        )
    return model_candidate(BEFORE, initial_model(config), config)


def model_candidate(name: str, model: EmbeddingModel, config: Config) -> Candidate:
    """Return a network with its configuration as a candidate."""
    from train.loop.frozen_backbone import FrozenBackbone
    from train.models.embedding_model import pixel_embedder

    embed_cached = None
    if model.is_frozen_below_head and config.loader.features == "auto":
        embed_cached = partial(FrozenBackbone(model, config, show_progress=True).embed, model)
    return Candidate(name, config.preprocess, pixel_embedder(model), embed_cached)


def concatenated(name: str, candidates: Sequence[Candidate]) -> Candidate:
    """Return networks as one, with the dimensions of all: unit vectors side by side, normalized again.

    The cosine of the result is the mean of the cosines of the networks (Musgrave et al. 2020).

    Args:
        name: Name of the result.
        candidates: Networks with the same preprocessing.
    """

    def join(vectors: Sequence[np.ndarray]) -> np.ndarray:
        joined: np.ndarray = np.concatenate(vectors, axis=1) / np.float32(np.sqrt(len(vectors)))
        return joined

    def embed_cached(paths: Sequence[Path], split: Sequence[Path]) -> EmbeddedFiles:
        found = [one.embed(paths, split, name) for one in candidates]
        return dataclasses.replace(found[0], vectors=join([files.vectors for files in found]))

    return Candidate(
        name,
        candidates[0].preprocess,
        lambda pixels: join([one.embed_pixels(pixels) for one in candidates]),
        embed_cached if all(one.embed_cached for one in candidates) else None,
    )


def baseline(name: str, target: Target) -> Candidate:
    """Return a baseline to compare a target with.

    Args:
        name: "pixels" or "untrained".
        target: The target.

    Raises:
        InputError: The target was not trained, so there is no network before training.
    """
    if name == "pixels":
        return Candidate("raw pixels", Preprocess(size=_PIXELS_SIDE), _raw_pixels)
    if target.untrained is None:
        raise InputError("--baseline untrained: this model does not come from a training run; leave it out")
    return target.untrained()


def _raw_pixels(pixels: np.ndarray) -> np.ndarray:
    flat = pixels.reshape(len(pixels), -1).astype(np.float32)  # [N, H W 3]
    flat -= flat.mean(1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
    return flat
