"""Fetching images by URL, and protection against SSRF."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.core import url_fetcher
from serve.core.errors import BusyError, FetchError
from serve.core.url_fetcher import Address, Endpoint
from tests.serve.web_server import Web, http, web

IMAGE = bytes(range(256)) * 20
NAME = "pictures.example"
MESSAGE = "no image could be fetched"


def _anything(_: Address) -> bool:
    return True


def fetch(address: str, **options: Any) -> bytes:
    return asyncio.run(url_fetcher.fetch_image(address, **options))


def _fetched(there: Web, address: str = f"http://{NAME}/a.png") -> bytes:
    return fetch(address, is_allowed=_anything, look_up=there.look_up)


def _refused(there: Web, address: str = f"http://{NAME}/a.png") -> str:
    with pytest.raises(FetchError, match=MESSAGE) as caught:
        _fetched(there, address)
    return str(caught.value)


# ---- fetched images


def test_image_is_fetched_with_minimal_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    with web(http(IMAGE)) as there, web(http(b"wrong")) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert _fetched(there, f"http://{NAME}/a b/ä.png?x=ü#part") == IMAGE
        assert proxy.heads == []
        line, *rest = there.heads[0].strip().split("\r\n")
        headers = dict(one.lower().split(": ", 1) for one in rest)
        assert line == "GET /a%20b/%C3%A4.png?x=%C3%BC HTTP/1.1"
        assert headers.keys() == {"host", "accept", "accept-encoding", "connection", "user-agent"}
        assert headers["host"] == NAME
        assert headers["accept-encoding"] == "identity"
        assert headers["user-agent"].startswith("lookalike")


@pytest.mark.parametrize(
    ("address", "host"),
    [
        *[(" HTTP://PICTURES.example:80/ ", NAME), (f"http://{NAME}./", f"{NAME}.")],
        *[("http://bücher.example/", "xn--bcher-kva.example"), ("http://8.8.8.8/", "8.8.8.8")],
        ("http://[2606:4700::1]/", "[2606:4700::1]"),
    ],
)
def test_host_names_are_normalized(address: str, host: str) -> None:
    asked: list[tuple[str, int]] = []
    with web(http(IMAGE)) as there:

        def look_up(name: str, port: int) -> Sequence[Endpoint]:
            asked.append((name, port))
            return [there.place]

        assert fetch(address, is_allowed=_anything, look_up=look_up) == IMAGE
        assert f"\r\nHost: {host}\r\n" in there.heads[0]
    assert asked == [(host.strip("[]"), 80)]


def test_unreachable_address_is_skipped() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        closed_port = closed.getsockname()
    with web(http(IMAGE)) as there:
        assert (
            fetch(f"http://{NAME}/", is_allowed=_anything, look_up=lambda *_: [closed_port, there.place])
            == IMAGE
        )


# ---- refused URLs


def test_dns_is_resolved_once_and_the_checked_address_is_used() -> None:
    with web(http(IMAGE)) as public, web(http(b"secret"), "127.0.0.2") as inside:
        places = iter([public, inside, inside])
        answers = lambda *_: [next(places).place]  # noqa: E731  DNS rebinding
        allowed = lambda address: str(address) == public.machine  # noqa: E731
        assert fetch(f"http://{NAME}/", is_allowed=allowed, look_up=answers) == IMAGE
        with pytest.raises(FetchError, match=MESSAGE):
            fetch(f"http://{NAME}/", is_allowed=allowed, look_up=answers)
        mixed = lambda *_: [inside.place, public.place]  # noqa: E731
        assert fetch(f"http://{NAME}/", is_allowed=allowed, look_up=mixed) == IMAGE
        assert inside.heads == []


# ---- redirects


@pytest.mark.parametrize(
    "location",
    [
        *("http://inside.example/", "//inside.example/a", "http://2130706434/", "http://127.0.0.2/"),
        *("ftp://pictures.example/", "file:///etc/passwd", "http://pictures.example:8080/", "https:"),
        *("http://u@pictures.example/", "http://[", "http://a\r\nb/", "", "\0"),
    ],
)
@pytest.mark.parametrize("status", [301, 307])
def test_redirects_are_checked_like_the_first_url(location: str, status: int) -> None:
    with web(http(b"secret"), "127.0.0.2") as inside:
        with web(http(status=status, Location=location)) as public:

            def look_up(name: str, port: int) -> Sequence[Endpoint]:
                return [public.place] if name == NAME else [inside.place]

            with pytest.raises(FetchError, match=MESSAGE):
                fetch(f"http://{NAME}/", is_allowed=lambda a: str(a) == public.machine, look_up=look_up)
        assert inside.heads == []


@pytest.mark.parametrize(("hops", "fine"), [(1, True), (3, True), (4, False)])
def test_few_redirects_are_followed_without_cookies(hops: int, fine: bool) -> None:
    numbers = itertools.count(1)

    def answer(connection: socket.socket) -> None:
        number = next(numbers)
        moved = http(status=302, Location=f"../{number}.png", Set_Cookie="a=b; Path=/", Refresh="0")
        connection.sendall(moved if number <= hops else http(IMAGE))

    with web(answer) as there:
        if fine:
            assert _fetched(there, f"http://{NAME}/folder/first.png") == IMAGE
        else:
            _refused(there)
        assert len(there.heads) == min(hops, 3) + 1
        for head in there.heads:
            assert not any(word in head.lower() for word in ("cookie", "referer", "authorization"))


# ---- malicious servers


def _trickle(start: bytes, part: bytes, pause: float) -> Iterator[bytes]:
    yield start
    while True:
        time.sleep(pause)
        yield part


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = {
    "no answer": (b"", b"", 0.1),
    "a head without end": (HEAD, b"X: y\r\n", 0.01),
    "an early answer without end": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.01),
    "a body that trickles": (HEAD + b"Content-Length: 1000000\r\n\r\n", b"x", 0.01),
    "a body in chunks that trickle": (CHUNKED, b"1\r\nx\r\n", 0.01),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_fetch_has_a_total_timeout(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these servers would respond forever."""
    monkeypatch.setattr(url_fetcher, "TIMEOUT_SECONDS", 0.5)

    def answer(connection: socket.socket) -> None:
        for part in _trickle(*ENDLESS[case]):
            connection.sendall(part)
            connection.setblocking(False)
            with suppress(BlockingIOError):
                if not connection.recv(1):
                    return
            connection.setblocking(True)

    with web(answer) as there:
        _refused(there)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_silent_server_times_out(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_fetcher, "TIMEOUT_SECONDS", 0.3)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(FetchError, match=MESSAGE),
    ):
        fetch(f"{scheme}://{NAME}/", is_allowed=_anything, look_up=lambda *_: [silent.getsockname()])


