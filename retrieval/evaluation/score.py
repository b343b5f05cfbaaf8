"""Score embeddings against labels: one result for one model, with what it was computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from retrieval import metrics
from retrieval.metrics import bootstrap, per_query
from retrieval.metrics.inputs import questions
from retrieval.metrics.ranking import Ranking, rank_checked
from retrieval.metrics.similarities import Similarities, compare_all
from retrieval.progress import Progress

KS = (1, 2, 4, 8)
CURVE_KS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Result:
    """The numbers of one model on one data set; all in 0..1, `None` where not known.

    Attributes:
        recall, precision: K: Recall@K and Precision@K; numbers that somebody else published may lack some.
        nmi, f1: of k-means clusters.
        by: what has to agree, where it is not the class: "chain".
        map_at_r, r_precision: with R the number of images of the query's class.
        mean_ap: mean average precision over the complete ranking.
        linear_probe: accuracy of a linear classifier.
        intervals: 95% confidence intervals by the bootstrap over queries: "recall_at_1", "precision_at_10",
            ..., "map_at_r", "r_precision", "mean_ap".
    """

    name: str
    recall: dict[int, float] = field(default_factory=dict)
    nmi: float | None = None
    f1: float | None = None
    by: str | None = None
    precision: dict[int, float] = field(default_factory=dict)
    map_at_r: float | None = None
    r_precision: float | None = None
    mean_ap: float | None = None
    linear_probe: float | None = None
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The name, and what has to agree."""
        return f"{self.name}, by {self.by}" if self.by else self.name

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Result:
        """The inverse of `to_dict`, after a trip through JSON; older ones have fewer numbers."""
        by_k = {
            name: {int(k): value for k, value in values.get(name, {}).items()}
            for name in ("recall", "precision")
        }
        intervals = {name: (low, high) for name, (low, high) in values.get("intervals", {}).items()}
        return cls(**{**values, **by_k, "intervals": intervals})


@dataclass(frozen=True)
class Evaluation:
    """The numbers, and what they were computed from, query by query."""

    result: Result
    ranking: Ranking
    similarities: Similarities


def evaluate(
    name: str,
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    own: np.ndarray | None = None,
    *,
    ks: Sequence[int] = CURVE_KS,
    by: str | None = None,
    show_progress: bool = False,
) -> Evaluation:
    """Every retrieval metric with its interval, and NMI and F1 of k-means with as many clusters as classes.

    Clusters are made of the query embeddings. The definitions are those of `retrieval.metrics`.

    Args:
        query: float [N, D], unit length; query_labels: [N].
        gallery: float [M, D] to search instead of the other queries; gallery_labels: [M].
        own: int [N], the row of the gallery that is the query itself, -1 for none.
        ks: every K.
        by: what the labels are, where they are not the classes.

    Raises:
        InputError: embeddings or labels that cannot be used, or no query that can be answered.
    """
    asked = questions(query, query_labels, gallery, gallery_labels, own)
    ranking = rank_checked(asked, max(ks), show_progress=show_progress)
    compared = compare_all(asked, show_progress=show_progress)
    values = np.column_stack(
        [
            per_query.recall(ranking, ks),
            per_query.precision(ranking, ks),
            compared.map_at_r,
            compared.r_precision,
            compared.average_precision,
        ]
    )  # [N, metrics]
    means = metrics.mean(values).tolist()
    names = [f"{metric}_at_{k}" for metric in ("recall", "precision") for k in ks]
    names += ["map_at_r", "r_precision", "mean_ap"]
    ends = [(low, high) for low, high in bootstrap.intervals(values).tolist()]
    with Progress("clustering", len(asked.query), "queries", show=show_progress) as progress:
        clusters = metrics.kmeans(asked.query, len(np.unique(query_labels)))
        progress.update(len(clusters))
    result = Result(
        name,
        recall=dict(zip(ks, means, strict=False)),
        precision=dict(zip(ks, means[len(ks) :], strict=False)),
        map_at_r=means[-3],
        r_precision=means[-2],
        mean_ap=means[-1],
        nmi=metrics.nmi(query_labels, clusters),
        f1=metrics.pair_f1(query_labels, clusters),
        by=by,
        intervals=dict(zip(names, ends, strict=True)),
    )
    return Evaluation(result, ranking, compared)
