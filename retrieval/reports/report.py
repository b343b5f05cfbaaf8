"""Report as an HTML fragment: numbers, curves, and the mistakes of the evaluated model."""

from __future__ import annotations

from typing import Any

from retrieval.evaluation.findings import Confusion, Findings, HardQuery, Neighbour
from retrieval.evaluation.report import Report
from retrieval.evaluation.score import Result
from retrieval.metrics.table import MetricColumn, shown_columns
from retrieval.reports.pages import Pick, Tile, TileSet, render_template
from retrieval.reports.plots import class_recall_figure, report_recall_figure, similarity_figure

_CONFUSIONS = 12
_CLASSES = 20


def render_report(report: Report, pick: Pick | None = None) -> str:
    """Render a report as a self-contained HTML fragment; missing images show as grey tiles.

    Args:
        report: The report.
        pick: Maps images to gallery items, which become buttons.
    """
    keys = {key for result in report.results for key in result.values}
    return render_template(
        "report.html",
        report=report,
        head=["Metric", *(result.title for result in report.results)],
        rows=[
            {"column": column, "cells": [_cell(column, result, report.results) for result in report.results]}
            for column in shown_columns(keys, report.ks)
        ],
        has_intervals=any(result.intervals for result in report.results),
        recall_figure=report_recall_figure(report),
        findings=report.findings,
        **(_findings_context(report.findings, pick) if report.findings else {}),
    )


def _cell(column: MetricColumn, result: Result, results: list[Result]) -> dict[str, Any]:
    """Return value and interval; the best of all results with the same labels is marked."""
    value = result.values.get(column.key)
    rivals = [rival.values.get(column.key) for rival in results if rival.by == result.by]
    best = value is not None and len(rivals) > 1 and value == max(v for v in rivals if v is not None)
    interval = result.intervals.get(column.key)
    return {"value": value, "as_printed": result.as_printed, "interval": interval, "best": best}


# ---- mistakes


def _findings_context(findings: Findings, pick: Pick | None) -> dict[str, Any]:
    """Return the variables of findings.html."""
    confusions = findings.confusions[:_CONFUSIONS]
    queries = [confusion.query for confusion in confusions] + [hard.query for hard in findings.hardest]
    paths = [findings.queries.path[number] for number in queries]
    paths += [confusion.answer.path for confusion in confusions]
    paths += [neighbour.path for hard in findings.hardest for neighbour in _shown_neighbours(hard)]
    tiles = TileSet(map(findings.absolute, paths), pick)
    classes = findings.classes
    recalls = [recall for recall in classes.recall_at_1 if recall is not None]
    ranked = sorted(
        (recall, number) for number, recall in enumerate(classes.recall_at_1) if recall is not None
    )
    return {
        "similarity_figure": similarity_figure(findings),
        "confusions": [_confusion_context(findings, confusion, tiles) for confusion in confusions],
        "hardest": [_hard_query_context(findings, hard, tiles) for hard in findings.hardest],
        "class_figure": class_recall_figure(recalls) if recalls else None,
        "num_classes": len(ranked),
        "worst_classes": [
            {
                "name": classes.name[number],
                "queries": classes.queries[number],
                "recall": recall,
                "mistaken_for": classes.mistaken_for[number],
            }
            for recall, number in ranked[:_CLASSES]
        ],
    }


def _confusion_context(findings: Findings, confusion: Confusion, tiles: TileSet) -> dict[str, Any]:
    label = findings.label_of(confusion.query)
    query = tiles.tile(findings.absolute(findings.queries.path[confusion.query]), label, "query")
    directions = list(zip(confusion.counts, confusion.queries, strict=True))
    if label != confusion.classes[0]:  # the arrow to the right starts at the query on the left
        directions.reverse()
    counts = [
        f"{arrow} {count} of {of} ({100 * count / of:.0f}%)"
        for arrow, (count, of) in zip("\u2192\u2190", directions, strict=True)
        if of
    ]
    return {"tiles": [query, _neighbour_tile(findings, confusion.answer, tiles)], "counts": counts}


def _hard_query_context(findings: Findings, hard: HardQuery, tiles: TileSet) -> dict[str, Any]:
    queries, label = findings.queries, findings.label_of(hard.query)
    path = queries.path[hard.query]
    shown = [_neighbour_tile(findings, neighbour, tiles) for neighbour in _shown_neighbours(hard)]
    return {
        "path": path,
        "label": label,
        "rank": queries.first_right[hard.query],
        "precision": queries.average_precision[hard.query] or 0.0,
        "tiles": [tiles.tile(findings.absolute(path), label, "query"), *shown],
    }


def _shown_neighbours(hard: HardQuery) -> list[Neighbour]:
    """Return the nearest images, with the one that should be first if none of them is right."""
    right = any(neighbour.right for neighbour in hard.neighbours)
    return hard.neighbours if right else [*hard.neighbours, hard.nearest_right]


def _neighbour_tile(findings: Findings, neighbour: Neighbour, tiles: TileSet) -> Tile:
    path, name = findings.absolute(neighbour.path), neighbour.label or "no class"
    return tiles.tile(path, name, f"{neighbour.score:.3f}", neighbour.right)
