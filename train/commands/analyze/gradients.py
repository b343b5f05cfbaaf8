"""`lookalike analyze gradients`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result
from retrieval.errors import InputError
from retrieval.reports.figures import save
from train.commands.analyze.targets import out_option, png_option, say_written


@click.command()
@click.option(
    "--loss",
    type=click.Choice(["nca", "margin", "sct"]),
    default="nca",
    show_default=True,
    help="Triplet loss.",
)
@click.option(
    "--entanglement",
    default="0,0.5,1",
    show_default=True,
    metavar="P[,P...]",
    help="How much similar images move together, 0 to 1; a panel each, at most 4.",
)
@click.option("--step", type=float, default=0.1, show_default=True, help="Size of the gradient step.")
@click.option(
    "--gamma",
    type=float,
    default=0.0,
    show_default=True,
    help="-1 to 1: whether positive and negative lie on the same side of the anchor, 1, or on opposite ones.",
)
@out_option
@png_option
@json_option
def gradients(
    loss: Any, entanglement: str, step: float, gamma: float, out: Path, png: bool, as_json: bool
) -> None:
    """Draw where a triplet loss moves triplets.

    A triplet is a point: to the right, the cosine of the anchor with its positive; upwards, that with its
    negative. Arrows show where one gradient step on the three embeddings takes it, and the shaded region is
    where the step brings the negative closer, although it should push it away.

    A network does not move embeddings one by one: what it does to an image it also does to similar ones. With
    an entanglement P, each of the two cosines takes P times the product of both of the other's change. That
    is why hard negatives make training collapse with NCA and margin, and not with SCT.

    \b
      lookalike analyze gradients --out nca.svg
      lookalike analyze gradients --loss sct --entanglement 0,1 --out sct.svg
    """
    from train.analysis import gradients as diagram

    fields = [diagram.field(loss, p, step=step, gamma=gamma) for p in _numbers(entanglement)]
    files = save(partial(diagram.draw, fields), 1 + 3.7 * len(fields), 4.7, out, png=png)
    lines = [
        f"entanglement {f.entanglement:g}: the negative comes closer in {f.wrong.mean():.1%} of the diagram"
        for f in fields
    ]
    print_result([found.to_dict() for found in fields], as_json, "\n".join(lines))
    say_written(files)


def _numbers(text: str) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError as error:
        raise InputError(f"--entanglement {text}: expected numbers with commas, as 0,0.5,1") from error
    if len(numbers) > 4:
        raise InputError(f"--entanglement {text}: at most 4 panels fit side by side")
    return numbers
