"""What a model gets wrong: query by query, class by class, and which pictures to look at."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from retrieval.evaluation.score import Evaluation

HARDEST = 12  # queries
NEIGHBOURS = 5  # of each of them
CONFUSIONS = 100  # pairs of classes
_CONTENT_DIGITS = 12


@dataclass(frozen=True)
class Pictures:
    """Pictures in the order of their vectors.

    Attributes:
        contents: SHA-256 of each file's bytes; empty: not needed.
    """

    paths: Sequence[Path]
    labels: Sequence[str | None]
    contents: Sequence[str] = ()


@dataclass(frozen=True)
class Queries:
    """One entry a query in every column.

    Attributes:
        path: relative to `Findings.root`.
        content: the first 12 digits of the file's SHA-256, which tell a picture from another of that name.
        label: number of its class in `Classes`.
        first_right: rank of the nearest picture of its class, from 1; `None`: further down than was looked
            at, or there is none.
        average_precision: over the complete ranking; `None`: there is nothing to find.
    """

    path: list[str]
    content: list[str]
    label: list[int]
    first_right: list[int | None]
    average_precision: list[float | None]


@dataclass(frozen=True)
class Classes:
    """One entry a class of the queries in every column.

    Attributes:
        queries: how many of its queries have something to find.
        recall_at_1: over these; `None` where there are none.
        mistaken_for: the class of most of its wrong first neighbours; `None`: there are none.
    """

    name: list[str]
    queries: list[int]
    recall_at_1: list[float | None]
    mistaken_for: list[str | None]


@dataclass(frozen=True)
class Neighbour:
    """A picture of the gallery beside a query, with their cosine similarity."""

    path: str
    label: str | None
    score: float
    right: bool


@dataclass(frozen=True)
class HardQuery:
    """A query whose first neighbour is wrong.

    Attributes:
        query: its number in `Queries`.
        neighbours: the nearest, best first.
        nearest_right: what should have come first.
    """

    query: int
    neighbours: list[Neighbour]
    nearest_right: Neighbour


@dataclass(frozen=True)
class Confusion:
    """Two classes, and how often the nearest neighbour of a query of one is of the other.

    Attributes:
        counts: queries of the first that find the second, and of the second that find the first.
        queries: how many queries each of them has.
        query, answer: the mistake with the highest similarity.
    """

    classes: tuple[str, str]
    counts: tuple[int, int]
    queries: tuple[int, int]
    query: int
    answer: Neighbour


@dataclass(frozen=True)
class Histogram:
    """How many pairs of a query and another picture have which cosine similarity.

    Attributes:
        edges: of the bins, [bins + 1].
        positive, negative: pairs of one class and of two, [bins].
        overlap: common area of the two, each of area 1; 0..1.
    """

    edges: list[float]
    positive: list[int]
    negative: list[int]
    overlap: float


@dataclass(frozen=True)
class Findings:
    """What one model got wrong.

    Attributes:
        name: of the result that these belong to.
        root: the folder that paths are relative to; what lies elsewhere has its whole path.
        depth: how many neighbours of a query were looked at.
        confusions: most frequent first.
        hardest: queries whose nearest picture of their class is furthest down; of those beyond `depth`, the
            lowest average precision first.
    """

    name: str
    root: str
    depth: int
    queries: Queries
    classes: Classes
    similarities: Histogram
    confusions: list[Confusion] = field(default_factory=list)
    hardest: list[HardQuery] = field(default_factory=list)

    def place(self, path: str) -> Path:
        """Where a picture lay."""
        return Path(self.root, path)

    def label_of(self, query: int) -> str:
        """The class of a query."""
        return self.classes.name[self.queries.label[query]]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Findings:
        """The inverse of `dataclasses.asdict`, after a trip through JSON."""
        return cls(
            **{
                **values,
                "queries": Queries(**values["queries"]),
                "classes": Classes(**values["classes"]),
                "similarities": Histogram(**values["similarities"]),
                "confusions": [_confusion(kept) for kept in values["confusions"]],
                "hardest": [
                    HardQuery(
                        kept["query"],
                        [Neighbour(**neighbour) for neighbour in kept["neighbours"]],
                        Neighbour(**kept["nearest_right"]),
                    )
                    for kept in values["hardest"]
                ],
            }
        )


def find(evaluation: Evaluation, queries: Pictures, gallery: Pictures) -> Findings:
    """Look at the mistakes behind an evaluation; every pass is over arrays.

    Args:
        queries: with `contents`, and a label each.
        gallery: what was searched.
    """
    return _Search(evaluation, queries, gallery).findings()


class _Search:
    """Arrays that several of the findings need."""

    def __init__(self, evaluation: Evaluation, queries: Pictures, gallery: Pictures) -> None:
        self.evaluation, self.ranking = evaluation, evaluation.ranking
        self.pictures, self.gallery = queries, gallery
        self.root = common_root(queries.paths)
        own = sorted({str(label) for label in queries.labels})
        others = sorted({str(label) for label in gallery.labels if label is not None} - set(own))
        self.names, self.own = [*own, *others, None], own  # the last name: pictures without a class
        number_of = {name: number for number, name in enumerate(self.names)}
        self.labels = np.array([number_of[label] for label in queries.labels], np.int64)  # [N]
        self.gallery_labels = np.array([number_of[label] for label in gallery.labels], np.int64)  # [M]
        relevant, answerable = self.ranking.relevant, self.ranking.answerable
        found = relevant.any(1)
        self.first_right = np.where(found, relevant.argmax(1) + 1, np.iinfo(np.int64).max)  # [N]
        first = self.ranking.rows[:, 0]
        self.wrong = np.flatnonzero(answerable & (first >= 0) & (self.first_right > 1))
        self.mistaken = self.gallery_labels[first[self.wrong]]  # [wrong], the class found instead

    def findings(self) -> Findings:
        similar = self.evaluation.similarities
        return Findings(
            name=self.evaluation.result.name,
            root=str(self.root),
            depth=self.ranking.rows.shape[1],
            queries=self._queries(),
            classes=self._classes(),
            similarities=Histogram(
                similar.edges.tolist(),
                similar.positive.tolist(),
                similar.negative.tolist(),
                float(similar.overlap),
            ),
            confusions=self._confusions(),
            hardest=[self._hard(query) for query in self._hardest()],
        )

    def _queries(self) -> Queries:
        beyond = np.iinfo(np.int64).max
        precision = self.evaluation.similarities.average_precision.round(6).tolist()
        return Queries(
            path=[_relative(path, self.root) for path in self.pictures.paths],
            content=[content[:_CONTENT_DIGITS] for content in self.pictures.contents],
            label=self.labels.tolist(),
            first_right=[None if rank == beyond else rank for rank in self.first_right.tolist()],
            average_precision=[None if value != value else value for value in precision],  # NaN
        )

    def _classes(self) -> Classes:
        own, answerable = len(self.own), self.ranking.answerable
        queries = np.bincount(self.labels[answerable], minlength=own)
        right = np.bincount(self.labels[self.first_right == 1], minlength=own)
        taken = np.stack([self.labels[self.wrong], self.mistaken])  # [2, wrong]
        pairs, counts = np.unique(taken, axis=1, return_counts=True)
        worst: dict[int, int] = {}
        for at in np.lexsort((pairs[1], -counts)).tolist():  # most frequent first
            worst.setdefault(int(pairs[0, at]), int(pairs[1, at]))
        return Classes(
            name=self.own,
            queries=queries.tolist(),
            recall_at_1=[r / n if n else None for r, n in zip(right.tolist(), queries.tolist(), strict=True)],
            mistaken_for=[self.names[worst[number]] if number in worst else None for number in range(own)],
        )

    def _confusions(self) -> list[Confusion]:
        known = self.mistaken < len(self.names) - 1
        wrong, ours, theirs = self.wrong[known], self.labels[self.wrong][known], self.mistaken[known]
        pairs, which, counts = np.unique(
            np.stack([np.minimum(ours, theirs), np.maximum(ours, theirs)]),
            axis=1,
            return_inverse=True,
            return_counts=True,
        )
        which = which.reshape(-1)
        forward = np.bincount(which[ours < theirs], minlength=len(counts))
        asked = np.bincount(self.labels[self.ranking.answerable], minlength=len(self.names))
        share = counts / asked[pairs].sum(0)
        scores = self.ranking.scores[wrong, 0]
        best_first = wrong[order := np.lexsort((wrong, -scores))]
        example = dict(zip(which[order][::-1].tolist(), best_first[::-1].tolist(), strict=True))
        found = []
        for pair in np.lexsort((np.arange(len(counts)), -share, -counts))[:CONFUSIONS].tolist():
            (a, b), query = pairs[:, pair].tolist(), example[pair]
            found.append(
                Confusion(
                    classes=(str(self.names[a]), str(self.names[b])),
                    counts=(int(forward[pair]), int(counts[pair] - forward[pair])),
                    queries=(int(asked[a]), int(asked[b])),
                    query=query,
                    answer=self._neighbour(query, 0),
                )
            )
        return found

    def _hardest(self) -> list[int]:
        precision = self.evaluation.similarities.average_precision[self.wrong]
        order = np.lexsort((self.wrong, precision, -self.first_right[self.wrong]))
        return self.wrong[order][:HARDEST].tolist()

    def _hard(self, query: int) -> HardQuery:
        similar, depth = self.evaluation.similarities, self.ranking.rows.shape[1]
        ranks = [rank for rank in range(min(NEIGHBOURS, depth)) if self.ranking.rows[query, rank] >= 0]
        nearest = int(similar.easiest_positive_row[query])
        score = float(similar.easiest_positive[query])
        return HardQuery(
            query, [self._neighbour(query, rank) for rank in ranks], self._picture(nearest, score, True)
        )

    def _neighbour(self, query: int, rank: int) -> Neighbour:
        row, score = int(self.ranking.rows[query, rank]), float(self.ranking.scores[query, rank])
        return self._picture(row, score, bool(self.ranking.relevant[query, rank]))

    def _picture(self, row: int, score: float, right: bool) -> Neighbour:
        path = _relative(self.gallery.paths[row], self.root)
        return Neighbour(path, self.gallery.labels[row], round(score, 4), right)


def common_root(paths: Iterable[Path]) -> Path:
    """The deepest folder that holds all of these files."""
    return Path(os.path.commonpath({Path(path).absolute().parent for path in paths}))


def _relative(path: Path, root: Path) -> str:
    path = path.absolute()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _confusion(kept: dict[str, Any]) -> Confusion:
    pairs = {name: tuple(kept[name]) for name in ("classes", "counts", "queries")}
    return Confusion(**{**kept, **pairs, "answer": Neighbour(**kept["answer"])})
