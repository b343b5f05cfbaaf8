"""Index tuning: choose kind and search effort by recall measured against exact search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import faiss
import numpy as np

from retrieval.errors import LookalikeError
from retrieval.progress import Progress
from retrieval.search import kinds
from retrieval.search.kinds import AIM, Kind
from retrieval.search.vectors import Vectors, top_k
from retrieval.text import align_columns

SAMPLE = 50_000
QUERIES = 400
_TIMED = 50
_ONE_SIDED = 1.645  # standard errors
# At equal recall `ivf-flat` is slower than `ivf-sq8` and four times as large, so it is not tried.
_CANDIDATES = ("flat", "pq", "sq8", "ivf-pq", "ivf-sq8", "hnsw")


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
        ms: Time of one query on one thread, in milliseconds.
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
        rows: Rows of the queries, int64 [Q], ascending.
        queries: float32 [Q, D].
        kth: Score of the last of the 10 nearest among the other vectors, float32 [Q].
    """

    vectors: Vectors
    rows: np.ndarray
    queries: np.ndarray
    kth: np.ndarray

    @property
    def wanted(self) -> int:
        """Number of neighbours to find: 10, or all if there are fewer."""
        return min(AIM, len(self.vectors) - len(self.rows))

    def answers(
        self, index: faiss.Index, effort: int, oversample: int, queries: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and rows as a search returns them."""
        rows = self.vectors.rows_of(kinds.candidates(index, queries, AIM, effort, oversample))
        return top_k(self.vectors.score(queries, rows), rows, self.wanted)

    def recall(self, index: faiss.Index, effort: int, oversample: int) -> tuple[float, float]:
        """Return the recall and the lower end of its confidence interval; 1 without queries."""
        if not len(self.rows):
            return 1.0, 1.0
        scores, _ = self.answers(index, effort, oversample, self.queries)
        found = (scores >= self.kth[:, None]).mean(1)  # [Q]
        error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else 0.0
        return float(found.mean()), float(found.mean() - _ONE_SIDED * error)

    def milliseconds(self, search: Callable[[np.ndarray], object]) -> float:
        """Return the median time of single queries, float32 [1, D]."""
        taken = [0.0]
        for query in self.queries[:_TIMED]:
            start = time.perf_counter()
            search(query[None])
            taken.append(time.perf_counter() - start)
        return 1000 * float(np.median(taken))


def hold_out_queries(vectors: Vectors, live: np.ndarray | None = None, old: int = 0) -> HeldOutQueries:
    """Draw queries from row `old` on, and find their nearest neighbours by exact search.

    Args:
        vectors: Vectors of the gallery.
        live: Rows to search, bool [rows]; `None` for all.
        old: First row to draw.
    """
    random = np.random.default_rng(0)
    new = np.arange(old, len(vectors)) if live is None else old + np.flatnonzero(live[old:])
    rows = np.sort(random.choice(new, min(len(new) // 10, QUERIES), replace=False))
    queries = vectors.take(rows)
    others = np.ones(len(vectors), bool) if live is None else live.copy()
    others[rows] = False
    scores, _ = vectors.nearest(queries, min(AIM, int(others.sum())), others)
    return HeldOutQueries(vectors, rows, queries, scores.min(1, initial=np.inf))


def sweep_efforts(
    kind: Kind, index: faiss.Index, held_out: HeldOutQueries, recall: float
) -> Iterator[IndexTrial]:
    """Yield, for each number of candidates, the least effort that reaches the recall, or the largest."""
    count = len(held_out.vectors)
    size = kinds.memory_needed(kind.name, index.d, count) // count
    for oversample in kind.oversample:
        for effort in kinds.efforts(kind, index):
            reached, at_least = held_out.recall(index, effort, oversample)
            if at_least >= recall:
                break
        search = partial(held_out.answers, index, effort, oversample)
        yield IndexTrial(
            kind.name, effort, oversample, reached, at_least, size, held_out.milliseconds(search)
        )


def fastest(trials: Sequence[IndexTrial], recall: float) -> IndexTrial | None:
    """Return the fastest trial whose lower confidence bound reaches the recall; `None` if there is none."""
    return min((t for t in trials if t.at_least >= recall), key=lambda t: t.ms, default=None)


def fastest_first(trials: Sequence[IndexTrial], recall: float) -> list[str]:
    """Return the kinds that reach the recall, fastest first."""
    good = sorted((trial for trial in trials if trial.at_least >= recall), key=lambda trial: trial.ms)
    return list(dict.fromkeys(trial.kind for trial in good))


def run_trials(
    vectors: Vectors, *, recall: float, memory: int | None, show_progress: bool
) -> list[IndexTrial]:
    """Measure which kinds reach the recall within the memory, on a sample.

    Every kind that fits is built over at most 50,000 of the vectors and searched with growing effort. Times
    are extrapolated from the sample to all vectors.

    Args:
        vectors: Vectors to index.
        recall: Required share of the 10 nearest neighbours.
        memory: Bytes of memory that the index may use; `None` for no limit.
        show_progress: Report progress on stderr.

    Raises:
        LookalikeError: No kind reaches the recall; the message has the table of trials.
    """
    random = np.random.default_rng(0)
    count = len(vectors)
    rows = np.sort(random.choice(count, min(count, SAMPLE), replace=False))
    sample = Vectors([vectors.take(rows)], vectors.dim)
    held_out, centres = hold_out_queries(sample), None
    tried: list[IndexTrial] = []
    with Progress("choosing an index", len(_CANDIDATES), "kinds", show=show_progress) as progress:
        for name in _CANDIDATES:
            needed = kinds.memory_needed(name, vectors.dim, count)
            if memory is None or needed <= memory:
                progress.update(0, name)
                index, done = _attempt(name, sample, held_out, recall, centres)
                if name != "flat" and kinds.APPROXIMATE[name].in_cells:
                    centres = kinds.centroids(index)
                growth = (count / len(sample)) ** kinds.growth(name)
                size = needed // count
                tried += [replace(trial, bytes_per_vector=size, ms=trial.ms * growth) for trial in done]
            progress.update(1)
        chosen = fastest(tried, recall)
        lines = trial_table(tried, chosen)
        if chosen is None:
            raise LookalikeError("\n".join([_too_much(recall, memory, vectors), *lines]))
        for line in lines:
            progress.write(line)
    return tried


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


def _attempt(
    name: str, sample: Vectors, held_out: HeldOutQueries, recall: float, centres: np.ndarray | None
) -> tuple[faiss.Index | None, list[IndexTrial]]:
    """Build an index of one kind over the sample and search it."""
    if name == "flat":
        exact = held_out.milliseconds(lambda query: sample.nearest(query, AIM))
        return None, [IndexTrial("flat", 0, 1, 1.0, 1.0, 0, exact)]
    kind = kinds.APPROXIMATE[name]
    index = kinds.train_index(kind, sample.parts[0], len(sample), centres)
    add_rows(index, sample, held_out.rows)
    return index, list(sweep_efforts(kind, index, held_out, recall))


def add_rows(
    index: faiss.Index,
    vectors: Vectors,
    held: np.ndarray,
    live: np.ndarray | None = None,
    start: int = 0,
    *,
    show_progress: bool = False,
) -> None:
    """Add rows to an index.

    Args:
        index: FAISS index.
        vectors: Vectors of the gallery.
        held: Rows to leave out, int64 [h], ascending.
        live: Rows to add, bool [rows]; `None` for all.
        start: First row to add.
        show_progress: Report progress on stderr.
    """
    with Progress("indexing", len(vectors), "vectors", begun=start, show=show_progress) as progress:
        for first, block in vectors.blocks(start):
            rows = np.setdiff1d(np.arange(first, first + len(block)), held, assume_unique=True)
            rows = rows if live is None else rows[live[rows]]
            index.add_with_ids(np.ascontiguousarray(block[rows - first]), vectors.numbers_of(rows))
            progress.update(len(block))


def _too_much(recall: float, memory: int | None, vectors: Vectors) -> str:
    least = min(kinds.memory_needed(name, vectors.dim, len(vectors)) for name in _CANDIDATES)
    within = f" within {memory:,} bytes (the smallest takes {least:,})" if memory else ""
    return f"no index reaches recall {recall:g}{within}; allow more memory, or lower the recall; tried:"
