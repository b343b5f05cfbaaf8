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

    def put(self, key: K, value: V) -> None:
        """Store a value."""
        with self._lock:
            self._values.pop(key, None)
            if self._values.getsizeof(value) <= self._values.maxsize:
                self._values[key] = value
