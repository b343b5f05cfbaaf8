"""`lookalike inspect`: images that are blurred, dark, flat, tiny, narrow or unlike all others."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.stores import open_files
from retrieval.curation.quality import FAULTS, Finding, Inspection, inspect_gallery
from retrieval.errors import InputError
from retrieval.evaluation.report import json_lines
from retrieval.files import now, write_csv, write_texts
from retrieval.reports.sheet import SheetImage, SheetRow, write_sheet
from retrieval.text import align_columns, pluralize

_MEASURES = tuple(fault.measure for fault in FAULTS)


def _threshold_options(command: Any) -> Any:
    """Add one option for each fault."""
    for fault in reversed(FAULTS):
        side = "Above" if fault.above else "Below"
        command = click.option(
            f"--{fault.name}",
            type=click.FloatRange(min=0 if fault.ratio else -1),
            metavar=fault.measure.upper(),
            help=f"{side} this {fault.measure} an image is {fault.name} ({fault.meaning}).",
        )(command)
    return command


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder for report.html, with the images, and report.json.",
)
@click.option(
    "--list",
    "list_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.csv",
    help="Write the images to a table: key, path, their faults and all measures.",
)
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    metavar="N",
    help="Images of each fault on the page and in the terminal, the worst first; report.json has all.",
)
@_threshold_options
@json_option
@click.pass_context
def inspect(
    ctx: click.Context,
    gallery: Path,
    out: Path | None,
    list_file: Path | None,
    most: int,
    blurred: float | None,
    dark: float | None,
    flat: float | None,
    tiny: float | None,
    narrow: float | None,
    alone: float | None,
    as_json: bool,
) -> None:
    """Find blurred, dark, tiny and odd images in a gallery, and files that are gone.

    Odd images are flat (hardly any contrast), narrow or alone (unlike all others).

    All files are read again, and measured with a shorter side of at most 256 pixels, about as the model sees
    them. By default a threshold is relative to the gallery: 3.5 robust standard deviations (of the median
    absolute deviation) from the median, and a factor of 2. Nothing is changed. The exit code is 3 if files
    are gone or damaged.

    \b
      lookalike inspect shop.gallery --out inspection
      lookalike inspect shop.gallery --tiny 200 --dark 0.15 --list poor.csv
    """
    target = open_files(gallery, "inspect a gallery of the same images in files")
    if out is not None:
        _create(out)
    start = time.perf_counter()
    thresholds = {"blurred": blurred, "dark": dark, "flat": flat}
    thresholds |= {"tiny": tiny, "narrow": narrow, "alone": alone}
    given = {name: value for name, value in thresholds.items() if value is not None}
    found = inspect_gallery(target, given, show_progress=True)
    seconds = time.perf_counter() - start
    facts = {"gallery": str(gallery), "created": now(), "seconds": round(seconds, 3), **_facts(found)}
    print_result(facts, as_json, list(_lines(found, most)))
    print_status(f"inspected {pluralize(found.images, 'image')} in {seconds:.1f} s")
    if list_file is not None:
        write_csv(list_file, ("key", "path", "faults", *_MEASURES), _table(found))
        print_status(f"{list_file}: written")
    if out is not None:
        write_sheet(out / "report.html", f"{gallery.name}: inspection", _note(found), _rows(found, most))
        write_texts(out, {"report.json": json_lines(facts)})
        print_status(f"{out / 'report.html'}: written")
    if found.unreadable:
        ctx.exit(3)


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


def _table(found: Inspection) -> Iterator[tuple[str | float | None, ...]]:
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
        yield item.key, item.path, " ".join(faults[number]), *known


# ---- as text and as a page


def _title(finding: Finding) -> str:
    fault = finding.fault
    limit = "" if finding.threshold is None else f" {finding.threshold:.4g}"
    side = "above" if fault.above else "below"
    return f"{fault.name}: {len(finding.images)}, {fault.measure} {side}{limit} ({fault.meaning})"


def _note(found: Inspection) -> str:
    parts = [f"{len(finding.images)} {finding.fault.name}" for finding in found.findings]
    return f"{pluralize(found.images, 'image')}: {', '.join(parts)}; {len(found.unreadable)} unreadable."


def _lines(found: Inspection, most: int) -> Iterator[str]:
    yield _note(found)
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
