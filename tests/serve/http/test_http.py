"""Responses of a running server, and the requests that it refuses."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from serve.http.access_log import HEADERS

pytestmark = pytest.mark.slow  # the first test waits for the server to start


@pytest.fixture
def thumbnail(client: httpx.Client) -> Iterator[httpx.Response]:
    return client.get("/v1/items/1/thumbnail")


def test_thumbnail_is_small_and_cached_privately(thumbnail: httpx.Response) -> None:
    assert thumbnail.status_code == 200
    assert thumbnail.headers["content-type"] == "image/webp"
    assert thumbnail.headers["cache-control"] == "private, no-cache"
    assert thumbnail.headers["x-content-type-options"] == "nosniff"
    assert Image.open(io.BytesIO(thumbnail.content)).size == (240, 200)  # 48 x 40, five times


@pytest.mark.parametrize(
    "item",
    ["0", "25", "-1", "9" * 25, "abc", "1.0", "..%2f..%2fetc%2fpasswd", "%2e%2e", "/etc/hostname"],
)
def test_only_existing_items_have_a_thumbnail(client: httpx.Client, item: str) -> None:
    answer = client.get(f"/v1/items/{item}/thumbnail")
    assert answer.status_code == 404
    assert "/" not in answer.text  # reveals no path


def test_healthz_answers(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *((method, "/v1", 404) for method in ("GET", "HEAD", "POST", "ODD")),
        *((method, path, 405) for method in ("POST", "ODD") for path in ("/healthz", "/readyz", "/metrics")),
        ("PUT", "/v1/galleries", 405),
        ("GET", "/nowhere", 404),
    ],
)
def test_page_answers_nothing_of_the_api(client: httpx.Client, method: str, path: str, status: int) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


@pytest.mark.parametrize("path", ["/", "/healthz", "/v1/items/1/thumbnail", "/nowhere", "/gradio_api/runs"])
def test_every_response_has_the_security_headers(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    expected = dict(HEADERS)
    if path == "/":  # visitors may search with a photo of their camera
        expected["Permissions-Policy"] = "camera=(self), microphone=(), geolocation=()"
    assert {name: answer.headers.get(name) for name in HEADERS} == expected
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'self';" in policy  # neither inline scripts nor eval
    assert "http" not in policy.replace("https:", "x")  # no other origin is allowed
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        *("/docs", "/redoc", "/openapi.json", "/gradio_api/openapi.json", "/theme.css", "/assets/index.js"),
        *("/static/img/logo.svg", "/gradio_api/app_id", "/gradio_api/startup-events", "/manifest.json"),
        *("/gradio_api/run/search", "/gradio_api/api/search", "/gradio_api/call/v2/search"),
        "/gradio_api/proxy=http://127.0.0.1:1/",
        "//gradio_api//proxy=http://127.0.0.1:1/",
        "/gradio_api/file=http://127.0.0.1:1/a.png",
        "/gradio_api/file=%68ttps%3A%2F%2F127.0.0.1/a.png",
        "/gradio_api/File=HTTP://127.0.0.1/a.png",
        "/gradio_api/vibe-code",
        "/gradio_api/profiling/traces",
        "/gradio_api/upload_progress",
    ],
)
def test_unused_gradio_routes_are_blocked(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404
    assert client.post(path, files={"files": ("a.png", b"x")}).status_code == 404


def test_originals_and_other_files_are_not_served(client: httpx.Client, shop: Path) -> None:
    for path in (shop / "red" / "1.png", Path("/etc/hostname"), Path(__file__)):
        assert client.get(f"/gradio_api/file={path}").status_code == 404


def test_cross_origin_requests_get_no_cors_headers(client: httpx.Client) -> None:
    evil = {"Origin": "https://evil.example"}
    assert "access-control-allow-origin" not in client.get("/", headers=evil).headers
    asked = {**evil, "Access-Control-Request-Method": "POST"}
    answer = client.options("/gradio_api/queue/join", headers=asked)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_cross_origin_posts_are_refused(client: httpx.Client, site: str) -> None:
    for path in ("/gradio_api/queue/join", "/v1/search"):
        answer = client.post(path, json={"item": 1}, headers={"Sec-Fetch-Site": site})
        assert answer.status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:7860"])
def test_unknown_host_is_refused(client: httpx.Client, host: str) -> None:
    assert client.get("/healthz", headers={"Host": host}).status_code == 400
    assert client.get("/healthz", headers={"Host": "localhost:7860"}).status_code == 200


def test_errors_reveal_no_internals(client: httpx.Client) -> None:
    answer = client.post("/v1/search", json={"image": "/etc/hostname"})
    assert "/etc" not in answer.text
    assert "Traceback" not in answer.text
