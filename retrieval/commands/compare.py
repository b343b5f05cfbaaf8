"""`lookalike compare`."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli import json_option, print_result, print_status


@click.command()
@click.argument("reports", nargs=-1, required=True, metavar="REPORT REPORT...")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for compare.json and compare.html.")
@json_option
def compare(reports: tuple[str, ...], out: Path | None, as_json: bool) -> None:
    """Compare evaluation reports with the first one.

    A REPORT is a folder written by `lookalike evaluate` or `lookalike sweep`, or its report.json. NAME=REPORT
    sets its name in the tables.

    \b
      lookalike compare old/report new/report --out comparison
      lookalike compare triplet=run1/report sct=run2/report

    Runs that differ by their seed form a group: a folder of runs, or a comma-separated list of reports. A
    group is shown with mean and standard deviation.

    \b
      lookalike compare sweep/triplet sweep/sct
      lookalike compare sweep/*/
      lookalike compare triplet=t0,t1,t2 "sct=runs/sct-*"

    Groups with the same seeds are compared by the paired t-test of Recall@1, others by Welch's t-test. Single
    reports are compared query by query, by McNemar's exact test, which is sensitive to small differences on
    the same images. The HTML page shows the classes that gained and lost most, and the queries that only one
    of the models gets right. Reports on judged queries are compared by each protocol.

    Reports of different data or protocols are refused unless they share queries: the same files with the same
    classes; then a note lists the differences.
    """
    from retrieval.evaluation.comparison import compare_reports, load_contenders
    from retrieval.reports.folder import save_comparison
    from retrieval.reports.text_tables import comparison_table

    comparison = compare_reports(load_contenders(reports))
    if out is not None:
        save_comparison(comparison, out)
    print_result(comparison.to_dict(), as_json, comparison_table(comparison))
    if out is not None:
        print_status(f"comparison: {out / 'compare.html'}")
