"""Comparison of evaluations: every number over groups of runs, class by class, and query by query."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.display import Displayed
from retrieval.errors import InputError
from retrieval.evaluation.findings import JudgedAnswers, JudgedQueries, Neighbour
from retrieval.evaluation.report import OFF_THE_SHELF, REPORT_FILE, Report, kept_reports, trained_remark
from retrieval.evaluation.score import Result
from retrieval.evaluation.verdict import DECIDING, Change, Verdict, judge
from retrieval.files import now
from retrieval.galleries.database_folder import is_gallery
from retrieval.metrics.recognition import global_average_precision, interval_of, resampled_gaps
from retrieval.metrics.statistics import (
    McNemar,
    Paired,
    Summary,
    Welch,
    mcnemar,
    mcnemar_by_class,
    paired,
    summarize,
    welch,
)
from retrieval.metrics.table import by_k

FORMAT_VERSION = 3
TESTED = "recall_at_1"  # the metric whose tests are shown
QUERIES = 100  # kept of those that only one of two models gets right, for each model
_QueryKey = tuple[str, str, str]  # path, content and class of a query


# ---- groups of runs


@dataclass(frozen=True)
class GroupSummary:
    """Runs that differ by their seed, over the runs and against a reference group.

    Attributes:
        name: Name of the group.
        runs: Number of runs.
        seeds: Seeds of the training runs, as far as known.
        numbers: Metric key -> summary over the runs; the metrics that all runs have.
        differences: Metric key -> difference of the means to the reference; empty without a reference.
        paired: Metric key -> differences to the runs of the reference with the same seeds; empty if the seeds
            of the groups differ.
        tests: Metric key -> Welch's t-test against the reference if the seeds differ; only those with enough
            runs.
    """

    name: str
    runs: int
    seeds: list[int]
    numbers: dict[str, Summary]
    differences: dict[str, float] = field(default_factory=dict)
    paired: dict[str, Paired] = field(default_factory=dict)
    tests: dict[str, Welch] = field(default_factory=dict)


def summarize_results(results: Sequence[Result]) -> dict[str, Summary]:
    """Summarize each metric that all results have."""
    if not results:
        return {}
    shared = [key for key in results[0].known if all(key in result.known for result in results)]
    return {key: summarize(values_of(results, key)) for key in shared}


def values_of(results: Iterable[Result], key: str = TESTED) -> list[float]:
    """Return a metric of each result."""
    return [result.known[key] for result in results]


# ---- reports side by side


@dataclass(frozen=True)
class Contender:
    """One side of a comparison.

    Attributes:
        name: Name in tables.
        reports: A single report, or those of runs that differ by their seed.
    """

    name: str
    reports: tuple[Report, ...]

    @property
    def results(self) -> list[Result]:
        """The result of each report that comparisons go by."""
        return [report.compared for report in self.reports]

    @property
    def baselines(self) -> list[Result]:
        """The off-the-shelf backbone of each report; empty if one has none."""
        found = [
            next((r for r in report.results if r.name == OFF_THE_SHELF and r.by is None), None)
            for report in self.reports
        ]
        return [] if None in found else [result for result in found if result is not None]

    @property
    def seeds(self) -> list[int]:
        """The known seeds of the runs."""
        return [report.seed for report in self.reports if report.seed is not None]

    @property
    def by_seed(self) -> dict[int, Result]:
        """The results by seed; empty if a seed is unknown or occurs twice."""
        known = len(set(self.seeds)) == len(self.reports)
        return dict(zip(self.seeds, self.results, strict=True)) if known else {}


@dataclass(frozen=True)
class ClassChange:
    """Recall@1 of a class with the first contender and with another, as means over their runs.

    Attributes:
        name: Name of the class.
        queries: Number of its queries.
        first: Recall@1 of the first contender.
        other: Recall@1 of the other one.
        p: McNemar's exact test, corrected for the number of classes; `None` if one of them has several runs.
    """

    name: str
    queries: int
    first: float
    other: float
    p: float | None = None


@dataclass(frozen=True)
class QueryChange:
    """A query with the share of runs that find its class first: 0 or 1 for a single run.

    Attributes:
        path: Path relative to the image root of the first contender.
        label: Class of the query.
        first: Share of runs of the first contender.
        other: Share of runs of the other contender.
        first_precision: Average precision with the first contender, mean over its runs.
        other_precision: Average precision with the other contender, mean over its runs.
        first_answer: Image that the first contender finds first; `None` if unknown, or for several runs.
        other_answer: That of the other contender.
    """

    path: str
    label: str
    first: float
    other: float
    first_precision: float
    other_precision: float
    first_answer: Neighbour | None = None
    other_answer: Neighbour | None = None


@dataclass(frozen=True)
class PairedComparison:
    """The first contender and another one, on the queries that all their reports share and can answer.

    Attributes:
        first: Name of the first contender.
        other: Name of the other contender.
        queries: Number of shared queries.
        mcnemar: McNemar's test on these queries; `None` if one of the contenders has several runs.
        verdict: Which finds more, the other contender as ours; `None` likewise.
        classes: Classes, largest gain of the other contender first.
        gained: Number of queries that the other gets right in more of its runs.
        lost: Number of queries that the other gets right in fewer of its runs.
        gained_queries: Up to 100 of the gained queries, largest change first.
        lost_queries: Up to 100 of the lost queries, largest change first.
        identical: Whether both find the same image first, with the same similarity, for every
            query; `None` if unknown.
    """

    first: str
    other: str
    queries: int
    mcnemar: McNemar | None
    verdict: Verdict | None
    classes: list[ClassChange]
    gained: int
    lost: int
    gained_queries: list[QueryChange]
    lost_queries: list[QueryChange]
    identical: bool | None = None


@dataclass(frozen=True, repr=False)
class Comparison(Displayed):
    """All contenders side by side; the first is the reference.

    For judged queries with several protocols, a name in `rows` and `pairs` ends with the protocol, and each
    row is compared with that of the first contender by the same protocol.

    Attributes:
        first: Name of the first contender.
        tested: Key of the metric whose tests are shown.
        data: Data set of the first contender.
        protocol: Protocol of the first contender, in one line.
        ks: Values of K in tables.
        root: Image folder of the first contender; `None` if unknown.
        rows: One summary per contender, then one for each off-the-shelf backbone that they were trained from.
        pairs: The first and each other contender, without those that share no query with the first.
        notes: Remarks for readers, one sentence each.
        created: Time of the comparison, ISO 8601, UTC.
    """

    first: str
    tested: str
    data: str
    protocol: str
    ks: tuple[int, ...]
    root: str | None
    rows: list[GroupSummary]
    pairs: list[PairedComparison]
    notes: list[str]
    created: str = field(default_factory=now)

    def __repr__(self) -> str:
        return f"<Comparison on {self.data}: {', '.join(row.name for row in self.rows)}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the content of compare.json; shares are in 0..1."""
        return {"format": FORMAT_VERSION, **asdict(self)}

    def pair_of(self, row: GroupSummary) -> PairedComparison | None:
        """Return the paired comparison of a row; `None` if there is none."""
        return next((pair for pair in self.pairs if pair.other == row.name), None)