def test_silent_dns_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_fetcher, "TIMEOUT_SECONDS", 0.2)
    over = threading.Event()

    def look_up(name: str, port: int) -> Sequence[Endpoint]:
        assert over.wait(30)
        return []

    with pytest.raises(FetchError, match=MESSAGE):
        fetch(f"http://{NAME}/", is_allowed=_anything, look_up=look_up)
    over.set()


@pytest.mark.parametrize("chunked", [True, False])
def test_endless_body_is_cut_off(chunked: bool) -> None:
    sent = 0
    part = bytes(2**16)

    def answer(connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(CHUNKED if chunked else HEAD + b"\r\n")
        while True:
            connection.sendall(b"10000\r\n" + part + b"\r\n" if chunked else part)
            sent += len(part)

    with web(answer) as there:
        _refused(there)
    assert sent < 2 * url_fetcher.MAX_BYTES


@pytest.mark.parametrize(
    ("body", "length", "found"),
    [
        (IMAGE, 10, IMAGE[:10]),
        (IMAGE, 10**6, None),
        (IMAGE, 10**30, None),
        (bytes(url_fetcher.MAX_BYTES), None, bytes(url_fetcher.MAX_BYTES)),
        (bytes(url_fetcher.MAX_BYTES + 1), None, None),
    ],
)
def test_content_length_is_not_trusted(body: bytes, length: int | None, found: bytes | None) -> None:
    with web(http(body, length=length)) as there:
        if found is None:
            _refused(there)
        else:
            assert _fetched(there) == found


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "x-unknown"])
def test_compressed_body_is_refused(coding: str) -> None:
    with web(http(gzip.compress(bytes(10**6)), Content_Encoding=coding)) as there:
        _refused(there)


