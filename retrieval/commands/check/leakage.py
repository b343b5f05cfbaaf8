"""`lookalike check leakage`: test images that have a near-duplicate among the training images."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from retrieval.commands.check.findings import Findings, shows_findings
from retrieval.commands.device_options import search_device_option
from retrieval.curation.leakage import Leak, Leakage, find_leakage
from retrieval.gallery import Gallery
from retrieval.machine.devices import Device
from retrieval.model.runtime import Runtime
from retrieval.reports.sheet import SheetImage, SheetRow
from retrieval.search.options import NEAR_DUPLICATE
from retrieval.text import align_columns

_FOLDER = click.Path(path_type=Path)
_COLUMNS = ("train_key", "train_path", "score", "reason")  # of the table
_NO_LABEL = "no label"


@click.command()
@click.argument("train", type=_FOLDER)
@click.argument("test", type=_FOLDER)
@click.option(
    "--min-score",
    type=float,
    default=NEAR_DUPLICATE,
    show_default=True,
    metavar="S",
    help="Minimum cosine similarity of two near-duplicates.",
)
@search_device_option
@shows_findings("Number of pairs, and of labels, in the terminal.", 50)
def leakage(train: Path, test: Path, min_score: float, limit: int, device: Device) -> Findings:
    """Find test images that have a near-duplicate among the training images.

    A model that was trained on the gallery TRAIN is measured too well on those of TEST. Each is shown with
    the nearest image of TRAIN, and counted by its label. The right S depends on the model: look at some pairs
    first. If both have products, those with views in both galleries are counted. Both galleries need the same
    model. The table has the images of TEST.

    \b
      lookalike index build train.gallery shop/train --model model.onnx
      lookalike index build test.gallery shop/test --model model.onnx
      lookalike check leakage train.gallery test.gallery --sheet leakage.html
    """
    runtime = Runtime(device)
    found = find_leakage(
        Gallery.open(train, runtime=runtime),
        Gallery.open(test, runtime=runtime),
        min_score,
        show_progress=True,
    )
    return Findings(
        f"{test.name}: near-duplicates in {train.name}",
        _summary(found),
        {"train": str(train), "test": str(test), "min_score": min_score, **asdict(found)},
        _lines(found, limit),
        [_row(leak) for leak in found.leaks],
        _COLUMNS,
        ((leak.item, "", _values(leak)) for leak in found.leaks),
    )


def _summary(found: Leakage) -> str:
    share = len(found.leaks) / max(1, found.test_images)
    same = sum(leak.identical for leak in found.leaks)
    across = sum(leak.item.label != leak.train.label for leak in found.leaks)
    torn = f"; products with views in both: {len(found.products)}" if found.products else ""
    return (
        f"test images with a near-duplicate among {found.train_images} training images: {len(found.leaks)} "
        f"of {found.test_images} ({share:.1%}); identical files: {same}; with another label: {across}{torn}"
    )


def _lines(found: Leakage, limit: int) -> list[str]:
    if not found.leaks:
        return []
    labels = [["images", "label"], *([str(n), label or _NO_LABEL] for label, n in found.by_label[:limit])]
    pairs = [["score", "test", "training"]]
    pairs += [
        [f"{leak.score:.4f}", leak.item.path or leak.item.key, leak.train.path or leak.train.key]
        for leak in found.leaks[:limit]
    ]
    lines = ["", *align_columns(labels, right={0}), "", *align_columns(pairs, right={0})]
    left = len(found.leaks) - limit
    return [*lines, f"and {left} more; --json, --list and --sheet have them"] if left > 0 else lines


def _values(leak: Leak) -> tuple[str | float, ...]:
    """Return the values of `_COLUMNS`."""
    reason = "identical file" if leak.identical else "near-duplicate"
    return leak.train.key, leak.train.path, round(leak.score, 6), reason


def _row(leak: Leak) -> SheetRow:
    what = "identical files" if leak.identical else f"similarity {leak.score:.4f}"
    sides = (("test", leak.item), ("training", leak.train))
    return SheetRow(
        f"{leak.item.label or _NO_LABEL}: {what}",
        [SheetImage(Path(one.path), f"{side}: {one.label or _NO_LABEL}, {one.key}") for side, one in sides],
    )
