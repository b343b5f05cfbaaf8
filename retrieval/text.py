"""Text output: aligned columns, counts with their noun, published values."""

from __future__ import annotations

from collections.abc import Container, Sequence


def align_columns(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Return rows of cells as lines of aligned columns; the columns numbered in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def printed(percents: float) -> str:
    """Return a published value with all its digits, at least one after the point: "57.5", "66.85", "70.0"."""
    unrounded, rounded = f"{percents:.6g}", f"{percents:.1f}"
    return rounded if float(unrounded) == float(rounded) else unrounded


def pluralize(number: int, noun: str) -> str:
    """Return a number and a regular noun: "1 image", "1,234 images"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
