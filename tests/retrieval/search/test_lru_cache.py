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


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 12), st.integers(0, 14), st.booleans()), max_size=60)
)
def test_total_size_is_bounded(puts: list[tuple[int, int, int, bool]]) -> None:
    recent = LRUCache[int, int](10, size_of=lambda size: size)
    used: list[int] = []  # keys, the last one used last
    held: dict[int, int] = {}
    for key, size, now, evict in puts:
        most = min(now, 10)
        held.pop(key, None)
        fits = size <= most if evict else sum(held.values()) + size <= most
        assert recent.put(key, size, None if now > 12 else now, evict=evict) == fits
        used = [*(k for k in used if k != key), key]
        if fits:
            held[key] = size
        while fits and sum(held.values()) > most:
            held.pop(next(k for k in used if k in held))
        used = [k for k in used if k in held]
        for k in range(9):
            assert recent.get(k) == held.get(k)
            if k in held:
                used = [*(other for other in used if other != k), k]
