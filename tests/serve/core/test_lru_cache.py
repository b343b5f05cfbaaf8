"""LRU cache, compared with that of the standard library."""

from functools import lru_cache

from hypothesis import given
from hypothesis import strategies as st

from serve.core.lru_cache import LRUCache


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
