"""Requests that mean harm: two readings of one, answers that are not read, bombs, changes by other sites."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from serve.app import create_app
from serve.config import Settings
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from serve.http import protocol
from serve.http.stack import protect
from tests.conftest import wait_until
from tests.serve.asgi_server import answering, listening, receive_all, send_raw

CHUNKED = b"Transfer-Encoding: chunked\r\n"
SECOND = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


# ---- one request, two readings


def _post(*headers: bytes, body: bytes = b"") -> bytes:
    return b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\n" + b"".join(headers) + b"\r\n" + body


SMUGGLING = {
    "length, then chunks": _post(b"Content-Length: 4\r\n", CHUNKED, body=b"0\r\n\r\n" + SECOND),
    "chunks, then length": _post(CHUNKED, b"Content-Length: 40\r\n", body=b"0\r\n\r\n" + SECOND),
    "after a folded line": _post(
        b"Content-Length: 4\r\nTransfer-Encoding:\r\n chunked\r\n", body=b"0\r\n\r\n" + SECOND
    ),
    "after a bare line feed": _post(b"A: b\nContent-Length: 4\r\n", CHUNKED, body=b"0\r\n\r\n" + SECOND),
    "in upper case": _post(
        b"CONTENT-LENGTH: 4\r\nTRANSFER-ENCODING: CHUNKED\r\n", body=b"0\r\n\r\n" + SECOND
    ),
    "in HTTP/1.0": _post(b"Content-Length: 4\r\n", CHUNKED, body=b"0\r\n\r\n" + SECOND).replace(
        b"/1.1", b"/1.0", 1
    ),
    "two lengths": _post(b"Content-Length: 4\r\nContent-Length: 5\r\n", body=b"abcde" + SECOND),
    "a list of lengths": _post(b"Content-Length: 4, 5\r\n", body=b"abcde" + SECOND),
    "a signed length": _post(b"Content-Length: +4\r\n", body=b"abcd" + SECOND),
    "a negative length": _post(b"Content-Length: -4\r\n", body=SECOND),
    "a length with a line": _post(b"Content-Length: 1_0\r\n", body=b"abcdefghij" + SECOND),
    "another coding": _post(b"Transfer-Encoding: xchunked\r\n", body=b"0\r\n\r\n" + SECOND),
    "two codings": _post(CHUNKED, b"Transfer-Encoding: identity\r\n", body=b"0\r\n\r\n" + SECOND),
    "a space before the colon": _post(b"Transfer-Encoding : chunked\r\n", body=b"0\r\n\r\n" + SECOND),
    "a control character": _post(b"Transfer-Encoding: \x0bchunked\r\n", body=b"0\r\n\r\n" + SECOND),
    "a carriage return alone": _post(b"A: b\rTransfer-Encoding: chunked\r\n", body=b"0\r\n\r\n" + SECOND),
    "a null": _post(b"A: b\0\r\n", body=SECOND),
    "two hosts": _post(b"Host: evil.example\r\n", body=SECOND),
    "a space first": SECOND.replace(b"Host", b" Host"),
    "a negative chunk": _post(CHUNKED, body=b"-4\r\nabcd\r\n0\r\n\r\n" + SECOND),
    "a chunk that is too long": _post(CHUNKED, body=b"4\r\nabcdefgh\r\n0\r\n\r\n" + SECOND),
    "a chunk of 2^160 bytes": _post(CHUNKED, body=b"f" * 40 + b"\r\nabcd\r\n0\r\n\r\n" + SECOND),
    "a line feed in a chunk's size": _post(CHUNKED, body=b"4;a=b\nX\r\nabcd\r\n0\r\n\r\n" + SECOND),
}


@pytest.fixture(scope="module")
def folder(shop_gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(shop_gallery, tmp_path_factory.mktemp("siege") / "shop"))


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """A server that allows changes."""
    service = SearchService(folder, permissions=Permissions(changes=True))
    settings = Settings({"shop": folder}, permissions=service.permissions)
    with answering(protect(create_app(service, page=False), settings, service.telemetry)) as url:
        yield url


def _port(url: str) -> int:
    return httpx.URL(url).port or 0


@pytest.mark.parametrize("kind", SMUGGLING)
def test_ambiguous_request_is_refused_and_what_follows_is_not_read(url: str, kind: str) -> None:
    found = receive_all(send_raw(_port(url), SMUGGLING[kind]))  # to the end of the connection
    assert found.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 421 ")), found
    assert found.count(b"HTTP/1.1 ") == 1, "the second request was answered"


def test_unambiguous_bodies_are_read(url: str) -> None:
    """The table above is refused for what it is, not for its bodies."""
    for request in (
        _post(b"Content-Length: 4\r\n", body=b"abcd"),
        _post(CHUNKED, body=b"4\r\nabcd\r\n0\r\n\r\n"),
    ):
        connection = send_raw(_port(url), request + SECOND.replace(b"Host", b"Connection: close\r\nHost"))
        answers = receive_all(connection)
        assert answers.count(b"HTTP/1.1 ") == 2
        assert b'{"status":"ok"}' in answers


@pytest.mark.parametrize(
    "request_line", [b"CONNECT evil.example:80 HTTP/1.1", b"GET http://evil.example/ HTTP/1.1"]
)
def test_server_is_no_proxy(url: str, request_line: bytes) -> None:
    found = receive_all(
        send_raw(_port(url), request_line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    )
    assert found.split(b" ", 2)[1] in (b"404", b"405"), found


def test_endless_headers_are_cut_off(url: str) -> None:
    connection = send_raw(_port(url), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
    with pytest.raises(ConnectionError):  # before 16 MB are sent
        connection.sendall((b"A: " + b"a" * 8000 + b"\r\n") * 2**11)
    connection.close()
    assert httpx.get(f"{url}/healthz").status_code == 200


# ---- answers that are not read


async def _large(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(100):
        await send({"type": "http.response.body", "body": bytes(2**17), "more_body": True})
    await send({"type": "http.response.body", "body": b"end"})


def _slow(port: int, received: int = 2**16) -> socket.socket:
    """Ask for an answer of which the kernel takes few bytes before the client reads them."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received)
    connection.connect(("127.0.0.1", port))
    connection.settimeout(30)
    connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    return connection


