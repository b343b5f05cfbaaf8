"""Score embeddings against labels: one result for one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from retrieval import metrics

KS = (1, 2, 4, 8)
CURVE_KS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Result:
    """The numbers of one model on one data set; all in 0..1.

    Attributes:
        recall: K: Recall@K; numbers that somebody else published may lack some.
        nmi, f1: of k-means clusters; `None`: not known.
        by: what has to agree, where it is not the class: "chain".
    """

    name: str
    recall: dict[int, float] = field(default_factory=dict)
    nmi: float | None = None
    f1: float | None = None
    by: str | None = None

    @property
    def title(self) -> str:
        """The name, and what has to agree."""
        return f"{self.name}, by {self.by}" if self.by else self.name

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Result:
        """The inverse of `to_dict`, after a trip through JSON."""
        return cls(**{**values, "recall": {int(k): v for k, v in values["recall"].items()}})


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
) -> Result:
    """Recall@K, and NMI and F1 of k-means with as many clusters as classes, over the query embeddings.

    Args:
        query: float [N, D], unit length; query_labels: [N].
        gallery: float [M, D] to search instead of the other queries; gallery_labels: [M].
        own: int [N], the row of the gallery that is the query itself, -1 for none.
        ks: every K.
        by: what the labels are, where they are not the classes.
    """
    recall = metrics.recall_at_k(query, query_labels, gallery, gallery_labels, ks=ks, own=own)
    clusters = metrics.kmeans(query, len(np.unique(query_labels)))
    nmi, f1 = metrics.nmi(query_labels, clusters), metrics.pair_f1(query_labels, clusters)
    return Result(name, recall, nmi, f1, by)
