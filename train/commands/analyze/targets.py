"""What figures are drawn from: an .npz file, a gallery, or images that a run or a model embeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from retrieval.analysis.embeddings import Embeddings, embeddings_of
from retrieval.cli import print_status
from retrieval.errors import InputError
from retrieval.gallery import Gallery
from retrieval.images.decode import embed_files
from retrieval.progress import Progress
from retrieval.reports.figures import named
from train import data as datasets_by_name
from train.commands import DATA_HELP
from train.data import LabelledImage
from train.experiments.targets import Contestant, baseline, open_target

ALL = "all"
TARGET = "RUN|MODEL|GALLERY|FILE.npz"


def written(what: str, suffix: str) -> Callable[[Any], Any]:
    """--out, whose name is checked before any work is done."""

    def check(ctx: click.Context, parameter: click.Parameter, file: Path) -> Path:
        return named(file, suffix)

    path = click.Path(path_type=Path)
    return click.option("--out", required=True, type=path, callback=check, help=f"{what}, an {suffix} file.")


data_option = click.option("--data", help=f"The images, for a run or a model: {DATA_HELP}")
out_option = written("The figure", ".svg")
png_option = click.option("--png", is_flag=True, help="Write the figure as a PNG, too, beside the SVG.")
baseline_option = click.option(
    "--baseline", type=click.Choice(["untrained"]), help="Draw the network as it was before training, too."
)


def loss_option(most: int) -> Callable[[Any], Any]:
    """--loss, for up to `most` losses."""
    return click.option(
        "--loss",
        "specs",
        multiple=True,
        required=True,
        metavar="SPEC",
        help=f"A name, or a mapping as in a recipe; repeatable, up to {most}.",
    )


@dataclass(frozen=True)
class Source:
    """Where the embeddings of a figure come from.

    Attributes:
        name: what to call it in a figure.
        splits: what can be embedded: "train" and "test", or only "all".
        embed: the embeddings of a split.
        bad: what files could not be read, and why; filled while embedding.
    """

    name: str
    splits: tuple[str, ...]
    embed: Callable[[str], Embeddings]
    bad: dict[str, str] = field(default_factory=dict)

    def choose(self, split: str | None, otherwise: str) -> tuple[str, ...]:
        """The splits that "train", "test", "both" or nothing asks for.

        Raises:
            InputError: a split is wanted, and there are none.
        """
        if self.splits == (ALL,):
            if split is not None:
                raise InputError(f"{self.name}: has no splits, so leave out --split {split}")
            return self.splits
        wanted = split or otherwise
        return self.splits if wanted == "both" else (wanted,)


def split_option(otherwise: str) -> Callable[[Any], Any]:
    """--split, whose default is `otherwise`."""
    return click.option(
        "--split",
        type=click.Choice(["train", "test", "both"] if otherwise == "both" else ["train", "test"]),
        help=f"Which images of the data; {otherwise} by default, and all where it has no splits.",
    )


def open_sources(targets: Sequence[Path], data: str | None, *, untrained: bool = False) -> list[Source]:
    """What lies at some paths, each named by what it does not share with the others.

    Args:
        targets: .npz files, galleries (embedded anew if there is `data`), runs (of which the best epoch
            counts) or model files.
        data: the images for those that need some.
        untrained: put the network before training in front of each; a run or a model has one.

    Raises:
        InputError: a target that is none of these, or data that is missing, not used or not readable.
    """
    sources = []
    for target, name in zip(targets, names_of(targets), strict=True):
        if not target.exists():
            raise InputError(f"{target}: there is no such run, model, gallery or .npz file")
        if target.suffix == ".npz" or (data is None and (target / "gallery.db").exists()):
            if data is not None or untrained:
                option = "--baseline" if untrained else "--data"
                raise InputError(f"{target}: {option} is for runs and models; these are embeddings already")
            sources.append(_stored(target, name))
            continue
        if data is None:
            raise InputError(f"{target}: --data says which images to embed")
        dataset = datasets_by_name.load(data)
        found = open_target(target, "best" if (target / "config.yaml").exists() else None)
        test = [*dataset.test, *(dataset.gallery or ())]
        images = {ALL: test} if dataset.test == dataset.train else {"train": dataset.train, "test": test}
        if untrained:
            before = baseline("untrained", found.config)
            sources.append(_embedded("before training", before, images))
        sources.append(_embedded(name, found.contestants[-1], images))
    return sources


def _stored(target: Path, name: str) -> Source:
    def embed(split: str) -> Embeddings:
        if target.suffix == ".npz":
            return replace(Embeddings.load(target), name=name)
        gallery = Gallery.open(target)
        found = gallery.embeddings(labelled=True)
        if not found.labels:
            raise InputError(f"{target}: none of its images has a label; --data names images that have")
        return embeddings_of(gallery, found, name)

    return Source(name, (ALL,), embed)


def _embedded(name: str, contestant: Contestant, images: dict[str, list[LabelledImage]]) -> Source:
    bad: dict[str, str] = {}

    def embed(split: str) -> Embeddings:
        wanted = images[split]
        with Progress(f"embedding {split} images ({name})", len(wanted)) as progress:
            paths = [image.path for image in wanted]
            found = embed_files(paths, contestant.preprocess, contestant.embed, progress)
        bad.update({error.source: error.detail for error in found.bad})
        kept = [wanted[position] for position in found.positions]
        if not kept:
            raise InputError(f"none of the {len(wanted)} {split} images could be read")
        labels, files = zip(*((image.label, str(image.path.absolute())) for image in kept), strict=True)
        return Embeddings(name, found.vectors, np.array(labels), np.array(files))

    return Source(name, tuple(images), embed, bad)


def names_of(targets: Sequence[Path]) -> list[str]:
    """Each path without what all have in common at its beginning and end; of a single one, the last part."""
    parts = [list(target.absolute().with_suffix("").parts) for target in targets]
    if len({tuple(each) for each in parts}) == 1:
        return [each[-1] for each in parts]
    for end in (0, -1):
        while all(len(each) > 1 for each in parts) and len({each[end] for each in parts}) == 1:
            for each in parts:
                each.pop(end)
    return ["/".join(each) for each in parts]


def say_written(files: Sequence[Path]) -> None:
    """Say what was written."""
    print_status(f"written: {', '.join(map(str, files))}")


def finish(ctx: click.Context, sources: Sequence[Source], files: Sequence[Path]) -> None:
    """Say what was written, and leave with exit code 3 where images could not be read."""
    say_written(files)
    bad = {path: why for source in sources for path, why in source.bad.items()}
    for path, why in sorted(bad.items()):
        print_status(f"left out: {path}: {why}")
    if bad:
        ctx.exit(3)
