"""Retrieval and clustering metrics, each defined once, as papers report them.

The similarity is the cosine; embeddings have unit length. Conventions shared by all retrieval metrics:

- Each query searches all other queries (leave-one-out), or a gallery. Queries without a relevant image, that
  is another one of their class, are left out of the mean, since no embedding could answer them. If there are
  no other queries, `InputError` is raised.
- A K beyond the size of the gallery means the whole gallery.
- Similarities within 1e-6 are equal, and among equal ones irrelevant images rank first: results do not depend
  on the order of rows, and embeddings that are all equal find nothing.
- With a single class there is nothing irrelevant, and all metrics are 1.

`retrieval.metrics.table` lists the metrics of an evaluation; values of single queries are in
`retrieval.metrics.per_query` and `retrieval.metrics.all_pairs`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.errors import InputError
from retrieval.metrics import per_query
from retrieval.metrics.all_pairs import Similarities, similarities
from retrieval.metrics.clustering import kmeans, nmi, pair_f1
from retrieval.metrics.inputs import build_inputs, check_labelled
from retrieval.metrics.ranking import NeighbourSearch, Ranking, exact_neighbours, rank, rank_inputs

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
    search: NeighbourSearch = exact_neighbours,
) -> dict[int, float]:
    """Share of queries with a relevant image among the K nearest (Oh Song et al. 2016).

    Args:
        query: Query embeddings, float [N, D], unit length.
        query_labels: Labels of the queries, [N].
        gallery: Gallery embeddings, float [M, D]; without it each query searches all other queries.
        gallery_labels: Labels of the gallery, [M].
        ks: Values of K.
        own: Gallery row of each query itself, which is left out, int [N]; -1 for none.
        search: Nearest-neighbour search.

    Returns:
        {K: recall}, in 0..1.

    Raises:
        InputError: Shapes do not match, values are not finite, or no query has a relevant image.
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
    search: NeighbourSearch = exact_neighbours,
) -> dict[int, float]:
    """Share of relevant images among the K nearest, {K: precision}; arguments as for `recall_at_k`."""
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
    search: NeighbourSearch = exact_neighbours,
) -> np.ndarray:
    """Cumulative match characteristic: Recall@1 to Recall@k, float64 [k]; arguments as for `recall_at_k`."""
    ranking = rank(query, query_labels, gallery, gallery_labels, k=k, own=own, search=search)
    first = ranking.first_relevant[ranking.answerable]
    _require_answerable(len(first))
    return np.cumsum(np.bincount(first, minlength=k + 1)[1:]) / len(first)


def map_at_r(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    own: np.ndarray | None = None,
    search: NeighbourSearch = exact_neighbours,
) -> float:
    """Mean average precision at R (Musgrave et al. 2020, eqs. 3 and 4), in 0..1; as for `recall_at_k`.

    R is the number of relevant images. The largest R of all queries is the depth of the ranking, so if
    classes have thousands of images, use `similarities` instead.
    """
    ranking = _rank_to_r(query, query_labels, gallery, gallery_labels, own, search)
    return float(mean(per_query.map_at_r(ranking)))


def r_precision(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    own: np.ndarray | None = None,
    search: NeighbourSearch = exact_neighbours,
) -> float:
    """Share of relevant images among the R nearest, in 0..1; arguments and R as for `map_at_r`."""
    ranking = _rank_to_r(query, query_labels, gallery, gallery_labels, own, search)
    return float(mean(per_query.r_precision(ranking)))


def mean_average_precision(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    own: np.ndarray | None = None,
) -> float:
    """Mean of the average precision over the complete ranking, in 0..1; arguments as for `recall_at_k`."""
    found = similarities(query, query_labels, gallery, gallery_labels, own=own)
    return float(mean(found.average_precision))


def linear_probe(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray
) -> float:
    """Test accuracy of a linear classifier of the training embeddings, in 0..1.

    Multinomial logistic regression with an L2 penalty (C = 1) on dimensions scaled to mean 0 and deviation 1
    over the training embeddings: otherwise the penalty would dominate the small entries of unit vectors.

    Args:
        train: Training embeddings, float [N, D], unit length.
        train_labels: Labels of the training embeddings, [N].
        test: Test embeddings, float [M, D], unit length.
        test_labels: Labels of the test embeddings, [M]; those missing in training count as wrong.

    Raises:
        InputError: Shapes do not match, values are not finite, or training has a single class.
    """
    from sklearn.linear_model import LogisticRegression  # takes seconds to import
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, train_labels = check_labelled(train, train_labels, "train")
    test, test_labels = check_labelled(test, test_labels, "test")
    if train.shape[1] != test.shape[1]:
        raise InputError(f"linear_probe: {train.shape[1]} dimensions to train on and {test.shape[1]} to test")
    if len(np.unique(train_labels)) < 2:
        raise InputError("linear_probe: the training labels have one class only")
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    classifier.fit(train, train_labels)
    return float(np.mean(classifier.predict(test) == test_labels))


def mean(values: np.ndarray) -> np.ndarray:
    """Mean over the queries with a relevant image: [N, ...] with nan for the others -> [...].

    Raises:
        InputError: There are no such queries.
    """
    answered = values[~np.isnan(values.reshape(len(values), -1)).any(1)]
    _require_answerable(len(answered))
    return np.asarray(answered.mean(0))


def _rank_to_r(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None,
    gallery_labels: np.ndarray | None,
    own: np.ndarray | None,
    search: NeighbourSearch,
) -> Ranking:
    """Rank as deep as the largest number of relevant images."""
    inputs = build_inputs(query, query_labels, gallery, gallery_labels, own)
    return rank_inputs(inputs, max(1, int(inputs.num_relevant.max())), search)


def _require_answerable(queries: int) -> None:
    if not queries:
        raise InputError("no query has another image of its class to find")
