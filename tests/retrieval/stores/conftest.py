"""Real databases for the tests of stores: a server for each kind, and a new collection for each test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest

from retrieval.stores.engine import Engine
from retrieval.stores.opening import open_engine, parse_address
from tests.retrieval.stores.server import Server

# Name of each kind, its module of this folder with `running`, and what it refuses: "like", to compare
# "text order", or to store "float16".
KINDS = {
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


@pytest.fixture(scope="session", params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A running database of each kind."""
    module, refuses = KINDS[request.param]
    folder: Path = tmp_path_factory.mktemp(request.param)
    with import_module(f"tests.retrieval.stores.{module}").running(folder) as server:
        yield Database(request.param, server, refuses)


@pytest.fixture
def address(database: Database) -> str:
    """Address of a collection that does not exist."""
    return database.new_collection()


@pytest.fixture
def engine(address: str) -> Iterator[Engine]:
    """Engine of a collection that does not exist."""
    found = open_engine(parse_address(address))
    yield found
    found.close()
