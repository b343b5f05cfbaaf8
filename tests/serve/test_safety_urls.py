"""Searching by URL: permission, SSRF protection and limits."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.app import create_app
from serve.client import Client
from serve.core import url_fetcher
from serve.core.errors import UrlsNotAllowedError
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from serve.core.workers import Limits
from tests.serve.asgi_server import answering
from tests.serve.serving import SERVE, serving
from tests.serve.web_server import Web, http, web

ADDRESS = "http://pictures.example/red.png"


def _lead_to(there: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolve every host name to one server, which counts as public."""
    found = partial(url_fetcher.fetch_image, is_allowed=lambda _: True, look_up=there.look_up)
    monkeypatch.setattr("serve.core.service.fetch_image", found)


@pytest.fixture(scope="module")
def allowing(shop_gallery: Path) -> Iterator[str]:
    service = SearchService(shop_gallery, permissions=Permissions(urls=True))
    with answering(create_app(service, page=False)) as url:
        yield url


def _search(server: str, /, **asked: Any) -> httpx.Response:
    return httpx.post(f"{server}/v1/search", json=asked, timeout=30)


def test_urls_are_not_fetched_by_default(shop_gallery: Path) -> None:
    with web(http(b"")) as there, answering(create_app(SearchService(shop_gallery), page=False)) as url:
        for address in (f"http://127.0.0.1:{there.port}/", ADDRESS, "nonsense", ""):
            answer = _search(url, url=address)
            assert (answer.status_code, answer.json()["code"]) == (403, "urls-not-allowed")
        assert there.heads == []
    assert UrlsNotAllowedError.status == 403


def test_image_url_gives_the_result_of_its_bytes(
    allowing: str, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = (shop / "red" / "1.png").read_bytes()
    region = [0.1, 0.2, 0.7, 0.9]
    with web(http(image)) as there, Client(allowing) as client:
        _lead_to(there, monkeypatch)
        assert client.search(url=ADDRESS, k=5) == client.search(image, k=5)
        assert client.search(url=ADDRESS, region=region) == client.search(image, region=region)
        form = httpx.post(f"{allowing}/v1/search", files={"url": (None, ADDRESS)})
        assert form.json()["hits"][0]["key"] == "red/1.png"
        assert len(there.heads) == 3


@pytest.mark.parametrize("body", [b"", b"<html>secret</html>", b"\x89PNG\r\n\x1a\n secret"])
def test_non_image_response_is_not_revealed(
    allowing: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web(http(body, Content_Type="image/png")) as there:
        _lead_to(there, monkeypatch)
        answer = _search(allowing, url=ADDRESS)
    assert (answer.status_code, answer.json()["code"]) == (422, "unusable-image")
    assert "secret" not in answer.text


def test_private_urls_are_refused_with_the_same_message(allowing: str) -> None:
    output = set()
    with web(http(b"secret")) as there:
        for host in ("127.0.0.1", "localhost", "[::1]", "169.254.169.254", "2130706433", "nobody.invalid"):
            answer = _search(allowing, url=f"http://{host}/")
            assert (answer.status_code, answer.json()["code"]) == (422, "not-fetched")
            output.add(answer.json()["detail"])
        assert there.heads == []
    assert len(output) == 1


@pytest.mark.parametrize(
    "asked",
    [
        {"url": ADDRESS, "id": 1},
        {"url": ADDRESS, "image": "AAAA"},
        {"url": 1},
        {"url": None},
        {"url": "http://a/" + 2048 * "a"},
    ],
)
def test_url_excludes_other_kinds_of_queries(allowing: str, asked: dict[str, Any]) -> None:
    answer = _search(allowing, **asked)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")


def test_batch_accepts_no_urls(allowing: str) -> None:
    answer = httpx.post(f"{allowing}/v1/search:batch", json={"queries": [{"url": ADDRESS}]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")


def test_slow_fetch_does_not_delay_other_requests(
    shop_gallery: Path, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, over = threading.Semaphore(0), threading.Event()

    def answer(connection: socket.socket) -> None:
        begun.release()
        over.wait(30)
        connection.sendall(http((shop / "red" / "1.png").read_bytes()))

    service = SearchService(shop_gallery, permissions=Permissions(urls=True))
    app = create_app(service, page=False, limits=Limits(threads=1, queued=8))
    with web(answer) as there, answering(app) as url, Client(url) as client, ThreadPoolExecutor() as pool:
        _lead_to(there, monkeypatch)
        waiting = [pool.submit(client.search, url=ADDRESS, k=1) for _ in range(3)]
        for _ in waiting:
            assert begun.acquire(timeout=30)
        assert [client.search(id=1, k=1)[0].label for _ in range(3)] == ["blue"] * 3
        over.set()
        assert [one.result()[0].key for one in waiting] == ["red/1.png"] * 3


def test_too_many_fetches_get_retry_after(allowing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_fetcher, "_slots", threading.BoundedSemaphore(1))
    with url_fetcher._slots:
        answer = _search(allowing, url=ADDRESS)
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.slow
def test_urls_are_not_in_the_log(shop_gallery: Path, tmp_path: Path) -> None:
    words = [str(shop_gallery), "--no-page", "--allow-urls", "--log-level", "debug"]
    with serving([*SERVE, *words], tmp_path, forked=True) as server:
        for address in ("http://secret.invalid/path?word=1", "http://secret:word@127.0.0.1/path"):
            assert _search(server.url, url=address).json()["code"] == "not-fetched"
        code, output = server.stop()
    assert code == 0
    assert "nothing fetched" in output
    assert not any(word in output for word in ("secret", "word", "path"))
