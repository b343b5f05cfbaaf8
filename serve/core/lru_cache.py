"""Thread-safe LRU cache."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

import cachetools

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """`cachetools.LRUCache` behind a lock, shared by the page and the API.

    Args:
        max_size: Number of values; the least recently used one is evicted.
    """

    def __init__(self, max_size: int) -> None:
        self._values: cachetools.LRUCache[K, V] = cachetools.LRUCache(max_size)
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """Return a value and mark it as used; None if absent."""
        with self._lock:
            return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Store a value."""
        with self._lock:
            self._values[key] = value