def compare_reports(contenders: Sequence[Contender]) -> Comparison:
    """Compare the headline results of contenders, as means over their runs.

    If both know their queries, the first and each other contender are also compared on the queries that they
    share: same path, same bytes and same class. Single runs are compared by `verdict.judge` and by McNemar's
    exact test, groups of runs by the paired t-test if they have the same seeds, else by Welch's. Judged
    queries are compared by each protocol that all reports have, with what they show as their class. In
    galleries of products, hits are products, and queries of one product are resampled together; these are not
    independent, so that there is no test of single queries.

    Raises:
        InputError: Fewer than two contenders, or reports of different data that share no query.
    """
    if len(contenders) < 2:
        raise InputError("compare: it takes at least two reports; a group of runs counts as one")
    if len({report.judged is None for contender in contenders for report in contender.reports}) > 1:
        raise InputError("compare: only some reports know judged queries; evaluate again on the same data")
    if not all(_has_products(report) for contender in contenders for report in contender.reports):
        contenders = [replace(one, reports=tuple(r.by_images() for r in one.reports)) for one in contenders]
    views = [[report.by_protocol() for report in contender.reports] for contender in contenders]
    known = [list(view) for runs in views for view in runs]
    protocols = [name for name in known[0] if all(name in names for names in known)]
    if not protocols:
        raise InputError("compare: the reports have no protocol in common; compare reports of the same data")
    found = [
        _compare(
            [
                Contender(_named(contender.name, protocol), tuple(run[protocol] for run in runs))
                for contender, runs in zip(contenders, views, strict=True)
            ],
            protocol,
        )
        for protocol in protocols
    ]
    return replace(
        found[0],
        first=contenders[0].name,
        rows=[row for one in found for row in one.rows],
        pairs=[pair for one in found for pair in one.pairs],
        notes=list(dict.fromkeys(note for one in found for note in one.notes)),
    )


