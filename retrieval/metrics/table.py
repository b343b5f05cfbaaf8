"""The metrics of an evaluation, one row each.

Evaluation, confidence intervals, reports, comparisons, the browser page and the API read this table: adding a
metric means adding a row to `METRICS`, or a plug-in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.machine.faiss_backend import CPU, CpuBackend
from retrieval.metrics import per_query
from retrieval.metrics.all_pairs import Similarities, compare_inputs
from retrieval.metrics.clustering import kmeans, nmi, pair_f1, repetitions
from retrieval.metrics.inputs import Inputs
from retrieval.metrics.ranking import NeighbourSearch, Ranking, exact_neighbours, rank_inputs
from retrieval.plugins import find_plugin, plugin_names
from retrieval.progress import Progress

_K = "{k}"


@dataclass(frozen=True)
class Evidence:
    """Arrays that metrics are computed from, each computed once, on first use, and shared by all metrics.

    Attributes:
        inputs: Queries and gallery.
        query_labels: Labels of the queries, [N].
        ks: Values of K.
        show_progress: Whether to report progress on stderr.
        backend: Where neighbours and clusters are computed.
        search: Nearest-neighbour search; `None` for that of the backend.
    """

    inputs: Inputs
    query_labels: np.ndarray
    ks: Sequence[int]
    show_progress: bool = False
    backend: CpuBackend = CPU
    search: NeighbourSearch | None = None

    @cached_property
    def ranking(self) -> Ranking:
        """The nearest neighbours of each query, as many as the largest K."""
        search = self.search or partial(exact_neighbours, backend=self.backend)
        return rank_inputs(self.inputs, max(self.ks), search, show_progress=self.show_progress)

    @cached_property
    def similarities(self) -> Similarities:
        """Statistics of all pairs of query and gallery image."""
        return compare_inputs(self.inputs, show_progress=self.show_progress)

    @cached_property
    def clusters(self) -> np.ndarray | None:
        """k-means clusters of the queries, as many as classes, several times, int64 [times, N].

        `None` if each class has a single query: there is nothing to put together.
        """
        count, classes = len(self.inputs.query), len(np.unique(self.query_labels))
        if classes == count:
            return None
        number = repetitions(count, classes)
        with Progress("clustering", number, "times", show=self.show_progress) as progress:
            found = []
            for seed in range(number):
                found.append(kmeans(self.inputs.query, classes, seed=seed, backend=self.backend))
                progress.update()
        return np.stack(found)


def _of_clusters(
    agreement: Callable[[np.ndarray, np.ndarray], float],
) -> Callable[[Evidence], np.ndarray | None]:
    """Return the values of an agreement of labels and clusters, one for each clustering."""

    def values(evidence: Evidence) -> np.ndarray | None:
        found = evidence.clusters
        return None if found is None else np.array([agreement(evidence.query_labels, one) for one in found])

    return values


def _every(ks: Sequence[int]) -> Sequence[int]:
    return ks


def _largest_to_ten(ks: Sequence[int]) -> Sequence[int]:
    """The largest K up to 10; at K = 1 precision equals recall."""
    return [k for k in ks if 1 < k <= 10][-1:]


@dataclass(frozen=True)
class Metric:
    """One row of the table. Values are shares in 0..1.

    A row has one of two functions, or none if the caller of the evaluation supplies the value.

    Attributes:
        key: Key of the value in reports, such as "map_at_r". "{k}" stands for K, here and in the texts.
        title: Name in tables.
        meaning: Short explanation, shown below the title.
        short: Name in tables of a terminal; the title by default.
        per_query: Values of the queries, float64 [N], or [N, len(ks)] if the key has "{k}"; nan for queries
            without relevant images. The metric is their mean and has bootstrap intervals.
        over_clusterings: Value of all queries together for each clustering, float64 [times]; `None` if it is
            not defined. The metric is their mean and has a spread.
        brief: Whether the tables of a terminal show it.
        shown_ks: Values of K that tables show.
    """

    key: str
    title: str
    meaning: str
    short: str = ""
    per_query: Callable[[Evidence], np.ndarray] | None = None
    over_clusterings: Callable[[Evidence], np.ndarray | None] | None = None
    brief: bool = True
    shown_ks: Callable[[Sequence[int]], Sequence[int]] = _every

    def keys(self, ks: Sequence[int]) -> list[str]:
        """Return the keys of its values: one, or one for each K."""
        return [self.key.replace(_K, str(k)) for k in ks] if _K in self.key else [self.key]


METRICS = [
    Metric(
        key="recall_at_{k}",
        title="Recall@{k}",
        short="R@{k}",
        meaning="queries with an image of their class in the top {k}",
        per_query=lambda evidence: per_query.recall(evidence.ranking, evidence.ks),
    ),
    Metric(
        key="precision_at_{k}",
        title="Precision@{k}",
        meaning="share of the query's class in the top {k}",
        per_query=lambda evidence: per_query.precision(evidence.ranking, evidence.ks),
        brief=False,
        shown_ks=_largest_to_ten,
    ),
    Metric(
        key="map_at_r",
        title="MAP@R",
        meaning="average precision in the top R, R being the size of the query's class",
        per_query=lambda evidence: evidence.similarities.map_at_r,
    ),
    Metric(
        key="r_precision",
        title="R-Precision",
        meaning="share of the query's class in the top R",
        per_query=lambda evidence: evidence.similarities.r_precision,
        brief=False,
    ),
    Metric(
        key="mean_ap",
        title="mAP",
        meaning="average precision over the whole ranking",
        per_query=lambda evidence: evidence.similarities.average_precision,
        brief=False,
    ),
    Metric(
        key="map_at_{k}",
        title="mAP@{k}",
        meaning="average precision in the top {k}, for queries with lists of images to find",
    ),
    Metric(
        key="trapezoid_ap",
        title="mAP",
        meaning="area below the curve of precision and recall, for queries with lists of images to find",
    ),
    Metric(
        key="modified_precision_at_{k}",
        title="mMP@{k}",
        meaning="precision in the top {k}, or in the top R if there are only R images to find",
    ),
    Metric(
        key="gap",
        title="GAP",
        meaning="average precision of the recognized things in the order of their confidence, with queries "
        "of unknown things",
    ),
    Metric(
        key="gap_of_known",
        title="GAP-",
        meaning="the same without queries of unknown things",
    ),
    Metric(
        key="nmi",
        title="NMI",
        meaning="agreement of k-means clusters with the classes",
        over_clusterings=_of_clusters(nmi),
    ),
    Metric(
        key="f1",
        title="F1",
        meaning="pairs that share a cluster against pairs that share a class",
        over_clusterings=_of_clusters(pair_f1),
    ),
    Metric(
        key="linear_probe",
        title="Linear probe",
        short="probe",
        meaning="accuracy of a linear classifier of the training images",
    ),
]


def all_metrics() -> list[Metric]:
    """Return the rows of the table, and those of plug-ins.

    Raises:
        LookalikeError: A plug-in cannot be imported, is no `Metric`, or has the key of another one.
    """
    rows, keys = [*METRICS], {row.key for row in METRICS}
    for name, origin in plugin_names("metrics").items():
        row = find_plugin("metrics", name)
        if not isinstance(row, Metric) or row.key in keys:
            why = f"the key {row.key!r} is taken" if isinstance(row, Metric) else f"{row!r} is no Metric"
            raise LookalikeError(f"metric {name!r} of {origin}: {why}; see docs/plugins.md")
        rows.append(row)
        keys.add(row.key)
    return rows


@dataclass(frozen=True)
class MetricColumn:
    """A value of a result, as tables show it.

    Attributes:
        metric: Its row of the table.
        key: Key in the values of a result, such as "recall_at_4".
        k: K of the value; `None` for a metric without K.
    """

    metric: Metric
    key: str
    k: int | None = None

    @property
    def title(self) -> str:
        """Name in tables."""
        return self._with_k(self.metric.title)

    @property
    def short(self) -> str:
        """Name in tables of a terminal."""
        return self._with_k(self.metric.short or self.metric.title)

    @property
    def meaning(self) -> str:
        """Short explanation."""
        return self._with_k(self.metric.meaning)

    def _with_k(self, text: str) -> str:
        return text.replace(_K, str(self.k))


def metric_columns(keys: Iterable[str]) -> list[MetricColumn]:
    """Return the columns of keys that the table knows, in the order of the table, by ascending K."""
    present = set(keys)
    found = []
    for metric in all_metrics():
        if _K in metric.key:
            ks = sorted(by_k(dict.fromkeys(present, 0.0), metric.key))
            found += [MetricColumn(metric, metric.key.replace(_K, str(k)), k) for k in ks]
        elif metric.key in present:
            found.append(MetricColumn(metric, metric.key))
    return found


def shown_columns(keys: Iterable[str], ks: Sequence[int], *, brief: bool = False) -> list[MetricColumn]:
    """Return the columns that a table shows.

    Args:
        keys: Keys of all values.
        ks: Values of K of the table.
        brief: Whether it is a table of a terminal, which has little room.
    """
    return [
        column
        for column in metric_columns(keys)
        if (column.k is None or column.k in column.metric.shown_ks(ks)) and (column.metric.brief or not brief)
    ]


def by_k(values: Mapping[str, float | None], key: str = "recall_at_{k}") -> dict[int, float]:
    """Return the known values of a metric with K: {K: value}."""
    prefix, suffix = key.split(_K)
    found = {}
    for name, value in values.items():
        k = name.removeprefix(prefix).removesuffix(suffix)
        if value is not None and k.isdigit() and name == f"{prefix}{k}{suffix}":
            found[int(k)] = value
    return found
