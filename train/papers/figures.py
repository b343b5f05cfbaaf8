"""Figures of the five papers and the commands that draw them, as figures.yaml lists them.

docs/figures.md is `figures_page()`: `python -m train.papers.figures > docs/figures.md` writes it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any

from retrieval import text
from train.yaml_files import parse_yaml

_TITLES = {
    "LoOp": "LoOp: Looking for Optimal Hard Negative Embeddings for Deep Metric Learning",
    "SCT": "SCT: Hard negative examples are hard, but useful",
    "RAW": "RAW + VTHM: A Unified View of Deep Metric Learning via Gradient Analysis",
    "Symm": "Symm: Symmetrical Synthesis for Deep Metric Learning",
    "DCDL": "DCDL: Learning Deep Optimal Embeddings with Sinkhorn Divergences",
}


@dataclass(frozen=True)
class PaperFigure:
    """Figure of a paper.

    Attributes:
        paper: Short name of the paper.
        figure: Its number in the paper; "S1" for figure 1 of the supplement.
        shows: What the figure shows.
        commands: Commands that draw it, in their order. RUN is a training run, as of `lookalike train`.
        note: How the command's figure differs from the paper's, or why there is none.
    """

    paper: str
    figure: str
    shows: str
    commands: tuple[str, ...] = ()
    note: str = ""


@cache
def paper_figures() -> tuple[PaperFigure, ...]:
    """Return the figures in figures.yaml, paper by paper."""
    papers = parse_yaml(files(__package__).joinpath("figures.yaml").read_text(), "figures.yaml")
    return tuple(
        PaperFigure(paper, **{**one, "commands": tuple(one.get("commands", ()))})
        for paper, listed in papers.items()
        for one in listed
    )


def figures_facts() -> list[dict[str, Any]]:
    """Return plain values, for JSON."""
    return [{**asdict(figure), "commands": list(figure.commands)} for figure in paper_figures()]


def figures_table() -> str:
    """Return the figures with their commands as lines of text."""
    rows = [("paper", "figure", "shows", "command")]
    for one in paper_figures():
        lines = [*one.commands, *([f"({one.note})"] if one.note else [])]
        rows.append((one.paper, one.figure, one.shows, lines[0]))
        rows += [("", "", "", line) for line in lines[1:]]
    return "\n".join(text.align_columns(rows))


def figures_page() -> str:
    """Return docs/figures.md: a table of figures for each paper."""
    lines = [
        "# Figures of the papers",
        "",
        "Each figure of the five papers and the command that draws it; `lookalike analyze --list` prints the",
        "same list. RUN is a folder that `lookalike train` wrote, S1 is figure 1 of a supplement. Commands",
        "with --json print the numbers behind a figure.",
    ]
    for paper, figures in groupby(paper_figures(), lambda figure: figure.paper):
        lines += ["", f"## {_TITLES[paper]}", "", "| figure | shows | command |", "|---|---|---|"]
        for one in figures:
            cell = [*(f"`{command}`" for command in one.commands), *([one.note] if one.note else [])]
            lines.append(f"| {one.figure} | {one.shows} | {'; '.join(cell)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(figures_page(), end="")
