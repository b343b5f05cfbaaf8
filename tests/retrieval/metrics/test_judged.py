"""Metrics of judged queries against plain loops, a peer and published definitions."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from retrieval.metrics.judged import Judgements, RelevantRanks, rank_hits, rank_judged

KS = (1, 5, 10)


def judged(seed: int, distinct: bool = True) -> tuple[np.ndarray, np.ndarray, Judgements]:
    """Random queries, gallery and judgements; some queries have nothing to find or to ignore."""
    random = np.random.default_rng(seed)
    query, gallery = (random.normal(size=(n, 6)).astype(np.float32) for n in (12, 70))
    if not distinct:
        gallery[:] = gallery[0]
    for side in (query, gallery):
        side /= np.linalg.norm(side, axis=1, keepdims=True)
    relevant, ignored = [], []
    for number in range(len(query)):
        shuffled = random.permutation(len(gallery))
        many, few = (0, 7) if number == 3 else (random.integers(1, 9), random.integers(0, 6))
        relevant.append(shuffled[:many])
        ignored.append(shuffled[many : many + few])
    return query, gallery, Judgements(relevant, ignored)


def expected_ranks(query: np.ndarray, gallery: np.ndarray, judgements: Judgements, number: int) -> list[int]:
    """Ranks of one query by a loop over the sorted gallery; wrong images first among equal ones."""
    right = set(judgements.relevant[number].tolist())
    cosines = gallery.astype(np.float64) @ query[number].astype(np.float64)
    order = sorted(range(len(gallery)), key=lambda row: (-round(cosines[row], 5), row in right))
    ranks, rank = [], 0
    for row in order:
        if row in judgements.ignored[number]:
            continue
        rank += 1
        if row in right:
            ranks.append(rank)
    return ranks


@pytest.mark.parametrize("distinct", [True, False], ids=["distinct", "all equal"])
@pytest.mark.parametrize("seed", range(5))
def test_ranks_are_those_of_a_loop(seed: int, distinct: bool) -> None:
    query, gallery, judgements = judged(seed, distinct)
    (found,) = rank_judged(query, gallery, [judgements])
    for number in range(len(query)):
        ranks = found.ranks[found.queries == number].tolist()
        assert ranks == expected_ranks(query, gallery, judgements, number)


@pytest.mark.parametrize("seed", range(5))
def test_hits_of_a_search_have_the_same_ranks(seed: int) -> None:
    query, gallery, judgements = judged(seed)
    order = np.argsort(-(query @ gallery.T), axis=1)
    (every,) = rank_judged(query, gallery, [judgements])
    whole = rank_hits(order, len(gallery), judgements)
    np.testing.assert_array_equal(whole.queries, every.queries)
    np.testing.assert_array_equal(whole.ranks, every.ranks)
    first = np.where(np.arange(30) < 20, order[:, :30], -1)  # an index may find fewer
    some = rank_hits(first, len(gallery), judgements)
    for number in range(len(query)):
        kept = np.isin(order[number, :20], judgements.relevant[number]).sum()
        ranks = every.ranks[every.queries == number][:kept]
        assert some.ranks[some.queries == number].tolist() == ranks.tolist()
    np.testing.assert_array_equal(some.num_relevant, every.num_relevant)


@pytest.mark.parametrize("k", [1, 3, 10, 100])
def test_average_precision_at_k_is_that_of_scikit_learn(k: int) -> None:
    """As ILIAS computes it: that of the k results, times the share of what could be there."""
    query, gallery, judgements = judged(7)
    found = rank_judged(query, gallery, [judgements])[0].average_precision(k)
    for number, relevant in enumerate(judgements.relevant):
        if not len(relevant):
            assert np.isnan(found[number])
            continue
        kept = np.setdiff1d(np.arange(len(gallery)), judgements.ignored[number])
        cosines = gallery[kept] @ query[number]
        first = np.argsort(-cosines)[:k]
        right = np.isin(kept[first], relevant)
        expected = 0.0
        if right.any():
            expected = average_precision_score(right, cosines[first]) * right.sum() / min(k, len(relevant))
        assert found[number] == pytest.approx(expected, abs=1e-12)


def test_average_precision_of_the_revisited_buildings() -> None:
    """The areas of the trapezoids, and the precision among the first K up to the last image to find."""
    query, gallery, judgements = judged(11)
    (found,) = rank_judged(query, gallery, [judgements])
    areas, precisions = found.trapezoid_average_precision(), found.precision(KS)
    for number, relevant in enumerate(judgements.relevant):
        ranks = expected_ranks(query, gallery, judgements, number)
        if not ranks:
            assert np.isnan(areas[number])
            assert np.isnan(precisions[number]).all()
            continue
        area = 0.0
        for place, rank in enumerate(ranks):
            before = 1.0 if rank == 1 else place / (rank - 1)
            area += (before + (place + 1) / rank) / 2 / len(relevant)
        assert areas[number] == pytest.approx(area, abs=1e-12)
        for k, precision in zip(KS, precisions[number], strict=True):
            depth = min(k, ranks[-1])
            assert precision == pytest.approx(sum(rank <= depth for rank in ranks) / depth, abs=1e-12)


def test_modified_precision_looks_at_no_more_than_can_be_found() -> None:
    query, gallery, judgements = judged(13)
    (found,) = rank_judged(query, gallery, [judgements])
    for k in KS:
        for number, relevant in enumerate(judgements.relevant):
            depth = min(k, len(relevant))
            first = [rank for rank in expected_ranks(query, gallery, judgements, number) if rank <= depth]
            ours = found.modified_precision(k)[number]
            assert np.isnan(ours) if depth == 0 else ours == pytest.approx(len(first) / depth)


def test_measures_are_chosen_by_their_keys() -> None:
    (found,) = rank_judged(*judged(2)[:2], [judged(2)[2]])
    keys = ("map_at_10", "trapezoid_ap", "precision_at_5", "modified_precision_at_5", "recall_at_10")
    columns = [
        found.average_precision(10),
        found.trapezoid_average_precision(),
        found.precision([5])[:, 0],
        found.modified_precision(5),
        found.recall([10])[:, 0],
    ]
    np.testing.assert_array_equal(found.values(keys), np.column_stack(columns))


def test_recall_is_a_right_image_among_the_first() -> None:
    query, gallery, judgements = judged(5)
    found = rank_judged(query, gallery, [judgements])[0].recall(KS)
    for number in range(len(query)):
        ranks = expected_ranks(query, gallery, judgements, number)
        expected = [float(ranks[0] <= k) for k in KS] if ranks else [np.nan] * len(KS)
        np.testing.assert_array_equal(found[number], expected)


def test_nothing_found_is_zero_and_nothing_to_find_is_left_out() -> None:
    found = RelevantRanks(np.empty(0, np.int64), np.empty(0, np.int64), np.array([2, 0]))
    areas, precisions, recalls = found.trapezoid_average_precision(), found.precision([1]), found.recall([1])
    for values in (found.average_precision(5), areas, precisions[:, 0], recalls[:, 0]):
        np.testing.assert_array_equal(values, [0.0, np.nan])
