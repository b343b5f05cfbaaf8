"""`lookalike duplicates`: groups of duplicates and near-duplicates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.options import sheet_option
from retrieval.gallery import Gallery
from retrieval.reports.sheet import SheetImage, SheetRow, check_sheet_path, write_sheet
from retrieval.text import align_columns
from retrieval.upkeep.duplicates import Group, find_duplicates
from retrieval.upkeep.near_pairs import SampledRecall


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option(
    "--min-score",
    type=float,
    default=0.95,
    show_default=True,
    metavar="S",
    help="Minimum cosine similarity of two near-duplicates.",
)
@click.option("--exact", is_flag=True, help="Compare all pairs in galleries of over 100,000 images, too.")
@sheet_option
@json_option
def duplicates(gallery: Path, min_score: float, exact: bool, sheet: Path | None, as_json: bool) -> None:
    """Find duplicates and near-duplicates in a gallery: identical files, and images that look alike.

    Groups are the connected components of all pairs with a similarity of S or more, so two images of a group
    may be less similar; the output gives the lowest similarity in each group. Groups with different labels
    come first: one of the labels is probably wrong. The right S depends on the model: look at some groups
    before you remove images.

    Above 100,000 images, each is compared with those in the nearest cells of a partition of the gallery; the
    output gives the recall, measured on a sample. --exact compares all pairs, which takes 20 minutes for a
    million images.

    \b
      lookalike duplicates shop.gallery
      lookalike duplicates shop.gallery --min-score 0.98 --sheet duplicates.html
    """
    if sheet is not None:
        check_sheet_path(sheet)
    target = Gallery(gallery)
    start = time.perf_counter()
    search = find_duplicates(target, min_score, exact=exact, show_progress=True)
    groups, recall = search.groups, search.recall
    seconds = time.perf_counter() - start
    found = {
        "gallery": str(gallery),
        "images": len(target),
        "min_score": min_score,
        "seconds": round(seconds, 3),
        "recall": 1.0 if recall is None else recall.share,
        "recall_pairs": None if recall is None else recall.pairs,
        "groups": [
            {
                "members": [asdict(item) for item in group.members],
                "lowest": group.lowest,
                "identical": group.identical,
                "labels": group.labels,
            }
            for group in groups
        ],
    }
    print_result(
        found,
        as_json,
        [_summary(len(target), groups), *(line for g in groups for line in _lines(g))],
    )
    print_status(f"compared {len(target)} images in {seconds:.1f} s; {_describe(recall)}")
    if sheet is not None:
        title = f"{gallery.name}: near-duplicates"
        write_sheet(sheet, title, f"{_summary(len(target), groups)}.", [_row(group) for group in groups])
        print_status(f"{sheet}: written")


def _describe(recall: SampledRecall | None) -> str:
    if recall is None:
        return "all pairs"
    if recall.share is None:
        return "no near-duplicates of the sampled images, so the recall is unknown"
    return f"recall {recall.share:.4f}, measured on {recall.pairs} pairs"


def _summary(images: int, groups: Sequence[Group]) -> str:
    if not groups:
        return f"no near-duplicates among {images} images"
    among = sum(len(group.members) for group in groups)
    across = sum(len(group.labels) > 1 for group in groups)
    return (
        f"groups of near-duplicates: {len(groups)}, with {among} of {images} images; across labels: {across}"
    )


def _title(group: Group) -> str:
    what = "identical files" if group.identical else f"lowest similarity {group.lowest:.4f}"
    across = f", ACROSS LABELS: {', '.join(group.labels)}" if len(group.labels) > 1 else ""
    return f"{len(group.members)} images, {what}{across}"


def _lines(group: Group) -> list[str]:
    rows = [[str(item.id), item.label or "-", item.path or item.key] for item in group.members]
    return ["", _title(group), *(f"  {line}" for line in align_columns(rows, right={0}))]


def _row(group: Group) -> SheetRow:
    return SheetRow(
        _title(group), [SheetImage(Path(item.path), f"{item.id} {item.key}") for item in group.members]
    )
