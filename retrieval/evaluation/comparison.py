"""Several reports side by side: every number, class by class, and query by query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from retrieval.errors import InputError
from retrieval.evaluation.contenders import Contender
from retrieval.evaluation.numbers import keys, value
from retrieval.evaluation.report import Report
from retrieval.files import now
from retrieval.metrics.significance import McNemar, Summary, Welch, mcnemar, summarize, welch

FORMAT_VERSION = 1
QUERIES = 100  # kept of those that one gets right and the other wrong, each way
Key = tuple[str, str, str]  # a query: its path, what is in the file, its class


@dataclass(frozen=True)
class Row:
    """One contender.

    Attributes:
        runs: its reports.
        seeds: of their training, where known.
        numbers: "recall_at_1", "map_at_r", "nmi" and so on -> over the runs.
        differences: of the means to those of the first contender; empty for the first.
        welch: whether Recall@1 of its runs differs from that of the first's; `None`: too few runs.
    """

    name: str
    runs: int
    seeds: list[int]
    numbers: dict[str, Summary]
    differences: dict[str, float] = field(default_factory=dict)
    welch: Welch | None = None


@dataclass(frozen=True)
class ClassChange:
    """Recall@1 of a class with the first contender and with another, over the runs of each."""

    name: str
    queries: int
    first: float
    other: float


@dataclass(frozen=True)
class QueryChange:
    """A query, and the share of the runs that find its class first: 0 or 1 with a single run.

    Attributes:
        path: relative to the root of the first contender's pictures.
        first_precision, other_precision: its average precision, mean over the runs.
    """

    path: str
    label: str
    first: float
    other: float
    first_precision: float
    other_precision: float


@dataclass(frozen=True)
class Pair:
    """The first contender and another on the queries that all their reports share and can answer.

    Attributes:
        mcnemar: whether they are right equally often on these queries; `None` where one has several runs.
        classes: largest gain of the other first.
        gained, lost: queries that the other gets right in more, and in fewer, of its runs.
        gained_queries, lost_queries: up to 100 of them, the clearest first.
    """

    other: str
    queries: int
    mcnemar: McNemar | None
    classes: list[ClassChange]
    gained: int
    lost: int
    gained_queries: list[QueryChange]
    lost_queries: list[QueryChange]


@dataclass(frozen=True)
class Comparison:
    """All contenders side by side, the first one being what the others are compared with.

    Attributes:
        ks: the K of the table.
        root: the folder of the first contender's pictures; `None`: not known.
        pairs: the first and each other one; those without common queries are left out.
        notes: what to keep in mind when reading it, a sentence each.
    """

    data: str
    protocol: str
    ks: tuple[int, ...]
    root: str | None
    rows: list[Row]
    pairs: list[Pair]
    notes: list[str]
    created: str = field(default_factory=now)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; shares are in 0..1."""
        return {"format": FORMAT_VERSION, **asdict(self)}


def compare(contenders: Sequence[Contender]) -> Comparison:
    """Put contenders side by side.

    Each is taken by the result that its report is about, means over its runs. Where both know their queries,
    the first and every other one are compared on those that they share: the same path, the same bytes and
    the same class. With a single run each, by McNemar's exact test; over runs, by Welch's t-test of Recall@1.

    Raises:
        InputError: fewer than two, or reports that measured different things and share no query.
    """
    if len(contenders) < 2:
        raise InputError("comparing takes two reports or more; a group of runs counts as one")
    first, *others = contenders
    answers = [_answers(contender) for contender in contenders]
    reference = first.reports[0]
    notes = _checked(contenders, answers)
    results = [report.headline for contender in contenders for report in contender.reports]
    names = keys(results)
    summaries = [_summaries(contender, names) for contender in contenders]
    rows = [_row(first, summaries[0])]
    rows += [
        _row(other, ours, summaries[0], welch(_recalls(other), _recalls(first)))
        for other, ours in zip(others, summaries[1:], strict=True)
    ]
    pairs = [
        _pair(first, answers[0], other, theirs)
        for other, theirs in zip(others, answers[1:], strict=True)
        if answers[0].keys() & theirs.keys()
    ]
    return Comparison(
        data=reference.data,
        protocol=f"{reference.images:,} query images of {reference.classes:,} classes, {reference.protocol}",
        ks=reference.ks,
        root=reference.findings.root if reference.findings else None,
        rows=rows,
        pairs=pairs,
        notes=notes,
    )


# ---- what may be compared

# What each query came to: the share of runs that are right, and the mean average precision.
Answers = dict[Key, tuple[float, float]]


def _answers(contender: Contender) -> Answers:
    """The queries that every report of a contender can answer; empty where one does not know its queries."""
    runs = [_of(report) for report in contender.reports]
    shared = [key for key in runs[0] if all(key in run for run in runs)]
    means = np.array([[run[key] for key in shared] for run in runs]).reshape(len(runs), -1, 2).mean(0)
    return {key: (right, precision) for key, (right, precision) in zip(shared, means.tolist(), strict=True)}