def _has_products(report: Report) -> bool:
    return report.findings is not None and bool(report.findings.queries.product)


def _named(name: str, protocol: str) -> str:
    return f"{name}, {protocol}" if protocol else name


def _compare(contenders: Sequence[Contender], protocol: str) -> Comparison:
    """Compare contenders by one protocol."""
    first, *others = contenders
    keys = _query_keys(contenders)
    answers = [_shared_answers(contender, keys) for contender in contenders]
    reference = first.reports[0]
    notes = _check_comparable(contenders, answers)
    rows = [_summarize_group(first), *(_summarize_group(other, first) for other in others)]
    baselines = _summarize_baselines(contenders, rows[0])
    rows += [replace(row, name=_named(row.name.removesuffix(f", {protocol}"), protocol)) for row in baselines]
    pairs = [
        _compare_queries(first, answers[0], other, theirs, keys)
        for other, theirs in zip(others, answers[1:], strict=True)
        if answers[0].keys() & theirs.keys()
    ]
    judged, findings = reference.judged, reference.findings
    return Comparison(
        first=first.name,
        tested=keys[_RIGHT],
        data=reference.data,
        protocol=f"{reference.images:,} query images of {reference.classes:,} classes, {reference.protocol}",
        ks=reference.ks,
        root=findings.root if findings else judged.root if judged else None,
        rows=rows,
        pairs=pairs,
        notes=notes,
    )


def _summarize_group(contender: Contender, reference: Contender | None = None) -> GroupSummary:
    """Summarize the runs of a contender, and compare them with a reference: in pairs if they share seeds."""
    found = GroupSummary(
        name=contender.name,
        runs=len(contender.reports),
        seeds=contender.seeds,
        numbers=summarize_results(contender.results),
    )
    if reference is None:
        return found
    theirs = summarize_results(reference.results)
    shared = [key for key in found.numbers if key in theirs]
    differences = {key: found.numbers[key].mean - theirs[key].mean for key in shared}
    if contender.by_seed.keys() == reference.by_seed.keys() and contender.by_seed:
        pairs = {key: _paired_runs(contender.by_seed, reference.by_seed, key) for key in shared}
        return replace(found, differences=differences, paired=pairs)
    tests = {
        key: welch(values_of(contender.results, key), values_of(reference.results, key)) for key in shared
    }
    kept = {key: test for key, test in tests.items() if test is not None}
    return replace(found, differences=differences, tests=kept)


def _summarize_baselines(contenders: Sequence[Contender], reference: GroupSummary) -> list[GroupSummary]:
    """Summarize the off-the-shelf backbones, each once: contenders that share one have the same numbers."""
    found: list[tuple[list[str], dict[str, Summary]]] = []
    for contender in contenders:
        numbers = summarize_results(contender.baselines[:1])  # runs of all seeds begin with the same one
        same = next((names for names, known in found if known == numbers), None)
        if same is not None:
            same.append(contender.name)
        elif numbers:
            found.append(([contender.name], numbers))
    rows = []
    for names, numbers in found:
        title = OFF_THE_SHELF if len(found) == 1 else f"{OFF_THE_SHELF} of {', '.join(names)}"
        shared = [key for key in numbers if key in reference.numbers]
        differences = {key: numbers[key].mean - reference.numbers[key].mean for key in shared}
        rows.append(GroupSummary(title, 1, [], numbers, differences))
    return rows


