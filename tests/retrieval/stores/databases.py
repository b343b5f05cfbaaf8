"""Real databases for tests: how each kind is started, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path

from tests.retrieval.stores.server import Server

# Name of each kind, its module of this folder with `running`, and what it refuses: "like", to compare
# "text order", to store "float16", or "durability".
KINDS = {
    "memory": ("memory", frozenset({"durability"})),
    "postgres": ("postgres_server", frozenset[str]()),
    "milvus": ("milvus_server", frozenset({"like", "float16"})),  # the server of Milvus stores float16
    "qdrant-edge": ("qdrant_edge_server", frozenset({"like", "text order"})),
    "qdrant": ("qdrant_server", frozenset({"like", "text order"})),
}
_numbers = count()


@dataclass(frozen=True)
class Database:
    """A database under test.

    Attributes:
        name: Kind, of `KINDS`.
        server: The running server.
        refuses: Operators that it does not have.
    """

    name: str
    server: Server
    refuses: frozenset[str]

    def new_collection(self) -> str:
        """Return the address of a collection that does not exist."""
        return self.server.collection(f"test_{next(_numbers)}")


@contextmanager
def running(name: str, folder: Path) -> Iterator[Database]:
    """Start a database with its data in a folder; skip the test if its packages are absent."""
    module, refuses = KINDS[name]
    with import_module(f"tests.retrieval.stores.{module}").running(folder) as server:
        yield Database(name, server, refuses)
