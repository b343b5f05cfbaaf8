"""Which index, and how hard to search it: measured against exact search, never guessed."""

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
from retrieval.search.vectors import Vectors, best
from retrieval.text import align_columns

SAMPLE = 50_000
QUERIES = 400
_TIMED = 50
_ONE_SIDED = 1.645  # standard errors
# Of the same recall, `ivf-flat` is slower than `ivf-sq8` and four times as large: it is not tried.
_CANDIDATES = ("flat", "pq", "sq8", "ivf-pq", "ivf-sq8", "hnsw")


@dataclass(frozen=True)
class Trial:
    """One way to search, and how it did.

    Attributes:
        kind: of index.
        effort: cells visited or `efSearch`; 0 where there is nothing to turn.
        oversample: candidates per neighbour wanted.
        recall: share of the 10 nearest that it finds, the mean over the queries.
        at_least: the lower end of a one-sided 95 % confidence interval of the recall.
        bytes_per_vector: that must be in memory.
        ms: for one query on one thread, in milliseconds.
    """

    kind: str
    effort: int
    oversample: int
    recall: float
    at_least: float
    bytes_per_vector: int
    ms: float


@dataclass(frozen=True)
class Exam:
    """Queries out of the vectors themselves, which an index has not seen when it is examined.

    Attributes:
        vectors: what is searched.
        rows: int64 [Q], the queries, ascending.
        queries: float32 [Q, D].
        kth: float32 [Q], how alike the last of the 10 nearest is among the other vectors.
    """

    vectors: Vectors
    rows: np.ndarray
    queries: np.ndarray
    kth: np.ndarray

    @property
    def wanted(self) -> int:
        """Neighbours to find: 10 where there are as many."""
        return min(AIM, len(self.vectors) - len(self.rows))

    def answers(
        self, index: faiss.Index, effort: int, oversample: int, queries: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores and rows as a search would give them."""
        rows = kinds.candidates(index, queries, AIM, effort, oversample)
        return best(self.vectors.score(queries, rows), rows, self.wanted)

    def recall(self, index: faiss.Index, effort: int, oversample: int) -> tuple[float, float]:
        """Share of the nearest that are found, and what it is at least; 1 where there are no queries."""
        if not len(self.rows):
            return 1.0, 1.0
        scores, _ = self.answers(index, effort, oversample, self.queries)
        found = (scores >= self.kth[:, None]).mean(1)  # [Q]
        error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else 0.0
        return float(found.mean()), float(found.mean() - _ONE_SIDED * error)

    def milliseconds(self, search: Callable[[np.ndarray], object]) -> float:
        """Time for a query float32 [1, D]: the median of some, one after the other."""
        taken = [0.0]
        for query in self.queries[:_TIMED]:
            start = time.perf_counter()
            search(query[None])
            taken.append(time.perf_counter() - start)
        return 1000 * float(np.median(taken))


def examine(vectors: Vectors, old: int = 0) -> Exam:
    """Choose queries from row `old` on, and find the truth by exact search."""
    random = np.random.default_rng(0)
    new = np.arange(old, len(vectors))
    rows = np.sort(random.choice(new, min(len(new) // 10, QUERIES), replace=False))
    queries = vectors.take(rows)
    others = np.ones(len(vectors), bool)
    others[rows] = False
    scores, _ = vectors.nearest(queries, min(AIM, len(vectors) - len(rows)), others)
    return Exam(vectors, rows, queries, scores.min(1, initial=np.inf))


def sweep(kind: Kind, index: faiss.Index, exam: Exam, recall: float) -> Iterator[Trial]:
    """For each number of candidates, the least effort that reaches the recall; else the best there is."""
    count = len(exam.vectors)
    size = kinds.memory_needed(kind.name, index.d, count) // count
    for oversample in kind.oversample:
        for effort in kinds.efforts(kind, index):
            reached, at_least = exam.recall(index, effort, oversample)
            if at_least >= recall:
                break
        search = partial(exam.answers, index, effort, oversample)
        yield Trial(kind.name, effort, oversample, reached, at_least, size, exam.milliseconds(search))


def cheapest(trials: Sequence[Trial], recall: float) -> Trial | None:
    """The fastest trial that reaches the recall beyond doubt."""
    return min((t for t in trials if t.at_least >= recall), key=lambda t: t.ms, default=None)


def fastest_first(trials: Sequence[Trial], recall: float) -> list[str]:
    """Kinds that reached the recall."""
    good = sorted((trial for trial in trials if trial.at_least >= recall), key=lambda trial: trial.ms)
    return list(dict.fromkeys(trial.kind for trial in good))


def trials(vectors: Vectors, *, recall: float, memory: int | None, show_progress: bool) -> list[Trial]:
    """Try out which kinds reach the recall within the memory, on a sample.

    Every kind that fits is built over 50,000 of the vectors at most and searched for some of them, with
    growing effort. Times are those of the sample, grown to the number of all vectors.

    Raises:
        LookalikeError: none does; the message has the table of trials.
    """
    random = np.random.default_rng(0)
    count = len(vectors)
    rows = np.sort(random.choice(count, min(count, SAMPLE), replace=False))
    sample = Vectors([vectors.take(rows)], vectors.dim)
    exam, centres = examine(sample), None
    tried: list[Trial] = []
    with Progress("choosing an index", len(_CANDIDATES), "kinds", show=show_progress) as progress:
        for name in _CANDIDATES:
            needed = kinds.memory_needed(name, vectors.dim, count)
            if memory is None or needed <= memory:
                progress.update(0, name)
                index, done = _attempt(name, sample, exam, recall, centres)
                if name.startswith("ivf"):
                    centres = kinds.centroids(index)
                growth = (count / len(sample)) ** kinds.growth(name)
                size = needed // count
                tried += [replace(trial, bytes_per_vector=size, ms=trial.ms * growth) for trial in done]
            progress.update(1)
        chosen = cheapest(tried, recall)
        lines = table(tried, chosen)
        if chosen is None:
            raise LookalikeError("\n".join([_too_much(recall, memory, vectors), *lines]))
        for line in lines:
            progress.write(line)
    return tried


def table(tried: Sequence[Trial], chosen: Trial | None = None) -> list[str]:
    """Trials as lines for a terminal, the chosen one marked."""
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
    name: str, sample: Vectors, exam: Exam, recall: float, centres: np.ndarray | None
) -> tuple[faiss.Index | None, list[Trial]]:
    """Build a kind over the sample and search it."""
    if name == "flat":
        exact = exam.milliseconds(lambda query: sample.nearest(query, AIM))
        return None, [Trial("flat", 0, 1, 1.0, 1.0, 0, exact)]
    kind = kinds.APPROXIMATE[name]
    index = kinds.trained(kind, sample.parts[0], len(sample), centres)
    add(index, sample, exam.rows)
    return index, list(sweep(kind, index, exam, recall))


def add(
    index: faiss.Index, vectors: Vectors, held: np.ndarray, start: int = 0, *, show_progress: bool = False
) -> None:
    """Add the rows from `start` on to an index, but not those held back, int64 [h], ascending."""
    with Progress("indexing", len(vectors), "vectors", begun=start, show=show_progress) as progress:
        for first, block in vectors.blocks(start):
            rows = np.setdiff1d(np.arange(first, first + len(block)), held, assume_unique=True)
            index.add_with_ids(np.ascontiguousarray(block[rows - first]), rows)
            progress.update(len(block))


def _too_much(recall: float, memory: int | None, vectors: Vectors) -> str:
    least = min(kinds.memory_needed(name, vectors.dim, len(vectors)) for name in _CANDIDATES)
    within = f" within {memory:,} bytes; the smallest takes {least:,}" if memory else ""
    return f"no index reaches recall {recall:g}{within}: allow more memory, or less recall; tried:"
