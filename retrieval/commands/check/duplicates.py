"""`lookalike check duplicates`: groups of duplicates and near-duplicates, and their removal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from retrieval.commands.check.findings import Findings, shows_findings
from retrieval.commands.device_options import search_device_option
from retrieval.commands.search_options import combine_options
from retrieval.curation.duplicate_groups import Group, NearDuplicates
from retrieval.curation.thinning import RULES, Thinning, plan_thinning
from retrieval.galleries.items import Item
from retrieval.gallery import Gallery
from retrieval.machine.devices import Device
from retrieval.model.runtime import Runtime
from retrieval.reports.sheet import SheetImage, SheetRow
from retrieval.search.options import NEAR_DUPLICATE
from retrieval.text import align_columns, pluralize

_COLUMNS = ("group", "kept_key", "kept_path", "score", "reason")  # of the table

_thinning_options = combine_options(
    click.option(
        "--keep",
        type=click.Choice(RULES),
        help="Keep one image of each group: the largest in pixels, the one with the oldest file, the "
        "sharpest (measured), or the first in the gallery.",
    ),
    click.option("--across-labels", is_flag=True, help="With --keep: also thin groups with several labels."),
    click.option("--remove", is_flag=True, help="With --keep: remove the other images from the gallery."),
    click.option("--dry-run", is_flag=True, help="With --remove: print the figures only."),
)


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option(
    "--min-score",
    type=float,
    default=NEAR_DUPLICATE,
    show_default=True,
    metavar="S",
    help="Minimum cosine similarity of two near-duplicates.",
)
@click.option("--exact", is_flag=True, help="Compare all pairs in galleries of over 100,000 images, too.")
@_thinning_options
@search_device_option
@shows_findings("Groups to show in the terminal and on the sheet.  [default: all]")
def duplicates(
    gallery: Path,
    min_score: float,
    exact: bool,
    keep: str | None,
    across_labels: bool,
    remove: bool,
    dry_run: bool,
    limit: int | None,
    device: Device,
) -> Findings:
    """Find duplicates and near-duplicates in a gallery: identical files, and images that look alike.

    Groups are the connected components of all pairs with a similarity of S or more, so two images of a group
    may be less similar; the output gives the lowest similarity in each group. Groups with different labels
    come first: one of the labels is probably wrong. The right S depends on the model: look at some groups
    before you remove images.

    \b
      lookalike check duplicates shop.gallery
      lookalike check duplicates shop.gallery --min-score 0.98 --sheet duplicates.html

    --keep chooses one image of each group. The others are listed with --list, to be removed by `lookalike
    check decide`, or removed at once with --remove. An image is left out only if its similarity to a kept
    image is S or more, so that several images of a chain are kept. Groups with different labels are left
    alone. Image files are not deleted, except those that were uploaded to a server. The decision is logged,
    so that later runs leave the files of removed images out. Without --keep, --list writes all images of the
    groups.

    \b
      lookalike check duplicates shop.gallery --keep largest --list others.csv
      lookalike check duplicates shop.gallery --keep sharpest --remove --dry-run

    Above 100,000 images, each is compared with those in the nearest cells of a partition of the gallery; the
    output gives the recall, measured on a sample. --exact compares all pairs, which takes 20 minutes for a
    million images. In a database, its index finds the pairs.
    """
    if keep is None and (across_labels or remove or dry_run):
        raise click.UsageError("--across-labels, --remove and --dry-run need --keep")
    if dry_run and not remove:
        raise click.UsageError("--dry-run needs --remove")
    target = Gallery.open(gallery, runtime=Runtime(device))
    start = time.perf_counter()
    search = target.duplicates(min_score, exact=exact, show_progress=True)
    groups, recall = search.groups, search.recall
    images, seconds = len(target), time.perf_counter() - start
    found: dict[str, Any] = {
        "gallery": str(gallery),
        "images": images,
        "min_score": min_score,
        "seconds": round(seconds, 3),
        "recall": recall.share if recall else 1.0 if search.complete else None,
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
    lines, table = _lines(groups, limit), _members(groups)
    if keep is not None:
        thinning = plan_thinning(
            target, groups, keep, min_score, across_labels=across_labels, show_progress=True
        )
        removed = target.remove_surplus(thinning) if remove and not dry_run and thinning.surplus else 0
        table = _surplus(thinning, groups)
        found["thinning"] = _facts(keep, thinning, table) | {"removed": removed}
        lines += ["", _outcome(keep, thinning, removed, dry_run)]
    return Findings(
        f"{gallery.name}: near-duplicates",
        summary(images, groups),
        found,
        lines,
        [_row(group) for group in groups[:limit]],
        _COLUMNS,
        table,
        [f"compared {images} images in {seconds:.1f} s; {_describe(search)}"],
    )


_Table = list[tuple[Item, str, tuple[str | float | None, ...]]]


def _members(groups: Sequence[Group]) -> _Table:
    """Return all images of groups for the table."""
    rows: _Table = []
    for number, group in enumerate(groups, 1):
        reason = "identical file" if group.identical else "near-duplicate"
        rows += [(item, "", (number, None, None, round(group.lowest, 6), reason)) for item in group.members]
    return rows


# ---- keeping one image of each group


def _surplus(thinning: Thinning, groups: Sequence[Group]) -> _Table:
    """Return the images to leave out for the table."""
    number = {item.id: n for n, group in enumerate(groups, 1) for item in group.members}
    return [
        (
            one.item,
            "remove",
            (number[one.item.id], one.kept.key, one.kept.path, round(one.score, 6), one.reason),
        )
        for one in thinning.surplus
    ]


def _facts(keep: str, thinning: Thinning, table: _Table) -> dict[str, Any]:
    return {
        "keep": keep,
        "groups": thinning.thinned,
        "across_labels": thinning.across_labels,
        "surplus": [
            {"id": one.item.id, "kept_id": one.kept.id, "key": one.item.key, "path": one.item.path}
            | dict(zip(_COLUMNS, values, strict=True))
            for one, (_, _, values) in zip(thinning.surplus, table, strict=True)
        ],
    }


def _outcome(keep: str, thinning: Thinning, removed: int, dry_run: bool) -> str:
    others = pluralize(len(thinning.surplus), "image")
    what = (
        f"{removed} removed" if removed else f"{others} would be removed" if dry_run else f"{others} to spare"
    )
    text = f"keeping the {keep} of each group: {what}, from {pluralize(thinning.thinned, 'group')}"
    if thinning.across_labels:
        text += f"; left alone, across labels: {pluralize(thinning.across_labels, 'group')}"
    return text


# ---- text output


def _describe(search: NearDuplicates) -> str:
    recall = search.recall
    if recall is None:
        return "all pairs" if search.complete else "pairs that the database finds"
    if recall.share is None:
        return "no near-duplicates of the sampled images, so the recall is unknown"
    return f"recall {recall.share:.4f}, measured on {recall.pairs} pairs"


def summary(images: int, groups: Sequence[Group]) -> str:
    """Return what was found in a sentence."""
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


def _lines(groups: Sequence[Group], limit: int | None) -> list[str]:
    lines: list[str] = []
    for group in groups[:limit]:
        rows = [[str(item.id), item.label or "-", item.path or item.key] for item in group.members]
        lines += ["", _title(group), *(f"  {line}" for line in align_columns(rows, right={0}))]
    left = len(groups) - len(groups[:limit])
    return [*lines, "", f"and {left} more groups; --json and --list have them"] if left else lines


def _row(group: Group) -> SheetRow:
    return SheetRow(
        _title(group), [SheetImage(Path(item.path), f"{item.id} {item.key}") for item in group.members]
    )
