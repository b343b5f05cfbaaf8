"""Databases that are killed while a write is known to be in flight, and started again.

A proxy holds the reply of a write that the database has carried out, or a lock holds a write that its own
list of activities shows. What was acknowledged is there once and whole, whoever wrote it; a write without an
answer is repeated or fails by one line.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from retrieval.errors import StoreError
from retrieval.stores.engine import Engine
from retrieval.stores.opening import open_engine, parse_address
from tests.retrieval.stores.databases import Database
from tests.retrieval.stores.test_engines import create, everything, item, random_vectors

SERVERS = ("postgres", "milvus", "qdrant")
_PATIENCE = 30.0  # seconds


class Proxy:
    """A relay to a server, which can keep what it answers to itself.

    Attributes:
        port: Where it listens.
        holding: Answers are held, and lost when the server ends the connection.
        holds_from: What a client sends before answers are held; `None` for nothing.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.holding = False
        self.holds_from: bytes | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client = self._listener.accept()[0]
                try:
                    server = socket.create_connection(("127.0.0.1", self._server))
                except OSError:
                    client.close()
                    continue
                for ends in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._relay, args=ends, daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if not is_answer and self.holds_from is not None and self.holds_from in data:
                    self.holding = True
                if not (is_answer and self.holding):
                    target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(params=SERVERS)
def database(request: pytest.FixtureRequest, databases: Callable[[str], Database]) -> Database:
    return databases(request.param)


@pytest.fixture
def proxied(address: str, database: Database) -> Iterator[tuple[Engine, Proxy]]:
    """An engine whose connections go through a proxy."""
    port = database.server.address.split(":")[-1].split("/")[0]
    proxy = Proxy(int(port))
    found = open_engine(parse_address(address.replace(f":{port}", f":{proxy.port}")))
    yield found, proxy
    found.close()
    proxy.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def restart(database: Database) -> None:
    database.server.kill()
    database.server.start()


def check(engine: Engine, expected: dict[int, set[tuple[object, int]]]) -> None:
    """Check that the items are there once, each with a value and the vector that was written with it.

    Args:
        engine: Engine.
        expected: By id, the values of the column `part` that an item may have, with the seeds of its vector.
    """
    found, total = everything(engine), engine.count()
    assert total == len(found)
    assert found.keys() == expected.keys()
    vectors = engine.vectors([*found])
    for number, one in found.items():
        written = [seed for part, seed in expected[number] if one == item(number, part=part)]
        assert any(np.allclose(vectors[number], vector(number, seed), atol=1e-5) for seed in written), number


def vector(number: int, seed: int) -> np.ndarray:
    return random_vectors(1, seed=1000 * seed + number)[0]  # type: ignore[no-any-return]


def put(engine: Engine, numbers: range, part: int) -> None:
    """Write items whose value and vectors tell who wrote them."""
    rows = np.stack([vector(number, part) for number in numbers])
    engine.put([item(number, part=part) for number in numbers], rows)


def one_line(error: StoreError, engine: Engine) -> None:
    message = str(error)
    assert message.startswith(str(engine.address))
    assert "\n" not in message
    assert "; " in message
    for part in ("INSERT", "SELECT", "upsert", "right"):
        assert part not in message.removeprefix(str(engine.address))


def test_killed_when_it_has_written_and_not_answered(
    engine: Engine, proxied: tuple[Engine, Proxy], database: Database
) -> None:
    create(engine, {"part": "number"})
    through, proxy = proxied
    put(through, range(1, 51), 1)
    proxy.holds_from = b"COMMIT" if database.name == "postgres" else b""  # the others write by one request
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(put, through, range(41, 91), 2)
        try:
            wait_for(lambda: engine.count() == 90)  # it is carried out, and the writer does not know
            assert not writing.done()
        finally:
            database.server.kill()
            proxy.holding, proxy.holds_from = False, None
            database.server.start()
        try:
            writing.result()
        except StoreError as error:
            one_line(error, through)
    check(engine, {n: {(1, 1)} if n < 41 else {(2, 2)} for n in range(1, 91)})
    put(through, range(41, 91), 2)  # again, as the same command would
    check(engine, {n: {(1, 1)} if n < 41 else {(2, 2)} for n in range(1, 91)})


def test_killed_in_a_statement_that_waits(
    databases: Callable[[str], Database], request: pytest.FixtureRequest
) -> None:
    """PostgreSQL's own list of activities shows the insertion, which a lock of another session holds."""
    import adbc_driver_postgresql.dbapi as dbapi

    database = databases("postgres")
    address = database.new_collection()
    engine = open_engine(parse_address(address))
    request.addfinalizer(engine.close)
    create(engine, {"part": "number"})
    put(engine, range(1, 51), 1)
    table = address.rpartition("=")[2]
    holder = dbapi.connect(database.server.address)
    watcher = dbapi.connect(database.server.address, autocommit=True)
    holding, watching = holder.cursor(), watcher.cursor()
    holding.execute(f"LOCK TABLE {table} IN SHARE MODE")

    def is_waiting() -> bool:
        watching.execute(
            "SELECT query FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND state = 'active'"
        )
        return table in "".join(query for (query,) in watching.fetchall())

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(put, engine, range(41, 91), 2)
        try:
            wait_for(is_waiting)
        finally:
            database.server.kill()  # which also ends the lock
            database.server.start()
        try:
            writing.result()
            parts = {n: (1, 1) if n < 41 else (2, 2) for n in range(1, 91)}
        except StoreError as error:
            one_line(error, engine)
            parts = dict.fromkeys(range(1, 51), (1, 1))
    check(engine, {number: {part} for number, part in parts.items()})
    for one in (holding, watching, holder, watcher):
        with suppress(Exception):  # their server is gone
            one.close()


def test_two_writers_at_the_same_keys(engine: Engine, address: str, database: Database) -> None:
    """Each item is one writer's as a whole, and what was acknowledged by either is there."""
    if database.name == "milvus":
        pytest.skip("milvus-lite writes its log from several threads without a lock; docs/stores.md")
    create(engine, {"part": "number"})
    writers = [open_engine(parse_address(address)) for _ in range(2)]
    acknowledged, stopped = [0, 0], threading.Event()

    def write(who: int) -> None:
        for start in range(1, 10_000, 10):
            if stopped.is_set():
                return
            try:
                put(writers[who], range(start, start + 10), who + 1)
            except StoreError as error:
                one_line(error, writers[who])
                return
            acknowledged[who] = start + 9

    with ThreadPoolExecutor(2) as threads:
        writing = [threads.submit(write, who) for who in range(2)]
        wait_for(lambda: min(acknowledged) >= 60)
        restart(database)
        before = max(acknowledged)
        stopped.set()
        for one in writing:
            one.result()
    found = everything(engine)
    lost = {*range(1, before + 1)} - found.keys()
    assert not lost, f"{before} acknowledged, {sorted(lost)} lost"
    check(engine, {key: {(1, 1), (2, 2)} for key in found})
    for one in writers:
        one.close()
