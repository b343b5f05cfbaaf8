"""`lookalike evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.errors import InputError
from train import data as datasets_by_name
from train.commands import DATA_HELP

if TYPE_CHECKING:
    from retrieval.evaluation.report import Report


@click.command()
@click.argument("target", type=click.Path(path_type=Path), metavar="RUN|MODEL|GALLERY")
@click.option(
    "--data",
    help=DATA_HELP + " Its test split is used, or all of it. A gallery alone may do without.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for report.json and report.html.")
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    type=click.Choice(["pixels", "untrained"]),
    help="Measure this too: raw pixels, or the network as it was before training. Repeatable.",
)
@click.option(
    "--which",
    type=click.Choice(["best", "last"]),
    help="Of a run: the best epoch on held-out classes, or the last. Without this, both where they differ.",
)
@click.option(
    "--linear-probe",
    is_flag=True,
    help="Embed the training images too, and classify the test images, of the same classes, from them.",
)
@json_option
@click.pass_context
def evaluate(
    ctx: click.Context,
    target: Path,
    data: str | None,
    out: Path | None,
    baselines: tuple[str, ...],
    which: str | None,
    linear_probe: bool,
    as_json: bool,
) -> None:
    """Measure a run, a model or a gallery on labelled images.

    A run or a model searches the images of the data set among themselves, each without itself, or in the
    gallery of the data set, where it has one. What a recipe of a paper has trained is shown beside the
    published numbers. A gallery is searched with the images of the data set; an image that is in the gallery
    does not find itself. Without --data it is measured on its own labelled images: each searches the gallery
    with its stored embedding, itself left out; no image is read. A gallery also keeps the report, and shows
    it in the browser.

    The report has Recall@K, Precision@K, MAP@R, R-Precision and mAP with 95% intervals, NMI and F1, how
    similar classes are, which ones are taken for each other, the hardest queries with what they found, and
    every class. `lookalike compare` puts several reports side by side.

    \b
      lookalike evaluate run --data folder:shop --out report
      lookalike evaluate shop.gallery --data folder:queries --out report
      lookalike evaluate shop.gallery
    """
    from retrieval.reports.folder import save_report
    from retrieval.reports.text_tables import report_table

    if data is None:
        if baselines or which or linear_probe:
            raise click.UsageError("--baseline, --which and --linear-probe embed images: name them by --data")
        report = _by_itself(target)
    else:
        from train.experiments import evaluation

        dataset = datasets_by_name.load(data)
        report = evaluation.evaluate_target(
            target, dataset, baselines, which=which, linear_probe=linear_probe, show_progress=True
        )
    if out is not None:
        save_report(report, out)
    print_result(report.to_dict(), as_json, report_table(report))
    if out is not None:
        print_status(f"report: {out / 'report.html'}")
    if report.bad_files:
        print_status(
            f"{len(report.bad_files)} files could not be read and were left out; the report lists them"
        )
        ctx.exit(3)


def _by_itself(target: Path) -> Report:
    from retrieval.gallery import Gallery
    from retrieval.reports.folder import evaluate_and_keep

    if not target.exists():
        raise InputError(f"{target}: there is no such run, model or gallery")
    if not (target / "gallery.db").exists():
        what = f"{target}: --data says which images to measure it on; only a gallery has images of its own"
        raise InputError(what)
    return evaluate_and_keep(Gallery(target), show_progress=True)