def _of(report: Report) -> Answers:
    if report.findings is None:
        return {}
    found, names = report.findings.queries, report.findings.classes.name
    columns = zip(
        found.path, found.content, found.label, found.first_right, found.average_precision, strict=True
    )
    return {
        (path, content, names[label]): (float(rank == 1), precision)
        for path, content, label, rank, precision in columns
        if precision is not None
    }


def _checked(contenders: Sequence[Contender], answers: Sequence[Answers]) -> list[str]:
    """Refuse what cannot be compared -> what to say about what can."""
    first, ours = contenders[0], answers[0]
    notes = []
    for contender, theirs in zip(contenders, answers, strict=True):
        strangers = not ours.keys() & theirs.keys()
        for report in contender.reports:
            differing = _differing(first.reports[0], report)
            if strangers and ours and theirs:
                differing = differing or "files of other names or contents"
            if differing and strangers:
                what = f"{contender.name} was measured on other things than {first.name}: {differing}"
                raise InputError(f"{what}; compare reports of the same images")
            if differing:
                notes.append(f"Not all is the same in {contender.name} as in {first.name}: {differing}.")
        seeds = [report.seed for report in contender.reports if report.seed is not None]
        if len(set(seeds)) < len(seeds):
            notes.append(f"{contender.name} has several runs of one seed: these are not independent.")
    unknown = [contender.name for contender, theirs in zip(contenders, answers, strict=True) if not theirs]
    if unknown:
        whom = "" if len(unknown) == len(contenders) else f" of {', '.join(unknown)}"
        notes.append(f"Query by query nothing is known{whom}: evaluate again for that.")
    return list(dict.fromkeys(notes))


def _differing(first: Report, other: Report) -> str:
    """What two reports were measured on, where it is not the same."""
    pairs = [
        ("data", first.data, other.data),
        ("protocol", first.protocol, other.protocol),
        ("images", f"{first.images:,}", f"{other.images:,}"),
        ("classes", f"{first.classes:,}", f"{other.classes:,}"),
    ]
    return "; ".join(f"{what} {theirs!r}, not {ours!r}" for what, ours, theirs in pairs if ours != theirs)


# ---- side by side


def _recalls(contender: Contender) -> list[float]:
    return [report.headline.recall[1] for report in contender.reports]


def _summaries(contender: Contender, names: Sequence[str]) -> dict[str, Summary]:
    """Every number that all reports of a contender have."""
    columns = {name: [value(report.headline, name) for report in contender.reports] for name in names}
    return {
        name: summarize([number for number in column if number is not None])
        for name, column in columns.items()
        if None not in column
    }


def _row(
    contender: Contender,
    ours: dict[str, Summary],
    firsts: dict[str, Summary] | None = None,
    test: Welch | None = None,
) -> Row:
    return Row(
        name=contender.name,
        runs=len(contender.reports),
        seeds=[report.seed for report in contender.reports if report.seed is not None],
        numbers=ours,
        differences={n: s.mean - firsts[n].mean for n, s in ours.items() if n in firsts} if firsts else {},
        welch=test,
    )


def _pair(first: Contender, ours: Answers, other: Contender, theirs: Answers) -> Pair:
    shared = [key for key in ours if key in theirs]
    a = np.array([ours[key] for key in shared])  # [queries, 2]: share right, average precision
    b = np.array([theirs[key] for key in shared])
    single = len(first.reports) == len(other.reports) == 1
    # Clearest first: by how many runs changed their answer, then by how much the ranking did.
    right, precision = (b - a).T
    order = np.lexsort((-precision, -right))
    gained, lost = order[right[order] > 0], order[right[order] < 0][::-1]

    def change(at: int) -> QueryChange:
        path, _, label = shared[at]
        return QueryChange(path, label, a[at, 0], b[at, 0], a[at, 1], b[at, 1])

    return Pair(
        other=other.name,
        queries=len(shared),
        mcnemar=mcnemar(b[:, 0] == 1, a[:, 0] == 1) if single else None,
        classes=_by_class([key[2] for key in shared], a[:, 0], b[:, 0]),
        gained=len(gained),
        lost=len(lost),
        gained_queries=[change(at) for at in gained[:QUERIES].tolist()],
        lost_queries=[change(at) for at in lost[:QUERIES].tolist()],
    )


def _by_class(labels: Sequence[str], first: np.ndarray, other: np.ndarray) -> list[ClassChange]:
    names, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    ours, theirs = (np.bincount(numbers, right) / counts for right in (first, other))
    return [
        ClassChange(str(names[at]), int(counts[at]), float(ours[at]), float(theirs[at]))
        for at in np.lexsort((np.arange(len(names)), -(theirs - ours))).tolist()
    ]
