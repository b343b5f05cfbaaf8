"""Snapshot search against brute force, for any layout of parts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retrieval import InputError, LookalikeError
from retrieval.search.snapshot import Snapshot
from retrieval.storage.segments import checksums
from tests.retrieval.vectors import brute_force, clustered, snapshot

FEW_AND_MANY = pytest.mark.parametrize("count", [1, 3, 40], ids="queries={}".format)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 60),
    queries=st.sampled_from([1, 2, 15, 16, 40]),
    k=st.integers(1, 70),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    share=st.sampled_from([0.0, 0.1, 0.9, 1.0]),
)
def test_equals_brute_force_with_ties(
    seed: int, size: int, queries: int, k: int, cuts: list[int], share: float
) -> None:
    """Return vectors of few small integers: products are exact, and ties are frequent."""
    random = np.random.default_rng(seed)
    vectors = random.integers(-1, 2, (size, 3)).astype(np.float32)
    asked = random.integers(-2, 3, (queries, 3)).astype(np.float32)
    removed, allowed = random.random(size) < 0.2, random.random(size) < share
    state = snapshot(np.split(vectors, sorted(min(cut, size) for cut in cuts)), np.flatnonzero(removed))
    for mask in (None, allowed):
        left = ~removed if mask is None else ~removed & mask
        scores, rows = state.nearest(asked, k, mask)
        expected = brute_force(vectors, asked, k, left)
        np.testing.assert_array_equal(rows, expected[1])
        np.testing.assert_array_equal(scores, expected[0])


@FEW_AND_MANY
@pytest.mark.parametrize("k", [1, 10, 300])
def test_equals_brute_force_on_embeddings(count: int, k: int) -> None:
    vectors, queries = clustered(9000, 24, 1), clustered(count, 24, 2)
    state = snapshot(np.split(vectors, [1, 2, 700, 5000, 5000, 8999]))
    allowed = np.random.default_rng(0).random(9000) < 0.5
    for mask in (None, allowed):
        scores, rows = state.nearest(queries, k, mask)
        expected = brute_force(vectors, queries, k, mask)
        np.testing.assert_array_equal(rows, expected[1])
        np.testing.assert_allclose(scores, expected[0], rtol=0, atol=1e-7)


@FEW_AND_MANY
def test_search_is_independent_of_parts(count: int) -> None:
    vectors, queries = clustered(5000, 16, 1), clustered(count, 16, 2)
    one, many = (snapshot(np.split(vectors, cuts)) for cuts in ([], range(7, 5000, 61)))
    for a, b in zip(one.nearest(queries, 20), many.nearest(queries, 20), strict=True):
        np.testing.assert_array_equal(a, b)


@FEW_AND_MANY
def test_ties_are_ordered_by_row(count: int) -> None:
    """More ties than the first candidates, in blocks that are computed differently."""
    vectors = clustered(6000, 37, 1)
    copies = np.arange(11, 6000, 53)
    vectors[copies] = vectors[11]
    queries = np.repeat(vectors[11][None], count, 0)
    _, rows = snapshot(np.split(vectors, [4000])).nearest(queries, 5)
    np.testing.assert_array_equal(rows, np.repeat(copies[None, :5], count, 0))


@FEW_AND_MANY
def test_narrow_filter(count: int) -> None:
    vectors, queries = clustered(20_000, 16, 1), clustered(count, 16, 2)
    allowed = np.zeros(20_000, bool)
    allowed[[5, 12_345, 19_999]] = True
    scores, rows = snapshot(np.split(vectors, [6000])).nearest(queries, 10, allowed)
    assert (np.sort(rows[:, :3], axis=1) == [5, 12_345, 19_999]).all()
    assert (rows[:, 3:] == -1).all()
    assert np.isneginf(scores[:, 3:]).all()


def test_empty_filter_and_snapshot() -> None:
    empty = Snapshot([], [], dim=8)
    scores, rows = empty.nearest(np.ones((2, 8)), 3)
    assert (scores.shape, rows.tolist(), empty.size) == ((2, 3), [[-1] * 3] * 2, 0)
    assert empty.rows_of(np.array([1])).tolist() == [-1]
    gone = snapshot([clustered(4, 8, 1)], removed=range(4))
    assert (gone.nearest(np.ones((1, 8)), 2)[1] == -1).all()
    assert snapshot([clustered(4, 8, 1)]).nearest(np.ones((0, 8)), 2)[1].shape == (0, 2)


def test_rows_of_items() -> None:
    vectors = clustered(50, 8, 1)
    state = snapshot(np.split(vectors, [20]), removed=[3, 30])
    assert state.size == 48
    assert state.rows_of(np.array([1, 4, 31, 50, 51, 0, -7])).tolist() == [0, -1, -1, 49, -1, -1, -1]
    np.testing.assert_array_equal(state.vectors(np.array([49, 0, 25, 0])), vectors[[49, 0, 25, 0]])


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        (np.full((1, 8), np.nan), 1, "finite"),
        (np.full((1, 8), np.inf), 1, "finite"),
        (np.zeros((1, 7)), 1, r"\[N, 8\]"),
        (np.zeros(8), 1, r"\[N, 8\]"),
        (np.zeros((1, 8)), 0, "at least 1"),
    ],
)
def test_invalid_queries(queries: np.ndarray, k: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        snapshot([clustered(4, 8, 1)]).nearest(queries, k)


@FEW_AND_MANY
@pytest.mark.parametrize("value", [0.2, 1e30, -1e30])
def test_damaged_vector_is_never_returned(count: int, value: float, tmp_path: Path) -> None:
    vectors = clustered(500, 8, 1)
    np.save(tmp_path / "part.npy", vectors)
    mapped = np.load(tmp_path / "part.npy", mmap_mode="r+")
    state = snapshot([mapped])
    queries = np.repeat(vectors[123][None], count, 0)
    assert (state.nearest(queries, 5)[1][:, 0] == 123).all()
    opened_later = snapshot([mapped])
    mapped[123, 2] = value
    state = opened_later  # which has not checked the vector yet
    with pytest.raises(LookalikeError, match=r"damaged.*verify shop\.gallery"):
        state.vectors(np.array([5, 123]))
    elsewhere = ~np.isin(np.arange(500), 123)
    assert (state.nearest(queries, 5, elsewhere)[1] != 123).all()
    with pytest.raises(LookalikeError, match="damaged"):
        state.nearest(queries, 500)


@settings(max_examples=200)
@given(history=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4, unique=True), max_size=8))
@example(history=[[1, 2], [1, 3], [3], [4, 5], [2, 6]])
def test_items_and_numbers_are_found_in_any_history(history: list[list[int]]) -> None:
    """Each commit gives new vectors to some items; some rows are compacted away, others are only dead."""
    parts, rows, newest, number = [], [], dict[int, int](), 0
    for items in history:
        numbers = np.arange(number + 1, number + len(items) + 1)
        newest |= zip(items, numbers.tolist(), strict=True)
        number += len(items)
        kept = numbers % 3 != 0  # of a compaction
        if kept.any():
            facts = np.stack([numbers, items])[:, kept]
            part = np.ones((facts.shape[1], 2), np.float32)
            parts.append(part)
            rows.append(np.concatenate([facts, checksums(part, facts)[None]]))
    there = [n for part in rows for n in part[0].tolist()]
    dead = np.array(sorted(set(there) - set(newest.values())), np.int64)
    state = Snapshot(parts, rows, dead, dim=2)
    row_of = {n: row for row, n in enumerate(there)}
    asked = np.arange(14)
    found = state.rows_of(asked).tolist()
    assert found == [row_of.get(newest.get(item, -1), -1) for item in asked.tolist()]
    numbers = np.arange(-1, number + 3)
    assert state.stored.rows_of(numbers).tolist() == [row_of.get(n, -1) for n in numbers.tolist()]
    assert state.stored.numbers_of(np.arange(len(there))).tolist() == there
    assert state.size == len(there) - len(dead)


@FEW_AND_MANY
def test_nan_is_never_returned(count: int) -> None:
    vectors = clustered(500, 8, 1)
    state = snapshot([vectors])
    vectors[123] = np.nan
    _, rows = state.nearest(clustered(count, 8, 2), 500)
    assert not (rows == 123).any()


def test_many_threads_at_once() -> None:
    vectors = clustered(4000, 16, 1)
    state = snapshot(np.split(vectors, [1000, 2500]), removed=range(0, 4000, 7))
    asked = [clustered(1 + number % 20, 16, number) for number in range(40)]
    alone = [state.nearest(queries, 9)[1] for queries in asked]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda queries: state.nearest(queries, 9)[1], asked))
    assert all((a == b).all() for a, b in zip(alone, together, strict=True))
