"""Targets of an evaluation: runs, model files and galleries, and baselines to compare them with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.evaluation.report import OFF_THE_SHELF
from retrieval.galleries.database_folder import is_gallery
from retrieval.galleries.searchable import SearchableGallery
from retrieval.gallery import Gallery
from retrieval.images.decode import BATCH, EmbeddedFiles, embed_files
from retrieval.images.preprocess import Preprocess
from retrieval.machine.devices import Device
from retrieval.machine.faiss_backend import CPU, CpuBackend, backend_for
from retrieval.metrics.ranking import NeighbourSearch
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.model.training_images import TrainingImages
from retrieval.progress import Progress
from train import settings
from train.config import FITTED_INITS, Config
from train.pretrained_configs import published_preprocess

if TYPE_CHECKING:  # imports torch
    import torch

    from train.models.embedding_model import EmbeddingModel

_PIXELS_SIDE = 32
_ACCELERATOR_BATCH = 256  # images; more do not make a GPU faster
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
        batch_size: Images that `embed_pixels` gets at once.
        note: Remark for readers of a report; empty if there is none.
    """

    name: str
    preprocess: Preprocess
    embed_pixels: Callable[[np.ndarray], np.ndarray]
    embed_cached: Callable[[Sequence[Path], Sequence[Path]], EmbeddedFiles] | None = None
    batch_size: int = BATCH
    note: str = ""

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
            return embed_files(
                paths, self.preprocess, self.embed_pixels, progress, batch_size=self.batch_size
            )


@dataclass(frozen=True)
class Target:
    """A run, model file or gallery to evaluate.

    Attributes:
        candidates: Its networks; several for a run with different checkpoints.
        config: Settings of its training run, as plain values; empty if there was none.
        untrained: Builds the network before training; `None` if there was no training.
        backbone: Builds the pretrained backbone without a head; `None` if there was no training.
        fingerprint: SHA-256 of the model file; `None` for a run.
        gallery: The gallery, if it is one.
        backend: Where neighbours and clusters are computed.
        search: Nearest-neighbour search; `None` for that of the backend.
        training_images: Images that a model file says it was trained on; `None` for a run.
    """

    candidates: list[Candidate]
    config: Mapping[str, Any]
    untrained: Callable[[], Candidate] | None = None
    backbone: Callable[[], Candidate] | None = None
    fingerprint: str | None = None
    gallery: SearchableGallery | None = None
    backend: CpuBackend = CPU
    search: NeighbourSearch | None = None
    training_images: TrainingImages | None = None


def open_target(target: Path, which: str | None, runtime: Runtime | None = None) -> Target:
    """Open the run, gallery or model file at a path.

    Args:
        target: Folder of a run or of a gallery, or a model file.
        which: Checkpoint of a run: the "best" epoch on held-out images, the "last", or the step of a kept
            one, as in "12"; `None` for the best and the last, if they differ.
        runtime: Device and batch size; for a gallery or a model file also the execution provider. `None` for
            the first GPU that works, else the CPU.

    Raises:
        InputError: It is none of these, or the device cannot be used.
    """
    runtime = runtime or Runtime()
    gallery = Gallery.open(target, runtime=runtime) if is_gallery(target) else None
    if gallery is None and target.is_dir():
        return open_run(target, which, str(runtime.device), runtime.batch_size)
    if which is not None:
        raise InputError(
            f"{target}: --which selects a checkpoint of a run, and this is not a run; leave it out"
        )
    embedder = gallery.embedder if gallery is not None else Embedder.open(target, runtime)
    name, config = AFTER, embedder.provenance.get("config", {})
    if "source" in embedder.provenance:  # a published backbone without training
        name, config = "off the shelf", {}
    candidate = Candidate(name, embedder.preprocess, embedder.embed_pixels, batch_size=embedder.batch_size)
    return Target(
        [candidate],
        config,
        partial(_initial_candidate, config, runtime) if config else None,
        partial(_backbone_of_model, config, runtime) if config else None,
        embedder.fingerprint,
        gallery,
        backend_for(runtime.device),
        training_images=embedder.training_images,
    )


def open_run(folder: Path, which: str | None, device: str, batch_size: int | None = None) -> Target:
    """Open a run to evaluate its networks on a device.

    Args:
        folder: Folder of the run.
        which: Checkpoint, as for `open_target`.
        device: "auto" or a torch device name.
        batch_size: Images per pass through the network; `None` for the number that suits the device.

    Raises:
        InputError: The folder is no run, the checkpoint does not exist, or the device cannot be used.
    """
    from train.loop.process_group import find_device
    from train.loop.run_folder import Run

    run, place = Run.open(folder), find_device(device)
    config = run.config

    def candidate(name: str, model: EmbeddingModel) -> Candidate:
        return model_candidate(name, model, config, place, batch_size)

    chosen = {which or "best": AFTER}
    if which not in (None, "best", "last"):
        chosen = {which: f"step {run.checkpoint_state(which)['step']:,}"}
    if which is None:
        best, last = run.checkpoint_state("best"), run.checkpoint_state("last")
        if best["recall_at_1"] is not None and best["step"] != last["step"]:
            chosen = {"last": LAST_EPOCH, "best": BEST_EPOCH}
    candidates, model = [], None
    for checkpoint, name in chosen.items():
        model = run.trained(checkpoint, like=model).to(place)
        candidates.append(candidate(name, model))
    target = network_target(candidates, config, place, lambda: candidate(BEFORE, run.untrained()))
    return dataclasses.replace(target, backbone=partial(_backbone_candidate, config, place, batch_size))


