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
    """Put several reports side by side.

    A REPORT is a folder that `lookalike evaluate` or `lookalike sweep` has written, or the report.json in it.
    The others are compared with the first one. NAME=REPORT says what to call it.

    \b
      lookalike compare old/report new/report --out comparison
      lookalike compare triplet=run1/report sct=run2/report

    Runs that differ by their seed form a group: a folder that holds them, or their reports with commas
    between. A group is shown with mean and standard deviation.

    \b
      lookalike compare sweep/triplet sweep/sct
      lookalike compare sweep/*/
      lookalike compare triplet=t0,t1,t2 "sct=runs/sct-*"

    Groups are compared by Welch's t-test of Recall@1. Single reports are compared query by query, by
    McNemar's exact test, so that a small difference on the same images counts for what it is. The page shows
    which classes gained and lost most, and the queries that only one of them gets right.

    Reports of different data or protocols are refused unless they share queries: the same files with the same
    classes; then a note says what differs.
    """
    from retrieval.evaluation.comparison import compare as side_by_side
    from retrieval.evaluation.contenders import contenders
    from retrieval.reports import comparison

    found = side_by_side(contenders(reports))
    if out is not None:
        comparison.save(found, out)
    print_result(found.to_dict(), as_json, comparison.table(found))
    if out is not None:
        print_status(f"comparison: {out / 'compare.html'}")
