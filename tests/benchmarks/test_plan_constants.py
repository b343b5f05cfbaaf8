"""The planner's constants and its page are those that the committed results give."""

from __future__ import annotations

import json

import pytest

from benchmarks.plan_constants import constants
from benchmarks.scaling import PAGE, page, spread
from retrieval.planning.constants import MEASURED


def test_constants_are_those_of_the_benchmarks() -> None:
    assert json.loads(MEASURED.read_text()) == constants()


def test_page_has_what_the_command_prints() -> None:
    text = PAGE.read_text()
    assert text.count("<!-- end -->") == 3
    assert page(text) == text


def test_labels_are_moved_apart() -> None:
    moved = spread({"a": 1.0, "b": 1.0, "c": 5.0}, 0.5)
    assert moved["b"] - moved["a"] == pytest.approx(0.5)
    assert moved["c"] == 5
