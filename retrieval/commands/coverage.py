"""`lookalike coverage`: what the visitors of a server look for, and what the gallery does not have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from retrieval.commands.check.findings import Findings, shows_findings
from retrieval.evaluation.coverage import NOT_FOUND, Coverage, Group, measure_coverage
from retrieval.galleries.items import Item
from retrieval.gallery import Gallery
from retrieval.metrics.two_samples import LEAST, Difference
from retrieval.reports.sheet import SheetImage, SheetRow
from retrieval.reports.text_tables import p_value, percent
from retrieval.text import align_columns, pluralize

_COLUMNS = ("searches", "gain")  # of the table
_SHOWN = 6  # images of a group on the sheet
_LINES = 20  # groups, and images, in the text


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option(
    "--log",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Log of the searches, which `lookalike serve --query-log` writes.",
)
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    metavar="DATE",
    help="Look at searches since then (UTC), and compare them with older ones.  [default: at all of them, "
    "and compare the newer half with the older one]",
)
@shows_findings("Largest number of images that nobody finds, and of images to label.", 50)
def coverage(gallery: Path, log: Path, since: datetime | None, limit: int) -> Findings:
    """Show what visitors searched for and did not find, and which labels would help.

    The log is that of `lookalike serve --query-log`, which has vectors and no pictures. So groups of searches
    are shown by the images of the gallery that are nearest to them. A search counts as not found if its best
    hit is improbable and nothing was opened; without a calibration, if it is further from the gallery than
    95% of its own images are from each other. A group has searches that look more like each other than like
    anything in the gallery; it is certain if that is more of them than chance explains.

    \b
      lookalike coverage shop.gallery --log searches --sheet coverage.html
      lookalike coverage shop.gallery --log searches --since 2026-11-01 --list label.csv

    The table has the images whose labels would help most. Fill in its column `label` and give it to
    `lookalike check decide` or `lookalike improve --labels`.
    """
    target = Gallery.open(gallery)
    time = None if since is None else since.replace(tzinfo=UTC).isoformat(timespec="seconds")
    found = measure_coverage(target, log, since=time, limit=limit)
    items = target.items(found.shown)
    facts = asdict(found)
    for group, one in zip(facts["groups"], found.groups, strict=True):
        group["certain"] = one.certain
    wanted = [(items[one.item], one) for one in found.wanted if one.item in items]
    return Findings(
        f"{gallery.name}: coverage",
        summary(found),
        {"gallery": str(gallery), "log": str(log), **facts},
        [*_lines(found, items)],
        [*_rows(found, items)],
        _COLUMNS,
        ((item, "", (one.searches, round(one.gain, 3))) for item, one in wanted),
        found.notes,
    )


def summary(found: Coverage) -> str:
    """Return what was not found in a sentence."""
    certain = [group for group in found.groups if group.certain]
    if not certain:
        return f"{pluralize(found.searches, 'search')}: nothing is certain to be missing"
    count = sum(len(group.searches) for group in certain)
    groups = pluralize(len(certain), "group")
    return f"{pluralize(found.searches, 'search')}: certain to be missing: {groups} of {count:,} together"


def _lines(found: Coverage, items: dict[int, Item]) -> Iterator[str]:
    low, high = map(percent, found.lost_interval)
    share = percent(found.lost / found.pictures) if found.pictures else "0"
    what = f"probability below {NOT_FOUND:g}" if found.calibrated else "further than 95% of its images"
    rows = [
        ["not found", f"{found.lost:,} of {found.pictures:,}", f"{share}% ({low} to {high}); {what}"],
        ["", "", f"images of the gallery that search it: {percent(found.lost_by_chance)}%"],
    ]
    if found.found_since is not None:
        rows.append(["found since", f"{found.found_since:,}", "searches that found nothing then"])
    rows.append(["no hit", f"{found.filtered_out:,}", "searches whose condition left none"])
    if found.unopened is not None:
        unopened = percent(found.unopened / found.searches)
        rows.append(["not opened", f"{found.unopened:,} of {found.searches:,}", f"{unopened}%"])
    rows.append(["searches and images", *_difference(found.drift)])
    rows.append(["newer and older searches", *_difference(found.change)])
    by_images = "" if found.never_by_images is None else f"; {found.never_by_images:,} if its images searched"
    by_chance = f"{found.never_by_chance:,.0f} by chance{by_images}"
    rows.append(["images nobody finds", f"{found.never:,} of {found.images:,}", by_chance])
    uncertain = f"labels of {pluralize(len(found.wanted), 'image')} would help most"
    rows.append(["uncertain searches", f"{found.disagreeing:,}", uncertain])
    yield from align_columns(rows)
    if found.groups:
        yield ""
        head = ["missing", "by chance", "p", "", "nearest image", "first", "last"]
        groups = [_group_row(group, items) for group in found.groups[:_LINES]]
        yield from align_columns([head, *groups], right={0, 1, 2})


def _group_row(group: Group, items: dict[int, Item]) -> list[str]:
    near = next((f"{score:.2f} {items[item].key}" for item, score in group.nearest if item in items), "")
    word = "certain" if group.certain else "perhaps chance"
    return [
        str(len(group.searches)),
        f"{group.expected:.1f}",
        p_value(group.p),
        word,
        near,
        group.first[:10],
        group.last[:10],
    ]


def _difference(found: Difference | None) -> tuple[str, str]:
    if found is None:
        return "-", f"too few: {LEAST} different pictures on both sides are necessary"
    word = "differ" if found.certain else "no certain difference"
    return f"{found.auc:.2f}", f"{found.low:.2f} to {found.high:.2f}: {word} (0.5: alike, 1: never alike)"


def _rows(found: Coverage, items: dict[int, Item]) -> Iterator[SheetRow]:
    for group in found.groups:
        word = "certain" if group.certain else "perhaps by chance"
        times = f"{group.first[:10]} to {group.last[:10]}"
        title = f"{len(group.searches)} searches for what may be missing, {times} ({word}); nearest are"
        near = group.nearest[:_SHOWN]
        yield SheetRow(
            title, _images([item for item, _ in near], items, [f"{score:.2f}" for _, score in near])
        )
    if found.unseen:
        yield SheetRow("Nobody finds these", _images(found.unseen, items))
    if found.wanted:
        counts = [pluralize(one.searches, "search") for one in found.wanted]
        yield SheetRow(
            "Labels of these would help most", _images([w.item for w in found.wanted], items, counts)
        )


def _images(ids: Sequence[int], items: dict[int, Item], facts: Sequence[str] = ()) -> list[SheetImage]:
    notes = facts or [""] * len(ids)
    return [
        SheetImage(
            Path(items[item].path), f"{note} {items[item].key}: {items[item].label or 'no label'}".strip()
        )
        for item, note in zip(ids, notes, strict=True)
        if item in items
    ]
