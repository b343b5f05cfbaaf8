"""Mistakes behind an evaluation: by query and by class, with the confused classes and hardest queries."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.errors import InputError, did_you_mean
from retrieval.evaluation.score import Evaluation
from retrieval.metrics.statistics import wilson_interval

HARDEST = 12  # queries
NEIGHBOURS = 5  # of each of them
CONFUSIONS = 100  # pairs of classes
_CONTENT_DIGITS = 12


@dataclass(frozen=True)
class ImageSet:
    """Images in the order of their vectors.

    Attributes:
        paths: Path of each image.
        labels: Label of each image; `None` if it has none.
        contents: SHA-256 of each file; may be empty for gallery images.
    """

    paths: Sequence[Path]
    labels: Sequence[str | None]
    contents: Sequence[str] = ()


@dataclass(frozen=True)
class Queries:
    """Columns with one entry per query.

    Attributes:
        path: Path relative to `Findings.root`.
        content: First 12 digits of the file's SHA-256, to distinguish images of the same name.
        label: Number of the class in `Classes`.
        first_right: Rank of the nearest image of the same class, from 1; `None` if it is beyond
            `Findings.depth` or there is none.
        average_precision: Average precision over the complete ranking; `None` if there is no image of the
            same class.
        map_at_r: MAP@R; `None` likewise. Empty in reports of older versions, as the following.
        nearest: Path of the nearest image; `None` if there is none.
        nearest_label: Its label; `None` if it has none.
        nearest_score: Its cosine similarity.
        product: Number of the query's product, if its other views are left out; empty if images are not of
            products, or these are what is to be found.
        product_first_right, product_average_precision, product_map_at_r: The same as without `product_`, for
            a search whose hits are products.
    """

    path: list[str]
    content: list[str]
    label: list[int]
    first_right: list[int | None]
    average_precision: list[float | None]
    map_at_r: list[float | None] = field(default_factory=list)
    nearest: list[str | None] = field(default_factory=list)
    nearest_label: list[str | None] = field(default_factory=list)
    nearest_score: list[float | None] = field(default_factory=list)
    product: list[int] = field(default_factory=list)
    product_first_right: list[int | None] = field(default_factory=list)
    product_average_precision: list[float | None] = field(default_factory=list)
    product_map_at_r: list[float | None] = field(default_factory=list)

    @property
    def compared(self) -> tuple[list[int | None], list[float | None], list[float | None]]:
        """First right rank, average precision and MAP@R that comparisons go by: of products, if there are."""
        if self.product:
            return self.product_first_right, self.product_average_precision, self.product_map_at_r
        return self.first_right, self.average_precision, self.map_at_r


@dataclass(frozen=True)
class Classes:
    """Columns with one entry per class of the queries.

    Attributes:
        name: Name of the class.
        queries: Number of its queries that have another image of the class to find.
        recall_at_1: Recall@1 of these; `None` if there are none.
        mistaken_for: Most frequent class of its wrong first neighbours; `None` if there are none.
    """

    name: list[str]
    queries: list[int]
    recall_at_1: list[float | None]
    mistaken_for: list[str | None]


@dataclass(frozen=True)
class ClassResult:
    """How often the queries of a class find their own class first.

    Attributes:
        name: Name of the class.
        queries: Number of its queries that have another image of the class to find; at least 1.
        right: Number of these that find one first.
        mistaken_for: Most frequent class of its wrong first neighbours; `None` if there are none.
    """

    name: str
    queries: int
    right: int
    mistaken_for: str | None

    @property
    def recall_at_1(self) -> float:
        """Share of the queries that are right."""
        return self.right / self.queries

    @property
    def interval(self) -> tuple[float, float]:
        """95% confidence interval of `recall_at_1`."""
        return wilson_interval(self.right, self.queries)


@dataclass(frozen=True)
class Neighbour:
    """A gallery image with its cosine similarity to a query."""

    path: str
    label: str | None
    score: float
    right: bool


@dataclass(frozen=True)
class HardQuery:
    """A query whose first neighbour is wrong.

    Attributes:
        query: Number in `Queries`.
        neighbours: Nearest images, best first.
        nearest_right: Nearest image of the query's class.
    """

    query: int
    neighbours: list[Neighbour]
    nearest_right: Neighbour


@dataclass(frozen=True)
class Confusion:
    """Two confused classes: the nearest neighbour of queries of one is of the other.

    Attributes:
        classes: Names of the two classes.
        counts: Number of such queries of the first class, and of the second.
        queries: Number of all queries of the first class, and of the second.
        query: Query of the mistake with the highest similarity, a number in `Queries`.
        answer: Image that it found.
    """

    classes: tuple[str, str]
    counts: tuple[int, int]
    queries: tuple[int, int]
    query: int
    answer: Neighbour


@dataclass(frozen=True)
class SimilarityHistogram:
    """Histogram of the cosine similarities of all pairs of query and gallery image.

    Attributes:
        edges: Bin edges, [bins + 1].
        positive: Pairs of the same class, [bins].
        negative: Pairs of different classes, [bins].
        overlap: Common area of the two, each of area 1; 0..1.
    """

    edges: list[float]
    positive: list[int]
    negative: list[int]
    overlap: float


@dataclass(frozen=True)
class Findings:
    """Mistakes of one model.

    Attributes:
        name: Name of the result that they belong to.
        root: Folder that paths are relative to; images outside of it have absolute paths.
        depth: Number of neighbours of each query that were ranked.
        queries: All queries.
        classes: All classes of the queries.
        similarities: Similarities of all pairs.
        confusions: Confused classes, most frequent first.
        hardest: Queries by descending rank of their nearest image of the same class; of those beyond
            `depth`, the lowest average precision first.
    """

    name: str
    root: str
    depth: int
    queries: Queries
    classes: Classes
    similarities: SimilarityHistogram
    confusions: list[Confusion] = field(default_factory=list)
    hardest: list[HardQuery] = field(default_factory=list)

    def nearest(self, query: int) -> Neighbour | None:
        """Return the image that a query finds first; `None` if there is none, or it is unknown."""
        queries = self.queries
        path = queries.nearest[query] if queries.nearest else None
        if path is None:
            return None
        score = queries.nearest_score[query] or 0.0
        return Neighbour(path, queries.nearest_label[query], score, queries.first_right[query] == 1)

    def class_results(self) -> list[ClassResult]:
        """Return the classes whose queries can be right, the lowest Recall@1 first."""
        found = self.classes
        columns = zip(found.name, found.queries, found.recall_at_1, found.mistaken_for, strict=True)
        results = [
            ClassResult(name, queries, round(recall * queries), mistaken)
            for name, queries, recall, mistaken in columns
            if recall is not None
        ]
        return sorted(results, key=lambda result: result.recall_at_1)

    def answered_queries(self, name: str) -> list[int]:
        """Return the queries of a class whose first neighbour is known, the wrong ones first.

        Raises:
            InputError: There is no such class.
        """
        if name not in self.classes.name:
            hint = did_you_mean(name, self.classes.name, "the queries have other labels")
            raise InputError(f"there is no class {name!r} in this report; {hint}")
        number, queries = self.classes.name.index(name), self.queries
        own = [query for query, label in enumerate(queries.label) if label == number]
        return sorted(
            (query for query in own if self.nearest(query) is not None),
            key=lambda query: queries.first_right[query] == 1,
        )

    def absolute(self, path: str) -> Path:
        """Return the absolute path of an image."""
        return Path(self.root, path)

    def label_of(self, query: int) -> str:
        """Return the class of a query."""
        return self.classes.name[self.queries.label[query]]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Findings:
        """Inverse of `dataclasses.asdict`, also after a round trip through JSON."""
        return cls(
            **{
                **values,
                "queries": Queries(**values["queries"]),
                "classes": Classes(**values["classes"]),
                "similarities": SimilarityHistogram(**values["similarities"]),
                "confusions": [_read_confusion(fields) for fields in values["confusions"]],
                "hardest": [
                    HardQuery(
                        fields["query"],
                        [Neighbour(**neighbour) for neighbour in fields["neighbours"]],
                        Neighbour(**fields["nearest_right"]),
                    )
                    for fields in values["hardest"]
                ],
            }
        )


@dataclass(frozen=True)
class JudgedAnswers:
    """How well the queries are answered that have something to find by one protocol.

    Attributes:
        query: Numbers of the queries in `JudgedQueries`.
        values: Key of the measure -> its values, one for each query; the first measure is that of the set.
        part: Domain of each query where the number is the mean of those of all domains; else empty.
    """

    query: list[int]
    values: dict[str, list[float]]
    part: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class JudgedQueries:
    """Queries with lists of what to find, and how one model answers them; columns have one entry per query.

    Attributes:
        root: Folder that paths are relative to.
        path: Path of each query; `Findings` and its `Queries` explain it.
        content: First 12 digits of the SHA-256 of the query's file, or of the part that is searched for.
        thing: What it shows.
        answers: Answers by the name of the protocol, in the order of the last results of the report.
        right: Whether the thing of each query is recognized; empty if that was not asked. Queries without a
            thing are of unknown ones.
        confidence: Confidence of what was recognized; likewise.
    """

    root: str
    path: list[str]
    content: list[str]
    thing: list[str]
    answers: dict[str, JudgedAnswers]
    right: list[bool] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        paths: Sequence[Path],
        contents: Sequence[str],
        things: Sequence[str],
        answers: dict[str, JudgedAnswers],
        right: Sequence[bool] = (),
        confidence: Sequence[float] = (),
    ) -> JudgedQueries:
        """Return the queries with short paths and contents."""
        root = common_root(paths)
        short = [content[:_CONTENT_DIGITS] for content in contents]
        names = [_relative(path, root) for path in paths]
        return cls(str(root), names, short, list(things), answers, list(right), list(confidence))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> JudgedQueries:
        """Inverse of `dataclasses.asdict`, also after a round trip through JSON."""
        answers = {name: JudgedAnswers(**fields) for name, fields in values["answers"].items()}
        return cls(**{**values, "answers": answers})


def find_mistakes(evaluation: Evaluation, queries: ImageSet, gallery: ImageSet) -> Findings:
    """Collect the mistakes behind an evaluation; every pass is vectorized.

    Args:
        evaluation: The evaluation.
        queries: Query images, each with a label and its content.
        gallery: Searched images.
    """
    return _MistakeFinder(evaluation, queries, gallery).findings()


class _MistakeFinder:
    """Arrays shared by the parts of `Findings`."""

    def __init__(self, evaluation: Evaluation, queries: ImageSet, gallery: ImageSet) -> None:
        self.evaluation, self.ranking = evaluation, evaluation.ranking
        self.images, self.gallery = queries, gallery
        self.root = common_root(queries.paths)
        own = sorted({str(label) for label in queries.labels})
        others = sorted({str(label) for label in gallery.labels if label is not None} - set(own))
        self.names, self.own = [*own, *others, None], own  # the last name: images without a class
        number_of = {name: number for number, name in enumerate(self.names)}
        self.labels = np.array([number_of[label] for label in queries.labels], np.int64)  # [N]
        self.gallery_labels = np.array([number_of[label] for label in gallery.labels], np.int64)  # [M]
        relevant, answerable = self.ranking.relevant, self.ranking.answerable
        found = relevant.any(1)
        self.first_right = np.where(found, relevant.argmax(1) + 1, np.iinfo(np.int64).max)  # [N]
        first = self.ranking.rows[:, 0]
        self.wrong = np.flatnonzero(answerable & (first >= 0) & (self.first_right > 1))
        self.mistaken = self.gallery_labels[first[self.wrong]]  # [wrong], class of the first neighbour

    def findings(self) -> Findings:
        similar = self.evaluation.similarities
        return Findings(
            name=self.evaluation.result.name,
            root=str(self.root),
            depth=self.ranking.rows.shape[1],
            queries=self._queries(),
            classes=self._classes(),
            similarities=SimilarityHistogram(
                similar.edges.tolist(),
                similar.positive.tolist(),
                similar.negative.tolist(),
                float(similar.overlap),
            ),
            confusions=self._confusions(),
            hardest=[self._hard_query(query) for query in self._hardest()],
        )

    def _queries(self) -> Queries:
        beyond = np.iinfo(np.int64).max
        similar = self.evaluation.similarities
        precisions, maps = similar.average_precision.round(6).tolist(), similar.map_at_r.round(6).tolist()
        first, scores = self.ranking.rows[:, 0], self.ranking.scores[:, 0]
        rows, places = np.unique(first, return_inverse=True)
        paths = [None if row < 0 else _relative(self.gallery.paths[row], self.root) for row in rows.tolist()]
        labels = [None if row < 0 else self.gallery.labels[row] for row in rows.tolist()]
        return Queries(
            path=[_relative(path, self.root) for path in self.images.paths],
            content=[content[:_CONTENT_DIGITS] for content in self.images.contents],
            label=self.labels.tolist(),
            first_right=[None if rank == beyond else rank for rank in self.first_right.tolist()],
            average_precision=[None if value != value else value for value in precisions],  # NaN
            map_at_r=[None if value != value else value for value in maps],
            nearest=[paths[place] for place in places.tolist()],
            nearest_label=[labels[place] for place in places.tolist()],
            nearest_score=np.where(first < 0, 0, scores).astype(float).round(4).tolist(),
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
        totals = np.bincount(self.labels[self.ranking.answerable], minlength=len(self.names))
        share = counts / totals[pairs].sum(0)
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
                    queries=(int(totals[a]), int(totals[b])),
                    query=query,
                    answer=self._neighbour(query, 0),
                )
            )
        return found

    def _hardest(self) -> list[int]:
        precision = self.evaluation.similarities.average_precision[self.wrong]
        order = np.lexsort((self.wrong, precision, -self.first_right[self.wrong]))
        hardest: list[int] = self.wrong[order][:HARDEST].tolist()
        return hardest

    def _hard_query(self, query: int) -> HardQuery:
        similar, depth = self.evaluation.similarities, self.ranking.rows.shape[1]
        ranks = [rank for rank in range(min(NEIGHBOURS, depth)) if self.ranking.rows[query, rank] >= 0]
        nearest = int(similar.easiest_positive_row[query])
        score = float(similar.easiest_positive[query])
        return HardQuery(
            query, [self._neighbour(query, rank) for rank in ranks], self._result(nearest, score, True)
        )

    def _neighbour(self, query: int, rank: int) -> Neighbour:
        row, score = int(self.ranking.rows[query, rank]), float(self.ranking.scores[query, rank])
        return self._result(row, score, bool(self.ranking.relevant[query, rank]))

    def _result(self, row: int, score: float, right: bool) -> Neighbour:
        path = _relative(self.gallery.paths[row], self.root)
        return Neighbour(path, self.gallery.labels[row], round(score, 4), right)


def common_root(paths: Iterable[Path]) -> Path:
    """Return the deepest folder that contains all of the files."""
    return Path(os.path.commonpath({Path(path).absolute().parent for path in paths}))


def _relative(path: Path, root: Path) -> str:
    path = path.absolute()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _read_confusion(fields: dict[str, Any]) -> Confusion:
    pairs = {name: tuple(fields[name]) for name in ("classes", "counts", "queries")}
    return Confusion(**{**fields, **pairs, "answer": Neighbour(**fields["answer"])})
