"""Qdrant's engine in the process of the test, with a folder for each collection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.retrieval.stores.server import EmbeddedServer, Server


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Yield a folder of collections."""
    pytest.importorskip("qdrant_edge", reason="needs qdrant-edge-py")
    yield EmbeddedServer(f"qdrant://{folder}")