def _paired_runs(ours: Mapping[int, Result], theirs: Mapping[int, Result], key: str) -> Paired:
    return paired(*zip(*((ours[seed].known[key], theirs[seed].known[key]) for seed in ours), strict=True))


# Query -> its metrics, means over the runs, in the order of `_query_keys`.
_Answers = dict[_QueryKey, tuple[float, ...]]
_RIGHT, _PRECISION = 0, 1  # columns
_FIRST_IS_RIGHT = (TESTED, "precision_at_1")  # what the column is


def _query_keys(contenders: Sequence[Contender]) -> list[str]:
    """Return the metrics that all reports know query by query, whether the first hit is right before others.

    The second is average precision, or the measure of a judged set.
    """
    known = [report for contender in contenders for report in contender.reports]
    if known[0].judged is not None:
        values = [set(one.values) for r in known if r.judged for one in r.judged.answers.values()]
        measures = [key for key in known[0].headline.values if all(key in keys for keys in values)]
        right = next((key for key in _FIRST_IS_RIGHT if key in measures), measures[0])
        return [right, *([key for key in measures if key != right] or [right])]
    found = [report.findings for report in known if report.findings is not None]
    depth = min((findings.depth for findings in found), default=1)
    ks = [k for k in known[0].ks if 1 < k <= depth]
    has_map = all(findings.queries.map_at_r for findings in found)
    return [TESTED, "mean_ap", *(f"recall_at_{k}" for k in ks), *(["map_at_r"] if has_map else [])]


def _shared_answers(contender: Contender, keys: Sequence[str]) -> _Answers:
    """Return the queries that all reports can answer; empty if a report does not know its queries."""
    runs = [_answers(report, keys) for report in contender.reports]
    shared = [key for key in runs[0] if all(key in run for run in runs)]
    means = np.array([[run[key] for key in shared] for run in runs]).reshape(len(runs), -1, len(keys)).mean(0)
    return {key: tuple(values) for key, values in zip(shared, means.tolist(), strict=True)}


def _answers(report: Report, keys: Sequence[str]) -> _Answers:
    if report.judged is not None:
        return {
            key: tuple(values)
            for answers in report.judged.answers.values()
            for key, *values in zip(
                _judged_keys(report.judged, answers), *(answers.values[key] for key in keys), strict=True
            )
        }
    if report.findings is None:
        return {}
    queries, names = report.findings.queries, report.findings.classes.name
    first_right, average_precision, map_at_r = queries.compared
    ranks = np.array([rank or np.inf for rank in first_right])
    columns = {f"recall_at_{k}": ranks <= k for k in sorted(by_k(dict.fromkeys(keys, 0.0)))}
    columns |= {"mean_ap": np.array(average_precision, float), "map_at_r": np.array(map_at_r, float)}
    table = np.stack([columns[key] for key in keys], 1).astype(float).tolist()  # [N, keys]
    rows = zip(queries.path, queries.content, queries.label, table, strict=True)
    return {
        (path, content, names[label]): tuple(values)
        for path, content, label, values in rows
        if values[_PRECISION] == values[_PRECISION]  # not NaN: there is an image to find
    }


def _products(report: Report, shared: Sequence[_QueryKey]) -> np.ndarray | None:
    """Return the product of each query; `None` if images are not of products."""
    if report.findings is None or not report.findings.queries.product:
        return None
    queries, names = report.findings.queries, report.findings.classes.name
    rows = zip(queries.path, queries.content, queries.label, queries.product, strict=True)
    found = {(path, content, names[label]): product for path, content, label, product in rows}
    return np.array([found[key] for key in shared])


