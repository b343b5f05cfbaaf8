"""A comparison as people read it: a table for the terminal, compare.html and compare.json."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

from retrieval import text
from retrieval.evaluation.comparison import ClassChange, Comparison, Pair, QueryChange, Row
from retrieval.evaluation.numbers import percent, short, shown, summary, title
from retrieval.evaluation.report import json_lines
from retrieval.files import write_texts
from retrieval.metrics.significance import Summary, p_value
from retrieval.reports import page
from retrieval.reports.figures import COLOURS, MARKERS, caption
from retrieval.reports.report import draw_recall_axes, recall_figure
from retrieval.reports.thumbnails import thumbnails

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CLASSES = 10  # gains, and as many losses
_QUERIES = 14


def save(comparison: Comparison, folder: Path) -> None:
    """Write compare.json and compare.html into a folder, made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ", ".join(row.name for row in comparison.rows)
    files = {
        "compare.html": page.document(f"Lookalike: {names}", render(comparison)),
        "compare.json": json_lines(comparison.to_dict()),
    }
    write_texts(folder, files)


def table(comparison: Comparison) -> str:
    """The numbers as plain text, one contender a line, in percent; the notes below."""
    first, *others = comparison.rows
    names = summary((name for row in comparison.rows for name in row.numbers), comparison.ks)
    head = ["", "runs", *map(short, names), f"R@1 vs. {first.name}", "p"]
    rows = [
        [
            row.name,
            str(row.runs),
            *(_cell(row.numbers.get(name)) for name in names),
            *_against(row, pair),
        ]
        for row, pair in [(first, None), *((row, _pair_of(comparison, row)) for row in others)]
    ]
    return "\n".join([*text.align_columns([head, *rows], right=range(1, len(head))), *_notes(comparison)])


def render(comparison: Comparison, pick: page.Pick | None = None) -> str:
    """The comparison as a fragment of HTML; pictures of the data set that are gone show as grey tiles.

    `pick` says which pictures are buttons, as in `page.Tiles`.
    """
    names = [row.name for row in comparison.rows]
    return page.fragment(
        f"<h2>{html.escape(comparison.data)}</h2>"
        + page.paragraph(f"{comparison.protocol}. In percent.")
        + _numbers(comparison)
        + "".join(page.paragraph(note) for note in _notes(comparison))
        + recall_figure(
            partial(_draw_recall, comparison.rows), f"Recall at K of {', '.join(names)}", len(names)
        )
        + "".join(_pair(comparison, pair, pick) for pair in comparison.pairs)
        + f"<p><small>Compared {html.escape(comparison.created)}.</small></p>"
    )


# ---- the numbers


def _pair_of(comparison: Comparison, row: Row) -> Pair | None:
    return next((pair for pair in comparison.pairs if pair.other == row.name), None)


