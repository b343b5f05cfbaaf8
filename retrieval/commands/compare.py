"""`lookalike compare`."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.text import align_columns


@click.command()
@click.argument("reports", nargs=-1, required=True, metavar="REPORT REPORT...")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for compare.json and compare.html.")
@click.option(
    "--log",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Compare two galleries by what visitors chose, in the log of `lookalike serve --against`.",
)
@json_option
def compare(reports: tuple[str, ...], out: Path | None, log: Path | None, as_json: bool) -> None:
    """Compare evaluation reports with the first one, or two galleries by what visitors choose.

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

    With --log, the two are galleries whose hits a server has mixed, and those whose hits are opened more
    often win a search (docs/interleaving.md). Look as often as you like: the interval allows for it.

    \b
      lookalike serve old.gallery --query-log searches --against new.gallery
      lookalike compare old.gallery new.gallery --log searches
    """
    if log is not None:
        if len(reports) != 2 or out is not None:
            raise click.UsageError("--log takes two galleries, and no --out.")
        _compare_by_choices(Path(reports[0]), Path(reports[1]), log, as_json)
        return
    from retrieval.evaluation.comparison import compare_reports, load_contenders
    from retrieval.reports.folder import save_comparison
    from retrieval.reports.text_tables import comparison_table

    comparison = compare_reports(load_contenders(reports))
    if out is not None:
        save_comparison(comparison, out)
    print_result(comparison.to_dict(), as_json, comparison_table(comparison))
    if out is not None:
        print_status(f"comparison: {out / 'compare.html'}")


def _compare_by_choices(first: Path, second: Path, log: Path, as_json: bool) -> None:
    from retrieval.evaluation.preference import measure_preference
    from retrieval.gallery import Gallery
    from retrieval.reports.text_tables import p_value

    found = measure_preference(Gallery.open(first), Gallery.open(second), log)
    decided = found.first + found.second
    rows = [
        ["mixed searches", f"{found.searches:,}"],
        ["queries with a choice", f"{found.chosen:,}"],
        [f"{first} wins", f"{found.first:,}"],
        [f"{second} wins", f"{found.second:,}"],
    ]
    share = f"{100 * found.share:.1f}% ({100 * found.low:.1f} to {100 * found.high:.1f})"
    says = f"{second} wins {share} of the {decided:,} that decide, p {p_value(found.p)}: "
    if found.certain:
        says += f"visitors prefer {second if found.share > 0.5 else first}, however often you have looked"
    elif found.needed is None:
        says += "not certain"
    else:
        says += f"not certain; if it goes on like this, after {found.needed:,} more"
    print_result(vars(found) | {"certain": found.certain}, as_json, [*align_columns(rows, right={1}), says])
