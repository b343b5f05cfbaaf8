"""HEAD requests: the response of GET without its body."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from serve.app import create_app
from serve.core.service import SearchService
from tests.serve.asgi_server import answering, receive_all, send_raw

_ITS_OWN = ("date", "x-request-id", "content-length")  # the length of /metrics changes


@pytest.fixture(scope="module")
def api(shop_gallery: Path) -> Iterator[httpx.Client]:
    app = create_app(SearchService(shop_gallery), page=False)
    with answering(app) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.mark.parametrize(
    "path",
    [
        *("/healthz", "/readyz", "/metrics", "/v1/gallery", "/v1/galleries", "/v1/openapi.json"),
        *("/v1/items/1", "/v1/items/by-key?key=red/1.png", "/v1/items/1/thumbnail", "/v1/items/99"),
        *("/v1/galleries/shop.gallery/gallery", "/v1/nowhere", "/v1/search", "/nowhere"),
    ],
)
def test_head_response_is_that_of_get_without_body(api: httpx.Client, path: str) -> None:
    get, head = api.get(path), api.head(path)
    assert head.status_code == get.status_code
    for name in {*get.headers, *head.headers} - {*_ITS_OWN}:
        assert head.headers.get(name) == get.headers.get(name)
    assert "content-length" in head.headers
    lines = f"HEAD {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    sent = receive_all(send_raw(api.base_url.port or 0, lines.encode()))
    assert sent.endswith(b"\r\n\r\n")
    assert sent.count(b"\r\n\r\n") == 1


@pytest.mark.slow
def test_head_opens_no_event_stream(client: httpx.Client) -> None:
    assert client.head("/gradio_api/heartbeat/x").status_code == 405
    assert client.head("/").status_code == 200