def test_all_failures_have_the_same_message() -> None:
    """A visitor cannot probe the network by the messages."""
    messages = set()
    for status in (201, 204, 206, 300, 304, 400, 401, 403, 404, 407, 418, 500, 503):
        with web(http(b"secret", status=status, WWW_Authenticate="Basic realm=secret")) as there:
            messages.add(_refused(there))
    for answer in (b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\n", b"\x15\x03\x01\0\x02\x02\x0a"):
        with web(answer) as there:
            messages.add(_refused(there))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        closed_port = closed.getsockname()
    for look_up in (lambda *_: [closed_port], lambda *_: [], url_fetcher.look_up):
        with pytest.raises(FetchError) as caught:
            fetch("http://inside.invalid/", look_up=look_up)
        messages.add(str(caught.value))
    (words,) = messages
    assert not any(word in words for word in ("secret", "127", "example", "invalid"))


@settings(max_examples=60)
@given(
    st.binary(max_size=200)
    | st.builds(
        lambda head, at, byte, body: head[:at] + byte + head[at:] + body,
        st.sampled_from([http(IMAGE), http(status=302, Location="/b"), CHUNKED + b"5\r\nabcde\r\n0\r\n\r\n"]),
        st.integers(0, 80),
        st.binary(max_size=3),
        st.binary(max_size=30),
    )
)
def test_arbitrary_responses_give_bytes_or_an_error(answer: bytes) -> None:
    with web(answer) as there, suppress(FetchError):
        assert isinstance(_fetched(there), bytes)


def test_concurrent_fetches_are_limited_and_slots_released() -> None:
    begun, over = threading.Semaphore(0), threading.Event()

    def answer(connection: socket.socket) -> None:
        begun.release()
        over.wait(30)
        connection.sendall(http(IMAGE))

    with web(answer) as there, ThreadPoolExecutor(url_fetcher.MAX_CONCURRENT) as pool:
        waiting = [pool.submit(_fetched, there) for _ in range(url_fetcher.MAX_CONCURRENT)]
        for _ in waiting:
            assert begun.acquire(timeout=30)
        with pytest.raises(BusyError):
            _fetched(there)
        over.set()
        assert [one.result() for one in waiting] == [IMAGE] * len(waiting)
    with web(http(status=404)) as missing:
        for _ in range(2 * url_fetcher.MAX_CONCURRENT):
            _refused(missing)


# ---- https


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """TLS context of a server for `NAME`, and its CA certificate."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("certificate")
    words = (
        f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={NAME} -keyout key.pem -out cert.pem".split()
    )
    words += ["-addext", f"subjectAltName=DNS:{NAME}"]
    subprocess.run([openssl, *words], cwd=folder, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, folder / "cert.pem"


@pytest.fixture
def trusting(certified: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certified[1]))
    url_fetcher._certificates.cache_clear()
    yield
    url_fetcher._certificates.cache_clear()


@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize(
    ("address", "fine"),
    [(f"https://{NAME}/", True), (f"https://{NAME}./", True), ("https://other.example/", False)],
)
def test_certificate_must_match_the_host_name(
    certified: tuple[ssl.SSLContext, Path], address: str, fine: bool
) -> None:
    asked: list[str | None] = []
    certified[0].sni_callback = lambda _, name, __: asked.append(name)
    with web(http(IMAGE), tls=certified[0]) as there:
        if fine:
            assert _fetched(there, address) == IMAGE
            assert asked == [NAME]
        else:
            _refused(there, address)
            assert there.heads == []


def test_untrusted_certificate_is_refused(certified: tuple[ssl.SSLContext, Path]) -> None:
    with web(http(IMAGE), tls=certified[0]) as there:
        _refused(there, f"https://{NAME}/")
        assert there.heads == []
