"""Tests of text output: control characters and the alignment of columns."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.text import align_columns, display_width, pluralize, printable, printable_lines

ROOT = Path(__file__).parents[2]


@given(st.text())
def test_printable_text_is_one_line_without_control_characters(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
    assert not [c for c in shown if unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF")]
    assert not [c for c in shown if unicodedata.bidirectional(c) in ("LRI", "RLI", "FSI", "PDI")]
    shown.encode()  # as the terminal does
    assert printable(shown) == shown
    assert printable_lines(text) == "\n".join(map(printable, text.split("\n")))


def test_other_text_stays_as_it_is() -> None:
    for text in ("red/7.jpg", "Größe", "صورة", "画像", "👩‍🚀", "a\\b", "no break"):
        assert printable(text) == text
    assert printable("a\tb\x1b[0m\x7f\x9b\u202e\u2028\ud800") == r"a\tb\x1b[0m\x7f\x9b\u202e\u2028\ud800"
    assert printable(os.fsdecode("größe".encode() + b"\xe9\x80\xff")) == r"größe\xe9\x80\xff"


def test_width_on_a_terminal() -> None:
    widths = {"abc": 3, "Größe": 5, "e\u0301": 1, "画像": 4, "ｱ": 1, "Ａ": 2, "\u200b": 0, "": 0}
    assert {text: display_width(text) for text in widths} == widths


def test_columns_stay_aligned() -> None:
    rows = [["画像", "1", "x"], ["a\nb", "22", "y"], ["e\u0301", "333", "z"]]
    lines = align_columns(rows, right={1})
    assert lines == ["画像    1  x", r"a\nb   22  y", "e\u0301     333  z"]
    assert len({display_width(line) for line in lines}) == 1


def test_everything_is_printed_through_two_modules() -> None:
    """What `cli` and `text` print is escaped. Others print through them, or own lines without names."""
    known = {
        *("retrieval/cli.py", "retrieval/text.py", "serve/server.py", "train/papers/figures.py"),
        "retrieval/machine/gpu_trials.py",  # in a process of its own, whose output is read
    }
    printing = re.compile(r"^ *(click\.echo|click\.secho|print|sys\.std(out|err)\.write)\(", re.MULTILINE)
    found = {
        file.relative_to(ROOT).as_posix()
        for package in ("lookalike", "retrieval", "train", "export", "serve")
        for file in (ROOT / package).rglob("*.py")
        if printing.search(file.read_text())
    }
    assert found - {"serve/client.py"} == known, "the client has an example"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "class", "1 class"),
        (2, "class", "2 classes"),
        (0, "search", "0 searches"),
        (20, "epoch", "20 epochs"),
        (1234, "image", "1,234 images"),
    ],
)
def test_numbers_with_nouns(number: int, noun: str, text: str) -> None:
    assert pluralize(number, noun) == text
