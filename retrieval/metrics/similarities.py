"""Every query against the whole gallery: what looks most alike, and how far apart the classes are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrieval.metrics import places
from retrieval.metrics.inputs import Questions, questions
from retrieval.metrics.ranking import TIE
from retrieval.progress import Progress

BINS = 200
_WIDTH = 2 / BINS
_CELLS = 1 << 24  # of queries x gallery at once: 64 MB
_QUERIES = 512
_LOW = -1.5  # bins begin here, so that cosines a little below -1, and what is left out, have one
_ALL_BINS = round(-2 * _LOW / _WIDTH)
_OUT = np.float32(_LOW + _WIDTH / 2)
_COUNT_EACH = 32  # with as many positives counting what is above each is quicker than sorting
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
    """What the cosines of all pairs of a query and an image of the gallery say, itself left out.

    Attributes:
        edges: float64 [bins + 1], of the histograms; the first and last bin hold what rounding puts outside.
        positive, negative: int64 [bins], pairs of one class and of two.
        easiest_positive, hardest_negative: float32 [N], the highest cosine with its class and with another;
            nan where there is none.
        easiest_positive_row: int32 [N], whose it is; -1 where there is none.
        average_precision, map_at_r, r_precision: float64 [N], over the complete ranking, ties as in
            `retrieval.metrics.ranking.Ranking`; nan where there is nothing to find.
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
        """Common area of the two histograms, each of area 1; 0 where one is empty."""
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
    """Compare all pairs, in blocks.

    Args:
        query: float [N, D], unit length; query_labels: [N].
        gallery: float [M, D]; without it each query is compared with all the others; gallery_labels: [M].
        own: int [N], the row of the gallery that is the query itself; -1 for none.

    Raises:
        InputError: as `retrieval.metrics.inputs.questions` does.
    """
    return compare_all(
        questions(query, query_labels, gallery, gallery_labels, own), show_progress=show_progress
    )


def compare_all(asked: Questions, *, show_progress: bool = False) -> Similarities:
    """`similarities`, of what has been checked."""
    by_class = np.argsort(asked.gallery_classes, kind="stable")
    ends = np.cumsum(np.bincount(asked.gallery_classes))
    members = np.split(by_class, ends)  # gallery rows of each class; the last, that of class -1, is empty
    step = int(np.clip(_CELLS // len(asked.gallery), 1, _QUERIES))
    parts = []
    with Progress("comparing all pairs", len(asked.query), "queries", show=show_progress) as progress:
        for start in range(0, len(asked.query), step):
            parts.append(_block(asked, slice(start, start + step), members))
            progress.update(len(parts[-1].r_precision))
    return Similarities(
        np.linspace(-1, 1, BINS + 1),
        *(np.sum([getattr(part, side) for part in parts], 0) for side in ("positive", "negative")),
        *(np.concatenate([getattr(part, name) for part in parts]) for name in _PER_QUERY),
    )


def _block(asked: Questions, part: slice, members: list[np.ndarray]) -> Similarities:
    """Some of the queries; `members` are the gallery rows of each class."""
    cosines = asked.query[part] @ asked.gallery.T  # [b, M]
    own, to_find, classes = asked.own[part], asked.to_find[part], asked.query_classes[part]
    easiest, easiest_row = np.full(len(own), np.nan, np.float32), np.full(len(own), -1, np.int32)
    rights, found = [np.empty(0, np.float32)], [np.empty(0, np.int64)]
    negative = np.zeros(_ALL_BINS, np.int64)
    for i, row in enumerate(cosines):
        mine, count = members[classes[i]], to_find[i]
        if own[i] >= 0:
            row[own[i]] = _OUT
        right = row[mine]
        row[mine] = _OUT
        if count:
            easiest_row[i] = mine[right.argmax()]
            right = -np.sort(-right)[:count]  # the query itself, where it was among them, came last
            easiest[i] = right[0]
            rights.append(right)
            found.append(_count_from(row, right - TIE) + np.arange(1, count + 1))
        negative += _histogram(row)
    hardest = cosines.max(1)
    who, place = np.repeat(np.arange(len(own)), to_find), np.concatenate(found)  # of every right one
    return Similarities(
        edges=np.empty(0),
        positive=_within(_histogram(np.concatenate(rights))),
        negative=_within(negative),
        easiest_positive=easiest,
        easiest_positive_row=easiest_row,
        hardest_negative=np.where(hardest == _OUT, np.float32(np.nan), hardest),
        average_precision=places.average_precision(who, place, to_find),
        map_at_r=places.average_precision(who, place, to_find, to_find),
        r_precision=places.r_precision(who, place, to_find),
    )


def _count_from(row: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """How many values of a row are at least each threshold; these descend."""
    if len(thresholds) <= _COUNT_EACH:
        return np.array([np.count_nonzero(row >= threshold) for threshold in thresholds], np.int64)
    high = np.sort(row[row >= thresholds[-1]])
    return len(high) - np.searchsorted(high, thresholds)


def _histogram(cosines: np.ndarray) -> np.ndarray:
    """Counts over all bins, int64."""
    return np.bincount(((cosines - _LOW) * (1 / _WIDTH)).astype(np.intp), minlength=_ALL_BINS)


def _within(counts: np.ndarray) -> np.ndarray:
    """The bins from -1 to 1 alone; what was left out is in the first of all."""
    margin = (_ALL_BINS - BINS) // 2
    kept = counts[margin:-margin].copy()
    kept[0] += counts[1:margin].sum()
    kept[-1] += counts[-margin:].sum()
    return kept
