"""Report as an HTML fragment: numbers, curves, and the mistakes of the evaluated model."""

from __future__ import annotations

from typing import Any

from retrieval.evaluation.findings import Confusion, Findings, HardQuery, Neighbour
from retrieval.evaluation.report import Report
from retrieval.evaluation.score import Result
from retrieval.metrics.table import MetricColumn, shown_columns
from retrieval.reports.pages import Pick, Tile, TileSet, render_template
from retrieval.reports.plots import class_recall_figure, report_recall_figure, similarity_figure
from retrieval.reports.text_tables import OTHERS, THESE, class_interval_note, interval, percent

_CONFUSIONS = 12
_CLASSES = 20
_SUMMARY_QUERIES = 3
_OPENED, _OPENED_QUERIES = 10, 6  # classes whose queries are shown, and queries of each


def render_report(report: Report, pick: Pick | None = None) -> str:
    """Render a report as a self-contained HTML fragment; missing images show as grey tiles.

    Args:
        report: The report.
        pick: Maps images to gallery items, which become buttons.
    """
    sections = {
        "hardest": report.findings,
        "confusions": report.findings and report.findings.confusions,
        "classes": report.findings and any(report.findings.classes.queries),
        "similarities": report.findings,
        "numbers": True,
        "unreadable": report.bad_files,
    }
    return render_template(
        "report.html",
        **_numbers_context(report),
        sections=[(name, _SECTIONS[name]) for name, there in sections.items() if there],
        recall_figure=report_recall_figure(report),
        findings=report.findings,
        **(_findings_context(report.findings, pick) if report.findings else {}),
    )


def render_report_summary(report: Report) -> str:
    """Render the numbers of a report and a few of its hardest queries, without figures."""
    hardest: list[dict[str, Any]] = []
    if report.findings is not None:
        findings, some = report.findings, report.findings.hardest[:_SUMMARY_QUERIES]
        paths = [findings.queries.path[hard.query] for hard in some]
        paths += [neighbour.path for hard in some for neighbour in _shown_neighbours(hard)]
        tiles = TileSet(map(findings.absolute, paths))
        hardest = [_hard_query_context(findings, hard, tiles) for hard in some]
    return render_template("report_summary.html", **_numbers_context(report), hardest=hardest)


def _numbers_context(report: Report) -> dict[str, Any]:
    """Return the variables of headline.html and numbers.html."""
    keys = {key for result in report.results for key in result.values}
    return {
        "report": report,
        "title": data_title(report.data),
        "summary": summary_sentence(report),
        "headline": _headline(report),
        "head": ["Metric", *(result.title for result in report.results)],
        "rows": [
            {"column": column, "cells": [_cell(column, result, report.results) for result in report.results]}
            for column in shown_columns(keys, report.ks)
        ],
        "has_intervals": any(result.intervals for result in report.results),
        "has_class_intervals": any(result.class_intervals for result in report.results),
        "has_spreads": any(result.spreads for result in report.results),
        "notes": [*filter(None, [class_interval_note(report)]), *report.notes],
    }


_SECTIONS = {
    "hardest": "Hardest queries",
    "confusions": "Confused classes",
    "classes": "Class by class",
    "similarities": "Similarities",
    "numbers": "All numbers",
    "unreadable": "Unreadable images",
}


def data_title(data: str) -> str:
    """Return a name for people: "birds" of "folder:photos/birds" and of "birds.gallery"."""
    return data.rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".gallery") or data


def summary_sentence(report: Report) -> str:
    """Return the result in words: Recall@1 with its interval and the best baseline, and the worst class."""
    headline = report.headline
    recall = headline.values.get("recall_at_1")
    if recall is None:
        return f"{report.images:,} queries of {report.classes:,} classes."
    ranges = [
        f"{100 * found['recall_at_1'][0]:.0f} to {100 * found['recall_at_1'][1]:.0f} for {which}"
        for which, found in ((OTHERS, headline.class_intervals), (THESE, headline.intervals))
        if "recall_at_1" in found
    ]
    between = f" (95% confidence: {', '.join(ranges)})" if ranges else ""
    right = "one of the images that they should find" if report.judged else "an image of their own class"
    found = f"{100 * recall:.0f} of 100 queries find {right} first{between}"
    rivals = [
        (rival.known["recall_at_1"], rival.title)
        for rival in report.results
        if rival is not headline and rival.by == headline.by and "recall_at_1" in rival.known
    ]
    against = f"; {max(rivals)[1]}: {100 * max(rivals)[0]:.0f}" if rivals else ""
    return f"{found}{against}.{_worst_class(report.findings)}"


