"""Thread-safe LRU cache."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import cachetools

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """`cachetools.LRUCache` behind a lock.

    Args:
        max_size: Number of values, or their total size; the least recently used ones are evicted.
        size_of: Size of a value, which may not change; 1 by default. A value above `max_size` is not stored.
    """

    def __init__(self, max_size: int, size_of: Callable[[V], int] | None = None) -> None:
        self._values: cachetools.LRUCache[K, V] = cachetools.LRUCache(max_size, size_of)
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return a value and mark it as used; None if absent."""
        with self._lock:
            return self._values.get(key)

    def put(self, key: K, value: V, most: int | None = None, *, evict: bool = True) -> bool:
        """Store a value in place of that of its key; return whether it could be stored.

        Args:
            key: Key.
            value: Value.
            most: What the values may take now, if that is less than `max_size`.
            evict: Others are evicted if there is no room.
        """
        with self._lock:
            self._values.pop(key, None)
            most = int(self._values.maxsize if most is None else min(most, self._values.maxsize))
            size = self._values.getsizeof(value)
            if size > (most if evict else most - self._values.currsize):
                return False
            while self._values.currsize + size > most:
                self._values.popitem()
            self._values[key] = value
            return True
