"""What was used last: beside the standard library's cache, which cannot be asked what it has."""

from functools import lru_cache

from hypothesis import given
from hypothesis import strategies as st

from serve.core.lru_cache import LRUCache


@given(most=st.integers(1, 5), keys=st.lists(st.integers(0, 8), max_size=60))
def test_keeps_the_same_entries_as_lru_cache(most: int, keys: list[int]) -> None:
    peer = lru_cache(most)(str)
    recent = LRUCache[int, str](most)
    for key in keys:
        hits = peer.cache_info().hits
        peer(key)
        kept = recent.get(key)
        assert kept == (str(key) if peer.cache_info().hits > hits else None)
        if kept is None:
            recent.put(key, str(key))