def _worst_class(findings: Findings | None) -> str:
    classes = findings.class_results() if findings else []
    if len(classes) < 2:
        return ""
    never = sum(one.right == 0 for one in classes)
    if never > 1:
        return f" {never:,} of {len(classes):,} classes are never found first."
    worst = min(classes, key=lambda one: (one.recall_at_1, -one.queries, one.name))
    return f" The class that is found least: {worst.name}, {worst.right} of its {worst.queries}."


def _headline(report: Report) -> list[dict[str, str]]:
    """Return the tiles at the top."""
    result, tiles = report.headline, []
    for key, name in (("recall_at_1", "Recall@1"), ("map_at_r", "MAP@R")):
        if key in result.known:
            over_classes, over_queries = result.class_intervals.get(key), result.intervals.get(key)
            detail = f"{interval(over_queries)} for {THESE}" if over_queries else ""
            if over_classes:
                detail = f"{interval(over_classes)} for {OTHERS}"
            tiles.append({"name": name, "value": f"{percent(result.known[key])} %", "detail": detail})
    counts = (("query images", report.images), ("classes", report.classes))
    return [*tiles, *({"name": name, "value": f"{count:,}", "detail": ""} for name, count in counts)]


def _cell(column: MetricColumn, result: Result, results: list[Result]) -> dict[str, Any]:
    """Return value and ranges; the best of all results with the same labels is marked."""
    value = result.values.get(column.key)
    rivals = [rival.values.get(column.key) for rival in results if rival.by == result.by]
    best = value is not None and len(rivals) > 1 and value == max(v for v in rivals if v is not None)
    ranges = [
        f"{before}{interval(found[column.key])}"
        for before, found in (
            ("", result.class_intervals),
            ("these: ", result.intervals),
            ("repeated: ", result.spreads),
        )
        if column.key in found
    ]
    return {"value": value, "as_printed": result.as_printed, "ranges": ranges, "best": best}


# ---- mistakes


def _findings_context(findings: Findings, pick: Pick | None) -> dict[str, Any]:
    """Return the variables of findings.html."""
    confusions = findings.confusions[:_CONFUSIONS]
    queries = [confusion.query for confusion in confusions] + [hard.query for hard in findings.hardest]
    paths = [findings.queries.path[number] for number in queries]
    paths += [confusion.answer.path for confusion in confusions]
    paths += [neighbour.path for hard in findings.hardest for neighbour in _shown_neighbours(hard)]
    classes = findings.class_results()
    opened = [
        (one, findings.answered_queries(one.name)[:_OPENED_QUERIES])
        for one in classes[:_OPENED]
        if one.right < one.queries
    ]
    paths += [findings.queries.path[query] for _, queries in opened for query in queries]
    answers = [findings.nearest(query) for _, queries in opened for query in queries]
    paths += [answer.path for answer in answers if answer is not None]
    tiles = TileSet(map(findings.absolute, paths), pick)
    return {
        "similarity_figure": similarity_figure(findings),
        "confusions": [_confusion_context(findings, confusion, tiles) for confusion in confusions],
        "hardest": [_hard_query_context(findings, hard, tiles) for hard in findings.hardest],
        "class_figure": class_recall_figure([one.recall_at_1 for one in classes]) if classes else None,
        "num_classes": len(classes),
        "worst_classes": classes[:_CLASSES],
        "opened_classes": [
            {"result": one, "pairs": [_query_and_answer(findings, query, tiles) for query in queries]}
            for one, queries in opened
            if queries
        ],
    }


def _query_and_answer(findings: Findings, query: int, tiles: TileSet) -> list[Tile]:
    label, answer = findings.label_of(query), findings.nearest(query)
    own = tiles.tile(findings.absolute(findings.queries.path[query]), label, "query")
    return [own] if answer is None else [own, _neighbour_tile(findings, answer, tiles)]


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
