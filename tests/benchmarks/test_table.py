"""The table of `make bench`: measuring, the page, and the committed results."""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import benchmarks
from benchmarks import rows, table

FOLDER = Path(benchmarks.__file__).parent
RESULTS = table.Results.from_dict(json.loads((FOLDER / "results.json").read_text()))


class Clock:
    """A clock that moves on by the work alone, as that of a busy machine does not."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> Callable[[], None]:
        def do() -> None:
            self.now += seconds

        return do


def test_ratio_is_that_of_the_work() -> None:
    clock = Clock()
    pair = table.Pair("twice", "once", clock.work(0.004), clock.work(0.002), 1.9, clock, clock)
    row = table.compare("g", pair, seconds=0)
    assert (row.low, row.ratio, row.high) == pytest.approx((2, 2, 2))
    assert row.cpu == pytest.approx(4)
    assert row.verdict.startswith("missed by")
    fixed = table.compare("g", table.Pair("work", "10 ms", clock.work(0.002), 0.01, 1, clock), seconds=0)
    assert (fixed.other_cpu, fixed.verdict) == (10, "met")


def test_rows_do_the_work(tmp_path: Path) -> None:
    with ExitStack() as stack:
        row = table.compare("images", next(rows.images(tmp_path, stack)), seconds=0)
    assert 0.2 < row.cpu / row.other_cpu < 5


def test_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)  # as if it were not installed
    with ExitStack() as stack:
        pairs = rows.images(tmp_path, stack)
        found = [next(pairs), next(pairs)]
    assert found[1] == table.Absent("8 JPEGs of 500 x 375", "torchvision")
    assert table.line(found[1]).endswith("not measured: torchvision is not installed")


def test_committed_page_has_the_committed_results() -> None:
    page = (FOLDER.parent / "docs" / "benchmarks.md").read_text()
    assert page == table.page(RESULTS)
    assert {row.group for row in RESULTS.rows} - {"gallery"} == {*rows.GROUPS}
    readme = (FOLDER.parent / "README.md").read_text()
    assert readme == table.with_highlights(readme, RESULTS)


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules([str(FOLDER)])])
def test_every_benchmark_can_be_imported(name: str) -> None:
    importlib.import_module(f"benchmarks.{name}")
