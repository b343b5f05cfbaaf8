"""Comparison as an HTML fragment: numbers, curves, and changes by class and by query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retrieval.evaluation.comparison import Comparison, PairedComparison, QueryChange
from retrieval.metrics.table import metric_columns, shown_columns
from retrieval.reports.pages import Pick, Tile, TileSet, render_template
from retrieval.reports.plots import comparison_recall_figure
from retrieval.reports.report import data_title
from retrieval.reports.text_tables import (
    comparison_notes,
    interval_points,
    percent,
    points,
    row_p_value,
    tested_column,
    verdict_sentence,
)

_CLASSES = 10  # gains, and as many losses
_QUERIES = 14


def render_comparison(comparison: Comparison, pick: Pick | None = None) -> str:
    """Render a comparison as a self-contained HTML fragment; missing images show as grey tiles.

    Args:
        comparison: The comparison.
        pick: Maps images to gallery items, which become buttons.
    """
    return render_template(
        "comparison.html",
        **_numbers_context(comparison),
        recall_figure=comparison_recall_figure(comparison),
        pairs=[_pair_context(comparison, pair, pick) for pair in comparison.pairs],
    )


def render_comparison_summary(comparison: Comparison) -> str:
    """Render the verdicts and numbers of a comparison, without figures and pictures."""
    return render_template("comparison_summary.html", **_numbers_context(comparison))


def _numbers_context(comparison: Comparison) -> dict[str, Any]:
    """Return the variables of the verdicts and of comparison_numbers.html."""
    keys = {key for row in comparison.rows for key in row.numbers}
    return {
        "comparison": comparison,
        "title": data_title(comparison.data),
        "summary": [verdict_sentence(comparison, pair) for pair in comparison.pairs],
        "names": [row.name for row in comparison.rows],
        "tested": tested_column(comparison),
        "rows": [
            {
                "column": column,
                "cells": [
                    {"summary": row.numbers.get(column.key), "difference": row.differences.get(column.key)}
                    for row in comparison.rows
                ],
            }
            for column in shown_columns(keys, comparison.ks)
        ],
        "p_values": [row_p_value(comparison, row) for row in comparison.rows],
        "several_runs": any(row.runs > 1 for row in comparison.rows),
        "notes": comparison_notes(comparison),
    }


def _pair_context(comparison: Comparison, pair: PairedComparison, pick: Pick | None) -> dict[str, Any]:
    root = Path(comparison.root or ".")
    first, other = (
        next(row for row in comparison.rows if row.name == name) for name in (pair.first, pair.other)
    )
    gained, lost = pair.gained_queries[:_QUERIES], pair.lost_queries[:_QUERIES]
    answers = [one for query in (*gained, *lost) for one in (query.first_answer, query.other_answer) if one]
    shown = [*(query.path for query in (*gained, *lost)), *(answer.path for answer in answers)]
    tiles = TileSet([root / path for path in shown], pick)
    gains = [change for change in pair.classes if change.other > change.first]
    losses = [change for change in reversed(pair.classes) if change.other < change.first]
    return {
        "found": pair,
        "single": first.runs == other.runs == 1,
        "changes": _changes(pair),
        "class_changes": [
            {"title": "Largest gains", "classes": gains[:_CLASSES]},
            {"title": "Largest losses", "classes": losses[:_CLASSES]},
        ],
        "query_changes": [
            {
                "name": name,
                "count": count,
                "rows": [_tiles(query, root, tiles) for query in queries],
                "answered": any(query.first_answer for query in queries),
            }
            for name, count, queries in ((pair.other, pair.gained, gained), (first.name, pair.lost, lost))
        ],
    }


def _changes(pair: PairedComparison) -> list[dict[str, str]]:
    """Return the paired differences of single runs with their intervals."""
    changes = {} if pair.verdict is None or pair.identical else pair.verdict.changes
    return [
        {
            "title": column.title,
            "difference": points(changes[column.key].difference),
            "others": interval_points(changes[column.key].class_interval),
            "these": interval_points(changes[column.key].interval),
        }
        for column in metric_columns(changes)
    ]


def _tiles(query: QueryChange, root: Path, tiles: TileSet) -> list[Tile]:
    """Return the query and, if they are known, what the two contenders find first."""
    precision = f"AP {percent(query.first_precision)} \u2192 {percent(query.other_precision)}"
    answers = [one for one in (query.first_answer, query.other_answer) if one is not None]
    return [
        tiles.tile(root / query.path, query.label, precision),
        *(
            tiles.tile(root / one.path, one.label or "no class", f"{one.score:.3f}", one.right)
            for one in answers
        ),
    ]
