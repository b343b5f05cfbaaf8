"""Connected components of all pairs of vectors with a high inner product.

Exact comparison is quadratic. In larger galleries the vectors are divided into cells (k-means), and each one
is compared with the vectors of its nearest cells only, as in an inverted file (Jegou et al. 2011, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from retrieval.machine.faiss_backend import CPU, CpuBackend, KMeans
from retrieval.progress import Progress
from retrieval.search.snapshot import Snapshot

_BLOCK = 2048  # rows compared with as many others at once
_DIRECTIONS = 64  # dimensions of the first comparison
_SAMPLE = 8192  # vectors from which these directions are computed
_ROUNDING = 1e-6  # of float32

_TRAINED_ON = 32  # vectors per cell from which its centroid is computed
_ITERATIONS = 5  # of k-means
_VISITED = (4, 8, 16, 32, 64)  # nearest cells of a vector that are searched
_USUALLY_VISITED = 8  # if the sample has no pair
_WANTED = 0.995  # share of the sampled pairs that the visited cells have to find
_QUERIES = 2048  # sampled vectors, which are compared with all others
_AT_ONCE = 256  # of them
_PAIRS = 20_000  # sampled pairs that suffice

Tile = tuple[np.ndarray, np.ndarray]  # two sets of places to compare with each other


@dataclass(frozen=True)
class SampledRecall:
    """Share of the near pairs of some random vectors that an approximate comparison has found.

    Attributes:
        pairs: Pairs with a sampled vector, found by comparing it with all others.
        connected: Those of them whose two vectors are in one component of the result.
    """

    pairs: int
    connected: int

    @property
    def share(self) -> float | None:
        """Recall from 0 to 1; `None` without pairs."""
        return self.connected / self.pairs if self.pairs else None


class Components:
    """Connected components of the numbers from 0 to n - 1. Memory: about 40 bytes per number."""

    def __init__(self, count: int) -> None:
        self._of = np.arange(count)  # the component of each number
        self._waiting: list[np.ndarray] = []  # pairs [2, m] that are not connected yet
        self._room = max(2**16, count // 4)
        self._free = self._room

    def apart(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return which pairs are in different components, bool [m]; recent pairs may not count yet."""
        apart: np.ndarray = self._of[a] != self._of[b]
        return apart

    def join(self, a: np.ndarray, b: np.ndarray) -> None:
        """Connect a[i] and b[i], int64 [m], for every i."""
        self._waiting.append(np.stack([a, b]))
        self._free -= len(a)
        if self._free < 0:
            self._connect()

    def connected(self) -> list[np.ndarray]:
        """Return the members of each component of more than one, ascending."""
        self._connect()
        several = np.flatnonzero(np.bincount(self._of)[self._of] > 1) if len(self._of) else self._of
        members = several[np.argsort(self._of[several], kind="stable")]
        parts = np.split(members, np.flatnonzero(np.diff(self._of[members])) + 1)
        return [part for part in parts if len(part)]

    def together(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return which pairs are in one component, bool [m]."""
        self._connect()
        return ~self.apart(a, b)

    def _connect(self) -> None:
        if self._waiting:
            a, b = self._of[np.concatenate(self._waiting, axis=1)]
            self._of = _joined(len(self._of), a, b)[self._of]
            self._waiting, self._free = [], self._room


def _joined(count: int, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the component of each number below `count`, named by its smallest, from pairs, int64 [m].

    The larger root of each pair hangs below the smaller one, and then all below their roots: at least half of
    the roots that are in a pair go with each round (Shiloach and Vishkin 1982).
    """
    root = np.arange(count)
    while len(a):
        np.minimum.at(root, np.maximum(a, b), np.minimum(a, b))
        while not np.array_equal(above := root[root], root):
            root = above
        a, b = root[a], root[b]
        apart = a != b
        a, b = a[apart], b[apart]
    return root


def connect_near(
    snapshot: Snapshot,
    rows: np.ndarray,
    min_score: float,
    components: Components,
    *,
    exact: bool,
    backend: CpuBackend = CPU,
    show: bool,
) -> SampledRecall | None:
    """Join the places in `rows` of all pairs whose inner product is at least `min_score`.

    Args:
        snapshot: State with the vectors.
        rows: Rows to compare, int64 [n].
        min_score: Threshold.
        components: Components of the numbers from 0 to n - 1.
        exact: Compare all pairs; otherwise some may be missed.
        backend: Where the cells of a partition are computed.
        show: Show progress on stderr.

    Returns:
        The measured recall; `None` if exact.
    """
    places = _distinct(snapshot, rows, components)
    comparison = _Comparison(snapshot, rows[places], places, min_score, components)
    if exact:
        comparison.run(_all_tiles(len(places)), len(places) * (len(places) + _BLOCK) // 2, show)
        return None
    a, b = comparison.sampled_pairs(show)
    cells = _Cells(comparison.bounds, a, b, backend)
    comparison.run(cells.tiles(), cells.work, show)
    return SampledRecall(len(a), int(np.count_nonzero(components.together(places[a], places[b]))))


def _distinct(snapshot: Snapshot, rows: np.ndarray, components: Components) -> np.ndarray:
    """Return the places of one row of each distinct vector, ascending; equal ones are joined.

    Equal vectors are found by a hash: thousands of copies of an image need no comparison of all pairs.
    """
    factors = np.random.default_rng(0).integers(0, 2**63, snapshot.stored.dim, np.uint64) * 2 + 1
    hashes = np.empty(len(rows), np.uint64)
    for block in _blocks(len(rows)):
        hashes[block] = snapshot.stored.take(rows[block]).view(np.uint32) @ factors
    order = np.argsort(hashes, kind="stable")
    alike = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]]) + 1
    same = np.zeros(len(rows), bool)  # in this order: equal to the one before
    for later in (alike[block] for block in _blocks(len(alike))):
        a, b = (snapshot.vectors(rows[order[at]]) for at in (later - 1, later))
        same[later] = (a == b).all(1)
    (repeated,) = np.nonzero(same)
    components.join(order[repeated - 1], order[repeated])
    return np.sort(order[~same])


