"""`lookalike analyze step`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from retrieval.cli import json_option, print_result
from retrieval.errors import InputError
from retrieval.reports.figures import caption, save
from train.commands.analyze.targets import (
    TARGET,
    data_option,
    finish,
    loss_option,
    open_sources,
    out_option,
    png_option,
    split_option,
)

_MOST = 4


@click.command()
@click.argument("target", type=click.Path(path_type=Path), metavar=TARGET)
@data_option
@split_option("test")
@loss_option(_MOST)
@click.option("--step", "size", type=float, default=0.1, show_default=True, help="How far embeddings move.")
@click.option(
    "--classes", type=click.IntRange(min=2), default=30, show_default=True, help="Classes in the batch."
)
@click.option("--per-class", type=click.IntRange(min=2), default=4, show_default=True, help="Images of each.")
@click.option("--seed", default=0, show_default=True, help="Of the draw of the batch.")
@out_option
@png_option
@json_option
@click.pass_context
def step(
    ctx: click.Context,
    target: Path,
    data: str | None,
    split: str | None,
    specs: tuple[str, ...],
    size: float,
    classes: int,
    per_class: int,
    seed: int,
    out: Path,
    png: bool,
    as_json: bool,
) -> None:
    """Draw how one step of a loss moves images.

    A batch is drawn from the embeddings, and each loss takes one gradient step on these themselves: no
    network comes between. In the triplet diagram of the batch, an arrow leads each image from where it was,
    by the cosines with the nearest of its class and with the nearest of another, to where it is after the
    step. Steps of all losses are equally long on average: --step is the distance, of embeddings of length 1.

    \b
      lookalike analyze step run --data folder:shop --loss triplet-nca --loss sct --out step.svg
    """
    from retrieval.analysis import triplets as diagram
    from train.analysis.specs import read_losses
    from train.analysis.step import batch
    from train.analysis.step import step as take

    if len(specs) > _MOST:
        raise InputError(f"{len(specs)} losses are too many for one figure; take {_MOST} at most")
    sources = open_sources([target], data)
    parts = sources[0].choose(split, "test")
    drawn = batch(sources[0].embed(parts[0]), classes=classes, per_class=per_class, seed=seed)
    number = len(set(drawn.labels))
    read = read_losses(specs, num_classes=number, embedding_dim=drawn.vectors.shape[1])
    before = diagram.triplets(replace(drawn, name="before"))
    after = {of.name: diagram.triplets(take(drawn, of, size=size)) for of in read}
    panels = {f"{caption(name, 48)}\n{len(drawn)}": [before, found] for name, found in after.items()}
    files = save(partial(diagram.draw, panels), *diagram.size(len(panels)), out, png=png)
    facts = {
        "before": before.to_dict(),
        "after": {name: found.to_dict() for name, found in after.items()},
    }
    lines = [
        f"{name}: {100 * before.hard_share:.1f}% → {100 * found.hard_share:.1f}% hard triplets, mean cosine "
        f"{before.positive.mean():.3f} → {found.positive.mean():.3f} with the easiest positive, "
        f"{before.negative.mean():.3f} → {found.negative.mean():.3f} with the hardest negative"
        for name, found in after.items()
    ]
    print_result(facts, as_json, "\n".join(lines))
    finish(ctx, sources, files)
