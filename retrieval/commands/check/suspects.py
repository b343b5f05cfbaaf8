"""`lookalike suspects`: images whose label is probably wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.device_options import search_device_option
from retrieval.commands.options import sheet_option
from retrieval.curation.suspects import MAX_NEIGHBOURS, NEIGHBOURS, Suspect, Suspects, find_suspects
from retrieval.files import write_csv
from retrieval.galleries.database import open_gallery
from retrieval.machine.devices import Device
from retrieval.model.runtime import Runtime
from retrieval.reports.sheet import SheetImage, SheetRow, check_sheet_path, write_sheet
from retrieval.text import align_columns, pluralize

_COLUMNS = (  # of the list
    *("key", "path", "label", "suggested", "lead", "precision", "votes", "own_votes", "neighbours"),
)
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
@click.option(
    "--most",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of images, those with the highest lead first. [default: those of which at least half are "
    "expected to be wrong]",
)
@click.option(
    "--list",
    "list_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.csv",
    help=f"Write the images to a table: {', '.join(_COLUMNS)}.",
)
@sheet_option
@search_device_option
@json_option
def suspects(
    gallery: Path,
    k: int,
    most: int | None,
    list_file: Path | None,
    sheet: Path | None,
    device: Device,
    as_json: bool,
) -> None:
    """Find the images of a gallery whose label is probably wrong.

    Their neighbours have another one: the K nearest labelled images vote on the label of each image, nearer
    ones with more weight. Images that are outvoted are ranked by their lead: the cosine similarity to the
    mean of the suggested class, less that to the mean of their own class. The list ends where less than half
    of it is expected to be wrong, as labels show that are changed at random in memory. Images that the model
    confuses are among the rest, and so are wrong labels between classes that look alike. Nothing is changed.

    `lookalike index decisions --labels` takes the table back, once you have corrected its column `label`.

    \b
      lookalike suspects shop.gallery --sheet suspects.html
      lookalike suspects shop.gallery --most 500 --list suspects.csv
    """
    if sheet is not None:
        check_sheet_path(sheet)
    found = find_suspects(open_gallery(gallery, runtime=Runtime(device)), k=k, limit=most, show_progress=True)
    facts = {"gallery": str(gallery), "k": k, **asdict(found)}
    print_result(facts, as_json, [_summary(found), *_lines(found.suspects)])
    if list_file is not None:
        write_csv(list_file, _COLUMNS, _table(found.suspects))
        print_status(f"{list_file}: written")
    if sheet is not None:
        title = f"{gallery.name}: suspected labels"
        write_sheet(sheet, title, f"{_summary(found)}.", [_row(one) for one in found.suspects])
        print_status(f"{sheet}: written")


def _summary(found: Suspects) -> str:
    shown = len(found.suspects)
    text = f"suspected labels: {shown or 'none'} of {found.labelled}"
    if shown and found.suspects[-1].precision >= 0.005:
        text += f", of which about {found.suspects[-1].precision:.0%} are expected to be wrong"
    elif found.total:
        text += f"{', none of which' * bool(shown)} stands out from those that the model confuses"
    if shown < found.total:
        text += f"; neighbours outvote {found.total}, and --most shows more of them"
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


def _table(found: Sequence[Suspect]) -> Iterator[tuple[str | float | None, ...]]:
    """Yield the values of `_COLUMNS` for each suspect."""
    for one in found:
        numbers = (round(value, 6) for value in (one.lead, one.precision, one.votes, one.own_votes))
        near = " ".join(str(neighbour.item.id) for neighbour in one.neighbours)
        yield one.item.key, one.item.path, one.item.label, one.suggested, *numbers, near


def _row(one: Suspect) -> SheetRow:
    near = one.neighbours[:_SHOWN]
    title = (
        f"{one.item.label} -> {one.suggested}? lead {one.lead:.3f}, "
        f"{pluralize(len(one.neighbours), 'neighbour')}, {one.votes:.0%} of the votes"
    )
    images = [SheetImage(Path(one.item.path), f"{one.item.id} {one.item.key}: {one.item.label}")]
    images += [SheetImage(Path(n.item.path), f"{n.score:.3f} {n.item.key}") for n in near]
    return SheetRow(title, images)
