"""The nearest neighbours of queries, and which of them are right; ties go against the right ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrieval.errors import InputError
from retrieval.metrics.inputs import Questions, questions
from retrieval.metrics.neighbours import Search, nearest

# Similarities that differ by less are equal. Products of NumPy and of FAISS, in float32 and for 64 to 3,072
# dimensions, gave cosines of the same two vectors that were up to 6e-7 apart.
TIE = np.float32(1e-6)
_BLOCK = 4096
_CELLS = 1 << 22  # of queries x gallery at once: 16 MB


@dataclass(frozen=True)
class Ranking:
    """The nearest neighbours of queries, best first.

    A wrong image stands before every right one that is not more similar by `TIE`, so that nothing depends on
    the order of the gallery, and embeddings that are all equal find nothing.

    Attributes:
        rows: int32 [N, k], rows of the gallery; -1 where there is none.
        scores: float32 [N, k], cosines; -inf where there is none.
        relevant: bool [N, k], of the query's class.
        to_find: int64 [N], how many of its class the gallery holds, itself left out.
    """

    rows: np.ndarray
    scores: np.ndarray
    relevant: np.ndarray
    to_find: np.ndarray

    @property
    def answerable(self) -> np.ndarray:
        """Queries that have something to find, bool [N]."""
        return self.to_find > 0

    @property
    def first_right(self) -> np.ndarray:
        """The place of the first right neighbour, from 1, int64 [N]; 0: none of the k."""
        return np.where(self.relevant.any(1), self.relevant.argmax(1) + 1, 0)


def rank(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    k: int,
    own: np.ndarray | None = None,
    search: Search = nearest,
    show_progress: bool = False,
) -> Ranking:
    """Find the k nearest of every query, by cosine.

    Args:
        query: float [N, D], unit length; query_labels: [N].
        gallery: float [M, D] to search; without it each query is searched for among all the others;
            gallery_labels: [M].
        k: neighbours wanted; beyond the size of the gallery: all of it.
        own: int [N], the row of the gallery that is the query itself and is not to be found; -1 for none.
        search: what finds them.

    Raises:
        InputError: as `retrieval.metrics.inputs.questions` does, or k below 1.
    """
    return rank_checked(
        questions(query, query_labels, gallery, gallery_labels, own), k, search, show_progress=show_progress
    )


def rank_checked(
    asked: Questions, k: int, search: Search = nearest, *, show_progress: bool = False
) -> Ranking:
    """`rank`, of what has been checked."""
    if k < 1:
        raise InputError(f"k: {k}; at least 1 neighbour has to be asked for")
    k = min(k, len(asked.gallery))
    # One more for the query itself, and one that shows whether a tie goes on behind the last place.
    scores, rows = search(
        asked.query, asked.gallery, min(k + 2, len(asked.gallery)), show_progress=show_progress
    )
    relevant = np.empty((len(rows), k), bool)
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        relevant[part] = _settle(asked, part, rows[part], scores[part], k)
    return Ranking(rows[:, :k], scores[:, :k], relevant, asked.to_find)


def _settle(asked: Questions, part: slice, rows: np.ndarray, scores: np.ndarray, k: int) -> np.ndarray:
    """Drop the queries themselves and put ties in order, in place -> relevant [b, k]."""
    if (asked.own[part] >= 0).any():
        _drop(rows, scores, asked.own[part])
    # What was not fetched is as similar as this at most.
    lowest = np.where(scores[:, -1] > -np.inf, scores[:, -1], scores[:, -2:][:, 0])
    classes = asked.query_classes[part, None]
    relevant = (asked.gallery_classes[rows] == classes) & (rows >= 0)  # [b, k + 2]
    swapped = relevant[:, :-1] & ~relevant[:, 1:] & (scores[:, :-1] - TIE <= scores[:, 1:])
    mixed = np.flatnonzero(swapped.any(1))
    if len(mixed):
        order = np.lexsort((relevant[mixed], TIE * relevant[mixed] - scores[mixed]))
        for array in (rows, scores, relevant):
            array[mixed] = np.take_along_axis(array[mixed], order, 1)
    relevant = relevant[:, :k]
    if rows.shape[1] < len(asked.gallery):
        # A wrong image that was not fetched may belong before these.
        doubtful = np.flatnonzero((relevant & (scores[:, :k] - TIE <= lowest[:, None])).any(1))
        step = max(1, _CELLS // len(asked.gallery))
        for start in range(0, len(doubtful), step):
            these = doubtful[start : start + step]
            rows[these, :k], scores[these, :k] = _search_all(asked, these + part.start, k, lowest[these])
            relevant[these] = asked.gallery_classes[rows[these, :k]] == classes[these]
    return relevant


def _drop(rows: np.ndarray, scores: np.ndarray, own: np.ndarray) -> None:
    """Take each query itself out of its neighbours, in place; beside many duplicates it was not found."""
    itself = rows == own[:, None]  # [b, k + 2]
    found = itself.any(1)
    itself[~found, -1] = True
    for array, nothing in ((rows, -1), (scores, -np.inf)):
        last = np.where(found, nothing, array[:, -1])
        array[:, :-1] = array[~itself].reshape(len(array), -1)
        array[:, -1] = last


def _search_all(
    asked: Questions, which: np.ndarray, k: int, lowest: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and scores [b, k] of a few queries from all similarities; k of them are at least `lowest` [b]."""
    scores = asked.query[which] @ asked.gallery.T  # [b, M]
    own = asked.own[which]
    scores[np.flatnonzero(own >= 0), own[own >= 0]] = -np.inf
    rows = np.empty((len(which), k), np.int64)
    for i, query in enumerate(which):
        # Among the k best may be right ones down to TIE below, and rounding is less than TIE.
        near = np.flatnonzero(scores[i] >= lowest[i] - 2 * TIE)
        right = asked.gallery_classes[near] == asked.query_classes[query]
        rows[i] = near[np.lexsort((right, TIE * right - scores[i, near]))[:k]]
    return rows, np.take_along_axis(scores, rows, 1)
