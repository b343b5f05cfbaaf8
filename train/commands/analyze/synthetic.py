"""`lookalike analyze synthetic`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from retrieval import text
from retrieval.cli import json_option, print_result
from retrieval.errors import InputError
from retrieval.reports.figures import save
from train.commands.analyze.targets import (
    TARGET,
    baseline_option,
    data_option,
    finish,
    open_sources,
    out_option,
    png_option,
    split_option,
)


@click.command()
@click.argument("targets", nargs=-1, required=True, type=click.Path(path_type=Path), metavar=f"{TARGET}...")
@data_option
@split_option("test")
@baseline_option
@click.option(
    "--negatives",
    type=click.Choice(["symmetric", "optimal", "interpolated"]),
    default="symmetric",
    show_default=True,
    help="What makes the points, as in a loss.",
)
@click.option(
    "--points",
    type=click.Path(path_type=Path),
    help="Write images and points to this .npz, too; of one target.",
)
@out_option
@png_option
@json_option
@click.pass_context
def synthetic(
    ctx: click.Context,
    targets: tuple[Path, ...],
    data: str | None,
    split: str | None,
    baseline: str | None,
    negatives: Any,
    points: Path | None,
    out: Path,
    png: bool,
    as_json: bool,
) -> None:
    """Draw how synthetic points are retrieved.

    The images of each class are put in pairs, and every pair makes points as in the losses of that name:
    both mirrored in each other (symmetric), two evenly between them (interpolated), or the point of the arc
    between them that is closest to the arc of a pair of another class (optimal). A point has the class of its
    pair. Recall@K is that of

    \b
      images, among all images
      synthetic points, among all images: do they lie where their class lies?
      images, among all images and synthetic points: are these in the way?

    each without its own pair and what was made of it. With --split train it is the classes that were trained
    on. --points writes images and points to a file that `analyze tsne` can draw.

    \b
      lookalike analyze synthetic run --data folder:shop --baseline untrained --out synthetic.svg
      lookalike analyze synthetic shop.npz --negatives optimal --points both.npz --out synthetic.svg
    """
    from train.analysis import synthetic as view

    sources = open_sources(targets, data, untrained=baseline is not None)
    parts = [(source, part) for source in sources for part in source.choose(split, "test")]
    if not 1 <= len(parts) <= 4 or (points is not None and len(parts) > 1):
        most = "1 with --points" if points is not None else "4"
        raise InputError(f"{len(parts)} sets of embeddings; at most {most} can be taken at once")
    found = []
    for source, part in parts:
        whole = source.embed(part)
        images = whole.take(~whole.synthetic)
        made = view.make(images, negatives)
        found.append(view.recalls(images, made, negatives, show_progress=True))
    files = save(partial(view.draw, found), max(6.5, 4.2 * len(found)), 4.8, out, png=png)
    if points is not None:
        view.with_points(images, made).save(points)
        files.append(points)
    rows = [["embeddings", "searched for", "how many", *(f"R@{k}" for k in view.KS)]]
    rows += [
        [one.name, name, f"{one.counts[name]:,}", *(f"{100 * value:.1f}" for value in recall.values())]
        for one in found
        for name, recall in one.recall.items()
    ]
    print_result(
        [one.to_dict() for one in found], as_json, "\n".join(text.align_columns(rows, right=range(2, 7)))
    )
    finish(ctx, sources, files)
