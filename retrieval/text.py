"""Text output: printable text, notices on stderr, aligned columns, counts, published values."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Container, Sequence
from functools import cache

# Characters that change the direction of text, which could show a name in another order.
_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
# Control characters, surrogates (bytes of a file name beyond UTF-8), separators of lines and paragraphs.
_CONTROLS = frozenset(("Cc", "Cs", "Zl", "Zp"))


def printable(text: str) -> str:
    """Return a text as one line that is safe on a terminal: control characters are escaped, as in "\\x1b".
    So are bytes of a file name that are not UTF-8, which Python has as surrogates.

    Everything that a command prints for people goes through this function: names of files, labels and
    metadata may contain any character.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escaped(letter) if letter in _BIDIRECTIONAL or unicodedata.category(letter) in _CONTROLS else letter
        for letter in text
    )


def _escaped(letter: str) -> str:
    code = ord(letter)
    is_byte = 0xDC80 <= code <= 0xDCFF  # PEP 383
    return f"\\x{code - 0xDC00:02x}" if is_byte else letter.encode("unicode_escape").decode()


def printable_lines(text: str) -> str:
    """Return a text with its line breaks, but without other control characters."""
    return "\n".join(map(printable, text.split("\n")))


def print_notice(line: str) -> None:
    """Print a line that is no result on stderr, such as a device that could not be used."""
    print(printable(line), file=sys.stderr, flush=True)


@cache
def print_once(line: str) -> None:
    """Print a notice, unless this process has printed it before."""
    print_notice(line)


def display_width(text: str) -> int:
    """Return the number of columns that a text takes on a terminal (Unicode Standard Annex 11)."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.category(letter) in ("Mn", "Me", "Cf") for letter in text)


def align_columns(rows: Sequence[Sequence[str]], right: Container[int] = ()) -> list[str]:
    """Return rows of cells as printable lines of aligned columns.

    Args:
        rows: Rows of cells.
        right: Numbers of the columns that are right-aligned.
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]

    def padded(cell: str, number: int) -> str:
        blanks = " " * (widths[number] - display_width(cell))
        return blanks + cell if number in right else cell + blanks

    return ["  ".join(padded(cell, number) for number, cell in enumerate(row)).rstrip() for row in rows]


def printed(percents: float) -> str:
    """Return a published value with all its digits, at least one after the point: "57.5", "66.85", "70.0"."""
    unrounded, rounded = f"{percents:.6g}", f"{percents:.1f}"
    return rounded if float(unrounded) == float(rounded) else unrounded


def pluralize(number: int, noun: str) -> str:
    """Return a number and a regular noun: "1 image", "1,234 images", "2 classes", "3 epochs"."""
    hisses = noun.endswith(("s", "x", "ch", "sh")) and not noun.endswith("och")
    ending = "es" if hisses else "s"
    return f"{number:,} {noun}{'' if number == 1 else ending}"
