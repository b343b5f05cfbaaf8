"""Index tuning: choose kind and search effort by recall and time, without building every kind in full.

The recall of an index depends on how the true neighbours compare with the vectors next to them. So the kinds
are tried over a sample that has each query's nearest vectors of the whole gallery, with the cells and
quantisers of the whole gallery: its recall is that of the full index. Times are measured on the sample and
extrapolated by the vectors that a search of the full index compares.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.machine import lazy_faiss as faiss
from retrieval.machine.faiss_backend import CPU, CpuBackend
from retrieval.progress import Progress
from retrieval.search import kinds, training
from retrieval.search.kinds import AIM, Kind
from retrieval.search.selection import Selection
from retrieval.search.training import Training
from retrieval.search.vectors import Vectors, top_k
from retrieval.text import align_columns

SAMPLE = 50_000  # vectors drawn at random into the sample
QUERIES = 256
_NEAREST = 384  # vectors next to each query in the sample
_NEAREST_BYTES = 1 << 28
_BLOCK_BYTES = 1 << 28  # vectors compared with the queries at once on a GPU
# At equal recall `ivf-flat` is slower than `ivf-sq8` and four times as large, so it is not tried.
CANDIDATES = tuple(name for name in kinds.NAMES if name not in ("auto", "ivf-flat"))
_SURPLUS = 26  # rough neighbours among which the exact ones are
_TIMED = 24  # queries
_ROUNDS = 5
_SECONDS = 0.5  # time for one measurement, unless that of four queries takes longer
_ONE_SIDED = 1.645  # standard errors
_ABOUT_EQUAL = 1.25  # ratio of times below which the smaller index is preferred
_clock = time.thread_time  # CPU time: other processes do not count


@dataclass(frozen=True)
class IndexTrial:
    """One index kind with its search parameters, and its measured performance.

    Attributes:
        kind: Index kind.
        effort: Visited cells or `efSearch`; 0 for a kind without such a parameter.
        oversample: Candidates per neighbour.
        recall: Share of the 10 nearest that it finds, averaged over the queries.
        at_least: Lower end of a one-sided 95 % confidence interval of the recall.
        bytes_per_vector: Memory per vector, in bytes.
        ms: CPU time of one query, in milliseconds.
    """

    kind: str
    effort: int
    oversample: int
    recall: float
    at_least: float
    bytes_per_vector: int
    ms: float


@dataclass(frozen=True)
class HeldOutQueries:
    """Queries drawn from the vectors, held out of the index while its recall is measured.

    Attributes:
        vectors: Vectors that are searched.
        rows: Rows of the queries, int64 [Q], ascending; -1 if they are not among `vectors`.
        queries: float32 [Q, D].
        kth: Score of the last of the 10 nearest among the other vectors, float32 [Q].
        wanted: Number of neighbours to find: 10, or all if there are fewer.
        selector: FAISS selector of the vectors that may be found, for an index that also holds dead ones or
            the queries; `None` for all.
    """

    vectors: Vectors
    rows: np.ndarray
    queries: np.ndarray
    kth: np.ndarray
    wanted: int
    selector: Any = None

    def others(self, rows: np.ndarray) -> np.ndarray:
        """Return ascending rows without those of the queries, which are among them.

        Other than `np.setdiff1d`, it takes no more memory than the result and one byte for each row.
        """
        return np.delete(rows, np.searchsorted(rows, self.rows))

    def answers(
        self, index: faiss.Index, effort: int, oversample: int, queries: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and rows as a search returns them."""
        numbers = kinds.candidates(index, queries, AIM, effort, oversample, self.selector)
        rows = self.vectors.rows_of(numbers)
        return top_k(self.vectors.score(queries, rows), rows, self.wanted)

    def recall(self, index: faiss.Index, effort: int, oversample: int) -> tuple[float, float]:
        """Return the recall and the lower end of its confidence interval; 1 without queries."""
        if not len(self.rows):
            return 1.0, 1.0
        scores, _ = self.answers(index, effort, oversample, self.queries)
        found = (scores >= self.kth[:, None]).mean(1)  # [Q]
        error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else 0.0
        return float(found.mean()), float(found.mean() - _ONE_SIDED * error)