def _judged_keys(judged: JudgedQueries, answers: JudgedAnswers) -> list[_QueryKey]:
    return [(judged.path[n], judged.content[n], judged.thing[n]) for n in answers.query]


def _parts(report: Report, shared: Sequence[_QueryKey]) -> np.ndarray | None:
    """Return the domain of each query; `None` where they have none."""
    if report.judged is None:
        return None
    found = {
        key: part
        for answers in report.judged.answers.values()
        for key, part in zip(_judged_keys(report.judged, answers), answers.part, strict=False)
    }
    return np.array([found[key] for key in shared]) if found else None


def _gap_changes(first: Report, other: Report) -> dict[str, Change]:
    """Return the changes of GAP and GAP- on the queries of both; empty if things were not recognized."""
    sides = []
    for judged in (first.judged, other.judged):
        if judged is None or not judged.confidence:
            return {}
        keys = zip(judged.path, judged.content, judged.thing, strict=True)
        sides.append(dict(zip(keys, zip(judged.right, judged.confidence, strict=True), strict=True)))
    shared = [key for key in sides[0] if key in sides[1]]
    found = np.array([[side[key] for key in shared] for side in sides])  # [2, N, right and confidence]
    known = np.array([bool(thing) for _, _, thing in shared])
    things = np.array([thing or f"{path} {content}" for path, content, thing in shared])
    changes: dict[str, Change] = {}
    for name, asked in (("gap", np.ones_like(known)), ("gap_of_known", known)):
        given = [(side[asked, 0] == 1, side[asked, 1], known[asked]) for side in found]
        theirs, ours = (global_average_precision(*side) for side in given)
        ends = []
        for units in (np.arange(np.count_nonzero(asked)), things[asked]):
            before, after = (resampled_gaps(*side, units) for side in given)
            ends.append(interval_of(after - before))
        changes[name] = Change(ours - theirs, ends[0], ends[1])
    return changes


def _check_comparable(contenders: Sequence[Contender], answers: Sequence[_Answers]) -> list[str]:
    """Refuse reports of different data; return notes on smaller differences."""
    first, ours = contenders[0], answers[0]
    notes = []
    for contender, theirs in zip(contenders, answers, strict=True):
        disjoint = not ours.keys() & theirs.keys()
        for report in contender.reports:
            differences = _protocol_differences(first.reports[0], report)
            if disjoint and ours and theirs:
                differences = differences or "files of other names or contents"
            if differences and disjoint:
                what = f"{contender.name} was not evaluated on the same data as {first.name}: {differences}"
                raise InputError(f"{what}; compare reports of the same images")
            if differences:
                also = "; that alone changes what is found" if measured_differently(first, contender) else ""
                notes.append(f"{contender.name} differs from {first.name}: {differences}{also}.")
        if len(set(contender.seeds)) < len(contender.seeds):
            notes.append(f"{contender.name} has several runs of one seed, which are not independent.")
        remarks = (trained_remark(note) for report in contender.reports for note in report.notes)
        notes += [f"{contender.name} {remark}, which flatters it." for remark in remarks if remark]
    unknown = [contender.name for contender, theirs in zip(contenders, answers, strict=True) if not theirs]
    if unknown:
        which = "any report" if len(unknown) == len(contenders) else ", ".join(unknown)
        notes.append(f"The queries of {which} are unknown: evaluate again to compare query by query.")
    old = [c.name for c in contenders for r in c.reports if r.findings and not r.findings.queries.map_at_r]
    if old:
        which = ", ".join(dict.fromkeys(old))
        notes.append(f"{which} of an older version: evaluate again to compare MAP@R query by query.")
    return list(dict.fromkeys(notes))


def _without_size(report: Report) -> str:
    """Return the protocol; a gallery of nothing but the queries is the same as "all the others"."""
    alone = f"in a gallery of {report.images:,} images, itself left out"
    return report.protocol.replace(alone, "among all the others")


def measured_differently(first: Contender, other: Contender) -> str:
    """Describe how protocol, images and classes of reports differ, whatever the name of their data.

    More images to search among, or fewer, change what is found, whatever the model. Empty for no difference.
    """
    reference = first.reports[0]
    found = (_protocol_differences(replace(reference, data=one.data), one) for one in other.reports)
    return next(filter(None, found), "")


