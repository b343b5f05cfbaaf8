"""Qdrant's engine in the process of the test, with a folder for each collection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.retrieval.stores.server import Server


class EmbeddedQdrant(Server):
    """Folder of collections; the tests kill the process that has one open."""

    embedded = True

    def __init__(self, folder: Path) -> None:
        self.address = f"qdrant://{folder}"

    def kill(self) -> None:
        """Do nothing: there is no server."""

    def start(self) -> None:
        """Do nothing."""


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Yield a folder of collections."""
    pytest.importorskip("qdrant_edge", reason="needs qdrant-edge-py")
    yield EmbeddedQdrant(folder)
