"""Sources of embeddings for figures: an .npz file, a gallery, or images embedded by a run or a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from retrieval.analysis.embeddings import Embeddings, embeddings_of
from retrieval.errors import InputError
from retrieval.gallery import Gallery
from retrieval.images.decode import embed_files
from retrieval.progress import Progress
from train import data as data_sets
from train.data import LabelledImage
from train.experiments.targets import Candidate, baseline, open_target

ALL = "all"


@dataclass(frozen=True)
class EmbeddingSource:
    """Embeddings for a figure, computed on demand.

    Attributes:
        name: Name in a figure.
        splits: Splits to draw: "train", "test", or "all" if the images have no splits.
        embed: Returns the embeddings of a split.
        bad: Path -> reason, of images that could not be read; filled while embedding.
    """

    name: str
    splits: tuple[str, ...]
    embed: Callable[[str], Embeddings]
    bad: dict[str, str] = field(default_factory=dict)

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
) -> list[EmbeddingSource]:
    """Open embedding sources, named by the parts of their paths that differ.

    Args:
        targets: .npz files, galleries (embedded again if there is `data`), runs (the best epoch) or model
            files.
        data: Images to embed with runs and models, as --data takes them.
        split: Split to embed: "train", "test" or "both"; `None` for the default.
        default_split: Split to embed if none is requested.
        untrained: Put the network before training in front of each run or model.

    Raises:
        InputError: A target that is none of these, data that is missing, unused or unreadable, or a split of
            images without splits.
    """
    sources = []
    for target, name in zip(targets, distinct_names(targets), strict=True):
        if not target.exists():
            raise InputError(f"{target}: there is no such run, model, gallery or .npz file")
        if target.suffix == ".npz" or (data is None and (target / "gallery.db").exists()):
            if data is not None or untrained:
                option = "--baseline" if untrained else "--data"
                raise InputError(f"{target}: {option} is for runs and models; these are embeddings already")
            sources.append(_stored_source(target, name))
            continue
        if data is None:
            raise InputError(f"{target}: a run or a model needs images to embed; give --data")
        dataset = data_sets.load(data)
        found = open_target(target, "best" if (target / "config.yaml").exists() else None)
        test = [*dataset.test, *(dataset.gallery or ())]
        images = {ALL: test} if dataset.test == dataset.train else {"train": dataset.train, "test": test}
        if untrained:
            before = baseline("untrained", found.config)
            sources.append(_embedding_source("before training", before, images))
        sources.append(_embedding_source(name, found.candidates[-1], images))
    return [source.choose(split, default_split) for source in sources]


def _stored_source(target: Path, name: str) -> EmbeddingSource:
    def embed(split: str) -> Embeddings:
        if target.suffix == ".npz":
            return replace(Embeddings.load(target), name=name)
        gallery = Gallery.open(target)
        found = gallery.embeddings(labelled=True)
        if not found.labels:
            raise InputError(f"{target}: none of its images has a label; give labelled images with --data")
        return embeddings_of(gallery, found, name)

    return EmbeddingSource(name, (ALL,), embed)


def _embedding_source(
    name: str, candidate: Candidate, images: Mapping[str, Sequence[LabelledImage]]
) -> EmbeddingSource:
    bad: dict[str, str] = {}

    def embed(split: str) -> Embeddings:
        wanted = images[split]
        with Progress(f"embedding {split} images ({name})", len(wanted)) as progress:
            paths = [image.path for image in wanted]
            found = embed_files(paths, candidate.preprocess, candidate.embed, progress)
        bad.update({error.source: error.detail for error in found.bad})
        kept = [wanted[position] for position in found.positions]
        if not kept:
            raise InputError(f"none of the {len(wanted)} {split} images could be read")
        labels, files = zip(*((image.label, str(image.path.absolute())) for image in kept), strict=True)
        return Embeddings(name, found.vectors, np.array(labels), np.array(files))

    return EmbeddingSource(name, tuple(images), embed, bad)


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
