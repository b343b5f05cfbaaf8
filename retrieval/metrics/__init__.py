"""Retrieval and clustering metrics, each defined once: the numbers that papers report.

Similarity is the cosine; embeddings have unit length. What all retrieval metrics share:

- Each query is searched for among all the others, or in a gallery. Queries without another image of their
  class to find are left out of the mean, since no embedding could answer them. None left: `InputError`.
- K beyond the gallery means all of it.
- Similarities within 1e-6 are equal, and of equal ones the wrong images come first: nothing depends on the
  order of rows, and embeddings that are all the same find nothing.
- With one class only there is nothing wrong to find, and every metric is 1.

The values of single queries are in `retrieval.metrics.per_query` and `retrieval.metrics.similarities`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.errors import InputError
from retrieval.metrics import per_query
from retrieval.metrics.clustering import kmeans, nmi, pair_f1
from retrieval.metrics.inputs import labelled, questions
from retrieval.metrics.neighbours import Search, nearest
from retrieval.metrics.ranking import Ranking, rank, rank_checked
from retrieval.metrics.similarities import Similarities, similarities

__all__ = [
    "Ranking",
    "Similarities",
    "cmc",
    "kmeans",
    "linear_probe",
    "map_at_r",
    "mean",
    "mean_average_precision",
    "nmi",
    "pair_f1",
    "precision_at_k",
    "r_precision",
    "rank",
    "recall_at_k",
    "similarities",
]


def recall_at_k(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    ks: Sequence[int] = (1, 2, 4, 8),
    own: np.ndarray | None = None,
    search: Search = nearest,
) -> dict[int, float]:
    """Share of queries with at least one of their class among the K nearest (Oh Song et al. 2016).

    Args:
        query: float [N, D], unit length; query_labels: [N].
        gallery: float [M, D]; without it each query is searched for among all the others;
            gallery_labels: [M].
        own: int [N], the row of the gallery that is the query itself, -1 for none.
        search: what finds the neighbours.

    Returns:
        {K: recall}, in 0..1.

    Raises:
        InputError: shapes that do not fit, values that are not finite, or no query that can be answered.
    """
    ranking = rank(query, query_labels, gallery, gallery_labels, k=max(ks), own=own, search=search)
    return dict(zip(ks, mean(per_query.recall(ranking, ks)).tolist(), strict=True))


def precision_at_k(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    ks: Sequence[int] = (1, 10),
    own: np.ndarray | None = None,
    search: Search = nearest,
) -> dict[int, float]:
    """Share of the K nearest that are of the query's class, {K: precision}; the rest as `recall_at_k`."""
    ranking = rank(query, query_labels, gallery, gallery_labels, k=max(ks), own=own, search=search)
    return dict(zip(ks, mean(per_query.precision(ranking, ks)).tolist(), strict=True))


def cmc(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    k: int = 100,
    own: np.ndarray | None = None,
    search: Search = nearest,
) -> np.ndarray:
    """Recall@1 to Recall@k, float64 [k]: the cumulative match characteristic; the rest as `recall_at_k`."""
    ranking = rank(query, query_labels, gallery, gallery_labels, k=k, own=own, search=search)
    first = ranking.first_right[ranking.answerable]
    _insist(len(first) > 0)
    return np.cumsum(np.bincount(first, minlength=k + 1)[1:]) / len(first)


def map_at_r(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    own: np.ndarray | None = None,
    search: Search = nearest,
) -> float:
    """Mean average precision at R (Musgrave et al. 2020, eqs. 3 and 4), in 0..1; the rest as `recall_at_k`.

    R is the number of images of the query's class. As many neighbours are kept for every query, so where
    classes have thousands of images take it from `similarities`.
    """
    ranking = _to_the_last(query, query_labels, gallery, gallery_labels, own, search)
    return float(mean(per_query.map_at_r(ranking)))


def r_precision(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    own: np.ndarray | None = None,
    search: Search = nearest,
) -> float:
    """Share of the R nearest that are of the query's class, in 0..1; the rest as `map_at_r`."""
    ranking = _to_the_last(query, query_labels, gallery, gallery_labels, own, search)
    return float(mean(per_query.r_precision(ranking)))


def mean_average_precision(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    own: np.ndarray | None = None,
) -> float:
    """Mean of the average precision over the complete ranking, in 0..1; the rest as `recall_at_k`."""
    found = similarities(query, query_labels, gallery, gallery_labels, own=own)
    return float(mean(found.average_precision))


def linear_probe(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray
) -> float:
    """Accuracy on test embeddings of a linear classifier of training embeddings, in 0..1.

    Multinomial logistic regression with an L2 penalty (C = 1) on dimensions scaled to mean 0 and deviation 1
    over the training embeddings: the entries of a unit vector are so small that the penalty would rule else.

    Args:
        train: float [N, D], unit length; train_labels: [N].
        test: float [M, D], unit length; test_labels: [M]. A class that training lacks is never got right.

    Raises:
        InputError: shapes that do not fit, values that are not finite, or one class only to learn.
    """
    from sklearn.linear_model import LogisticRegression  # takes seconds to import
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, train_labels = labelled(train, train_labels, "train")
    test, test_labels = labelled(test, test_labels, "test")
    if train.shape[1] != test.shape[1]:
        raise InputError(f"linear_probe: {train.shape[1]} dimensions to train on and {test.shape[1]} to test")
    if len(np.unique(train_labels)) < 2:
        raise InputError("linear_probe: there is one class only to learn")
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    classifier.fit(train, train_labels)
    return float(np.mean(classifier.predict(test) == test_labels))


def mean(values: np.ndarray) -> np.ndarray:
    """Mean over the queries that can be answered: [N, ...] with nan for the others -> [...].

    Raises:
        InputError: there is none.
    """
    answered = values[~np.isnan(values.reshape(len(values), -1)).any(1)]
    _insist(len(answered) > 0)
    return answered.mean(0)


def _to_the_last(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None,
    gallery_labels: np.ndarray | None,
    own: np.ndarray | None,
    search: Search,
) -> Ranking:
    """As many neighbours as the largest class has images to find."""
    asked = questions(query, query_labels, gallery, gallery_labels, own)
    return rank_checked(asked, max(1, int(asked.to_find.max())), search)


def _insist(answerable: bool) -> None:
    if not answerable:
        raise InputError("no query has another image of its class to find")