def test_client_that_reads_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "READ_SECONDS", 0.2)
    ended = list[str]()

    async def noticed(scope: Scope, receive: Receive, send: Send) -> None:
        await _large(scope, receive, send)
        ended.append("the application is not held")

    with listening(noticed) as port:
        held = [_slow(port) for _ in range(5)]
        wait_until(lambda: len(ended) == len(held))
        for connection in held:  # what the kernel has taken before
            assert not receive_all(connection).endswith(b"end\r\n0\r\n\r\n")


def test_rest_of_an_answer_is_not_kept_for_a_client_that_has_asked_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last bytes wait below the mark at which uvicorn pauses, after the response is complete."""
    monkeypatch.setattr(protocol, "READ_SECONDS", 0.2)
    open_connections = list[protocol.Protocol]()

    class Watched(protocol.Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**12)
            open_connections.append(self)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            open_connections.remove(self)

    async def small(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(60_000)})

    monkeypatch.setattr("tests.serve.asgi_server.Protocol", Watched)
    with listening(small) as port:
        connection = _slow(port, 2**11)
        wait_until(lambda: len(open_connections) == 1)
        wait_until(lambda: not open_connections)
        connection.close()


def test_slow_client_that_reads_on_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "READ_SECONDS", 0.8)
    with listening(_large) as port, _slow(port) as connection:
        found, pause = bytearray(), asyncio.new_event_loop()
        while part := connection.recv(2**18, socket.MSG_WAITALL):
            found += part
            pause.run_until_complete(asyncio.sleep(0.02))  # 50 of them: longer than the time limit
        pause.close()
    assert found.endswith(b"end\r\n0\r\n\r\n")
    assert len(found) > 100 * 2**17


# ---- bodies that grow


def test_compressed_bodies_are_not_unpacked(url: str) -> None:
    bomb = gzip.compress(bytes(10**8))  # 100 kB
    for media_type in ("image/png", "application/json"):
        headers = {"Content-Type": media_type, "Content-Encoding": "gzip"}
        answer = httpx.post(f"{url}/v1/search", content=bomb, headers=headers, timeout=60)
        assert answer.status_code in (400, 415, 422), answer.text


def test_deeply_nested_json_is_refused(url: str) -> None:
    headers = {"Content-Type": "application/json"}
    for body in (b"[" * 10**6, b'{"like":' * 10**5, b"[" * 10**5 + b"]" * 10**5):
        assert httpx.post(f"{url}/v1/search", content=body, headers=headers).status_code in (400, 422)


# ---- changes asked for by other sites

FOREIGN = (
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:1", "Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
)


def _bytes_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _operations(url: str) -> Iterator[tuple[str, str]]:
    """Return method and path of every operation of the description."""
    for path, methods in httpx.get(f"{url}/v1/openapi.json").json()["paths"].items():
        for method in methods:
            if method in ("get", "post", "put", "patch", "delete"):
                place = path.replace("{id}", "1").replace("{n}", "1")
                yield method.upper(), place if place in ("/healthz", "/readyz", "/metrics") else f"/v1{place}"


def test_no_other_site_can_change_anything(url: str, folder: Path) -> None:
    before = _bytes_of(folder)
    operations = {(method, path) for method, path in _operations(url) if method != "GET"}
    assert {"DELETE", "PATCH", "POST"} <= {method for method, _ in operations}
    assert len(operations) > 15
    with httpx.Client(base_url=url, timeout=30) as client:
        for method, path in sorted(operations):
            for headers in FOREIGN:
                # As a form of another site sends it, without asking first.
                answer = client.request(
                    method, path, headers={**headers, "Content-Type": "text/plain"}, content=b"{}"
                )
                assert answer.status_code == 403, (method, path, headers, answer.text)
    assert _bytes_of(folder) == before


def test_reading_changes_nothing(url: str, folder: Path) -> None:
    """A page of another site can make browsers send any GET request."""
    before = _bytes_of(folder)
    paths = {path for method, path in _operations(url) if method == "GET"} - {"/v1/events"}  # has no end
    assert len(paths) > 15
    with ThreadPoolExecutor(4) as pool:
        statuses = pool.map(lambda path: httpx.get(url + path, timeout=60).status_code, sorted(paths))
        assert sum(status == 200 for status in statuses) > 10
    assert _bytes_of(folder) == before
