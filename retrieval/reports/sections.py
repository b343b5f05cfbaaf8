"""What a model gets wrong, as parts of a page: similarities, confusions, hard queries, classes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from retrieval.evaluation.findings import Confusion, Findings, HardQuery, Histogram, Neighbour
from retrieval.reports import page
from retrieval.reports.figures import COLOURS
from retrieval.reports.thumbnails import thumbnails

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CONFUSIONS = 12
_CLASSES = 20


def render(findings: Findings, pick: page.Pick | None = None) -> str:
    """All parts, worst first in each; `pick` as in `page.Tiles`."""
    confusions = findings.confusions[:_CONFUSIONS]
    asked = [confusion.query for confusion in confusions] + [hard.query for hard in findings.hardest]
    shown = [findings.queries.path[number] for number in asked]
    shown += [confusion.answer.path for confusion in confusions]
    shown += [neighbour.path for hard in findings.hardest for neighbour in _beside(hard)]
    tiles = page.Tiles(thumbnails(map(findings.place, shown)), pick)
    return (
        _similarities(findings)
        + _confusions(findings, confusions, tiles)
        + _hardest(findings, tiles)
        + _classes(findings)
    )


# ---- similarities


def _similarities(findings: Findings) -> str:
    histogram = findings.similarities
    return page.section(
        "How similar pictures of one class are, and of two",
        page.paragraph(
            f"Every query against every picture searched. The two share {100 * histogram.overlap:.1f}% of "
            "their area: the less, the better one threshold tells a pair of one class from a pair of two."
        ),
        page.figure(
            partial(_draw_histogram, histogram), "Similarities of pairs of one class and of two", 3.2
        ),
    )


def _draw_histogram(histogram: Histogram, axes: Axes) -> None:
    edges = np.array(histogram.edges)
    counts = {"one class": np.array(histogram.positive), "two classes": np.array(histogram.negative)}
    for (name, values), colour, line in zip(counts.items(), COLOURS, ("-", "--"), strict=False):
        if values.sum():
            density = values / (values.sum() * np.diff(edges))
            axes.stairs(density, edges, fill=True, color=colour, alpha=0.25)
            axes.stairs(
                density, edges, color=colour, ls=line, lw=1.5, label=f"{name} ({values.sum():,} pairs)"
            )
    filled = np.flatnonzero(sum(counts.values()))
    if len(filled):
        axes.set_xlim(edges[filled[0]], edges[filled[-1] + 1])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("cosine similarity")
    axes.set_ylabel("density of pairs")
    axes.set_title(f"Similarities: {100 * histogram.overlap:.1f}% overlap", fontsize=11)
    axes.figure.legend(frameon=False, loc="outside lower center", ncols=2, fontsize=10)


# ---- classes taken for each other


def _confusions(findings: Findings, confusions: list[Confusion], tiles: page.Tiles) -> str:
    if not confusions:
        return ""
    cards = "".join(_confusion(findings, confusion, tiles) for confusion in confusions)
    return page.section(
        "Classes taken for each other",
        page.paragraph(
            "Queries of the class on the left whose nearest picture is of the class on the right (\u2192), "
            "and the other way round (\u2190). Shown is the most similar of these mistakes: the query, and "
            "what it found."
        ),
        f"<ul class='tiles pairs'>{cards}</ul>",
    )


def _confusion(findings: Findings, confusion: Confusion, tiles: page.Tiles) -> str:
    asked = findings.label_of(confusion.query)
    query = tiles.tile(findings.place(findings.queries.path[confusion.query]), asked, "query")
    answer = _answer(findings, confusion.answer, tiles)
    ways = list(zip(confusion.counts, confusion.queries, strict=True))
    if asked != confusion.classes[0]:  # to the right: from the picture on the left
        ways.reverse()
    counts = [
        f"{arrow} {count} of {of} ({100 * count / of:.0f}%)"
        for arrow, (count, of) in zip("\u2192\u2190", ways, strict=True)
        if of
    ]
    return f"<li class='whole'><ul class='tiles'>{query}{answer}</ul>{', '.join(counts)}</li>"


# ---- the hardest queries


def _hardest(findings: Findings, tiles: page.Tiles) -> str:
    if not findings.hardest:
        return page.section("The hardest queries", page.paragraph("Every query finds its own class first."))
    return page.section(
        "The hardest queries",
        page.paragraph(
            "The nearest picture of their class is furthest down; of those where it is beyond the "
            f"{findings.depth} looked at, the lowest average precision comes first. Wrong labels often show "
            "here. Each with its nearest neighbours and their cosine and, where none of these is right, the "
            "one that should be first."
        ),
        *(_hard(findings, hard, tiles) for hard in findings.hardest),
    )


def _hard(findings: Findings, hard: HardQuery, tiles: page.Tiles) -> str:
    queries = findings.queries
    path, label = queries.path[hard.query], findings.label_of(hard.query)
    rank, precision = queries.first_right[hard.query], queries.average_precision[hard.query]
    where = f"rank {rank}" if rank is not None else f"a rank beyond {findings.depth}"
    facts = f": first right one at {where}, average precision {100 * (precision or 0):.1f}%"
    head = f"<b>{page.breakable(label)}</b>{facts}<br><small>{page.breakable(path)}</small>"
    row = tiles.tile(findings.place(path), label, "query")
    row += "".join(_answer(findings, neighbour, tiles) for neighbour in _beside(hard))
    return f"<div class='whole'><div>{head}</div><ul class='tiles'>{row}</ul></div>"


def _beside(hard: HardQuery) -> list[Neighbour]:
    """The nearest, and what should have come first where it is not among them."""
    right = any(neighbour.right for neighbour in hard.neighbours)
    return hard.neighbours if right else [*hard.neighbours, hard.nearest_right]


def _answer(findings: Findings, neighbour: Neighbour, tiles: page.Tiles) -> str:
    name, score = neighbour.label or "no class", f"{neighbour.score:.3f}"
    return tiles.tile(findings.place(neighbour.path), name, score, neighbour.right)


# ---- class by class


def _classes(findings: Findings) -> str:
    classes = findings.classes
    known = [(recall, number) for number, recall in enumerate(classes.recall_at_1) if recall is not None]
    if not known:
        return ""
    rows = "".join(
        f"<tr><th scope='row'>{page.breakable(classes.name[number])}</th><td>{classes.queries[number]}</td>"
        f"<td>{100 * recall:.1f}</td>"
        f"<td class='words'>{page.breakable(classes.mistaken_for[number] or '')}</td></tr>"
        for recall, number in sorted(known)[:_CLASSES]
    )
    shown = f"The worst {_CLASSES} of {len(known):,} classes" if len(known) > _CLASSES else "All classes"
    return page.section(
        "Class by class",
        page.figure(partial(_draw_classes, [recall for recall, _ in known]), "Recall at 1 of classes", 2.6),
        page.paragraph(f"{shown}, worst first; report.json has all of them."),
        page.table(["Class", "queries", "Recall@1", "mostly taken for"], [rows], words=(0, 3)),
    )


def _draw_classes(recalls: list[float], axes: Axes) -> None:
    percents = 100 * np.array(recalls)
    axes.hist(percents, np.linspace(0, 100, 21).tolist(), color=COLOURS[0], alpha=0.75, edgecolor="white")
    axes.axvline(float(np.median(percents)), color=COLOURS[1], ls="--", lw=1.5, label="median class")
    axes.set_xlim(0, 100)
    axes.set_xlabel("Recall@1 of a class (%)")
    axes.set_ylabel("classes")
    axes.locator_params(axis="y", integer=True)
    axes.set_title("How Recall@1 spreads over the classes", fontsize=11)
    axes.legend(frameon=False, fontsize=10)
