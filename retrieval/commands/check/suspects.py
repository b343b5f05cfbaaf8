"""`lookalike check suspects`: images whose label is probably wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from retrieval.commands.check.findings import Findings, shows_findings
from retrieval.commands.device_options import search_device_option
from retrieval.curation.suspects import MAX_NEIGHBOURS, NEIGHBOURS, Suspect, Suspects, find_suspects
from retrieval.gallery import Gallery
from retrieval.machine.devices import Device
from retrieval.model.runtime import Runtime
from retrieval.reports.sheet import SheetImage, SheetRow
from retrieval.text import align_columns, pluralize

_COLUMNS = ("suggested", "lead", "precision", "votes", "own_votes", "neighbours")  # of the table
_SHOWN = 5  # neighbours of a suspect on the sheet


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option(
    "-k",
    type=click.IntRange(1, MAX_NEIGHBOURS),
    default=NEIGHBOURS,
    show_default=True,
    help="Neighbours that vote on the label of an image.",
)
@search_device_option
@shows_findings(
    "Number of images, those with the highest lead first.  [default: those of which at least half are "
    "expected to be wrong]"
)
def suspects(gallery: Path, k: int, limit: int | None, device: Device) -> Findings:
    """Find the images of a gallery whose label is probably wrong.

    Their neighbours have another one: the K nearest labelled images vote on the label of each image, nearer
    ones with more weight. Images that are outvoted are ranked by their lead: the cosine similarity to the
    mean of the suggested class, less that to the mean of their own class. The list ends where less than half
    of it is expected to be wrong, as labels show that are changed at random in memory. Images that the model
    confuses are among the rest, and so are wrong labels between classes that look alike. Nothing is changed.

    Correct the column `label` of the table, or write keep into its column `decision` where the label is
    right, and give it back: `lookalike check decide shop.gallery suspects.csv`.

    \b
      lookalike check suspects shop.gallery --sheet suspects.html
      lookalike check suspects shop.gallery --limit 500 --list suspects.csv
    """
    found = find_suspects(
        Gallery.open(gallery, runtime=Runtime(device)), k=k, limit=limit, show_progress=True
    )
    return Findings(
        f"{gallery.name}: suspected labels",
        summary(found),
        {"gallery": str(gallery), "k": k, **asdict(found)},
        _lines(found.suspects),
        [_row(one) for one in found.suspects],
        _COLUMNS,
        ((one.item, "", _values(one)) for one in found.suspects),
    )


def summary(found: Suspects) -> str:
    """Return what was found in a sentence."""
    shown = len(found.suspects)
    text = f"suspected labels: {shown or 'none'} of {found.labelled}"
    if shown and found.suspects[-1].precision >= 0.005:
        text += f", of which about {found.suspects[-1].precision:.0%} are expected to be wrong"
    elif found.total:
        text += f"{', none of which' * bool(shown)} stands out from those that the model confuses"
    if shown < found.total:
        text += f"; neighbours outvote {found.total}, and --limit shows more of them"
    if found.single:
        text += f"; labels of a single image, which nothing can confirm: {found.single}"
    if found.confirmed:
        text += f"; decided on by hand: {found.confirmed}"
    return text


def _lines(found: Sequence[Suspect]) -> list[str]:
    rows = [
        [
            f"{one.lead:.3f}",
            str(one.item.id),
            str(one.item.label),
            one.suggested,
            one.item.path or one.item.key,
        ]
        for one in found
    ]
    head = ["lead", "id", "label", "suggested", "image"]
    return align_columns([head, *rows], right={0, 1}) if rows else []


def _values(one: Suspect) -> tuple[str | float, ...]:
    """Return the values of `_COLUMNS`."""
    numbers = (round(value, 6) for value in (one.lead, one.precision, one.votes, one.own_votes))
    return one.suggested, *numbers, " ".join(str(neighbour.item.id) for neighbour in one.neighbours)


def _row(one: Suspect) -> SheetRow:
    near = one.neighbours[:_SHOWN]
    title = (
        f"{one.item.label} -> {one.suggested}? lead {one.lead:.3f}, "
        f"{pluralize(len(one.neighbours), 'neighbour')}, {one.votes:.0%} of the votes"
    )
    images = [SheetImage(Path(one.item.path), f"{one.item.id} {one.item.key}: {one.item.label}")]
    images += [SheetImage(Path(n.item.path), f"{n.score:.3f} {n.item.key}") for n in near]
    return SheetRow(title, images)
