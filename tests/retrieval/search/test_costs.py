"""The choice between exact search and the index, compared with times that were measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from retrieval.search.costs import exact_ms, index_ms

# Kind, vectors, cells, effort and milliseconds of a search; share; microseconds of FAISS with a selector, and
# of exact search over a copy of the selected. One query, 128 dimensions, one thread.
MEASURED = [
    (("hnsw", 100_000, 0, 16, 0.0447), [(0.01, 1933, 8), (0.1, 266, 72), (0.5, 25, 660)]),
    (("hnsw", 1_000_000, 0, 128, 0.2865), [(0.01, 70499, 69), (0.1, 2314, 1729), (0.5, 344, 10201)]),
    (("ivf-sq8", 100_000, 1024, 48, 0.0972), [(0.01, 324, 8), (0.1, 369, 62), (0.5, 153, 638)]),
    (("ivf-sq8", 1_000_000, 4096, 2, 0.0686), [(0.01, 244, 68), (0.1, 82, 1799), (0.5, 49, 10946)]),
]


@pytest.mark.parametrize(("built", "measured"), MEASURED, ids=lambda one: str(one[:2]))
def test_the_faster_search_is_chosen(built: tuple[Any, ...], measured: list[tuple[float, int, int]]) -> None:
    kind, total, cells, effort, ms = built
    card = {"kind": kind, "vectors": total, "dim": 128, "effort": effort, "ms": ms}
    for share, by_index, exact in measured:
        count = int(share * total)
        is_exact = exact_ms(count, total, 128, copied=True) < index_ms(
            card, SimpleNamespace(nlist=cells), 10, count
        )
        assert is_exact == (exact < by_index)


@pytest.mark.parametrize(("built", "_"), MEASURED, ids=lambda one: str(one[:2]))
def test_without_a_selection_the_time_is_the_measured_one(built: tuple[Any, ...], _: Any) -> None:
    kind, total, cells, effort, ms = built
    card = {"kind": kind, "vectors": total, "dim": 128, "effort": effort, "ms": ms}
    index = SimpleNamespace(nlist=cells)
    assert index_ms(card, index, 10, total) == pytest.approx(ms)
    assert index_ms(card, index, 1000, total) > ms, "more neighbours take more effort"
