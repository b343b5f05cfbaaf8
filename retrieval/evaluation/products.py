"""Measures of a search whose hits are products: each is found once, by all its views."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from retrieval.evaluation.findings import Findings
from retrieval.evaluation.score import BY_PRODUCT, CURVE_KS, Result, by_key
from retrieval.metrics import mean
from retrieval.metrics.inputs import Inputs
from retrieval.metrics.judged import RelevantRanks, ranks_among
from retrieval.metrics.per_query import average_precision_of_ranks, r_precision_of_ranks
from retrieval.metrics.statistics import bootstrap_intervals, class_intervals
from retrieval.progress import Progress
from retrieval.search.groups import group_scores
from retrieval.search.options import GROUP_SCORES

_CELLS = 1 << 22  # of queries x gallery at once: 16 MB
_TITLES = {"best": BY_PRODUCT, "mean": "product, mean of views", "soft": "product, soft maximum of views"}


@dataclass(frozen=True)
class ProductResults:
    """What searches find whose hits are products.

    Attributes:
        results: A result for each score of a product.
        ranks: Ranks of the products to find, by the best view.
        products: Product of each query, int [N], if it is no hit; else `None`.
    """

    results: list[Result]
    ranks: RelevantRanks
    products: np.ndarray | None

    def answers(self, findings: Findings) -> Findings:
        """Return findings with the answers by product, which comparisons go by, if the own one is no hit."""
        if self.products is None:
            return findings
        values = values_of(self.ranks)
        first = np.zeros(len(self.products), np.int64)
        queries, at = np.unique(self.ranks.queries, return_index=True)
        first[queries] = self.ranks.ranks[at]
        precisions, maps = (
            [None if value != value else value for value in values[key].round(6).tolist()]
            for key in ("mean_ap", "map_at_r")
        )
        added = replace(
            findings.queries,
            product=np.unique(self.products, return_inverse=True)[1].tolist(),
            product_first_right=[rank or None for rank in first.tolist()],
            product_average_precision=precisions,
            product_map_at_r=maps,
        )
        return replace(findings, queries=added)


def product_results(
    name: str, inputs: Inputs, products: np.ndarray, *, show_progress: bool = False
) -> ProductResults:
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
    results = []
    for kind, one in ranks.items():
        values = values_of(one)
        table = np.column_stack([*values.values()])
        over_classes = class_intervals(table, inputs.query_classes)
        results.append(
            Result(
                name,
                dict(zip(values, mean(table).tolist(), strict=True)),
                _TITLES[kind],
                intervals=by_key([*values], bootstrap_intervals(table, units)),
                class_intervals={} if over_classes is None else by_key([*values], over_classes),
            )
        )
    return ProductResults(results, ranks["best"], units)


def values_of(ranks: RelevantRanks) -> dict[str, np.ndarray]:
    """Return the metrics of each query, float64 [N]; nan for a query with nothing to find."""
    found = (ranks.queries, ranks.ranks, ranks.num_relevant)
    recall = zip(CURVE_KS, ranks.recall(CURVE_KS).T, strict=True)
    return {f"recall_at_{k}": values for k, values in recall} | {
        "map_at_r": average_precision_of_ranks(*found, ranks.num_relevant),
        "r_precision": r_precision_of_ranks(*found),
        "mean_ap": average_precision_of_ranks(*found),
    }


def best_view_values(inputs: Inputs) -> dict[str, np.ndarray]:
    """Return the metrics of each query whose hits are other products than its own; see `values_of`.

    Args:
        inputs: Queries and images with their products.
    """
    assert inputs.products is not None
    return values_of(rank_products(inputs, inputs.products[1], ["best"])["best"])


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


def shown_variants(
    inputs: Inputs, products: np.ndarray, variants: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return how often a product shows the variant of the query, float64 [N], and a random view of it would.

    What counts is the most similar right product that has views of the query's variant, and of another one;
    nan for queries without one. It shows its best view.

    Args:
        inputs: As for `product_results`.
        products: Product of each row of the gallery, int [M].
        variants: Variant of each row, int [M]; -1 for none. The queries are rows of the gallery.
    """
    found = np.full((2, len(inputs.query)), np.nan)
    own_products = None if inputs.products is None else inputs.products[0]
    step = max(1, _CELLS // len(products))
    for start in range(0, len(inputs.query), step):
        part = np.arange(start, min(start + step, len(inputs.query)))
        cosines = inputs.query[part] @ inputs.gallery.T
        for row, query in enumerate(part.tolist()):
            own = int(inputs.own[query])
            there = inputs.gallery_classes == inputs.query_classes[query]
            right = np.isin(products, products[there])
            right[own] = False
            if own_products is not None:
                right &= products != own_products[query]
            rows = np.flatnonzero(right)
            if own < 0 or variants[own] < 0 or not len(rows):
                continue
            alike = variants[rows] == variants[own]
            of, counts = np.unique(products[rows], return_inverse=True, return_counts=True)[1:]
            shares = np.bincount(of, alike) / counts
            choice = (shares > 0) & (shares < 1)
            rows, alike, of = rows[choice[of]], alike[choice[of]], of[choice[of]]
            if len(rows):
                best = int(cosines[row, rows].argmax())
                found[:, query] = alike[best], shares[of[best]]
    return found[0], found[1]
