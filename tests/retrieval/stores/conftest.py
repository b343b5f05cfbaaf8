"""A database of each kind for the tests of stores, and a new collection for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from retrieval.stores.engine import Engine
from retrieval.stores.opening import open_engine, parse_address
from tests.retrieval.stores.databases import KINDS, Database


@pytest.fixture(scope="session", params=KINDS)
def database(request: pytest.FixtureRequest, databases: Callable[[str], Database]) -> Database:
    """A running database of each kind."""
    return databases(request.param)


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
