"""Databases that the tests of stores and of galleries share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.retrieval.stores.databases import Database, running


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Database]]:
    """Function that returns the running database of a kind; each is started when it is first asked for."""
    started: dict[str, Database] = {}
    with ExitStack() as stack:

        def start(name: str) -> Database:
            if name not in started:
                started[name] = stack.enter_context(running(name, tmp_path_factory.mktemp(name)))
            return started[name]

        yield start
