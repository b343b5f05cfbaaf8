"""Exact nearest neighbours of queries with their relevance; ties are ordered against the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from retrieval.errors import InputError
from retrieval.machine.faiss_backend import CPU, CpuBackend
from retrieval.metrics.inputs import Inputs, build_inputs
from retrieval.progress import Progress

# Similarities that differ by less are equal. Products of NumPy and of FAISS, in float32 and for 64 to 3,072
# dimensions, gave cosines of the same two vectors that were up to 6e-7 apart.
TIE = np.float32(1e-6)
_BLOCK = 4096  # FAISS processes this many queries at once, so smaller blocks are slower
_CELLS = 1 << 22  # of queries x gallery at once: 16 MB


class NeighbourSearch(Protocol):
    """Exact nearest neighbours by inner product.

    Args:
        query: Queries, float32 [N, D].
        gallery: Vectors to search, float32 [M, D].
        k: Number of neighbours, at most M.
        show_progress: Whether to report progress on stderr.

    Returns:
        Scores, float32 [N, k], and gallery rows, int32 [N, k], best first.
    """

    def __call__(
        self, query: np.ndarray, gallery: np.ndarray, k: int, *, show_progress: bool = False
    ) -> tuple[np.ndarray, np.ndarray]: ...


def exact_neighbours(
    query: np.ndarray,
    gallery: np.ndarray,
    k: int,
    *,
    backend: CpuBackend = CPU,
    show_progress: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """`NeighbourSearch` with FAISS, on the CPU or where the backend computes."""
    size = backend.block(_BLOCK, k)
    scores = np.empty((len(query), k), np.float32)
    rows = np.empty((len(query), k), np.int32)
    with Progress("searching", len(query), "queries", show=show_progress) as progress:
        for start in range(0, len(query), size):
            block = slice(start, start + size)
            scores[block], rows[block] = backend.neighbours(query[block], gallery, k)
            progress.update(len(rows[block]))
    return scores, rows


@dataclass(frozen=True)
class Ranking:
    """Nearest neighbours of queries, best first.

    An irrelevant image precedes each relevant one that is not more similar by `TIE`, so that results do not
    depend on the order of the gallery, and embeddings that are all equal find nothing.

    Attributes:
        rows: Gallery rows, int32 [N, k]; -1 beyond the end of the gallery.
        scores: Cosines, float32 [N, k]; -inf beyond the end of the gallery.
        relevant: Whether the neighbour is of the query's class, bool [N, k].
        num_relevant: Number of relevant images in the gallery, int64 [N].
    """

    rows: np.ndarray
    scores: np.ndarray
    relevant: np.ndarray
    num_relevant: np.ndarray

    @property
    def answerable(self) -> np.ndarray:
        """Whether the gallery has anything relevant to the query, bool [N]."""
        return self.num_relevant > 0

    @property
    def first_relevant(self) -> np.ndarray:
        """Rank of the first relevant neighbour, from 1, int64 [N]; 0 if none of the k is relevant."""
        return np.where(self.relevant.any(1), self.relevant.argmax(1) + 1, 0)


def rank(
    query: np.ndarray,
    query_labels: np.ndarray,
    gallery: np.ndarray | None = None,
    gallery_labels: np.ndarray | None = None,
    *,
    k: int,
    own: np.ndarray | None = None,
    search: NeighbourSearch = exact_neighbours,
    show_progress: bool = False,
) -> Ranking:
    """Find the k nearest neighbours of each query by cosine.

    Args:
        query: Query embeddings, float [N, D], unit length.
        query_labels: Labels of the queries, [N].
        gallery: Gallery embeddings, float [M, D]; without it each query searches all other queries.
        gallery_labels: Labels of the gallery, [M].
        k: Number of neighbours; the whole gallery if it is smaller.
        own: Gallery row of each query itself, which is left out, int [N]; -1 for none.
        search: Nearest-neighbour search.
        show_progress: Whether to report progress on stderr.

    Raises:
        InputError: As for `retrieval.metrics.inputs.build_inputs`, or k is below 1.
    """
    inputs = build_inputs(query, query_labels, gallery, gallery_labels, own)
    return rank_inputs(inputs, k, search, show_progress=show_progress)


def rank_inputs(
    inputs: Inputs, k: int, search: NeighbourSearch = exact_neighbours, *, show_progress: bool = False
) -> Ranking:
    """Find the k nearest neighbours of checked queries; see `rank`."""
    if k < 1:
        raise InputError(f"k: {k}; it must be at least 1")
    k = min(k, len(inputs.gallery))
    # More for what is left out, and one that shows whether a tie continues behind the last rank.
    fetched = min(k + inputs.most_left_out + 1, len(inputs.gallery))
    scores, rows = search(inputs.query, inputs.gallery, fetched, show_progress=show_progress)
    relevant = np.empty((len(rows), k), bool)
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        relevant[part] = _order(inputs, part, rows[part], scores[part], k)
    return Ranking(rows[:, :k], scores[:, :k], relevant, inputs.num_relevant)


def _order(inputs: Inputs, part: slice, rows: np.ndarray, scores: np.ndarray, k: int) -> np.ndarray:
    """Drop the queries themselves and order ties, in place; return relevant [b, k]."""
    lowest = scores[:, -1].copy()  # upper bound of the similarity of images that were not fetched
    if inputs.products is not None or (inputs.own[part] >= 0).any():
        _drop(rows, scores, inputs.left_out(part, rows))
    classes = inputs.query_classes[part, None]
    relevant: np.ndarray = (inputs.gallery_classes[rows] == classes) & (rows >= 0)  # [b, fetched]
    swapped = relevant[:, :-1] & ~relevant[:, 1:] & (scores[:, :-1] - TIE <= scores[:, 1:])
    mixed = np.flatnonzero(swapped.any(1))
    if len(mixed):
        order = np.lexsort((relevant[mixed], TIE * relevant[mixed] - scores[mixed]))
        for array in (rows, scores, relevant):
            array[mixed] = np.take_along_axis(array[mixed], order, 1)
    relevant = relevant[:, :k]
    if rows.shape[1] < len(inputs.gallery):
        # An irrelevant image that was not fetched may have to precede these.
        doubtful = np.flatnonzero((relevant & (scores[:, :k] - TIE <= lowest[:, None])).any(1))
        step = max(1, _CELLS // len(inputs.gallery))
        for start in range(0, len(doubtful), step):
            block = doubtful[start : start + step]
            rows[block, :k], scores[block, :k] = _search_all(inputs, block + part.start, k, lowest[block])
            relevant[block] = inputs.gallery_classes[rows[block, :k]] == classes[block]
    return relevant


def _drop(rows: np.ndarray, scores: np.ndarray, out: np.ndarray) -> None:
    """Remove neighbours, bool [b, m], in place; among many duplicates the query itself may not be there."""
    some = np.flatnonzero(out.any(1))
    order = np.argsort(out[some], axis=1, kind="stable")
    for array, nothing in ((rows, -1), (scores, -np.inf)):
        kept = np.where(out[some], nothing, array[some])
        array[some] = np.take_along_axis(kept, order, 1)


def _search_all(
    inputs: Inputs, queries: np.ndarray, k: int, lowest: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rank a few queries by all similarities; k of them are at least `lowest` [b]. Rows, scores [b, k]."""
    scores = inputs.query[queries] @ inputs.gallery.T  # [b, M]
    scores[inputs.left_out(queries, np.arange(len(inputs.gallery)))] = -np.inf
    rows = np.empty((len(queries), k), np.int64)
    for i, query in enumerate(queries):
        # Relevant images down to TIE below may be among the k best, and rounding is less than TIE.
        near = np.flatnonzero(scores[i] >= lowest[i] - 2 * TIE)
        relevant = inputs.gallery_classes[near] == inputs.query_classes[query]
        rows[i] = near[np.lexsort((relevant, TIE * relevant - scores[i, near]))[:k]]
    return rows, np.take_along_axis(scores, rows, 1)