class _Comparison:
    """Rows to compare, by their numbers from 0 to n - 1.

    Attributes:
        bounds: Short unit vectors whose inner products bound those of the vectors from above, float32 [n, d].
    """

    def __init__(
        self,
        snapshot: Snapshot,
        rows: np.ndarray,
        places: np.ndarray,
        min_score: float,
        components: Components,
    ) -> None:
        self._snapshot, self._rows, self._places = snapshot, rows, places
        self._min_score, self._components = min_score, components
        self.bounds = _bounds(snapshot, rows)

    def run(self, tiles: Iterator[Tile], total: int, show: bool) -> None:
        """Join the pairs of all tiles that score at least the threshold."""
        with Progress("comparing", total, "pairs", show=show) as progress:
            for some, others in tiles:
                a, b = self._near(some, others)
                at_a, at_b = self._places[some[a]], self._places[others[b]]
                new = self._components.apart(at_a, at_b)  # connected pairs need no check
                if new.any():
                    checked = self._check(some, others, a[new], b[new])
                    self._components.join(at_a[new][checked], at_b[new][checked])
                progress.update(len(some) * len(others))

    def sampled_pairs(self, show: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return near pairs of random rows with all rows: two arrays int64 [m], exactly compared."""
        count = len(self._rows)
        queries = np.random.default_rng(0).permutation(count)[:_QUERIES]
        found, pairs = [np.empty((2, 0), np.int64)], 0
        with Progress("sampling", len(queries), "images", show=show) as progress:
            for start in range(0, len(queries), _AT_ONCE):
                some = queries[start : start + _AT_ONCE]
                for others in (np.arange(block.start, block.stop) for block in _blocks(count)):
                    a, b = self._near(some, others)
                    apart = some[a] != others[b]
                    checked = self._check(some, others, a[apart], b[apart])
                    found.append(np.stack([some[a[apart][checked]], others[b[apart][checked]]]))
                pairs = sum(part.shape[1] for part in found)
                progress.update(len(some))
                if pairs >= _PAIRS:
                    break
        a, b = np.concatenate(found, axis=1)
        return a, b

    def _near(self, some: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the pairs that may score high enough, as positions in both sets."""
        near = self.bounds[some] @ self.bounds[others].T >= self._min_score - 10 * _ROUNDING  # [b, b']
        a, b = np.divmod(np.flatnonzero(near), len(others))
        return a, b

    def _check(self, some: np.ndarray, others: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return which pairs, as positions in both sets, score high enough exactly: bool [m]."""
        (left, at), (right, to) = (np.unique(x, return_inverse=True) for x in (a, b))
        scores = self._vectors(some[left]) @ self._vectors(others[right]).T
        enough: np.ndarray = scores[at, to] >= self._min_score - _ROUNDING
        return enough

    def _vectors(self, numbers: np.ndarray) -> np.ndarray:
        return self._snapshot.vectors(self._rows[numbers])


class _Cells:
    """Vectors in cells, and for each cell the vectors that have it among their nearest ones.

    Args:
        vectors: Unit vectors, float32 [n, d].
        a, b: Near pairs, int64 [m], from which the number of cells to search is chosen.
        backend: Where the cells are computed.

    Attributes:
        work: Number of comparisons.
    """

    def __init__(self, vectors: np.ndarray, a: np.ndarray, b: np.ndarray, backend: CpuBackend) -> None:
        count = len(vectors)
        # As many comparisons with centroids as with vectors in the searched cells.
        cells = min(2 ** round(np.log2(np.sqrt(max(1, _USUALLY_VISITED * count)))), max(1, count))
        parameters = KMeans(_ITERATIONS, seed=0, spherical=True, max_points=_TRAINED_ON)
        centroids = backend.k_means(vectors, cells, parameters)
        most = min(max(_VISITED), cells)

        def find(some: np.ndarray, number: int) -> np.ndarray:
            """Return the nearest cells of some vectors, int64 [b, number]."""
            return backend.neighbours(some, centroids, number)[1]

        visited = min(self._cells_needed(find, vectors, a, b, most), most)
        nearest = np.empty((count, visited), np.int32)
        for block in _blocks(count, backend.block(_BLOCK)):
            nearest[block] = find(vectors[block], visited)
        self._members = _inverted(nearest[:, :1], cells)
        self._seekers = _inverted(nearest, cells)
        sizes = [np.diff(ends) for _, ends in (self._members, self._seekers)]
        self.work = int(sizes[0] @ sizes[1])

    def tiles(self) -> Iterator[Tile]:
        """Yield for each cell the vectors that search it, and its members, in blocks."""
        for seekers, members in zip(_lists(*self._seekers), _lists(*self._members), strict=True):
            for some in _blocks(len(seekers)):
                for others in _blocks(len(members)):
                    yield seekers[some], members[others]

    @staticmethod
    def _cells_needed(
        find: Callable[[np.ndarray, int], np.ndarray],
        vectors: np.ndarray,
        a: np.ndarray,
        b: np.ndarray,
        most: int,
    ) -> int:
        """Return how many cells find enough of the pairs, in one direction or the other."""
        if not len(a):
            return _USUALLY_VISITED
        members, at = np.unique(np.stack([a, b]), return_inverse=True)
        left, right = at.reshape(2, -1)
        cells = find(vectors[members], most)
        hits = (cells[left] == cells[right, :1]) | (cells[right] == cells[left, :1])  # [m, most]
        shares = np.logical_or.accumulate(hits, axis=1).mean(0)
        enough = [n for n in _VISITED if shares[min(n, most) - 1] >= _WANTED]
        return enough[0] if enough else most


def _inverted(cells: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of each cell, from the cells of each vector, int32 [n, p].

    Returns:
        Numbers of vectors by cell, int32 [n p], and where each cell's begin and end in it, int64 [cells + 1].
    """
    order = np.argsort(cells, axis=None, kind="stable")
    ends = np.concatenate([[0], np.cumsum(np.bincount(cells.ravel(), minlength=count))])
    return (order // cells.shape[1]).astype(np.int32), ends


def _lists(numbers: np.ndarray, ends: np.ndarray) -> Iterator[np.ndarray]:
    return (numbers[start:end] for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))


def _all_tiles(count: int) -> Iterator[Tile]:
    """Yield the tiles of the upper triangle of all pairs."""
    for top in range(0, count, _BLOCK):
        for left in range(top, count, _BLOCK):
            yield np.arange(top, min(top + _BLOCK, count)), np.arange(left, min(left + _BLOCK, count))


def _bounds(snapshot: Snapshot, rows: np.ndarray) -> np.ndarray:
    """Return short unit vectors whose inner products bound those of the vectors from above: float32 [n, d].

    x and y are each split into a part in a few common directions, P x, and the rest, r(x). By Cauchy and
    Schwarz x.y <= Px.Py + |r(x)| |r(y)|: an inner product in one dimension more than the directions.
    """
    sample = np.random.default_rng(0).choice(rows, min(_SAMPLE, len(rows)), replace=False)
    sampled = snapshot.vectors(np.sort(sample)).astype(np.float64)
    _, directions = np.linalg.eigh(sampled.T @ sampled)  # ascending: the last hold most of the length
    directions = directions[:, -_DIRECTIONS:].astype(np.float32)
    bounds = np.empty((len(rows), directions.shape[1] + 1), np.float32)
    for block in _blocks(len(rows)):
        projected = snapshot.vectors(rows[block]) @ directions
        bounds[block, :-1] = projected
        bounds[block, -1] = np.sqrt(np.maximum(1 - (projected**2).sum(1), 0))
    return bounds


def _blocks(count: int, size: int = _BLOCK) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
