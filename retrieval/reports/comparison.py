"""Comparison as an HTML fragment: numbers, curves, and changes by class and by query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from retrieval.evaluation.comparison import Comparison, PairedComparison, QueryChange
from retrieval.metrics.table import shown_columns
from retrieval.reports.pages import Pick, Tile, TileSet, render_template
from retrieval.reports.plots import comparison_recall_figure
from retrieval.reports.text_tables import comparison_notes, percent, row_p_value

_CLASSES = 10  # gains, and as many losses
_QUERIES = 14


def render_comparison(comparison: Comparison, pick: Pick | None = None) -> str:
    """Render a comparison as a self-contained HTML fragment; missing images show as grey tiles.

    Args:
        comparison: The comparison.
        pick: Maps images to gallery items, which become buttons.
    """
    keys = {key for row in comparison.rows for key in row.numbers}
    return render_template(
        "comparison.html",
        comparison=comparison,
        names=[row.name for row in comparison.rows],
        rows=[
            {
                "column": column,
                "cells": [
                    {"summary": row.numbers.get(column.key), "difference": row.differences.get(column.key)}
                    for row in comparison.rows
                ],
            }
            for column in shown_columns(keys, comparison.ks)
        ],
        p_values=[row_p_value(comparison, row) for row in comparison.rows],
        several_runs=any(row.runs > 1 for row in comparison.rows),
        notes=comparison_notes(comparison),
        recall_figure=comparison_recall_figure(comparison),
        pairs=[_pair_context(comparison, pair, pick) for pair in comparison.pairs],
    )


def _pair_context(comparison: Comparison, pair: PairedComparison, pick: Pick | None) -> dict[str, Any]:
    first, root = comparison.rows[0], Path(comparison.root or ".")
    other = next(row for row in comparison.rows if row.name == pair.other)
    gained, lost = pair.gained_queries[:_QUERIES], pair.lost_queries[:_QUERIES]
    tiles = TileSet([root / query.path for query in (*gained, *lost)], pick)
    gains = [change for change in pair.classes if change.other > change.first]
    losses = [change for change in reversed(pair.classes) if change.other < change.first]
    return {
        "found": pair,
        "single": first.runs == other.runs == 1,
        "class_changes": [
            {"title": "Largest gains", "classes": gains[:_CLASSES]},
            {"title": "Largest losses", "classes": losses[:_CLASSES]},
        ],
        "query_changes": [
            {"name": pair.other, "count": pair.gained, "tiles": [_tile(q, root, tiles) for q in gained]},
            {"name": first.name, "count": pair.lost, "tiles": [_tile(q, root, tiles) for q in lost]},
        ],
    }


def _tile(query: QueryChange, root: Path, tiles: TileSet) -> Tile:
    precision = f"AP {percent(query.first_precision)} \u2192 {percent(query.other_precision)}"
    return tiles.tile(root / query.path, query.label, precision)
