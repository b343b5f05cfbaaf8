"""Reports and comparisons as plain-text tables for a terminal; formatting of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrieval import text
from retrieval.evaluation.comparison import Comparison, GroupSummary, PairedComparison
from retrieval.evaluation.report import Report
from retrieval.evaluation.score import Result
from retrieval.evaluation.verdict import DECIDING
from retrieval.metrics.statistics import LEAST_CLASSES, Summary
from retrieval.metrics.table import MetricColumn, metric_columns, shown_columns

if TYPE_CHECKING:
    from retrieval.evaluation.ranking_rules import RankingCost

OTHERS, THESE = "other classes like these", "these classes"


def report_table(report: Report) -> str:
    """Return the main numbers of a report, one result per line, in percent.

    Below are the intervals of the headline, the verdict and the notes.
    """
    keys = {key for result in report.results for key in result.values}
    columns = shown_columns(keys, report.ks, brief=True)
    head = ["", *(column.short for column in columns)]
    rows = [
        [result.title, *(percent(result.values.get(column.key), result.as_printed) for column in columns)]
        for result in report.results
    ]
    lines = text.align_columns([head, *rows], right=range(1, len(head)))
    lines += _interval_lines(report.headline, columns)
    verdict = [] if report.verdict is None else [report.verdict.sentence]
    return "\n".join([*lines, *verdict, *filter(None, [class_interval_note(report)]), *report.notes])


def ranking_table(cost: RankingCost) -> str:
    """Return what an order, diversity or re-ranking of the hits changes, one metric per line, in percent."""
    rows = [
        [
            column.short,
            percent(cost.plain[column.key]),
            percent(cost.ranked[column.key]),
            points(change.difference),
            interval_points(change.deciding),
        ]
        for column in metric_columns(cost.changes)
        for change in [cost.changes[column.key]]
    ]
    has_others = all(change.class_interval for change in cost.changes.values())
    head = ["", "plain", "ranked", "difference", f"95%, {OTHERS if has_others else THESE}"]
    lines = text.align_columns([head, *rows], right=range(1, len(head)))
    asked = f"{cost.queries:,} labelled images of {cost.classes:,} classes searched for among the others"
    return "\n".join([*lines, f"{asked}; {percent(cost.moved)} % of the first ten hits differ."])


def _interval_lines(result: Result, columns: list[MetricColumn]) -> list[str]:
    """Return the intervals of the metrics that decide, and the spread over repetitions of k-means."""
    lines = []
    known = [column for column in columns if column.key in result.intervals]
    tested = [c for c in known if c.key in DECIDING or c.metric.per_query is None]
    if tested:
        rows = [
            [f"  for {title}", *(interval(found.get(column.key)) for column in tested)]
            for title, found in ((OTHERS, result.class_intervals), (THESE, result.intervals))
        ]
        head = [f"95% intervals of {result.title}", *(column.short for column in tested)]
        lines = text.align_columns([head, *rows], right=range(1, len(head)))
    spread = [f"{c.short} {interval(result.spreads[c.key])}" for c in columns if c.key in result.spreads]
    return [*lines, f"{', '.join(spread)} over repetitions of k-means."] if spread else lines


def class_interval_note(report: Report) -> str:
    """Return why there is no interval for other classes; empty if there is one, or none at all."""
    if report.headline.class_intervals or not report.headline.intervals:
        return ""
    if report.classes < LEAST_CLASSES:
        return f"{report.classes} classes are too few for an interval for {OTHERS}: {LEAST_CLASSES} at least."
    why = "too few have two images, or the report is of an older version"
    return f"There is no interval for {OTHERS}: {why}."


def comparison_table(comparison: Comparison) -> str:
    """Return the main numbers of a comparison, one contender per line, then verdicts and notes."""
    keys = {key for row in comparison.rows for key in row.numbers}
    columns = shown_columns(keys, comparison.ks, brief=True)
    head = ["", "runs", *(column.short for column in columns)]
    head += [f"{tested_column(comparison).short} vs. {comparison.first}", "p"]
    rows = [
        [
            row.name,
            str(row.runs),
            *(mean_and_std(row.numbers.get(column.key)) for column in columns),
            points(row.differences.get(comparison.tested)),
            row_p_value(comparison, row) or "-",
        ]
        for row in comparison.rows
    ]
    lines = text.align_columns([head, *rows], right=range(1, len(head)))
    verdicts = [verdict_sentence(comparison, pair) for pair in comparison.pairs]
    return "\n".join([*lines, *verdicts, *comparison_notes(comparison)])


def verdict_sentence(comparison: Comparison, pair: PairedComparison) -> str:
    """Return which of the first and another contender finds more, in words."""
    first = pair.first
    other = next(row for row in comparison.rows if row.name == pair.other)
    if pair.identical:
        same = "find the same images, with the same similarities: they have the same embeddings"
        return f"{pair.other} and {first} {same}."
    if pair.verdict is not None:
        return pair.verdict.sentence
    difference, title = other.differences.get(comparison.tested), tested_column(comparison).title
    if difference is None:
        return f"{pair.other} and {first} have no number in common."
    p = row_p_value(comparison, other)
    words = f"{100 * abs(difference):.1f} points of {title} {'above' if difference > 0 else 'below'}"
    if not difference:
        words = f"at the same {title} as"
    chance = f" (p {'' if p.startswith('<') else '= '}{p} over training runs, on these classes)" if p else ""
    return f"{pair.other} is {words} {first}{chance}."


def comparison_notes(comparison: Comparison) -> list[str]:
    """Return remarks on the numbers and tests, followed by the notes of the comparison."""
    first, tested, others = comparison.first, comparison.tested, comparison.rows[1:]
    notes = []
    if any(row.runs > 1 for row in comparison.rows):
        notes.append("Several runs: mean ± standard deviation.")
    used = ["paired t-test (same seeds)"] if any(_paired_p(row, tested) is not None for row in others) else []
    used += ["Welch's t-test (other seeds)"] if any(tested in row.tests for row in others) else []
    if used:
        title = tested_column(comparison).title
        notes.append(f"p of several runs: {' or '.join(used)}, two-sided, of {title} against {first}.")
    if any(pair.mcnemar for pair in comparison.pairs):
        notes.append(
            f"p of single runs: McNemar's exact test, two-sided, against {first}, on the queries that "
            "only one of the two gets right; it holds for these queries and models, not for other classes or "
            "training runs."
        )
    if sum(bool(row_p_value(comparison, row)) for row in others) > 1:
        notes.append("p is not corrected for the number of comparisons.")
    return [" ".join(notes), *comparison.notes] if notes else comparison.notes


def row_p_value(comparison: Comparison, row: GroupSummary) -> str:
    """Return p of the test of a row against the reference; empty if there is no test."""
    p, pair = _paired_p(row, comparison.tested), comparison.pair_of(row)
    if p is None:
        test = row.tests.get(comparison.tested) or (pair.mcnemar if pair else None)
        p = None if test is None else test.p
    return "" if p is None else p_value(p)


def tested_column(comparison: Comparison) -> MetricColumn:
    """Return the metric whose tests are shown."""
    return metric_columns([comparison.tested])[0]


def _paired_p(row: GroupSummary, tested: str) -> float | None:
    found = row.paired.get(tested)
    return None if found is None else found.p


def percent(share: float | None, as_printed: bool = False) -> str:
    """Format a share in percent with one digit, or with all digits of a published value; "-" for `None`."""
    if share is None:
        return "-"
    return text.printed(100 * share) if as_printed else f"{100 * share:.1f}"


def points(difference: float | None) -> str:
    """Format a difference of shares in percentage points, with its sign; "-" for `None`."""
    return "-" if difference is None else f"{100 * difference:+z.1f}"


def interval(ends: tuple[float, float] | None) -> str:
    """Format an interval of shares in percent; "-" for `None`."""
    return "-" if ends is None else f"{percent(ends[0])} to {percent(ends[1])}"


def interval_points(ends: tuple[float, float] | None) -> str:
    """Format an interval of differences in percentage points; "-" for `None`."""
    return "-" if ends is None else f"{points(ends[0])} to {points(ends[1])}"


def mean_and_std(summary: Summary | None) -> str:
    """Format mean and standard deviation in percent; "-" for `None`."""
    if summary is None:
        return "-"
    return percent(summary.mean) + ("" if summary.std is None else f" ± {percent(summary.std)}")


def p_value(p: float) -> str:
    """Format a p-value with three digits."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001"
