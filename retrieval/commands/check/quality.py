"""`lookalike check quality`: images that are blurred, dark, flat, tiny, narrow or unlike all others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from retrieval.commands.check.findings import Findings, shows_findings
from retrieval.curation.quality import FAULTS, Finding, Inspection, inspect_gallery
from retrieval.errors import InputError
from retrieval.evaluation.report import json_lines
from retrieval.files import now, write_texts
from retrieval.galleries.items import Item
from retrieval.gallery import Gallery
from retrieval.reports.sheet import SheetImage, SheetRow, write_sheet
from retrieval.text import align_columns, pluralize

_MEASURES = tuple(fault.measure for fault in FAULTS)


_FAULTS = {fault.name: fault for fault in FAULTS}
_MEANINGS = "; ".join(
    f"{fault.name}: {'above' if fault.above else 'below'} this {fault.measure} ({fault.meaning})"
    for fault in FAULTS
)


def _read_thresholds(_ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> dict[str, float]:
    """Parse FAULT=VALUE texts."""
    found = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in _FAULTS:
            raise click.BadParameter(f"{text!r}: write {', '.join(_FAULTS)} and =VALUE, as in dark=0.15")
        found[name] = click.FloatRange(min=0 if _FAULTS[name].ratio else -1)(value)
    return found


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    callback=_read_thresholds,
    metavar="FAULT=VALUE",
    help=f"Where a fault begins, as in dark=0.15. Repeatable. {_MEANINGS}.  [default: relative to all]",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), hidden=True)
@shows_findings("Images of each fault in the terminal and on the sheet, the worst first.", 60)
def quality(gallery: Path, thresholds: dict[str, float], out: Path | None, limit: int) -> Findings:
    """Find blurred, dark, tiny and odd images in a gallery, and files that are gone.

    Odd images are flat (hardly any contrast), narrow or alone (unlike all others).

    All files are read again, and measured with a shorter side of at most 256 pixels, about as the model sees
    them. By default a threshold is relative to the gallery: 3.5 robust standard deviations (of the median
    absolute deviation) from the median, and a factor of 2. Nothing is changed. The exit code is 3 if files
    are gone or damaged.

    \b
      lookalike check quality shop.gallery --sheet quality.html
      lookalike check quality shop.gallery --threshold tiny=200 --threshold dark=0.15 --list poor.csv
    """
    target = Gallery.open(gallery)
    if out is not None:
        _create(out)
    start = time.perf_counter()
    found = inspect_gallery(target, thresholds, show_progress=True)
    seconds = time.perf_counter() - start
    facts = {"gallery": str(gallery), "created": now(), "seconds": round(seconds, 3), **_facts(found)}
    notes = [f"measured {pluralize(found.images, 'image')} in {seconds:.1f} s"]
    title, rows = f"{gallery.name}: quality", _rows(found, limit)
    if out is not None:
        write_sheet(out / "report.html", title, f"{_summary(found)}.", rows)
        write_texts(out, {"report.json": json_lines(facts)})
        notes += [f"{out / 'report.html'}: written; --out is now --sheet FILE.html, and --json has the facts"]
    return Findings(
        title,
        _summary(found),
        facts,
        _lines(found, limit),
        rows,
        ("faults", *_MEASURES),
        _table(found),
        notes,
        3 if found.unreadable else 0,
    )


def _create(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        what = f"the folder cannot be created ({error.strerror})"
        raise InputError(f"{folder}: {what}; choose another --out") from error


# ---- as values


def _facts(found: Inspection) -> dict[str, Any]:
    return {
        "images": found.images,
        "quantiles": {"of": [0.01, 0.5, 0.99], **found.quantiles},
        "faults": {
            finding.fault.name: {
                "measure": finding.fault.measure,
                "threshold": finding.threshold,
                "images": [{"id": i.id, "key": i.key, "path": i.path, "value": v} for i, v in finding.images],
            }
            for finding in found.findings
        },
        "unreadable": [
            {"id": item.id, "key": item.key, "path": item.path, "reason": e.reason, "detail": e.detail}
            for item, e in found.unreadable
        ],
    }


def _table(found: Inspection) -> Iterator[tuple[Item, str, tuple[str | float | None, ...]]]:
    """Yield a row for each image with a fault, and for each unreadable one."""
    items = {item.id: item for finding in found.findings for item, _ in finding.images}
    faults: dict[int, list[str]] = {}
    for finding in found.findings:
        for item, _ in finding.images:
            faults.setdefault(item.id, []).append(finding.fault.name)
    for item, error in found.unreadable:
        items[item.id] = item
        faults.setdefault(item.id, []).append(error.reason)
    for number, item in items.items():
        measures = found.measures.get(number, {})
        values = (measures.get(name, math.nan) for name in _MEASURES)
        known = (None if math.isnan(value) else round(value, 6) for value in values)
        yield item, "", (" ".join(faults[number]), *known)


# ---- as text and as a page


def _title(finding: Finding) -> str:
    fault = finding.fault
    limit = "" if finding.threshold is None else f" {finding.threshold:.4g}"
    side = "above" if fault.above else "below"
    return f"{fault.name}: {len(finding.images)}, {fault.measure} {side}{limit} ({fault.meaning})"


def _summary(found: Inspection) -> str:
    parts = [f"{len(finding.images)} {finding.fault.name}" for finding in found.findings]
    return f"{pluralize(found.images, 'image')}: {', '.join(parts)}; {len(found.unreadable)} unreadable"


def _lines(found: Inspection, most: int) -> Iterator[str]:
    for finding in found.findings:
        if finding.images:
            yield ""
            yield _title(finding)
            rows = [[f"{value:.4g}", item.path or item.key] for item, value in finding.images[:most]]
            yield from (f"  {line}" for line in align_columns(rows, right={0}))
    if found.unreadable:
        yield ""
        yield f"unreadable: {len(found.unreadable)}"
        yield from (f"  {item.path}: {error.detail}" for item, error in found.unreadable[:most])


def _rows(found: Inspection, most: int) -> list[SheetRow]:
    rows = [
        SheetRow(
            _title(finding),
            [SheetImage(Path(item.path), f"{value:.4g} {item.key}") for item, value in finding.images[:most]],
        )
        for finding in found.findings
        if finding.images
    ]
    if found.unreadable:
        tiles = [SheetImage(Path(i.path), f"{i.key}: {error.detail}") for i, error in found.unreadable[:most]]
        rows.append(SheetRow(f"unreadable: {len(found.unreadable)}", tiles))
    return rows
