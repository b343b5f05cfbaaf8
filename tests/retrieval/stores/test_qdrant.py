"""What is particular to Qdrant: exact numbers, the lock of a folder, errors of the server.

The adapter of the server runs here over the local mode of qdrant-client, which imitates a server in Python.
That shows that requests, payloads and filters are right, and nothing about durability or recall.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from retrieval.errors import InputError, LockedError, LookalikeError, StoreError
from retrieval.storage.conditions import FilterTest
from retrieval.storage.manifest import Manifest
from retrieval.storage.operators import Name
from retrieval.storage.records import StoredItem
from retrieval.stores.engine import Amendment, Engine
from retrieval.stores.opening import open_engine, parse_address
from tests.retrieval.stores import test_engines as conformance
from tests.retrieval.stores.databases import KINDS, Database
from tests.retrieval.stores.server import EmbeddedServer
from tests.retrieval.stores.test_conditions import holds

pytest.importorskip("qdrant_client")
pytest.importorskip("qdrant_edge")

from qdrant_client import QdrantClient
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse
from qdrant_client.models import CollectionStatus

OPERATORS: list[Name] = ["=", "<>", "<", "<=", ">", ">=", "null"]
# Numbers that a reader of JSON, or a comparison of 64-bit floats, may get wrong.
NUMBERS = [
    *(0, 3, 2.5, -0.0, 5e-324, -5e-324, 2.5e-310, 1.7976931348623155e308, 1.7976931348623157e308),
    *(0.3, 0.1 + 0.2, 0.10490011715303971, 0.10490011715303972, 123456789.123456789, 1.234567890123456e-200),
    *(2**53 - 1, 2**53, 2.0**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 10**18 + 1, 1e18, 1e23),
]


class LocalClient(QdrantClient):
    """The local mode, with the server's error for a collection that is not there."""

    def get_collection(self, collection_name: str, **options: Any) -> Any:
        try:
            return super().get_collection(collection_name, **options)
        except ValueError as error:
            raise UnexpectedResponse(404, "not found", b"", {}) from error  # type: ignore[arg-type]


@pytest.fixture
def client_engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Engine of a server, over the local mode."""
    client = LocalClient(":memory:")
    monkeypatch.setattr("retrieval.stores.qdrant.server.connect", lambda *_: client)
    return open_engine(parse_address("qdrant://localhost/test"))


@pytest.fixture(params=["embedded", "client"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "client":
        engine: Engine = request.getfixturevalue("client_engine")
    else:
        engine = open_engine(parse_address(f"qdrant://{tmp_path}/qdrant"))
    engine.create(Manifest("f" * 64, 2))
    yield engine
    engine.close()


def items_with(column: str, values: list[Any]) -> list[StoredItem]:
    return [
        StoredItem(
            n, f"key {n}", "", "", 0, 0, "", 0, 0, None, None, {} if value is None else {column: value}
        )
        for n, value in enumerate(values, 1)
    ]


def put(engine: Engine, items: list[StoredItem]) -> None:
    engine.put(items, np.tile(np.float32([0.6, 0.8]), (len(items), 1)))


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")
def test_numbers_are_exact(engine: Engine) -> None:
    engine.add_columns({"n": "number"})
    items = items_with("n", [*NUMBERS, None])
    put(engine, items[::2])
    engine.put(items[1::2], np.tile(np.float32([1, 0]), (len(items) // 2, 1)))
    stored = sorted(engine.items(range(len(items) + 1)))
    assert [repr(item.metadata) for item in stored] == [repr(item.metadata) for item in items]
    for operator in OPERATORS:
        for limit in NUMBERS:
            condition = FilterTest("n", operator, (limit,))
            found = [item.id for item in engine.scan(condition, 0, 100)]
            assert found == [item.id for item in items if holds(condition, item.metadata)], condition
    counts = dict(engine.value_counts("n", 100))
    assert counts == {number: sum(number == other for other in NUMBERS) for number in NUMBERS}


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")
def test_amended_numbers_lose_their_exact_text(engine: Engine) -> None:
    engine.add_columns({"a.b[]": "number"})
    put(engine, items_with("a.b[]", [0.1 + 0.2, 0.1 + 0.2, 0.1 + 0.2]))
    engine.amend(
        [Amendment(1, {}, {"a.b[]": 7}), Amendment(2, {}, {"a.b[]": None}), Amendment(9, {"size": 1})]
    )
    found = sorted(engine.items([1, 2, 3, 9]))
    assert [item.metadata for item in found] == [{"a.b[]": 7}, {}, {"a.b[]": 0.1 + 0.2}]
    assert engine.count(FilterTest("a.b[]", ">", (0.3,))) == 2


@pytest.mark.parametrize(
    ("operator", "what"), [("like", "by a pattern"), ("not like", "by a pattern"), (">=", "by >=")]
)
def test_unsupported_tests_of_text_are_refused(engine: Engine, operator: Name, what: str) -> None:
    engine.add_columns({"brand": "text"})
    with pytest.raises(InputError, match=f"column 'brand': Qdrant cannot .* {what}; .*PostgreSQL"):
        engine.count(FilterTest("brand", operator, ("a%",)))


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")
@pytest.mark.parametrize("test", ["items", "filters", "nearest"])
def test_conformance_of_the_client(client_engine: Engine, tmp_path: Path, test: str) -> None:
    database = Database("local mode", EmbeddedServer(f"qdrant://{tmp_path}"), KINDS["qdrant"][1])
    if test == "items":
        conformance.test_items_against_a_dict(client_engine)
    elif test == "filters":
        conformance.test_filters_against_python(client_engine, database)
    else:
        conformance.test_nearest_of_a_small_collection_is_exact(client_engine, "float32", database)


def test_a_folder_is_open_in_one_process(tmp_path: Path) -> None:
    address = f"qdrant://{tmp_path}/qdrant"
    code = f"""