@dataclass(frozen=True)
class Ground:
    """Queries, true neighbours and training, from which all indexes over some vectors are made and measured.

    Attributes:
        vectors: Vectors to index.
        rows: Rows to index, int64 [n], ascending, without the held-out queries.
        held_out: Queries with their true neighbours among all of these rows.
        training: Training sample and cells.
        sample: Sample of the rows, with each query's nearest, as vectors of their own.
        backend: Where indexes are filled.
    """

    vectors: Vectors
    rows: np.ndarray
    held_out: HeldOutQueries
    training: Training
    sample: Vectors
    backend: CpuBackend = CPU

    @property
    def count(self) -> int:
        """Number of vectors that an index will hold."""
        return len(self.rows) + len(self.held_out.rows)

    @cached_property
    def sampled_queries(self) -> HeldOutQueries:
        """The queries, searched in the sample."""
        return replace(self.held_out, vectors=self.sample)

    @cached_property
    def cell_shares(self) -> np.ndarray:
        """Share of the vectors in each cell, float64 [cells]."""
        some = self.training.sample[:: max(1, len(self.training.sample) // (16 * self.cells))]
        of = training.nearest_centroid(some, self.training.centroids, self.backend)
        return np.bincount(of, minlength=self.cells) / len(some)

    @property
    def dim(self) -> int:
        """Dimensions that an index will hold."""
        return int(self.training.sample.shape[1])

    @property
    def cells(self) -> int:
        """Number of cells."""
        return len(self.training.centroids)


def prepare(
    vectors: Vectors,
    live: np.ndarray | None = None,
    *,
    dim: int | None = None,
    backend: CpuBackend = CPU,
    show_progress: bool = False,
) -> Ground:
    """Draw queries, training vectors and a sample, and train the cells.

    Args:
        vectors: Vectors to index.
        live: bool [rows], False for rows that are left out; `None` for all.
        dim: Leading dimensions that the index will hold; `None` for all.
        backend: Where true neighbours and cells are computed.
        show_progress: Report progress on stderr.
    """
    rows = np.arange(len(vectors)) if live is None else np.flatnonzero(live)
    held_out, near = hold_out_queries(vectors, rows, nearest=_nearest_in_sample(vectors.dim), backend=backend)
    trained = training.draw_training(vectors, rows, dim=dim, backend=backend, show_progress=show_progress)
    rest = held_out.others(rows)
    random = np.random.default_rng(1).choice(len(rest), min(len(rest), SAMPLE), replace=False)
    sample = np.union1d(rest[random], near) if len(rest) > len(near) + SAMPLE else rest
    return Ground(vectors, rest, held_out, trained, Vectors([vectors.take(sample)], vectors.dim), backend)


def hold_out_queries(
    vectors: Vectors,
    rows: np.ndarray,
    new: np.ndarray | None = None,
    *,
    nearest: int = 0,
    backend: CpuBackend = CPU,
) -> tuple[HeldOutQueries, np.ndarray]:
    """Draw queries, and find their nearest neighbours by exact search.

    Args:
        vectors: Vectors that are searched.
        rows: Rows that count, int64 [n], ascending.
        new: Rows to draw from; `None` for all.
        nearest: Number of neighbours of each query to return, about.
        backend: Where the neighbours are found.

    Returns:
        The queries, and the rows next to any of them, int64 [m], ascending.
    """
    random = np.random.default_rng(0)
    new = rows if new is None else new
    held = np.sort(random.choice(new, min(len(new) // 10, QUERIES), replace=False))
    queries = vectors.take(held)
    others = np.zeros(len(vectors), bool)
    others[rows] = True
    others[held] = False
    best, near = _nearest_rows(vectors, queries, others, nearest, backend)
    wanted = min(AIM, len(rows) - len(held))
    scores = np.sort(vectors.score(queries, best), axis=1)[:, ::-1]
    kth = scores[:, wanted - 1] if wanted else np.full(len(held), np.inf, np.float32)
    return HeldOutQueries(vectors, held, queries, kth, wanted), near


def _nearest_rows(
    vectors: Vectors, queries: np.ndarray, allowed: np.ndarray, count: int, backend: CpuBackend
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best rows of each query up to rounding, [Q, 26], -1 for none, and the union of the nearest.

    One pass over the vectors collects what scores above a bound that a random sample gives; nothing is sorted
    before the end. Rows with equal scores at this bound are left out, since they may be any number.
    """
    rows = np.flatnonzero(allowed)
    best = np.full((len(queries), _SURPLUS), -1)
    if len(rows) <= SAMPLE or not count:
        return vectors.scan(queries, _SURPLUS, Selection(allowed))[1], rows[:0]
    if backend.pays(queries.size * len(rows)):
        return _nearest_by_blocks(vectors, queries, rows, count, backend)
    drawn = np.sort(np.random.default_rng(1).choice(rows, SAMPLE, replace=False))
    rank = math.ceil(2 * count * SAMPLE / len(rows))
    error = vectors.dim * np.finfo(np.float32).eps
    bound = np.partition(queries @ vectors.take(drawn).T, -rank, axis=1)[:, -rank] + error  # [Q]
    found = []
    for first, block in vectors.blocks():
        products = queries @ block.T  # [Q, b]
        query, at = np.nonzero(products > bound[:, None])
        keep = allowed[first + at]
        found.append((query[keep], first + at[keep], products[query[keep], at[keep]]))
    query, where, scores = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.lexsort((-scores, query))
    query, where = query[order], where[order]
    rank_of = np.arange(len(query)) - np.searchsorted(query, query)
    top = rank_of < _SURPLUS
    best[query[top], rank_of[top]] = where[top]
    short = np.flatnonzero(best[:, -1] < 0)
    if len(short):
        best[short] = vectors.scan(queries[short], _SURPLUS, Selection(allowed))[1]
    return best, np.union1d(where[rank_of < count], best[best >= 0])


def _nearest_by_blocks(
    vectors: Vectors, queries: np.ndarray, rows: np.ndarray, count: int, backend: CpuBackend
) -> tuple[np.ndarray, np.ndarray]:
    """Return the same as `_nearest_rows`, from the nearest in each block of the rows that are allowed."""
    k = max(count, _SURPLUS)
    scores = np.full((len(queries), k), -np.inf, np.float32)
    best = np.full((len(queries), k), -1)
    size = max(k, _BLOCK_BYTES // (4 * vectors.dim))
    for start in range(0, len(rows), size):
        some = rows[start : start + size]
        near, at = backend.neighbours(queries, vectors.take(some), min(k, len(some)))
        scores, best = top_k(np.hstack([scores, near]), np.hstack([best, some[at]]), k)
    return best[:, :_SURPLUS], np.unique(best[best >= 0])


def sweep_efforts(
    kind: Kind, index: faiss.Index, held_out: HeldOutQueries, recall: float, most: float = math.inf
) -> Iterator[IndexTrial]:
    """Yield, for each number of candidates, the least effort that reaches the recall, or the largest.

    It ends where more candidates do not need less effort.

    Args:
        kind: Index kind.
        index: Index without the queries.
        held_out: Queries and their true neighbours.
        recall: Required recall.
        most: Largest effort to try.
    """
    size = kinds.memory_needed(kind.name, index.d, index.ntotal) // max(1, index.ntotal)
    efforts = [effort for effort in kinds.efforts(kind, index) if effort <= most]
    is_whole = index.d == held_out.vectors.dim
    for oversample in kind.oversample if is_whole else kinds.OVERSAMPLE_LEADING:
        measured: dict[int, tuple[float, float]] = {}

        def reaches(effort: int) -> bool:
            measured[effort] = held_out.recall(index, effort, oversample)  # noqa: B023
            return measured[effort][1] >= recall  # noqa: B023

        place = bisect_left(efforts, True, key=reaches)
        effort = efforts[min(place, len(efforts) - 1)]
        search = partial(replace(held_out, selector=None).answers, index, effort, oversample)
        ms = milliseconds(search, held_out.queries, _ROUNDS if place < len(efforts) else 1)
        yield IndexTrial(kind.name, effort, oversample, *measured[effort], size, ms)
        if place < len(efforts):
            efforts = efforts[:place]
            if not efforts:
                break


def milliseconds(search: Callable[[np.ndarray], object], queries: np.ndarray, rounds: int = _ROUNDS) -> float:
    """Return the CPU time of searching for one query, the mean over some queries, in milliseconds.

    Each is repeated, and its quickest repetition counts, so that a busy machine hardly changes the result.

    Args:
        search: Function of one query, float32 [1, D].
        queries: float32 [Q, D].
        rounds: Number of repetitions.
    """
    best = np.full(min(len(queries), _TIMED), np.inf)
    begun = _clock()
    for turn in range(rounds):
        for at in range(len(best)):
            start = _clock()
            search(queries[at : at + 1])
            best[at] = min(best[at], _clock() - start)
            if not turn and at >= 3 and _clock() - begun > _SECONDS / _ROUNDS:
                best = best[: at + 1]
                break
    return 1000 * float(best.mean()) if len(best) else 0.0


def best_first(trials: Sequence[IndexTrial], recall: float) -> list[IndexTrial]:
    """Return the trials whose lower confidence bound reaches the recall, the best first.

    The fastest is best; but times within a quarter of each other count as equal, and then the smaller index
    is better. Kinds on disk come last: the times do not include reading from it.
    """
    good = [trial for trial in trials if trial.at_least >= recall]
    least = min((trial.ms for trial in good), default=0.0) or 1e-9

    def order(trial: IndexTrial) -> tuple[bool, int, int, float]:
        steps = int(math.log(max(trial.ms / least, 1.0), _ABOUT_EQUAL))
        return kinds.is_on_disk(trial.kind), steps, trial.bytes_per_vector, trial.ms

    return sorted(good, key=order)


def run_trials(
    ground: Ground, names: Sequence[str], *, recall: float, memory: int | None, show_progress: bool
) -> list[IndexTrial]:
    """Measure which kinds reach the recall within the memory, on a sample.

    Recall and effort are those of an index over all vectors, for the reason given above; times are
    extrapolated to it.

    Args:
        ground: Vectors to index, their queries and training.
        names: Kinds to try.
        recall: Required share of the 10 nearest neighbours.
        memory: Bytes of memory that the index may use; `None` for no limit.
        show_progress: Report progress on stderr.

    Raises:
        LookalikeError: No kind reaches the recall; the message has the table of trials.
    """
    dim, count = ground.dim, ground.count
    tried: list[IndexTrial] = []
    with Progress("choosing an index", len(names), "kinds", show=show_progress) as progress:
        for name in names:
            needed = kinds.memory_needed(name, dim, count)
            larger = kinds.instead_of(name) if len(names) > 1 else ""
            fits = memory is None or needed <= memory
            if fits and not (
                larger and (memory is None or kinds.memory_needed(larger, dim, count) <= memory)
            ):
                progress.update(0, name)
                done = _try_flat(ground) if name == "flat" else _try(ground, kinds.APPROXIMATE[name], recall)
                tried += [replace(trial, bytes_per_vector=needed // max(1, count)) for trial in done]
            progress.update(1)
        good = best_first(tried, recall)
        lines = trial_table(tried, good[0] if good else None)
        if not good:
            raise LookalikeError("\n".join([_too_much(names, recall, memory, ground), *lines]))
        for line in lines:
            progress.write(line)
    return tried


def _try_flat(ground: Ground) -> list[IndexTrial]:
    """Time exact search of the sample."""
    exact = milliseconds(lambda query: ground.sample.nearest(query, AIM), ground.held_out.queries)
    return [IndexTrial("flat", 0, 1, 1.0, 1.0, 0, exact * ground.count / max(1, len(ground.sample)))]


def _try(ground: Ground, kind: Kind, recall: float) -> Iterator[IndexTrial]:
    """Build an index of one kind over the sample, search it, and extrapolate the times to all vectors."""
    index = training.train_index(kind, ground.training)
    training.add_rows(index, ground.sample, np.arange(len(ground.sample)))
    costs = _Costs(ground, kind, index)
    # A search of the graph leaves, with more effort, the part of the sample that is as dense as all vectors:
    # of 1,000,000 x 128 near noise, it found 99.4 % with efSearch 1536, in the full index 94.7 % with 2048.
    is_sampled = len(ground.sample) < len(ground.rows)
    most = _nearest_in_sample(ground.vectors.dim) if kind.in_graph and is_sampled else math.inf
    for trial in sweep_efforts(kind, index, ground.sampled_queries, recall, most):
        yield replace(trial, ms=costs.at_full_size(trial))


class _Costs:
    """Extrapolation of the time per query from the sample to all vectors, by the work of a search.

    A scan grows with the vectors that are compared: all, or those in the visited cells, whose shares of all
    vectors are known. A graph grows with the logarithm of their number. Candidates are scored from memory
    that is farther away.

    Args:
        ground: Vectors, queries and sample.
        kind: Index kind.
        index: Index of this kind over the sample.
    """

    def __init__(self, ground: Ground, kind: Kind, index: faiss.Index) -> None:
        self._ground, self._kind, self._index = ground, kind, index

    def at_full_size(self, trial: IndexTrial) -> float:
        """Return the milliseconds of a query in an index over all vectors."""
        here, there = len(self._ground.sample), self._ground.count
        if here >= there - len(self._ground.held_out.rows):
            return trial.ms
        ms = trial.ms + self._scoring(trial.oversample)
        if self._kind.in_graph:
            return ms * math.log(there) / math.log(here)
        if self._kind.in_cells:
            return ms + self._per_vector * self._more_in_cells(trial.effort)
        return ms + self._per_vector * (there - here)

    def _scoring(self, oversample: int) -> float:
        """Return by how much scoring candidates takes longer among all vectors than in the sample."""
        random = np.random.default_rng(0)
        shape = 1, AIM * oversample
        taken = [
            milliseconds(
                lambda query: vectors.score(query, random.integers(0, len(vectors), shape)),  # noqa: B023
                self._ground.held_out.queries,
            )
            for vectors in (self._ground.sample, self._ground.vectors)
        ]
        return max(0.0, taken[1] - taken[0])

    @cached_property
    def _per_vector(self) -> float:
        """Milliseconds to compare a query with one vector, without the fixed costs."""
        sample, times = self._ground.sample, []
        for part in (len(sample) // 4, len(sample)):
            index = training.train_index(self._kind, self._ground.training, one_cell=True)
            training.add_rows(index, sample, np.arange(part))
            times.append(milliseconds(partial(_search_all, index), self._ground.held_out.queries))
        return max(0.0, times[1] - times[0]) / (len(sample) - len(sample) // 4)

    def _more_in_cells(self, effort: int) -> float:
        """Return by how many more vectors the visited cells have among all than in the sample."""
        lists = self._index.invlists
        here = np.array([lists.list_size(cell) for cell in range(self._index.nlist)])
        visited = kinds.visited_cells(self._index, self._ground.held_out.queries, effort)  # [Q, effort]
        more = self._ground.cell_shares * self._ground.count - here
        return max(0.0, float(more[visited].sum(1).mean()))


def _search_all(index: faiss.Index, query: np.ndarray) -> None:
    kinds.candidates(index, query, AIM, 1, 1)


def trial_table(tried: Sequence[IndexTrial], chosen: IndexTrial | None = None) -> list[str]:
    """Return the trials as lines of a table, the chosen one marked."""
    head = ["", "kind", "effort", "candidates", f"recall@{AIM}", "at least", "bytes/vector", "ms/query"]
    rows = [
        [
            "*" if trial == chosen else "",
            trial.kind,
            str(trial.effort or "-"),
            str(AIM * trial.oversample),
            f"{trial.recall:.4f}",
            f"{trial.at_least:.4f}",
            str(trial.bytes_per_vector),
            f"{trial.ms:.3f}",
        ]
        for trial in tried
    ]
    return align_columns([head, *rows], right=range(2, 8))


def _nearest_in_sample(dim: int) -> int:
    return min(_NEAREST, _NEAREST_BYTES // (4 * dim * QUERIES))


def _too_much(names: Sequence[str], recall: float, memory: int | None, ground: Ground) -> str:
    least = min(kinds.memory_needed(name, ground.dim, ground.count) for name in names)
    within = f" within {memory:,} bytes (the smallest takes {least:,})" if memory else ""
    which = f"an index of kind {names[0]} does not reach" if len(names) == 1 else "no index reaches"
    return f"{which} recall {recall:g}{within}; allow more memory, or lower the recall; tried:"
