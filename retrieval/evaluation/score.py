"""Evaluation of embeddings against labels: the values of all metrics, with the arrays behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from retrieval import metrics
from retrieval.machine.faiss_backend import CPU, CpuBackend
from retrieval.metrics.all_pairs import Similarities
from retrieval.metrics.inputs import build_inputs
from retrieval.metrics.ranking import NeighbourSearch, Ranking
from retrieval.metrics.statistics import bootstrap_intervals, class_intervals
from retrieval.metrics.table import Evidence, all_metrics

KS = (1, 2, 4, 8)
CURVE_KS = (1, 2, 4, 8, 16, 32, 64)
BY_PRODUCT = "product, best view"  # `Result.by` of hits that are products, in the order of a search


@dataclass(frozen=True)
class Result:
    """The values of one model on one data set.

    Attributes:
        name: Name of the model.
        values: Key of the metric -> value in 0..1; keys as in `retrieval.metrics.table`: "recall_at_1",
            "precision_at_10", "map_at_r", "r_precision", "mean_ap", "nmi", "f1", "linear_probe". Published
            results have only some of them. `None`: not defined on these queries, as NMI is if each class has
            one image.
        by: Name of the labels if they are not the classes, such as "chain"; or that the hits are products.
        intervals: Key of the metric -> 95% confidence interval for other queries of these classes, by the
            bootstrap over queries.
        class_intervals: Key of the metric -> 95% confidence interval for other classes like these, by the
            bootstrap over classes; empty with fewer classes than `statistics.LEAST_CLASSES`.
        spreads: Key of the metric -> lowest and highest value over repetitions of k-means.
        as_printed: The values are those of a publication, which tables show with all their digits.
    """

    name: str
    values: dict[str, float | None] = field(default_factory=dict)
    by: str | None = None
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    class_intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    spreads: dict[str, tuple[float, float]] = field(default_factory=dict)
    as_printed: bool = False

    @property
    def title(self) -> str:
        """The name, with the labels if they are not the classes."""
        return f"{self.name}, by {self.by}" if self.by else self.name

    @property
    def known(self) -> dict[str, float]:
        """The values that are defined."""
        return {key: value for key, value in self.values.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Result:
        """Inverse of `to_dict`, also after a round trip through JSON; older reports have fewer ranges."""
        ranges = {
            name: {key: (low, high) for key, (low, high) in fields.get(name, {}).items()}
            for name in ("intervals", "class_intervals", "spreads")
        }
        return cls(**{**fields, **ranges})


@dataclass(frozen=True)
class Evaluation:
    """A result with the arrays it was computed from, query by query.

    Attributes:
        result: The result.
        ranking: Nearest neighbours of each query.
        similarities: Statistics of all pairs.
        per_query: Key of the metric -> values of the queries, float64 [N]; nan for queries without relevant
            images.
    """

    result: Result
    ranking: Ranking
    similarities: Similarities
    per_query: dict[str, np.ndarray]


def evaluate(
    name: str,
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    own: np.ndarray | None = None,
    *,
    products: tuple[np.ndarray, np.ndarray] | None = None,
    ks: Sequence[int] = CURVE_KS,
    by: str | None = None,
    backend: CpuBackend = CPU,
    search: NeighbourSearch | None = None,
    show_progress: bool = False,
) -> Evaluation:
    """Compute every metric of `retrieval.metrics.table`, with its intervals or its spread.

    Args:
        name: Name of the model.
        query: Query embeddings, float [N, D], unit length; these are also clustered.
        query_labels: Labels of the queries, [N].
        gallery: Gallery embeddings, float [M, D]; without it each query searches all other queries.
        gallery_labels: Labels of the gallery, [M].
        own: Gallery row of each query itself, which is left out, int [N]; -1 for none.
        products: Product of each query, int [N], and of each row of the gallery, int [M]. Other views of a
            query's own product are left out as well, and intervals for these classes resample products.
        ks: Values of K.
        by: Name of the labels if they are not the classes.
        backend: Where neighbours and clusters are computed.
        search: Nearest-neighbour search; `None` for that of the backend.
        show_progress: Whether to report progress on stderr.

    Raises:
        InputError: Unusable embeddings or labels, or no query has a relevant image.
    """
    inputs = build_inputs(query, query_labels, gallery, gallery_labels, own, products)
    evidence = Evidence(inputs, np.asarray(query_labels), ks, show_progress, backend, search)
    keys, columns = [], []
    for metric in all_metrics():
        if metric.per_query is not None:
            keys += metric.keys(ks)
            columns.append(metric.per_query(evidence).reshape(len(inputs.query), -1))
    table = np.hstack(columns)  # [N, keys]
    values: dict[str, float | None] = dict(zip(keys, metrics.mean(table).tolist(), strict=True))
    over_classes = class_intervals(table, evidence.query_labels)
    spreads = {}
    for metric in all_metrics():
        if metric.over_clusterings is not None:
            found = metric.over_clusterings(evidence)
            values[metric.key] = None if found is None else float(found.mean())
            if found is not None:
                spreads[metric.key] = (float(found.min()), float(found.max()))
    result = Result(
        name,
        values,
        by,
        intervals=by_key(keys, bootstrap_intervals(table, None if products is None else products[0])),
        class_intervals={} if over_classes is None else by_key(keys, over_classes),
        spreads=spreads,
    )
    per_query = dict(zip(keys, table.T, strict=True))
    return Evaluation(result, evidence.ranking, evidence.similarities, per_query)


def by_key(keys: Sequence[str], intervals: np.ndarray) -> dict[str, tuple[float, float]]:
    """Return intervals, float [keys, 2], by key."""
    return {key: (low, high) for key, (low, high) in zip(keys, intervals.tolist(), strict=True)}