def _protocol_differences(first: Report, other: Report) -> str:
    """Describe differences of data and protocol; empty if there are none."""
    pairs = [
        ("data", first.data, other.data),
        ("protocol", _without_size(first), _without_size(other)),
        ("images", f"{first.images:,}", f"{other.images:,}"),
        ("classes", f"{first.classes:,}", f"{other.classes:,}"),
    ]
    return "; ".join(f"{what} {theirs!r}, not {ours!r}" for what, ours, theirs in pairs if ours != theirs)


def _compare_queries(
    first: Contender, ours: _Answers, other: Contender, theirs: _Answers, keys: Sequence[str]
) -> PairedComparison:
    shared = [key for key in ours if key in theirs]
    a = np.array([ours[key] for key in shared])  # [queries, keys]
    b = np.array([theirs[key] for key in shared])
    labels = [label for _, _, label in shared]
    single, products = len(first.reports) == len(other.reports) == 1, _products(first.reports[0], shared)
    tested = single and products is None
    # Largest change first: by the share of runs that changed, then by average precision.
    right, precision = (b - a).T[[_RIGHT, _PRECISION]]
    order = np.lexsort((-precision, -right))
    gained, lost = order[right[order] > 0], order[right[order] < 0][::-1]

    answers = [_nearest(contender.reports[0]) if single else {} for contender in (first, other)]

    def change(at: int) -> QueryChange:
        path, _, label = shared[at]
        (right, precision, *_), (other_right, other_precision, *_) = a[at].tolist(), b[at].tolist()
        seen = (found.get(shared[at]) for found in answers)
        return QueryChange(path, label, right, other_right, precision, other_precision, *seen)

    other_by_key, first_by_key = (dict(zip(keys, values.T, strict=True)) for values in (b, a))
    gaps = _gap_changes(first.reports[0], other.reports[0]) if single else {}
    deciding = DECIDING if first.reports[0].judged is None else (*keys[:2], *[*gaps][:1])
    return PairedComparison(
        first=first.name,
        other=other.name,
        queries=len(shared),
        mcnemar=mcnemar(b[:, _RIGHT] == 1, a[:, _RIGHT] == 1) if tested else None,
        verdict=judge(
            other.name,
            first.name,
            other_by_key,
            first_by_key,
            np.array(labels),
            products=products,
            strata=_parts(first.reports[0], shared),
            deciding=deciding,
            beside=gaps,
        )
        if single
        else None,
        classes=_compare_classes(labels, a[:, _RIGHT], b[:, _RIGHT], tested=tested),
        gained=len(gained),
        lost=len(lost),
        gained_queries=[change(at) for at in gained[:QUERIES].tolist()],
        lost_queries=[change(at) for at in lost[:QUERIES].tolist()],
        identical=all(answers[0][key] == answers[1][key] for key in shared) if all(answers) else None,
    )


def _nearest(report: Report) -> dict[_QueryKey, Neighbour | None]:
    """Return the first answer to each query; empty if the report does not know them."""
    if report.findings is None or not report.findings.queries.nearest:
        return {}
    queries, names = report.findings.queries, report.findings.classes.name
    columns = enumerate(zip(queries.path, queries.content, queries.label, strict=True))
    return {
        (path, content, names[label]): report.findings.nearest(n) for n, (path, content, label) in columns
    }


def _compare_classes(
    labels: Sequence[str], first: np.ndarray, other: np.ndarray, *, tested: bool
) -> list[ClassChange]:
    names, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
    ours, theirs = (np.bincount(numbers, right) / counts for right in (first, other))
    ps = mcnemar_by_class(other == 1, first == 1, numbers).tolist() if tested else [None] * len(names)
    return [
        ClassChange(str(names[at]), int(counts[at]), float(ours[at]), float(theirs[at]), ps[at])
        for at in np.lexsort((np.arange(len(names)), -(theirs - ours))).tolist()
    ]


