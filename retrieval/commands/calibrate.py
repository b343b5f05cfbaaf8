"""`lookalike calibrate`: learn the probability that a hit shows the same thing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.device_options import runtime_options
from retrieval.errors import InputError
from retrieval.evaluation.calibration_fit import ABSENT, QUERIES, Quality
from retrieval.evaluation.calibration_fit import calibrate as learn
from retrieval.evaluation.gallery import hides_training
from retrieval.gallery import Gallery
from retrieval.ingest.judgements import read_judgements
from retrieval.metrics.reliability import BINS
from retrieval.model.runtime import Runtime
from retrieval.reports.figures import check_suffix, write_file
from retrieval.reports.pages import document
from retrieval.reports.reliability import render_calibration
from retrieval.reports.text_tables import percent
from retrieval.search.calibration import HIGH_ERROR, NAME, Calibration, write_calibration
from retrieval.text import align_columns, pluralize

_GALLERY = "gallery"
_COPIES = "queries whose picture is in the gallery, or a changed copy of it"


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@click.option(
    "--labels",
    default=_GALLERY,
    show_default=True,
    metavar="TABLE|gallery",
    help="Labels: those of the gallery, or a CSV or Parquet table, described above.",
)
@click.option(
    "--absent",
    type=click.FloatRange(0, 1, max_open=True),
    default=ABSENT,
    show_default=True,
    metavar="SHARE",
    help="Share of the queries that you expect to show something that is not in the gallery.",
)
@click.option(
    "--queries",
    type=click.IntRange(min=1),
    default=QUERIES,
    show_default=True,
    help="Labelled images to search with; of more, a random sample.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="Also write a page with the reliability diagram.",
)
@runtime_options
@json_option
def calibrate(
    gallery: Path,
    labels: str,
    absent: float,
    queries: int,
    report: Path | None,
    runtime: Runtime,
    as_json: bool,
) -> None:
    """Learn the probability that a hit shows the same thing as the query, from labels.

    The cosine has no such meaning: 0.8 may be a sure hit in one gallery and a poor one in another.
    Afterwards, `lookalike search`, the API and the page show a probability beside each cosine, and answer
    that there is nothing like the query in the gallery if no hit reaches `--min-probability`.

    \b
      lookalike calibrate shop.gallery
      lookalike calibrate shop.gallery --labels labels.csv --report calibration.html
      lookalike search shop.gallery query.jpg --min-probability 0.8

    TABLE has one of the columns id, key and path, and the column label; or decisions on pairs: a and b, two
    images by id or key, and same, 1 or 0.

    If `teach` or `improve` has learned much from the labels of the gallery, hits between these images say
    nothing about new ones, and the labels are refused: give a TABLE of others. Images that the network was
    trained on, by its model file, are no queries for the same reason.

    Each labelled image is searched for without itself; without its class, as if the gallery had nothing like
    it; and with itself, also as a changed copy. A hit that is the picture of the query has a probability of
    1. The quality that is printed is that on classes which were held out. The calibration is kept in the
    gallery folder. It is ignored when the model changes, and reported as old when the gallery has grown or
    shrunk by half: calibrate again.
    """
    if report is not None:
        check_suffix(report, ".html")
    target = Gallery.open(gallery, runtime=runtime)
    if not len(target):
        raise InputError(
            f"{gallery}: the gallery is empty; add images with `lookalike index add {gallery} IMAGES`"
        )
    judgements = None if labels == _GALLERY else read_judgements(Path(labels), target)
    calibration, quality = learn(target, judgements, absent=absent, queries=queries, show_progress=True)
    write_calibration(target.folder, calibration)
    facts = {"gallery": str(gallery), **_facts(calibration, quality)}
    print_result(facts, as_json, list(_lines(calibration, quality)))
    print_status(f"{target.folder / NAME}: written")
    if quality.ece > HIGH_ERROR:
        what = f"the calibration error is {percent(quality.ece)}%"
        print_status(f"{gallery}: {what}; do not rely on the probabilities, label more images")
    if hides_training(target):
        print_status(
            f"{gallery}: the model file does not tell which images the network was trained on; if these are "
            "among them, the probabilities are too high for new pictures"
        )
    if report is not None:
        page = document(f"{gallery.name}: calibration", render_calibration(calibration, quality))
        write_file(report, page.encode())
        print_status(f"{report}: written")


def _facts(calibration: Calibration, quality: Quality) -> dict[str, Any]:
    return {**asdict(calibration), "quality": asdict(quality)}


def _lines(calibration: Calibration, quality: Quality) -> Iterator[str]:
    low, high = map(percent, (min(quality.ece_of_folds), max(quality.ece_of_folds)))
    chance = percent(quality.ece_by_chance)
    share = f"{percent(quality.brier_of_share)} with one probability for all"
    yield f"calibrated with {quality.queries:,} queries of {quality.classes:,} classes"
    if quality.left_out:
        yield f"{pluralize(quality.left_out, 'image')} that the network was trained on were no queries"
    rows: list[tuple[str, float, str]] = [
        ("calibration error", quality.ece, f"{BINS} bins; by chance {chance}; folds {low} to {high}"),
        ("of the best hit", quality.ece_of_best, ""),
        *([] if quality.ece_of_copies is None else [("of copies", quality.ece_of_copies, _COPIES)]),
        ("Brier score", quality.brier, share),
        ("highest probability", calibration.ceiling, ""),
    ]
    yield from align_columns([[name, percent(value), note] for name, value, note in rows], right={1})
    yield ""
    head = ["probability", "hits", "right", "answered", "nothing like it"]
    table = [
        [f">= {one.probability:g}", *map(percent, (one.hits, one.right, one.answered, one.refused))]
        for one in quality.thresholds
    ]
    yield from align_columns([head, *table], right={1, 2, 3, 4})
    yield "In percent, on held-out classes. answered: queries with such a hit, of those whose class is in the"
    yield "gallery; nothing like it: queries without such a hit, of those whose class is not in the gallery."
