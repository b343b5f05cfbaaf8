"""`lookalike analyze triplets`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

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
@split_option("both")
@baseline_option
@out_option
@png_option
@json_option
@click.pass_context
def triplets(
    ctx: click.Context,
    targets: tuple[Path, ...],
    data: str | None,
    split: str | None,
    baseline: str | None,
    out: Path,
    png: bool,
    as_json: bool,
) -> None:
    """Draw each image by how near its own class and another class are.

    Every image is a point: to the right, the cosine with its easiest positive, the most similar image of its
    class; upwards, the cosine with its hardest negative, the most similar image of another class. Above the
    diagonal are the hard triplets: there the nearest image is a wrong one. Their share is 1 - Recall@1.
    Training and test images stand side by side, so that one sees what carries over to new classes.

    Two targets are before and after, of the same images. Arrows show how up to 120 images move.

    \b
      lookalike analyze triplets run --data folder:shop --baseline untrained --out triplets.svg
      lookalike analyze triplets shop.gallery --out triplets.svg
      lookalike analyze triplets before.npz after.npz --out step.svg
    """
    from retrieval.analysis import triplets as diagram

    sources = open_sources(targets, data, untrained=baseline is not None)
    if len(sources) > 2:
        raise InputError("a triplet diagram shows one target, or two: before and after")
    panels = {}
    for part in sources[-1].choose(split, "both"):
        states = [source.embed(part) for source in sources]
        if not diagram.same_images(states[0], states[-1]):
            both = f"{states[0].name} and {states[-1].name}"
            raise InputError(f"{both} are not of the same images in the same order; embed the same data")
        panels[part] = [diagram.triplets(state, show_progress=True) for state in states]
    files = save(partial(diagram.draw, panels), *diagram.size(len(panels)), out, png=png)
    facts = {part: [found.to_dict() for found in states] for part, states in panels.items()}
    lines = [
        f"{part}: {found.name}: {100 * found.hard_share:.1f}% hard triplets of {len(found.positive):,} images"
        for part, states in panels.items()
        for found in states
    ]
    print_result(facts, as_json, "\n".join(lines))
    finish(ctx, sources, files)
