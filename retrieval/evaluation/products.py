"""Measures of a search whose hits are products: each is found once, by all its views."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from retrieval.evaluation.score import CURVE_KS, Result, by_key
from retrieval.metrics import mean
from retrieval.metrics.inputs import Inputs
from retrieval.metrics.judged import RelevantRanks, ranks_among
from retrieval.metrics.per_query import average_precision_of_ranks, r_precision_of_ranks
from retrieval.metrics.statistics import bootstrap_intervals, class_intervals
from retrieval.progress import Progress
from retrieval.search.groups import group_scores
from retrieval.search.options import GROUP_SCORES

_CELLS = 1 << 22  # of queries x gallery at once: 16 MB
_VIEWS = {"best": "best view", "mean": "mean of views", "soft": "soft maximum of views"}


def product_results(
    name: str, inputs: Inputs, products: np.ndarray, *, show_progress: bool = False
) -> list[Result]:
    """Measure searches whose hits are products, one result for each score of a product.

    A product is right if one of its views has the class of the query. The query itself is no view of its
    product, and what `inputs` leaves out is no hit.

    Args:
        name: Name of the model.
        inputs: Queries and images; if they have products, that of a query is no hit.
        products: Product of each row of the gallery, int [M].
        show_progress: Whether to report progress on stderr.

    Raises:
        InputError: No query has a product to find.
    """
    ranks = rank_products(inputs, products, show_progress=show_progress)
    units = None if inputs.products is None else inputs.products[0]
    keys = [*(f"recall_at_{k}" for k in CURVE_KS), "map_at_r", "r_precision", "mean_ap"]
    results = []
    for kind, one in ranks.items():
        found = (one.queries, one.ranks, one.num_relevant)
        table = np.column_stack(
            [
                one.recall(CURVE_KS),
                average_precision_of_ranks(*found, one.num_relevant),
                r_precision_of_ranks(*found),
                average_precision_of_ranks(*found),
            ]
        )
        over_classes = class_intervals(table, inputs.query_classes)
        results.append(
            Result(
                name,
                dict(zip(keys, mean(table).tolist(), strict=True)),
                f"product, {_VIEWS[kind]}",
                intervals=by_key(keys, bootstrap_intervals(table, units)),
                class_intervals={} if over_classes is None else by_key(keys, over_classes),
            )
        )
    return results


def rank_products(
    inputs: Inputs,
    products: np.ndarray,
    kinds: Collection[str] = tuple(GROUP_SCORES),
    *,
    show_progress: bool = False,
) -> dict[str, RelevantRanks]:
    """Rank the products of each query's class, for some of `GROUP_SCORES`; the other arguments as above."""
    order = np.argsort(products, kind="stable")
    _, starts, sizes = np.unique(products[order], return_index=True, return_counts=True)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    number = np.repeat(np.arange(len(starts)), sizes)[place]  # of the product of each row
    pairs = np.unique(np.stack([inputs.gallery_classes, number]), axis=1)
    ends = np.searchsorted(pairs[0], np.arange(pairs[0].max() + 2))
    views, count = np.ascontiguousarray(inputs.gallery[order].T), len(inputs.query)
    ranks: dict[str, list[np.ndarray]] = {kind: [np.empty(0, np.int64)] for kind in kinds}
    to_find = np.zeros(count, np.int64)
    step = max(1, _CELLS // len(order))
    with Progress("ranking products", count, "queries", show=show_progress) as progress:
        for start in range(0, count, step):
            part = np.arange(start, min(start + step, count))
            own = inputs.own[part]
            cosines = inputs.query[part] @ views  # [b, M]
            itself = np.flatnonzero(own >= 0)
            hidden = itself, place[own[itself]]
            members = np.tile(sizes, (len(part), 1))
            members[itself, number[own[itself]]] -= 1
            left_out = members == 0
            if inputs.products is not None:
                left_out |= products[order[starts]] == inputs.products[0][part, None]
            scores = group_scores(kinds, cosines, starts, members, hidden)
            for row, query in enumerate(part.tolist()):
                asked = inputs.query_classes[query]
                relevant = pairs[1, ends[asked] : ends[asked + 1]] if asked >= 0 else pairs[1, :0]
                relevant = relevant[~left_out[row, relevant]]
                to_find[query] = len(relevant)
                for kind in kinds:
                    ranks[kind].append(ranks_among(scores[kind][row], relevant, left_out[row]))
            progress.update(len(part))
    queries = np.repeat(np.arange(count), to_find)
    return {kind: RelevantRanks(queries, np.concatenate(found), to_find) for kind, found in ranks.items()}
