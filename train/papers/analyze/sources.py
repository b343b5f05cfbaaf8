"""Sources of embeddings for figures: an .npz file, a gallery, or images embedded by a run or a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retrieval.analysis.embeddings import Embeddings, embeddings_of
from retrieval.errors import InputError
from retrieval.galleries.database_folder import is_gallery
from retrieval.gallery import Gallery
from retrieval.model.runtime import Runtime
from train import data as data_sets
from train.data import LabelledImage
from train.experiments.targets import Candidate, baseline, open_target

if TYPE_CHECKING:
    from train.loop.run_folder import Run

ALL = "all"


@dataclass(frozen=True)
class EmbeddingSource:
    """Embeddings for a figure, computed on demand.

    Attributes:
        name: Name in a figure.
        splits: Splits to draw: "train", "test", or "all" if the images have no splits.
        embed: Returns the embeddings of a split.
        target: Name of the run, model, gallery or file that it belongs to.
        step: Step of the checkpoint of a run; `None` if it is none.
        bad: Path -> reason, of images that could not be read; filled while embedding.
        is_baseline: Whether this is the untrained network of the source that follows.
    """

    name: str
    splits: tuple[str, ...]
    embed: Callable[[str], Embeddings]
    target: str
    step: int | None = None
    bad: dict[str, str] = field(default_factory=dict)
    is_baseline: bool = False

    def choose(self, split: str | None, default: str) -> EmbeddingSource:
        """Return the source with only some of its splits.

        Args:
            split: "train", "test" or "both"; `None` for the default.
            default: Split to take if none is requested.

        Raises:
            InputError: A split is requested, and the images have no splits.
        """
        if self.splits == (ALL,):
            if split is not None:
                raise InputError(f"{self.name}: has no splits, so leave out --split {split}")
            return self
        chosen = split or default
        return self if chosen == "both" else replace(self, splits=(chosen,))


def open_sources(
    targets: Sequence[Path],
    data: str | None,
    split: str | None,
    *,
    default_split: str = "test",
    untrained: bool = False,
    which: Sequence[str] = (),
    every_checkpoint: bool = False,
    runtime: Runtime | None = None,
) -> list[EmbeddingSource]:
    """Open embedding sources, named by the parts of their paths that differ.

    Args:
        targets: .npz files, galleries (embedded again if there is `data`), runs or model files.
        data: Images to embed with runs and models, as --data takes them; `None` for those of the runs.
        split: Split to embed: "train", "test" or "both"; `None` for the default.
        default_split: Split to embed if none is requested.
        untrained: Put the network before training in front of each run or model.
        which: Checkpoints of each run, a source each: "best", "last" or steps of kept ones; by default the
            best epoch.
        every_checkpoint: Take all kept checkpoints of each run instead.
        runtime: Device, batch size and execution provider of the networks.

    Raises:
        InputError: A target that is none of these, data that is missing, unused or unreadable, a checkpoint
            that does not exist, or a split of images without splits.
    """
    sources: list[EmbeddingSource] = []
    shared = data
    for target, name in zip(targets, distinct_names(targets), strict=True):
        if not target.exists():
            raise InputError(f"{target}: there is no such run, model, gallery or .npz file")
        is_run = (target / "config.yaml").exists()
        if (which or every_checkpoint) and not is_run:
            raise InputError(f"{target}: --which and --every-checkpoint are for runs, and this is none")
        if target.suffix == ".npz" or (data is None and is_gallery(target)):
            if data is not None or untrained:
                option = "--baseline" if untrained else "--data"
                raise InputError(f"{target}: {option} is for runs and models; these are embeddings already")
            sources.append(_stored_source(target, name))
            continue
        run = _open_run(target) if is_run else None
        own = run.config.data if data is None and run is not None else data
        if own is None:
            raise InputError(f"{target}: a model needs images to embed; give --data")
        if own != (shared := shared or own):
            raise InputError(f"{target}: its data is {own}, not {shared} as before it; give --data")
        dataset = data_sets.load(own)
        test = [*dataset.test, *(dataset.gallery or ())]
        images = {ALL: test} if dataset.test == dataset.train else {"train": dataset.train, "test": test}
        if untrained:
            source = _embedding_source("before training", partial(_untrained, target, runtime), images, name)
            sources.append(replace(source, is_baseline=True))
        if run is None:
            load = partial(_only_candidate, target, None, runtime)
            sources.append(_embedding_source(name, load, images, name))
            continue
        for checkpoint in _checkpoints(run, which, every_checkpoint):
            step = run.checkpoint_state(checkpoint)["step"]
            several = which or every_checkpoint
            title = f"step {step:,}" if len(targets) == 1 else f"{name}, step {step:,}"
            load = partial(_only_candidate, target, checkpoint, runtime)
            sources.append(_embedding_source(title if several else name, load, images, name, step))
    return [source.choose(split, default_split) for source in sources]


def _open_run(folder: Path) -> Run:
    from train.loop.run_folder import Run  # imports torch, which stored embeddings do not need

    return Run.open(folder)


def _checkpoints(run: Run, which: Sequence[str], every: bool) -> list[str]:
    if not every:
        return list(which) or ["best"]
    if not run.kept_steps:
        raise InputError(
            f"{run.folder}: kept no checkpoints; train with checkpoints.every, or choose some by --which"
        )
    return [str(step) for step in run.kept_steps]


def _only_candidate(target: Path, which: str | None, runtime: Runtime | None) -> Candidate:
    return open_target(target, which, runtime).candidates[-1]


def _untrained(target: Path, runtime: Runtime | None) -> Candidate:
    return baseline("untrained", open_target(target, None, runtime))


def _stored_source(target: Path, name: str) -> EmbeddingSource:
    def embed(split: str) -> Embeddings:
        if target.suffix == ".npz":
            return replace(Embeddings.load(target), name=name)
        gallery = Gallery.open(target)
        found = gallery.embeddings(labelled=True)
        if not found.labels:
            raise InputError(f"{target}: none of its images has a label; give labelled images with --data")
        return embeddings_of(gallery, found, name)

    return EmbeddingSource(name, (ALL,), embed, name)


def _embedding_source(
    name: str,
    load: Callable[[], Candidate],
    images: Mapping[str, Sequence[LabelledImage]],
    target: str,
    step: int | None = None,
) -> EmbeddingSource:
    """Return a source whose network is loaded while it embeds, and not kept: a run has many checkpoints."""
    bad: dict[str, str] = {}

    def embed(split: str) -> Embeddings:
        wanted, candidate = images[split], load()
        paths = [image.path for image in wanted]
        found = candidate.embed(paths, paths, f"embedding {split} images ({name})")
        bad.update({error.source: error.detail for error in found.bad})
        kept = [wanted[position] for position in found.positions]
        if not kept:
            raise InputError(f"none of the {len(wanted)} {split} images could be read")
        labels, files = zip(*((image.label, str(image.path.absolute())) for image in kept), strict=True)
        return Embeddings(name, found.vectors, np.array(labels), np.array(files))

    return EmbeddingSource(name, tuple(images), embed, target, step, bad)


def distinct_names(targets: Sequence[Path]) -> list[str]:
    """Return each path without its common first and last parts; of equal paths, the last part."""
    parts = [list(target.absolute().with_suffix("").parts) for target in targets]
    if len({tuple(each) for each in parts}) == 1:
        return [each[-1] for each in parts]
    for end in (0, -1):
        while all(len(each) > 1 for each in parts) and len({each[end] for each in parts}) == 1:
            for each in parts:
                each.pop(end)
    return ["/".join(each) for each in parts]
