"""LRU cache, compared with that of the standard library."""

from functools import lru_cache

from hypothesis import given
from hypothesis import strategies as st

from retrieval.search.lru_cache import LRUCache


@given(most=st.integers(1, 5), keys=st.lists(st.integers(0, 8), max_size=60))
def test_evicts_like_functools_lru_cache(most: int, keys: list[int]) -> None:
    peer = lru_cache(most)(str)
    recent = LRUCache[int, str](most)
    for key in keys:
        hits = peer.cache_info().hits
        peer(key)
        kept = recent.get(key)
        assert kept == (str(key) if peer.cache_info().hits > hits else None)
        if kept is None:
            recent.put(key, str(key))


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12)), max_size=60))
def test_total_size_is_bounded(given_sizes: list[tuple[int, int]]) -> None:
    recent = LRUCache[int, int](10, size_of=lambda size: size)
    used: list[int] = []  # keys, the last one used last
    held: dict[int, int] = {}
    for key, size in given_sizes:
        recent.put(key, size)
        held.pop(key, None)
        used = [*(k for k in used if k != key), key]
        if size <= 10:
            held[key] = size
        while sum(held.values()) > 10:
            held.pop(next(k for k in used if k in held))
        used = [k for k in used if k in held]
        for k in range(9):
            assert recent.get(k) == held.get(k)
            if k in held:
                used = [*(other for other in used if other != k), k]
