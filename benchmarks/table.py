"""Table of `make bench`: work, another way to do the same, and the ratio of their CPU time."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.gallery_scale import commit, machine

Work = Callable[[], Any]
_LEAST, _MOST = 5, 200  # rounds
_RESULTS = Path(__file__).with_name("results.json")
_README = Path(__file__).parents[1] / "README.md"
_PAGE_FILE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_LIBRARIES = ("torch", "faiss-cpu", "onnxruntime", "pillow", "numpy")


@dataclass(frozen=True)
class Pair:
    """Two ways to do the same work, ready to run.

    Attributes:
        what: The work.
        against: The other way to do it.
        ours: Does the work once.
        other: Does it the other way; or its CPU seconds, if these are fixed.
        goal: Largest CPU time of ours, as a share of the other's; None if no goal was set.
        clock: CPU seconds of ours so far, if other processes do the work.
        other_clock: The same of the other way.
    """

    what: str
    against: str
    ours: Work
    other: Work | float
    goal: float | None = None
    clock: Callable[[], float] = time.process_time
    other_clock: Callable[[], float] = time.process_time


@dataclass(frozen=True)
class Absent:
    """A pair that cannot be measured: the library to compare with is not installed."""

    what: str
    library: str


@dataclass(frozen=True)
class Row:
    """A measured pair: medians in milliseconds, and quartiles of the ratios of the rounds.

    Attributes:
        group: Part of the library.
        what: The work.
        against: The other way to do it.
        cpu: CPU time of ours.
        wall: Wall time of ours.
        other_cpu: CPU time of the other way.
        other_wall: Wall time of the other way.
        ratio: Median of CPU time of ours / CPU time of the other way.
        low: Lower quartile of that.
        high: Upper quartile of that.
        goal: Largest ratio; None if no goal was set.
    """

    group: str
    what: str
    against: str
    cpu: float
    wall: float
    other_cpu: float
    other_wall: float
    ratio: float
    low: float
    high: float
    goal: float | None

    @property
    def verdict(self) -> str:
        """Whether the goal is met, and by how much it is missed."""
        if self.goal is None:
            return ""
        return "met" if self.ratio <= self.goal else f"missed by {100 * (self.ratio / self.goal - 1):.1f}%"


@dataclass(frozen=True)
class Results:
    """Measured rows, and where they were measured; `groups` has a sentence about each group."""

    groups: dict[str, str]
    machine: str
    commit: str
    date: str
    libraries: dict[str, str]
    rows: list[Row]

    @classmethod
    def of(cls, rows: list[Row], groups: dict[str, str]) -> Results:
        """Return rows that were measured just now on this machine."""
        today = datetime.now(UTC).date().isoformat()
        return cls(groups, machine(), commit(), today, {name: version(name) for name in _LIBRARIES}, rows)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Results:
        """Inverse of `to_dict`."""
        return cls(**{**values, "rows": [Row(**row) for row in values["rows"]]})

    @classmethod
    def load(cls) -> Results:
        """Return the content of results.json."""
        return cls.from_dict(json.loads(_RESULTS.read_text()))

    def with_group(self, name: str, about: str, rows: list[Row]) -> Results:
        """Return these results with the rows of one group, which were measured just now."""
        today = datetime.now(UTC).date().isoformat()
        about = f"{about}\nMeasured on {today} at commit {commit()}."
        others = [row for row in self.rows if row.group != name]
        return replace(self, groups={**self.groups, name: about}, rows=[*others, *rows])

    def save(self) -> None:
        """Write results.json, docs/benchmarks.md and README.md."""
        _RESULTS.write_text(json.dumps(asdict(self), indent=1) + "\n")
        _PAGE_FILE.write_text(page(self))
        _README.write_text(with_highlights(_README.read_text(), self))


def compare(group: str, pair: Pair, seconds: float) -> Row:
    """Run both ways in turns for some seconds, after one turn to warm up."""

    def taken(work: Work | float, clock: Callable[[], float]) -> tuple[float, float]:
        if not callable(work):
            return work, work
        start, busy = time.perf_counter(), clock()
        work()
        return clock() - busy, time.perf_counter() - start

    def turn() -> tuple[float, float, float, float]:
        return *taken(pair.ours, pair.clock), *taken(pair.other, pair.other_clock)

    turn()
    rounds = []
    end = time.perf_counter() + seconds
    while len(rounds) < _LEAST or (time.perf_counter() < end and len(rounds) < _MOST):
        rounds.append(turn())
    cpu, wall, other_cpu, other_wall = (1000 * statistics.median(part) for part in zip(*rounds, strict=True))
    low, ratio, high = statistics.quantiles((ours / other for ours, _, other, _ in rounds), n=4)
    names = group, pair.what, pair.against
    return Row(*names, cpu, wall, other_cpu, other_wall, ratio, low, high, pair.goal)


# ---- as text


def line(row: Row | Absent) -> str:
    """Return a row for the terminal."""
    if isinstance(row, Absent):
        return f"{'':11}{row.what:42}not measured: {row.library} is not installed"
    ratio = f"{row.ratio:8.3f} ({row.low:.3f} to {row.high:.3f})"
    goal = "" if row.goal is None else f"goal {row.goal:.3g}: {row.verdict}"
    return f"{row.group:11}{row.what:42}{row.cpu:10.2f} ms{ratio:>30} of {row.against:28}{goal}"


def page(results: Results) -> str:
    """Return docs/benchmarks.md."""
    groups: dict[str, list[Row]] = {}
    for row in results.rows:
        groups.setdefault(row.group, []).append(row)
    aimed = [row for row in results.rows if row.goal is not None]
    met = sum(row.verdict == "met" for row in aimed)
    libraries = ", ".join(f"{name} {number}" for name, number in results.libraries.items())
    facts = f"{results.machine}; {libraries}; {results.date}, commit {results.commit}."
    sections = "\n".join(
        f"## {group.capitalize()}\n\n{results.groups[group]}\n\n{_table(rows)}"
        for group, rows in groups.items()
    )
    return _PAGE.format(facts=facts, met=met, aimed=len(aimed), sections=sections)


def with_highlights(readme: str, results: Results) -> str:
    """Return README.md with the most interesting ratios between its two markers."""
    before, marker, rest = readme.partition(_MADE)
    return before + marker + _highlights(results) + "\n<!-- end -->" + rest.partition("<!-- end -->")[2]


_MADE = "<!-- made by make bench WRITE=1: -->\n"


def _highlights(results: Results) -> str:
    found = {(row.what, row.against): row.ratio for row in results.rows}
    peer = "pytorch-metric-learning"
    semi_hard, margin = found["triplet semi-hard", peer], found["margin", peer]
    metrics = found["Recall@K, R-precision, MAP@R of 12,000", peer]
    server = found["8 searches by JPEG over HTTP", "decode, embed and search"]
    return (
        f"Beside pytorch-metric-learning, a batch of 512 takes 1/{1 / semi_hard:.0f} of the CPU time "
        f"with the semi-hard triplet\nloss and 1/{1 / margin:.0f} with the margin loss, and the metrics "
        f"of 12,000 queries 1/{1 / metrics:.0f}. A search over HTTP costs\n{100 * server - 100:.0f} % "
        "more than decoding, embedding and searching alone."
    )


_PAGE = """# Benchmarks

