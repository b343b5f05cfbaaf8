"""What an order, diversity or re-ranking of hits costs: the searches of labelled images with and without."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from retrieval.errors import InputError
from retrieval.evaluation.verdict import Change, judge
from retrieval.galleries.items import Hit
from retrieval.galleries.searchable import SearchableGallery
from retrieval.progress import Progress
from retrieval.search.options import EACH, SearchOptions

DEPTH = 10  # hits of a screen
QUERIES = 2000  # searched with a random sample of so many labelled images, always the same
_AT_ONCE = 64


@dataclass(frozen=True)
class RankingCost:
    """How searches with other options differ from plain ones, on the labelled images of a gallery.

    Attributes:
        queries: Number of images, each searched for among the others.
        classes: Number of their classes.
        plain: Key of the metric -> its mean in plain searches, as a share: Recall@1, Recall@10, Precision@10.
        ranked: Those of searches with the options.
        changes: Their paired differences, with intervals.
        moved: Mean share of the first `DEPTH` hits that a plain search does not have among its own.
    """

    queries: int
    classes: int
    plain: dict[str, float]
    ranked: dict[str, float]
    changes: dict[str, Change]
    moved: float


def ranking_cost(
    gallery: SearchableGallery,
    options: SearchOptions,
    *,
    limit: int = QUERIES,
    show_progress: bool = False,
) -> RankingCost:
    """Search for labelled images with and without options, and compare what is found query by query.

    A hit is right if it has the label of the query. An image that is alone in its class is no query.

    Args:
        gallery: The gallery, with the index that it searches with.
        options: Options to measure; `k` and `exclude` are not used.
        limit: Number of queries beyond which a random sample of them is used, always the same.
        show_progress: Whether to report progress on stderr.

    Raises:
        InputError: An option is invalid, or no two images have the same label.
    """
    items = gallery.writer.labelled()
    numbers, names = zip(*items, strict=True) if items else ((), ())
    ids, classes = np.array(numbers, np.int64), np.unique(np.array(names), return_inverse=True)[1]
    kept = np.flatnonzero(np.bincount(classes, minlength=1)[classes] > 1)
    if not len(kept):
        raise InputError(f"{gallery.folder}: no two images have the same label, so that no hit is right")
    if len(kept) > limit:
        kept = np.sort(np.random.default_rng(0).choice(kept, limit, replace=False))
    label_of = dict(items)
    # If the label is the product, its views are what is to be found, one by one.
    products = gallery.products_beside(ids, classes)
    plain_by = SearchOptions(DEPTH, group_by=EACH if products is None else None)
    ranked_by = replace(options, k=DEPTH, exclude=(), group_by=options.group_by or plain_by.group_by)
    found: list[list[float]] = []
    with Progress("searching", len(kept), "queries", show=show_progress) as progress:
        for start in range(0, len(kept), _AT_ONCE):
            asked = ids[kept[start : start + _AT_ONCE]].tolist()
            vectors = gallery.vectors(asked)
            queries, own = np.stack([vectors[one] for one in asked]), [(one,) for one in asked]
            both = (gallery.find(queries, one, own) for one in (plain_by, ranked_by))
            for one, plain, ranked in zip(asked, *both, strict=True):
                label = label_of[one]
                news = {hit.id for hit in ranked} - {hit.id for hit in plain}
                found.append([*_scores(plain, label), *_scores(ranked, label), len(news) / DEPTH])
            progress.update(len(asked))
    values = np.array(found)
    plains, ours = (dict(zip(_KEYS, columns.T, strict=True)) for columns in np.split(values[:, :-1], 2, 1))
    of_queries = classes[kept]
    units = None if products is None else products[kept]
    verdict = judge("with these options", "without", ours, plains, of_queries, products=units)
    plain_means, our_means = (
        {key: float(column.mean()) for key, column in side.items()} for side in (plains, ours)
    )
    count, moved = len(np.unique(of_queries)), float(values[:, -1].mean())
    return RankingCost(len(values), count, plain_means, our_means, verdict.changes, moved)


_KEYS = ("recall_at_1", f"recall_at_{DEPTH}", f"precision_at_{DEPTH}")


def _scores(hits: Iterable[Hit], label: str) -> list[float]:
    """Return the metrics of `_KEYS` of one query."""
    right = [hit.label == label for hit in hits]
    return [float(right[:1] == [True]), float(any(right)), sum(right) / DEPTH]