def network_target(
    candidates: list[Candidate],
    config: Config,
    device: torch.device,
    untrained: Callable[[], Candidate] | None = None,
) -> Target:
    """Return networks as a target whose neighbours and clusters are computed on the device of the networks.

    Args:
        candidates: The networks.
        config: Settings of their training run.
        device: Their device.
        untrained: Builds the network before training; `None` if there was no training.
    """
    from train.loop.knn import neighbour_search

    backend = backend_for(Device("cuda", device.index)) if device.type == "cuda" else CPU
    return Target(candidates, config.to_dict(), untrained, backend=backend, search=neighbour_search(device))


def _initial_candidate(values: Mapping[str, Any], runtime: Runtime) -> Candidate:
    """Return the network before training of a model file."""
    from train.loop.process_group import find_device
    from train.loop.run_folder import initial_model

    config = settings.parse_config(values)
    if config.model.init in FITTED_INITS:
        raise InputError(
            f"--baseline untrained: the embedding layer began with model.init={config.model.init}, fitted to "
            "the training images; evaluate the run instead of its model file, or leave it out"
        )
    place = find_device(str(runtime.device))
    return model_candidate(BEFORE, initial_model(config), config, place, runtime.batch_size)


def _backbone_of_model(values: Mapping[str, Any], runtime: Runtime) -> Candidate:
    """Return the pretrained backbone of a model file without a head."""
    from train.loop.process_group import find_device

    return _backbone_candidate(
        settings.parse_config(values), find_device(str(runtime.device)), runtime.batch_size
    )


def _backbone_candidate(config: Config, device: torch.device, batch_size: int | None) -> Candidate:
    """Return the pretrained backbone of a run without a head, with the preprocessing published for it.

    Raises:
        InputError: The backbone began with random weights, or its weights are unusable.
        LookalikeError: The weights cannot be downloaded.
    """
    from train.models.embedding_model import headless_model

    name, weights = config.model.backbone, config.model.weights
    if weights is None:
        raise InputError("model.weights: null, so the backbone began with random weights")
    preprocess = published_preprocess(name, weights) or config.preprocess
    pooling = "mean" if config.model.pooling == "spatial" else config.model.pooling
    network = config.model.model_copy(update={"pooling": pooling})
    model = headless_model(network, preprocess)
    own = config.model_copy(update={"model": model.config, "preprocess": preprocess})
    if preprocess == config.preprocess:
        seen = "the preprocessing of the run"
    else:
        stated = config.model_copy(update={"preprocess": preprocess})
        differing = settings.differences(stated, config)
        seen = f"its own preprocessing: {', '.join(differing)}"
    return dataclasses.replace(
        model_candidate(OFF_THE_SHELF, model, own, device, batch_size),
        note=f"The off-the-shelf backbone is {name} without a head, {model.config.embedding_dim} dimensions, "
        f"with {seen}.",
    )


def model_candidate(
    name: str,
    model: EmbeddingModel,
    config: Config,
    device: torch.device,
    batch_size: int | None = None,
) -> Candidate:
    """Return a network with its configuration as a candidate, in full float32 on every device.

    Args:
        name: Name of the candidate.
        model: The network; it is moved to the device.
        config: Its configuration.
        device: Device.
        batch_size: Images per pass through the network; `None` for the number that suits the device.
    """
    from train.loop.frozen_backbone import FrozenBackbone
    from train.loop.precision import full_float32
    from train.models.embedding_model import pixel_embedder

    model.to(device)
    embed_cached = None
    if model.is_frozen_below_head and config.loader.features == "auto":
        embed_cached = partial(FrozenBackbone(model, config, show_progress=True).embed, model)
    return Candidate(
        name,
        config.preprocess,
        full_float32()(pixel_embedder(model)),
        embed_cached,
        batch_size or (BATCH if device.type == "cpu" else _ACCELERATOR_BATCH),
    )


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
        candidates[0].batch_size,
    )


def baseline(name: str, target: Target) -> Candidate:
    """Return a baseline to compare a target with.

    Args:
        name: "pixels", "backbone" or "untrained".
        target: The target.

    Raises:
        InputError: The target was not trained, so there is no network before training.
    """
    if name == "pixels":
        return Candidate("raw pixels", Preprocess(size=_PIXELS_SIDE), _raw_pixels)
    build = target.backbone if name == "backbone" else target.untrained
    if build is None:
        raise InputError(f"--baseline {name}: this model does not come from a training run; leave it out")
    return build()


def default_baseline(target: Target) -> tuple[Candidate | None, str]:
    """Return the off-the-shelf backbone of a run, or a note why it is left out; neither for other targets."""
    if target.backbone is None or target.fingerprint is not None or target.gallery is not None:
        return None, ""
    try:
        return target.backbone(), ""
    except LookalikeError as error:
        return None, f"Without the off-the-shelf backbone: {error}."


def reference_candidates(
    target: Target, baselines: Sequence[str], with_backbone: bool
) -> tuple[list[Candidate], str]:
    """Return what a target is compared with, and a note why the backbone is left out; "" if it is not.

    Args:
        target: The target.
        baselines: Names of baselines; see `baseline`.
        with_backbone: Whether the off-the-shelf backbone of a run is the first of them.

    Raises:
        InputError: As for `baseline`.
    """
    named = [baseline(name, target) for name in baselines]
    backbone, left_out = (
        default_baseline(target) if with_backbone and "backbone" not in baselines else (None, "")
    )
    return [*filter(None, [backbone]), *named], left_out


def _raw_pixels(pixels: np.ndarray) -> np.ndarray:
    flat = pixels.reshape(len(pixels), -1).astype(np.float32)  # [N, H W 3]
    flat -= flat.mean(1, keepdims=True)
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
    return flat