def _cell(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    return percent(summary.mean) + ("" if summary.std is None else f" ± {percent(summary.std)}")


def _against(row: Row, pair: Pair | None) -> list[str]:
    """The difference in Recall@1 to the first contender, and whether it is more than chance."""
    difference = row.differences.get("recall_at_1")
    return ["-" if difference is None else f"{100 * difference:+z.1f}", _p(row, pair) or "-"]


def _p(row: Row, pair: Pair | None) -> str:
    test = row.welch or (pair.mcnemar if pair else None)
    return "" if test is None else p_value(test.p)


def _notes(comparison: Comparison) -> list[str]:
    first, *others = comparison.rows
    notes = []
    if any(row.runs > 1 for row in comparison.rows):
        notes.append("Of several runs: mean ± standard deviation.")
    if any(row.welch for row in others):
        notes.append(f"p of several runs: Welch's t-test, two-sided, of Recall@1 against {first.name}.")
    if any(pair.mcnemar for pair in comparison.pairs):
        notes.append(
            f"p of single runs: McNemar's exact test, two-sided, against {first.name}, on the queries that "
            "only one of the two gets right; it speaks of these two models, not of others trained alike."
        )
    if sum(bool(_p(row, _pair_of(comparison, row))) for row in others) > 1:
        notes.append("p is not corrected for the number of comparisons.")
    return [" ".join(notes), *comparison.notes] if notes else comparison.notes


def _numbers(comparison: Comparison) -> str:
    """Metrics down, contenders across, with the difference to the first one below each number."""
    names = shown((name for row in comparison.rows for name in row.numbers), comparison.ks)
    rows = []
    for name in names:
        called, meaning = title(name)
        cells = ""
        for row in comparison.rows:
            cells += f"<td>{_number(row.numbers.get(name), row.differences.get(name))}</td>"
        rows.append(f"<tr><th scope='row'>{called}<small>{meaning}</small></th>{cells}</tr>")
    ps = [_p(row, _pair_of(comparison, row)) for row in comparison.rows]
    if any(ps):
        cells = "".join(f"<td>{html.escape(p)}</td>" for p in ps)
        rows.append(f"<tr><th scope='row'>p<small>of the difference in Recall@1</small></th>{cells}</tr>")
    if any(row.runs > 1 for row in comparison.rows):
        cells = "".join(f"<td>{row.runs}</td>" for row in comparison.rows)
        rows.append(f"<tr><th scope='row'>Runs</th>{cells}</tr>")
    below = f"Below a number: the difference to {comparison.rows[0].name}."
    if any(row.runs > 1 for row in comparison.rows):
        below = f"Below a number: \u00b1 standard deviation; the difference to {comparison.rows[0].name}."
    head = ["Metric", *(row.name for row in comparison.rows)]
    return f"{page.table(head, rows)}<p><small>{html.escape(below)}</small></p>"


def _number(summary: Summary | None, difference: float | None) -> str:
    if summary is None:
        return "-"
    spread = "" if summary.std is None else f"<small>\u00b1 {percent(summary.std)}</small>"
    return (
        percent(summary.mean)
        + spread
        + ("" if difference is None else f"<small>{100 * difference:+z.1f}</small>")
    )


def _draw_recall(rows: Sequence[Row], axes: Axes) -> None:
    """Recall against K; of several runs the mean, in a band of one standard deviation."""
    every: set[int] = set()
    for row, colour, marker in zip(rows, cycle(COLOURS), cycle(MARKERS), strict=False):
        found = {
            int(key.rpartition("_")[2]): s for key, s in row.numbers.items() if key.startswith("recall_at_")
        }
        ks = sorted(found)
        every |= found.keys()
        means = [100 * found[k].mean for k in ks]
        spreads = [100 * (found[k].std or 0.0) for k in ks]
        axes.plot(ks, means, f"{marker}-", color=colour, label=caption(row.name))
        low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
        axes.fill_between(ks, low, high, color=colour, alpha=0.2, lw=0)
    draw_recall_axes(axes, every)


# ---- the first and another, query by query


def _pair(comparison: Comparison, pair: Pair, pick: page.Pick | None) -> str:
    first = comparison.rows[0].name
    seen = [*pair.gained_queries[:_QUERIES], *pair.lost_queries[:_QUERIES]]
    root = Path(comparison.root or ".")
    tiles = page.Tiles(thumbnails(root / query.path for query in seen), pick)
    runs = comparison.rows[0].runs + next(row.runs for row in comparison.rows if row.name == pair.other)
    more = "first where the other does not" if runs == 2 else "first in more of its runs than the other"
    alone = "Only {} is right" if runs == 2 else "{} is right in more of its runs"
    parts = [
        page.paragraph(
            f"Of {pair.queries:,} queries that both can answer, {pair.other} finds the class of "
            f"{pair.gained:,} {more}, and {first} of {pair.lost:,}."
        ),
        _classes(pair, first),
        _queries(alone.format(pair.other), pair.gained_queries[:_QUERIES], pair.gained, root, tiles),
        _queries(alone.format(first), pair.lost_queries[:_QUERIES], pair.lost, root, tiles),
    ]
    return page.section(f"{pair.other} against {first}", *parts)


def _classes(pair: Pair, first: str) -> str:
    gains = [change for change in pair.classes if change.other > change.first][:_CLASSES]
    losses = [change for change in pair.classes if change.other < change.first][: -_CLASSES - 1 : -1]
    if not gains and not losses:
        return page.paragraph("No class differs in Recall@1.")
    head = ["Class", first, pair.other, "change", "queries"]
    lists = (("Largest gains", gains), ("Largest losses", losses))
    return "".join(
        f"<div class='whole'><h4>{name} in Recall@1</h4>{page.table(head, map(_class_row, changes))}</div>"
        for name, changes in lists
        if changes
    )


def _class_row(change: ClassChange) -> str:
    difference = f"{100 * (change.other - change.first):+.1f}"
    cells = (percent(change.first), percent(change.other), difference, str(change.queries))
    numbers = "".join(f"<td>{cell}</td>" for cell in cells)
    return f"<tr><th scope='row'>{page.breakable(change.name)}</th>{numbers}</tr>"


def _queries(heading: str, queries: Sequence[QueryChange], count: int, root: Path, tiles: page.Tiles) -> str:
    if not queries:
        return ""
    few = f": the clearest {len(queries)} of {count:,}" if count > len(queries) else ""
    row = "".join(
        tiles.tile(
            root / query.path,
            query.label,
            f"AP {percent(query.first_precision)} \u2192 {percent(query.other_precision)}",
        )
        for query in queries
    )
    return f"<h4>{html.escape(heading)}{few}</h4><ul class='tiles'>{row}</ul>"