from retrieval.storage.manifest import Manifest
from retrieval.stores.opening import parse_address
from retrieval.stores.opening import open_engine
engine = open_engine(parse_address({address!r}))
engine.create(Manifest("f" * 64, 2))
engine.count()
print("open", flush=True)
input()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(LockedError, match=f"process {other.pid} has this Qdrant folder open"):
            open_engine(parse_address(address)).manifest()
        other.communicate("\n")
    one, two = (open_engine(parse_address(address)) for _ in range(2))
    put(one, items_with("x", [None]))
    assert two.count() == 1
    one.close()
    assert two.count() == 1
    two.close()


def test_other_folders_are_kept(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").touch()
    engine = open_engine(parse_address(f"qdrant://{tmp_path}"))
    with pytest.raises(InputError, match="the folder has other files"):
        engine.create(Manifest("f" * 64, 2))


class Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.end_headers()
        self.wfile.write(b"Must provide an API key")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant")
def test_waiting_for_the_index_survives_a_restart_of_the_server(
    client_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server does not answer as it restarts, and waits with its index until it is asked to go on."""
    client_engine.create(Manifest("f" * 64, 2))
    states = ["yellow", "lost", "grey", "yellow", "green"]
    changes: list[str] = []
    real = LocalClient.get_collection

    def get_collection(self: LocalClient, name: str) -> Any:
        if (state := states.pop(0) if states else "green") == "lost":
            raise ResponseHandlingException(OSError("connection reset"))
        return real(self, name).model_copy(update={"status": CollectionStatus(state)})

    monkeypatch.setattr("retrieval.stores.qdrant.server._POLL", 0)
    monkeypatch.setattr(LocalClient, "get_collection", get_collection)
    monkeypatch.setattr(LocalClient, "update_collection", lambda _, name, **given: changes.extend(given))
    client_engine._build(show_progress=False)  # type: ignore[attr-defined]
    assert not states
    assert changes == ["optimizers_config"]


def test_errors_of_a_server_are_one_line_without_the_key() -> None:
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = parse_address(f"qdrant://:secret@127.0.0.1:{server.server_port}/birds")
        with pytest.raises(LookalikeError, match="the API key is refused; set ") as error:
            open_engine(address).manifest()
        server.shutdown()
    with pytest.raises(LookalikeError, match=r"cannot be reached \(.*\); start the server") as absent:
        open_engine(address).manifest()
    for one in (error, absent):
        assert "secret" not in str(one.value)
        assert "\n" not in str(one.value)


def answering_with(data: bytes | None, *, times: int) -> tuple[socket.socket, Thread]:
    """Start a server that answers some requests with bytes, then takes no more; `None` hangs up instead."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for _ in range(times):
            connection, _ = listener.accept()
            connection.recv(65_536)
            if data:
                connection.sendall(data)
            connection.close()
        listener.close()

    thread = Thread(target=serve)
    thread.start()
    return listener, thread


def http_answer(status: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


@pytest.mark.parametrize(
    ("data", "times", "problem"),
    [
        (None, 2, "the database ended the connection in the middle of an operation ("),
        (None, 1, "the database ended the connection and answers no more ("),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
            2,
            "the database ended the connection in the middle",
        ),
        (
            http_answer("500 Oops", '{"status": {"error": "Service internal error:\\nno\\tspace"}}'),
            1,
            "the database refused an operation (Service internal error: no space); see its log",
        ),
        (http_answer("200 OK", '{"result": {"points": 1}}'), 2, "an answer cannot be read ("),
    ],
    ids=["twice", "gone", "half", "refused", "foreign"],
)
def test_a_server_that_ends_the_connection_or_refuses(data: bytes | None, times: int, problem: str) -> None:
    listener, thread = answering_with(data, times=times)
    address = parse_address(f"qdrant://127.0.0.1:{listener.getsockname()[1]}/birds")
    with pytest.raises(StoreError) as error:
        open_engine(address).manifest()
    thread.join(10)
    assert str(error.value).startswith(f"{address}: {problem}")
    assert "; " in str(error.value)
    assert "\n" not in str(error.value)
