"""Refusals of the middleware: format by client, CORS and proxies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.app import create_app
from serve.config import TOKEN, Settings, read_credentials
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from serve.http.proxy_headers import TrustedProxyMiddleware, client_address
from serve.http.rate_limit import RateLimitMiddleware
from serve.http.stack import protect
from tests.serve.asgi_server import get, measure

SITE = "https://shop.example"
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
CODES = {401: "sign-in", 429: "too-many-requests", 400: "wrong-host"}


@pytest.fixture(scope="module")
def service(shop_gallery: Path) -> SearchService:
    return SearchService(shop_gallery)


@pytest.fixture
def locked(service: SearchService, monkeypatch: pytest.MonkeyPatch) -> ASGIApp:
    """Server without a page, with a token and a burst of six requests."""
    monkeypatch.setenv(TOKEN, "a-token-for-programs")
    credentials = read_credentials(None, None, None)
    settings = Settings({"shop": Path()}, page=False, credentials=credentials, rate=0.6)
    return protect(create_app(service, page=False), settings, service.telemetry)


def _is_problem(found: httpx.Response) -> bool:
    assert found.headers["cache-control"] == "no-store"
    if not found.headers["content-type"].startswith("application/problem+json"):
        assert found.headers["content-type"].startswith("text/plain")
        assert found.text.endswith("\n")
        return False
    assert (found.json()["status"], found.json()["code"]) == (found.status_code, CODES[found.status_code])
    return True


@pytest.mark.parametrize("path", ["/metrics", "/readyz", "/v1", "/v1/gallery", "/openapi.json"])
def test_programs_get_problem_documents(locked: ASGIApp, path: str) -> None:
    refused = [get(locked, path, Host="localhost") for _ in range(7)]
    wrong = get(locked, path, Host="evil.example", client="192.0.2.2")
    if path != "/openapi.json":  # no such route
        assert [found.status_code for found in (*refused, wrong)] == [401] * 6 + [429, 400]
        assert all(map(_is_problem, (*refused, wrong)))
    else:
        assert {found.json()["code"] for found in refused} == {"not-found"}


@pytest.mark.parametrize(
    ("path", "accept", "problem"),
    [
        ("/", "*/*", False),
        ("/config", "*/*", False),
        ("/gradio_api/queue/data", "text/event-stream", False),
        ("/galleries/cars/", "*/*", False),
        ("/metrics", BROWSER, False),
        ("/v1/gallery", BROWSER, True),
        ("/v1/galleries/cars/gallery", BROWSER, True),
    ],
)
def test_browsers_get_a_plain_sentence(locked: ASGIApp, path: str, accept: str, problem: bool) -> None:
    found = get(locked, path, Accept=accept)
    assert found.status_code == 401
    assert _is_problem(found) == problem
    assert problem or found.text == "sign in to use this server\n"


def _preflight(app: ASGIApp, method: str, origin: str = SITE, path: str = "/v1/items/1") -> httpx.Response:
    """Send a CORS preflight request."""

    async def sent() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost"
        ) as client:
            headers = {"Origin": origin, "Access-Control-Request-Method": method}
            return await client.options(path, headers=headers)

    return asyncio.run(sent())


@pytest.mark.parametrize("changes", [False, True])
def test_allowed_origin_has_the_permissions_of_visitors(service: SearchService, changes: bool) -> None:
    permissions = Permissions(changes=changes)
    settings = Settings({"shop": Path()}, page=False, origins=(SITE,), permissions=permissions)
    app = protect(create_app(service, page=False), settings, service.telemetry)
    assert _preflight(app, "POST").status_code == 200
    allowed = _preflight(app, "DELETE")
    assert allowed.is_success == changes
    if changes:
        assert "DELETE" in allowed.headers["access-control-allow-methods"]
        assert allowed.headers["access-control-allow-origin"] == SITE
    for refused in (_preflight(app, "PUT"), _preflight(app, "GET", origin="https://evil.example")):
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert refused.headers["content-type"] == "application/problem+json"
        assert "Origin" in refused.headers["vary"]
        assert not any(name.startswith("access-control") for name in refused.headers)


async def _echo_client(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"{client_address(scope)} {scope['scheme']}".encode()})


@pytest.mark.parametrize("peer", ["127.0.0.1", "::ffff:127.0.0.1", "::FFFF:7f00:1"])
def test_trusted_proxy_is_recognized_on_dual_stack_sockets(peer: str) -> None:
    app = TrustedProxyMiddleware(_echo_client, ["127.0.0.0/8"])
    forwarded = {"X-Forwarded-For": "198.51.100.7", "X-Forwarded-Proto": "https"}
    assert get(app, client=peer, **forwarded).text == "198.51.100.7 https"
    assert get(app, client=peer).text == "127.0.0.1 http"
    assert get(app, client="::ffff:192.0.2.1", **forwarded).text == "192.0.2.1 http"
    assert get(app, client="2001:db8::1", **forwarded).text == "2001:db8::1 http"
    assert get(app, client="fe80::1%eth0", **forwarded).text == "fe80::1%eth0 http"


def test_mapped_ipv4_address_counts_as_the_same_client() -> None:
    app = RateLimitMiddleware(measure, rate=0.1)  # a burst of one
    assert get(app, client="::ffff:192.0.2.1").status_code == 200
    assert get(app, client="192.0.2.1").status_code == 429
