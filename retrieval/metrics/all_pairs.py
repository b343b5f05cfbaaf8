"""Similarities of all pairs of query and gallery image: histograms, hardest pairs, full-ranking metrics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrieval.metrics.inputs import Inputs, build_inputs
from retrieval.metrics.per_query import average_precision_of_ranks, r_precision_of_ranks
from retrieval.metrics.ranking import TIE
from retrieval.progress import Progress

BINS = 200
_WIDTH = 2 / BINS
_CELLS = 1 << 24  # of queries x gallery at once: 64 MB
_QUERIES = 512
_LOW = -1.5  # first bin edge, so that cosines a little below -1, and excluded pairs, have a bin
_ALL_BINS = round(-2 * _LOW / _WIDTH)
_OUT = np.float32(_LOW + _WIDTH / 2)  # stands for the cosine of an excluded pair
_COUNT_EACH = 32  # positives up to which counting the values above each is faster than sorting
_PER_QUERY = (
    "easiest_positive",
    "easiest_positive_row",
    "hardest_negative",
    "average_precision",
    "map_at_r",
    "r_precision",
)


@dataclass(frozen=True)
class Similarities:
    """Statistics of the cosines of all pairs of query and gallery image, without the queries themselves.

    Attributes:
        edges: Bin edges of the histograms, float64 [bins + 1]; the first and last bin include values that
            rounding puts beyond -1 and 1.
        positive: Pairs of the same class per bin, int64 [bins].
        negative: Pairs of different classes per bin, int64 [bins].
        easiest_positive: Highest cosine with an image of the same class, float32 [N]; nan for none.
        easiest_positive_row: Gallery row of that image, int32 [N]; -1 for none.
        hardest_negative: Highest cosine with an image of another class, float32 [N]; nan for none.
        average_precision: Average precision over the complete ranking, float64 [N]; ties as in
            `retrieval.metrics.ranking.Ranking`; nan for queries without relevant images.
        map_at_r: MAP@R of each query, float64 [N], likewise.
        r_precision: R-Precision of each query, float64 [N], likewise.
    """

    edges: np.ndarray
    positive: np.ndarray
    negative: np.ndarray
    easiest_positive: np.ndarray
    easiest_positive_row: np.ndarray
    hardest_negative: np.ndarray
    average_precision: np.ndarray
    map_at_r: np.ndarray
    r_precision: np.ndarray

    @property
    def overlap(self) -> float:
        """Common area of the two histograms, each of area 1; 0 if one is empty."""
        if not self.positive.any() or not self.negative.any():
            return 0.0
        shares = self.positive / self.positive.sum(), self.negative / self.negative.sum()
        return float(np.minimum(*shares).sum())


def similarities(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    own: np.ndarray | None = None,
    show_progress: bool = False,
) -> Similarities:
    """Compare all pairs of query and gallery image, in blocks.

    Args:
        query: Query embeddings, float [N, D], unit length.
        query_labels: Labels of the queries, [N].
        gallery: Gallery embeddings, float [M, D]; without it each query is compared with all others.
        gallery_labels: Labels of the gallery, [M].
        own: Gallery row of each query itself, int [N]; -1 for none.
        show_progress: Whether to report progress on stderr.

    Raises:
        InputError: As for `retrieval.metrics.inputs.build_inputs`.
    """
    inputs = build_inputs(query, query_labels, gallery, gallery_labels, own)
    return compare_inputs(inputs, show_progress=show_progress)


def compare_inputs(inputs: Inputs, *, show_progress: bool = False) -> Similarities:
    """Compare all pairs of checked queries and gallery images; see `similarities`."""
    by_class = np.argsort(inputs.gallery_classes, kind="stable")
    ends = np.cumsum(np.bincount(inputs.gallery_classes))
    members = np.split(by_class, ends)  # gallery rows of each class; the last, that of class -1, is empty
    step = int(np.clip(_CELLS // len(inputs.gallery), 1, _QUERIES))
    parts = []
    with Progress("comparing all pairs", len(inputs.query), "queries", show=show_progress) as progress:
        for start in range(0, len(inputs.query), step):
            parts.append(_compare_block(inputs, slice(start, start + step), members))
            progress.update(len(parts[-1].r_precision))
    return Similarities(
        np.linspace(-1, 1, BINS + 1),
        *(np.sum([getattr(part, side) for part in parts], 0) for side in ("positive", "negative")),
        *(np.concatenate([getattr(part, name) for part in parts]) for name in _PER_QUERY),
    )


def _compare_block(inputs: Inputs, part: slice, members: list[np.ndarray]) -> Similarities:
    """Compare some of the queries; `members` are the gallery rows of each class."""
    cosines = inputs.query[part] @ inputs.gallery.T  # [b, M]
    own, num_relevant, classes = inputs.own[part], inputs.num_relevant[part], inputs.query_classes[part]
    easiest, easiest_row = np.full(len(own), np.nan, np.float32), np.full(len(own), -1, np.int32)
    positives, ranks = [np.empty(0, np.float32)], [np.empty(0, np.int64)]
    negative = np.zeros(_ALL_BINS, np.int64)
    for i, row in enumerate(cosines):
        same_class, count = members[classes[i]], num_relevant[i]
        if own[i] >= 0:
            row[own[i]] = _OUT
        if inputs.products is not None:
            row[inputs.products[1] == inputs.products[0][part][i]] = _OUT
        positive = row[same_class]
        row[same_class] = _OUT
        if count:
            easiest_row[i] = same_class[positive.argmax()]
            positive = -np.sort(-positive)[:count]  # the query itself, if it is among them, comes last
            easiest[i] = positive[0]
            positives.append(positive)
            ranks.append(count_from(row, positive - TIE) + np.arange(1, count + 1))
        negative += _histogram(row)
    hardest = cosines.max(1)
    queries, rank = np.repeat(np.arange(len(own)), num_relevant), np.concatenate(ranks)
    return Similarities(
        edges=np.empty(0),
        positive=_within(_histogram(np.concatenate(positives))),
        negative=_within(negative),
        easiest_positive=easiest,
        easiest_positive_row=easiest_row,
        hardest_negative=np.where(hardest == _OUT, np.float32(np.nan), hardest),
        average_precision=average_precision_of_ranks(queries, rank, num_relevant),
        map_at_r=average_precision_of_ranks(queries, rank, num_relevant, num_relevant),
        r_precision=r_precision_of_ranks(queries, rank, num_relevant),
    )


def count_from(row: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Count the values of a row that reach each threshold; thresholds descend."""
    if len(thresholds) <= _COUNT_EACH:
        return np.array([np.count_nonzero(row >= threshold) for threshold in thresholds], np.int64)
    high = np.sort(row[row >= thresholds[-1]])
    return len(high) - np.searchsorted(high, thresholds)


def _histogram(cosines: np.ndarray) -> np.ndarray:
    """Count cosines per bin, over all bins, int64."""
    return np.bincount(((cosines - _LOW) * (1 / _WIDTH)).astype(np.intp), minlength=_ALL_BINS)


def _within(counts: np.ndarray) -> np.ndarray:
    """Keep the bins from -1 to 1; excluded pairs are in the very first bin."""
    margin = (_ALL_BINS - BINS) // 2
    kept = counts[margin:-margin].copy()
    kept[0] += counts[1:margin].sum()
    kept[-1] += counts[-margin:].sum()
    return kept
