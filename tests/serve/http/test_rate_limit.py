"""Limits on request rate, streams, body size, header time and connections."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Message, Receive, Scope, Send

from serve.app import create_app
from serve.core.service import SearchService
from serve.http import connections, protocol
from serve.http.body_limit import BodyLimitMiddleware
from serve.http.connections import ConnectionLimitMiddleware, Connections
from serve.http.proxy_headers import TrustedProxyMiddleware
from serve.http.rate_limit import RateLimitMiddleware, StreamLimitMiddleware, TokenBuckets
from tests.serve.asgi_server import answering, get, listening, measure, receive_all, send_raw

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
HEALTH = REQUEST.replace(b"/ ", b"/healthz ", 1)

CAP, TOGETHER = 100_000, 150_000


# ---- requests a second


@given(
    rate=st.floats(0.1, 100),
    burst=st.integers(1, 50),
    pauses=st.lists(st.floats(0, 5), min_size=1, max_size=200),
)
def test_no_interval_exceeds_burst_plus_rate(rate: float, burst: int, pauses: list[float]) -> None:
    now = 0.0
    buckets = TokenBuckets(rate, burst, clock=lambda: now)
    granted = []
    for pause in pauses:
        now += pause
        if buckets.take("one") == 0:
            granted.append(now)
    for first in range(len(granted)):
        for last in range(first, len(granted)):
            share = burst + rate * (granted[last] - granted[first])
            assert last - first + 1 <= share + 1e-6


@given(rate=st.floats(0.01, 100), burst=st.integers(1, 20), tries=st.integers(1, 60))
def test_retry_after_is_sufficient(rate: float, burst: int, tries: int) -> None:
    now = 0.0
    buckets = TokenBuckets(rate, burst, clock=lambda: now)
    waits = [buckets.take("one") for _ in range(tries)]
    assert waits[:burst] == [0] * min(burst, tries)
    if waits[-1]:
        now = float(waits[-1])
        assert buckets.take("one") == 0


def test_clients_have_separate_buckets_and_are_evicted() -> None:
    buckets = TokenBuckets(1, 1, clock=lambda: 0.0)
    assert buckets.take("192.0.2.1") == 0
    assert buckets.take("192.0.2.1") == 1
    assert buckets.take("192.0.2.2") == 0
    for number in range(10_000):
        buckets.take(f"10.0.{number // 256}.{number % 256}")
    assert len(buckets) == 4096
    assert buckets.take("192.0.2.1") == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),  # one customer's network
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::1%eth1", True),
    ],
)
def test_ipv6_clients_are_identified_by_network(one: str, other: str, same: bool) -> None:
    buckets = TokenBuckets(1, 1, clock=lambda: 0.0)
    buckets.take(one)
    assert (buckets.take(other) > 0) == same


def test_rate_limited_client_gets_retry_after() -> None:
    app = RateLimitMiddleware(measure, rate=0.5)  # a burst of five, then one in two seconds
    assert [get(app).status_code for _ in range(6)] == [200] * 5 + [429]
    refused = get(app)
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["code"] == "too-many-requests"
    assert refused.headers["retry-after"] in ("1", "2")
    assert get(app, client="192.0.2.2").status_code == 200
    assert get(app, "/healthz").status_code == 200
    assert get(app, "/config").text == "too many requests: try again later\n"


@given(
    rate=st.floats(0.1, 100),
    burst=st.integers(1, 50),
    costs=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 100)), min_size=1, max_size=100),
)
def test_charged_tokens_are_paid_before_the_next_request(
    rate: float, burst: int, costs: list[tuple[float, int]]
) -> None:
    now, level = 0.0, float(burst)
    buckets = TokenBuckets(rate, burst, clock=lambda: now)
    for pause, cost in costs:
        now += pause
        level = min(burst, level + rate * pause)
        wait = buckets.take("one")
        if abs(level - 1) > 1e-6:  # else rounding decides
            assert (wait == 0) == (level >= 1)
        level -= wait == 0
        buckets.charge("one", cost)
        level = max(-burst, level - cost)


def test_megapixels_that_are_decoded_count_as_requests(shop_gallery: Path) -> None:
    app = create_app(SearchService(shop_gallery), page=False)
    buffer = io.BytesIO()
    Image.new("L", (2500, 2500), 200).save(buffer, "PNG")
    with answering(RateLimitMiddleware(app, rate=1)) as url, httpx.Client(base_url=url) as client:
        assert client.post("/v1/search", content=buffer.getvalue()).status_code == 200  # 7 of 10 tokens
        codes = [client.post("/v1/search", json={"id": 1}).status_code for _ in range(5)]
        assert codes == [200] * 3 + [429] * 2
        assert client.get("/healthz").status_code == 200


def test_forwarded_headers_are_used_from_trusted_proxies_only() -> None:
    async def tell(scope: Scope, receive: Receive, send: Send) -> None:
        forwarded = [name for name, _ in scope["headers"] if b"forwarded" in name]
        text = f"{scope['client'][0]} {scope['scheme']} {len(forwarded)}"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": text.encode()})

    app = TrustedProxyMiddleware(tell, ["10.0.0.0/8"])
    claims = {
        "X-Forwarded-For": "198.51.100.7",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "evil.example",
    }
    assert get(app, client="10.1.2.3", **claims).text == "198.51.100.7 https 3"
    assert get(app, client="192.0.2.1", **claims, Forwarded="for=1.2.3.4").text == "192.0.2.1 http 0"
    # A forged entry of the client is to the left of that of the proxy.
    spoofed = {"X-Forwarded-For": "127.0.0.1, 198.51.100.7, 10.9.9.9"}
    assert get(app, client="10.1.2.3", **spoofed).text.startswith("198.51.100.7")


# ---- streams


def test_open_streams_are_limited_and_released() -> None:
    async def scenario() -> None:
        done = asyncio.Event()

        async def stream(scope: Scope, receive: Receive, send: Send) -> None:
            await done.wait()

        app = StreamLimitMiddleware(stream)
        sent: list[Message] = []

        def scope(client: str) -> dict[str, Any]:
            path = "/gradio_api/heartbeat/x"
            return {"type": "http", "path": path, "client": (client, 1), "headers": [], "method": "GET"}

        async def nothing() -> Message:
            raise AssertionError("the body must not be read")

        async def send(message: Message) -> None:
            sent.append(message)

        open_now = [asyncio.create_task(app(scope("192.0.2.1"), nothing, send)) for _ in range(64)]
        await asyncio.sleep(0)
        await app(scope("192.0.2.1"), nothing, send)
        assert sent[0]["status"] == 503
        others = [asyncio.create_task(app(scope(f"192.0.2.{n}"), nothing, send)) for n in range(2, 250)]
        await asyncio.sleep(0)
        assert sum(message.get("status") == 503 for message in sent) == 1 + 248 - (256 - 64)
        done.set()
        await asyncio.gather(*open_now, *others)
        refused = len(sent)
        await asyncio.gather(*(app(scope("192.0.2.1"), nothing, send) for _ in range(64)))
        assert len(sent) == refused

    asyncio.run(scenario())


# ---- bodies


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with listening(BodyLimitMiddleware(measure, CAP, TOGETHER, max_stall=1.0, min_rate=10_000)) as port:
        yield port


def _parts(size: int) -> Iterator[bytes]:
    yield from (bytes(10_000) for _ in range(size // 10_000))
    yield bytes(size % 10_000)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("size", "status"), [(CAP, 200), (CAP + 1, 413), (2 * CAP, 413)])
def test_body_size_is_limited(port: int, size: int, status: int, chunked: bool) -> None:
    found = httpx.post(f"http://127.0.0.1:{port}/v1/search", content=_parts(size) if chunked else bytes(size))
    assert found.status_code == status
    if status == 200:
        assert found.text == str(size)
    else:
        assert found.json()["code"] == "too-large"


def test_large_content_length_is_refused_at_once(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000000\r\n\r\n"
    assert receive_all(send_raw(port, head)).startswith(b"HTTP/1.1 413 ")


def test_expect_continue_is_refused_at_once(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (CAP + 1)
    assert receive_all(send_raw(port, head)).startswith(b"HTTP/1.1 413 ")


def test_endless_body_is_cut_off(port: int) -> None:
    connection = send_raw(port, b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    try:
        for _ in range(1000):
            connection.sendall(b"2710\r\n" + bytes(10_000) + b"\r\n")
    except (BrokenPipeError, ConnectionResetError):
        return
    assert b"413" in receive_all(connection)[:20]


@pytest.mark.parametrize("kind", [b"Content-Length: 5000", b"Transfer-Encoding: chunked"])
def test_stalled_body_times_out(port: int, kind: bytes) -> None:
    found = receive_all(send_raw(port, b"POST /v1/search HTTP/1.1\r\nHost: x\r\n" + kind + b"\r\n\r\n"))
    assert found.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"too-slow"' in found


def test_total_size_of_bodies_is_limited(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n"
    first = send_raw(port, head, bytes(90_000))
    found = httpx.post(f"http://127.0.0.1:{port}/v1/search", content=bytes(90_000))
    while found.status_code == 200:  # the bytes of the first request had not arrived yet
        found = httpx.post(f"http://127.0.0.1:{port}/v1/search", content=bytes(90_000))
    assert found.status_code == 503
    assert found.json()["code"] == "busy"
    first.sendall(bytes(10_000))
    assert b"100000" in receive_all(first)
    assert httpx.post(f"http://127.0.0.1:{port}/v1/search", content=bytes(90_000)).text == "90000"


# ---- connections


def test_incomplete_headers_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.5)
    half = b"GET / HTTP/1.1\r\nHost:"
    with listening(measure) as port:
        silent, begun, again = send_raw(port), send_raw(port, half), send_raw(port, half, b" x\r\n\r\n")
        found = b""
        while not found.endswith(b"\r\n0\r\n\r\n"):
            found += again.recv(65536) or pytest.fail("it was closed before the whole answer had come")
        again.sendall(half)  # a second request, which only the header timeout ends, not the idle timeout
        assert [receive_all(connection) for connection in (silent, begun, again)] == [b"", b"", b""]
        assert httpx.get(f"http://127.0.0.1:{port}/").text == "0"


def test_response_may_take_longer_than_the_header_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.5)

    async def late(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.8)
        await measure(scope, receive, send)

    with listening(late) as port:
        assert httpx.get(f"http://127.0.0.1:{port}/").text == "0"


@pytest.mark.parametrize(("seconds", "late"), [(30.0, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), (0.2, b"")])
def test_new_connection_may_still_send_its_request_when_the_server_shuts_down(
    monkeypatch: pytest.MonkeyPatch, seconds: float, late: bytes
) -> None:
    monkeypatch.setattr(protocol, "GRACE_SECONDS", seconds)

    def send_late(connection: socket.socket, port: int) -> bytes:
        with suppress(ConnectionError):
            while True:  # until it accepts no connection
                send_raw(port).close()
        connection.sendall(late)
        return receive_all(connection)

    with ThreadPoolExecutor() as pool:
        with listening(Starlette(routes=[Mount("/", measure)]), "on") as port:
            connection = send_raw(port)
            answer = pool.submit(send_late, connection, port)
        found = answer.result(30)
    assert found.startswith(b"HTTP/1.1 200 ") if late else found == b""


def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    with listening(ConnectionLimitMiddleware(measure, 0)) as port:
        held = [send_raw(port) for _ in range(3)]
        assert b" 503 " in receive_all(send_raw(port, REQUEST))
        held.pop().close()
        while b" 200 " not in receive_all(send_raw(port, REQUEST)):
            pass  # until the server notices the disconnect
        for connection in held:
            connection.close()


def _from(address: str, port: int, *parts: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 30, source_address=(address, 0))
    for part in parts:
        connection.sendall(part)
    return connection


def test_silent_connections_of_one_client_stop_neither_others_nor_health_checks() -> None:
    limits = Connections(per_client=8)
    with listening(ConnectionLimitMiddleware(measure, 8), limits=limits) as port:
        held = [_from("127.0.0.2", port) for _ in range(8 + 2 * connections.RESERVED)]
        for address, request, status in [
            ("127.0.0.2", REQUEST, b" 429 "),
            ("127.0.0.2", HEALTH, b" 200 "),
            ("127.0.0.1", REQUEST, b" 200 "),
        ]:
            found = receive_all(_from(address, port, request))
            assert status in found.partition(b"\r\n")[0]
            assert b"connection: close" in found.lower()
        for connection in held:
            connection.close()
        while b" 200 " not in receive_all(_from("127.0.0.2", port, REQUEST)):
            pass  # until the server notices the disconnects


def test_health_checks_are_answered_when_all_connections_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 4)
    with listening(ConnectionLimitMiddleware(measure, 0)) as port:
        held = [_from("127.0.0.2", port) for _ in range(4)]
        held += [_from("127.0.0.3", port) for _ in range(connections.RESERVED)]
        waiting = send_raw(port)
        held += [_from("127.0.0.3", port) for _ in range(2 * connections.RESERVED)]  # do not displace it
        waiting.sendall(HEALTH)
        assert b" 200 " in receive_all(waiting)
        assert b" 200 " in receive_all(send_raw(port, HEALTH.replace(b"Connection: close\r\n", b"")))
        assert b" 503 " in receive_all(send_raw(port, REQUEST))
        for connection in held:
            connection.close()


def test_clients_of_a_trusted_proxy_are_limited_by_their_own_addresses() -> None:
    async def story() -> list[int]:
        finish, statuses = asyncio.Event(), list[int]()

        async def wait(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] != "/healthz":
                await finish.wait()
            await measure(scope, receive, send)

        app = TrustedProxyMiddleware(ConnectionLimitMiddleware(wait, 2), ["10.0.0.0/8"])

        async def ask(client: str, path: str = "/") -> int:
            transport = httpx.ASGITransport(app, client=("10.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as asking:
                return (await asking.get(path, headers={"X-Forwarded-For": client})).status_code

        first = [asyncio.create_task(ask("192.0.2.1")) for _ in range(2)]
        await asyncio.sleep(0.05)
        other = asyncio.create_task(ask("192.0.2.2"))
        statuses += [await ask("192.0.2.1"), await ask("192.0.2.1", "/healthz")]
        finish.set()
        return [*statuses, await other, *[await one for one in first], await ask("192.0.2.1")]

    assert asyncio.run(story()) == [429, 200, 200, 200, 200, 200]
    limits = Connections(per_client=1, proxies=["10.0.0.0/8"])
    assert [limits.add(_Transport(), "10.0.0.1") for _ in range(5)] == [{}] * 5


class _Transport:
    def abort(self) -> None:
        raise AssertionError
