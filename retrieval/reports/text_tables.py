"""Reports and comparisons as plain-text tables for a terminal; formatting of numbers."""

from __future__ import annotations

from retrieval import text
from retrieval.evaluation.comparison import TESTED, Comparison, GroupSummary
from retrieval.evaluation.report import Report
from retrieval.metrics.statistics import Summary
from retrieval.metrics.table import shown_columns


def report_table(report: Report) -> str:
    """Return the main numbers of a report, one result per line, in percent, with the notes below."""
    keys = {key for result in report.results for key in result.values}
    columns = shown_columns(keys, report.ks, brief=True)
    head = ["", *(column.short for column in columns)]
    rows = [
        [result.title, *(percent(result.values.get(column.key), result.as_printed) for column in columns)]
        for result in report.results
    ]
    lines = text.align_columns([head, *rows], right=range(1, len(head)))
    interval = report.headline.intervals.get(TESTED)
    if interval is not None:
        low, high = map(percent, interval)
        lines.append(f"R@1 of {report.headline.title}: {low} to {high} with 95% confidence.")
    return "\n".join([*lines, *report.notes])


def comparison_table(comparison: Comparison) -> str:
    """Return the main numbers of a comparison, one contender per line, in percent, with the notes below."""
    keys = {key for row in comparison.rows for key in row.numbers}
    columns = shown_columns(keys, comparison.ks, brief=True)
    reference = comparison.rows[0].name
    head = ["", "runs", *(column.short for column in columns), f"R@1 vs. {reference}", "p"]
    rows = [
        [
            row.name,
            str(row.runs),
            *(mean_and_std(row.numbers.get(column.key)) for column in columns),
            points(row.differences.get(TESTED)),
            row_p_value(comparison, row) or "-",
        ]
        for row in comparison.rows
    ]
    lines = text.align_columns([head, *rows], right=range(1, len(head)))
    return "\n".join([*lines, *comparison_notes(comparison)])


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return remarks on the numbers and tests, followed by the notes of the comparison."""
    first, *others = comparison.rows
    notes = []
    if any(row.runs > 1 for row in comparison.rows):
        notes.append("Several runs: mean ± standard deviation.")
    used = ["paired t-test (same seeds)"] if any(_paired_p(row) is not None for row in others) else []
    used += ["Welch's t-test (other seeds)"] if any(TESTED in row.tests for row in others) else []
    if used:
        notes.append(f"p of several runs: {' or '.join(used)}, two-sided, of Recall@1 against {first.name}.")
    if any(pair.mcnemar for pair in comparison.pairs):
        notes.append(
            f"p of single runs: McNemar's exact test, two-sided, against {first.name}, on the queries that "
            "only one of the two gets right; it holds for these two models, not for other training runs."
        )
    if sum(bool(row_p_value(comparison, row)) for row in others) > 1:
        notes.append("p is not corrected for the number of comparisons.")
    return [" ".join(notes), *comparison.notes] if notes else comparison.notes


def row_p_value(comparison: Comparison, row: GroupSummary) -> str:
    """Return p of the test of a row against the reference; empty if there is no test."""
    p, pair = _paired_p(row), comparison.pair_of(row)
    if p is None:
        test = row.tests.get(TESTED) or (pair.mcnemar if pair else None)
        p = None if test is None else test.p
    return "" if p is None else p_value(p)


def _paired_p(row: GroupSummary) -> float | None:
    found = row.paired.get(TESTED)
    return None if found is None else found.p


def percent(share: float | None, as_printed: bool = False) -> str:
    """Format a share in percent with one digit, or with all digits of a published value; "-" for `None`."""
    if share is None:
        return "-"
    return text.printed(100 * share) if as_printed else f"{100 * share:.1f}"


def points(difference: float | None) -> str:
    """Format a difference of shares in percentage points, with its sign; "-" for `None`."""
    return "-" if difference is None else f"{100 * difference:+z.1f}"


def mean_and_std(summary: Summary | None) -> str:
    """Format mean and standard deviation in percent; "-" for `None`."""
    if summary is None:
        return "-"
    return percent(summary.mean) + ("" if summary.std is None else f" ± {percent(summary.std)}")


def p_value(p: float) -> str:
    """Format a p-value with three digits."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001"