<!-- Written by `make bench WRITE=1` from benchmarks/results.json. -->

`make bench` measures this table in about five minutes. Both sides of a row run in turns on one thread, for at
least five rounds. The ratio is CPU time of ours divided by CPU time of the other, the median of the rounds,
with its quartiles: below 1, ours needs less. CPU time is reliable on a busy machine; wall time is not. Limits
are parts of the work that cannot be left out, such as a matrix product. Goals are upper bounds for the ratio;
1.00 beside a library only asks to be no slower. {met} of {aimed} are met.

{facts}

{sections}
## In depth

`python -m benchmarks.NAME --help` says what each other module of `benchmarks/` measures: `losses` (every
loss, kernels and memory), `evaluation`, `search`, `filters`, `loading`, `indexing`, `serving`, `training`,
`stores` and others. None of it has run on a GPU yet; `make gpu-check` does ([gpu.md](gpu.md)).
"""


def _table(rows: list[Row]) -> str:
    head = "| work | ours, CPU (wall) | the other, CPU (wall) | ratio | goal |\n|---|---|---|---|---|\n"
    return head + "".join(
        f"| {row.what} | {_ms(row.cpu)} ({_ms(row.wall)}) "
        f"| {row.against}: {_ms(row.other_cpu)} ({_ms(row.other_wall)}) "
        f"| {_ratio(row.ratio)} ({_ratio(row.low)} to {_ratio(row.high)}) | {_goal(row)} |\n"
        for row in rows
    )


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.3g} ms"


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.3f}"


def _goal(row: Row) -> str:
    return "" if row.goal is None else f"{_ratio(row.goal)}: {row.verdict}"