def judge_reports(report: Report, earlier: Report) -> Verdict | None:
    """Return whether the model of a report finds more than that of an earlier one, on the queries of both.

    Returns:
        The verdict; `None` if the models are the same, or the data differ.
    """
    if report.fingerprint == earlier.fingerprint or _protocol_differences(earlier, report):
        return None
    names = [f"model {(one.fingerprint or 'unknown')[:8]}" for one in (earlier, report)]
    contenders = [Contender(name, (one,)) for name, one in zip(names, (earlier, report), strict=True)]
    try:
        pairs = compare_reports(contenders).pairs
    except InputError:  # of other data
        return None
    return pairs[0].verdict if pairs else None


# ---- arguments of the command


def load_contenders(arguments: Sequence[str]) -> list[Contender]:
    """Load the reports named on the command line.

    Args:
        arguments: Each is a report (its folder or report.json), a gallery (its newest report), a folder of
            runs with a report each, or NAME= and a comma-separated list of these; `*` is a wildcard. The
            default name is the shortest end of the path that is unique.

    Raises:
        InputError: There is no such report, or a name is used twice.
    """
    split = [_split_argument(argument) for argument in arguments]
    folders = [[folder for part in parts for folder in _report_folders(part)] for _, parts in split]
    names = _unique_names([name for name, _ in split], arguments)
    return [
        Contender(name, tuple(Report.load(folder) for folder in dict.fromkeys(found)))
        for name, found in zip(names, folders, strict=True)
    ]


def _split_argument(argument: str) -> tuple[str | None, list[str]]:
    """Split NAME=PATH,PATH, unless the argument is an existing path."""
    name, equals, rest = argument.partition("=")
    if not equals or Path(argument).exists():
        return None, [argument]
    if not name or not all(rest.split(",")):
        raise InputError(f"{argument!r}: write NAME=REPORT, or NAME=REPORT,REPORT for several runs")
    return name, rest.split(",")


def _report_folders(pattern: str) -> list[Path]:
    """Return the folders of all reports that a path or pattern refers to."""
    matches = [pattern] if Path(pattern).exists() else sorted(glob.glob(pattern))
    found = [folder for match in matches for folder in _folders_at(Path(match))]
    if "," in pattern and not matches:
        raise InputError(f"{pattern!r}: several reports need a name; write NAME=REPORT,REPORT")
    if not found:
        problem = f"no {REPORT_FILE} here, nor in its folders" if matches else "no such report"
        raise InputError(f"{pattern}: {problem}; `lookalike evaluate ... --out DIR` writes one")
    return found


def _folders_at(path: Path) -> Iterable[Path]:
    if path.is_file():
        return [path.absolute().parent] if path.name == REPORT_FILE else []
    if (path / REPORT_FILE).is_file():
        return [path.absolute()]
    if is_gallery(path):
        return [folder.absolute() for folder in kept_reports(path)[-1:]]
    return sorted(file.absolute().parent for file in path.glob(f"*/{REPORT_FILE}"))


def _unique_names(given: Sequence[str | None], arguments: Sequence[str]) -> list[str]:
    """Return the given names, and for the others the shortest ends of their paths that are unique."""
    paths = [Path(argument).absolute() for argument in arguments]
    parts = [(path.parent if path.name == REPORT_FILE else path).parts for path in paths]
    ends = {part[-1] for part, name in zip(parts, given, strict=True) if name is None}
    while len(ends) == 1 < given.count(None) and min(map(len, parts)) > 1:
        parts = [part[:-1] for part in parts]
        ends = {part[-1] for part, name in zip(parts, given, strict=True) if name is None}
    for length in range(1, max(map(len, parts)) + 1):
        names = [name or "/".join(part[-length:]) for name, part in zip(given, parts, strict=True)]
        if len(set(names)) == len(names):
            return names
    twice = next(at for at, name in enumerate(names) if names.count(name) > 1)
    raise InputError(
        f"{given[twice] or arguments[twice]}: named twice; choose different names, as in NAME=REPORT"
    )
