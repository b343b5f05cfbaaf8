"""Plain text: a table for a terminal, a number with what it counts."""

from __future__ import annotations

from collections.abc import Container, Sequence


def align_columns(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Rows of cells as lines in which columns are of equal width; those numbered in `right` end together."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def pluralize(number: int, what: str) -> str:
    """A number with what it counts."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
