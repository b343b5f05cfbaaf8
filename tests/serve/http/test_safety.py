"""Hostile clients: cross-origin requests, path traversal, and failures that must reveal nothing."""

from __future__ import annotations

import ast
import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, OpenAI
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.app import create_app
from serve.config import Settings
from serve.core.service import SearchService
from serve.core.telemetry import Telemetry
from serve.http.access_log import HEADERS
from serve.http.stack import protect
from tests.serve.asgi_server import get, listening, receive_all, send_raw
from tests.serve.serving import ROOT, Server

SITE = "https://shop.example"


def _settings(**more: Any) -> Settings:
    return Settings(galleries={"shop": Path("shop.gallery")}, **{"page": False, **more})


def _protected(gallery: Path, **more: Any) -> ASGIApp:
    """The application over a gallery, behind all middleware."""
    settings, service = _settings(**more), SearchService(gallery)
    return protect(create_app(service, page=settings.page), settings, service.telemetry)


@pytest.fixture(scope="module")
def api(shop_gallery: Path) -> ASGIApp:
    """The API without a page, with one allowed origin."""
    return _protected(shop_gallery, origins=(SITE,), max_body=1)


# ---- cross-origin requests


def _send(app: ASGIApp, method: str, path: str, **headers: str) -> httpx.Response:
    async def sent() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:7860") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(sent())


def test_only_allowed_origins_may_send_requests(api: ASGIApp) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    allowed = _send(api, "OPTIONS", "/v1/search", Origin=SITE, **asks)
    assert allowed.status_code == 200
    found = _send(api, "POST", "/v1/search", Origin=SITE, **{"Content-Type": "text/plain"})
    assert found.status_code == 415  # it was not refused
    for answered in (allowed, found):
        assert answered.headers["access-control-allow-origin"] == SITE
        assert "access-control-allow-credentials" not in answered.headers
    for name in (
        "https://evil.example",
        f"{SITE}:8443",
        f"{SITE}.evil.example",
        "http://shop.example",
        "null",
    ):
        answers = [_send(api, "OPTIONS", "/v1/search", Origin=name, **asks)]
        answers += [_send(api, method, "/v1/gallery", Origin=name) for method in ("GET", "POST")]
        assert [answered.status_code for answered in answers] == [403, 200, 403]
        assert not any("access-control-allow-origin" in answered.headers for answered in answers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 404),  # programs send no Origin
        ({"Origin": "http://localhost:7860", "Sec-Fetch-Site": "same-origin"}, 404),
        ({"Origin": "http://localhost:7860"}, 404),
        ({"Origin": "https://localhost:7860", "Sec-Fetch-Site": "same-origin"}, 404),  # a proxy adds TLS
        ({"Origin": "https://localhost:7860"}, 403),
        ({"Origin": "http://localhost:7860", "X-Forwarded-Proto": "https"}, 404),  # not of a trusted proxy
        ({"Sec-Fetch-Site": "none"}, 404),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://localhost:7861"}, 403),  # plain http has no Sec-Fetch-Site
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:7860@evil.example"}, 403),
    ],
)
def test_cross_origin_request_is_recognized_by_its_headers(
    api: ASGIApp, headers: dict[str, str], status: int
) -> None:
    assert _send(api, "POST", "/v1/nowhere", **headers).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://localhost:7860"}, 404),
        ({"Origin": "https://localhost:7860", "Sec-Fetch-Site": "same-origin"}, 404),
        # Of someone in the network who answers for the same name without TLS.
        ({"Origin": "http://localhost:7860"}, 403),
        ({"Origin": "http://localhost:7860", "Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_scheme_is_that_of_a_trusted_proxy(shop_gallery: Path, headers: dict[str, str], status: int) -> None:
    app = _protected(shop_gallery, proxies=("127.0.0.1",))
    https = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
    assert _send(app, "POST", "/v1/nowhere", **headers, **https).status_code == status


def test_client_of_openai_may_be_used_on_an_allowed_site(api: ASGIApp) -> None:
    sent: dict[str, str] = {}

    def record(request: httpx.Request) -> httpx.Response:
        sent.update(request.headers)
        return httpx.Response(400)

    http = httpx.Client(transport=httpx.MockTransport(record))
    client = OpenAI(base_url="http://x/v1", api_key="k", organization="o", project="p", http_client=http)
    with client, pytest.raises(APIStatusError):
        client.embeddings.create(model="lookalike", input="kettle")
    simple = {"accept", "accept-encoding", "connection", "content-length", "host"}
    names = {*sent} - simple  # those that a browser's script sets, and that are not always allowed
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": ",".join(sorted(names)),
    }
    assert sum(name.startswith("x-stainless-") for name in names) >= 7
    assert _send(api, "OPTIONS", "/v1/embeddings", Origin=SITE, **asks).status_code == 200
    assert _send(api, "OPTIONS", "/v1/embeddings", Origin="https://evil.example", **asks).status_code == 403
    asks["Access-Control-Request-Headers"] += ",x-other"
    assert _send(api, "OPTIONS", "/v1/embeddings", Origin=SITE, **asks).status_code == 403


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        *[("localhost:7860", True), ("LOCALHOST", True), ("127.0.0.1", True), ("[::1]:7860", True)],
        *[("a.b.example", True), ("A.B.EXAMPLE:80", True), ("b.example", False), ("xb.example", False)],
        *[("evil.example", False), ("localhost.evil.example", False), ("", False), ("[::2]", False)],
        *[("localhost@evil.example", False), ("localhost/evil", False), ("127.0.0.1.evil.example", False)],
    ],
)
def test_host_header_must_match_the_allowed_names(shop_gallery: Path, host: str, ours: bool) -> None:
    names = ("localhost", "127.0.0.1", "::1", "*.b.example")
    app = _protected(shop_gallery, names=names)
    found = get(app, "/v1/gallery", Host=host)
    assert found.status_code == (200 if ours else 400)
    assert ours or found.json()["code"] == "wrong-host"


def test_refusals_are_counted_in_the_metrics(shop_gallery: Path) -> None:
    app = _protected(shop_gallery, names=("localhost",), rate=0.2)  # a burst of two
    for host in ("evil.example", "evil.example", "localhost", "localhost", "localhost"):
        get(app, "/v1/gallery", Host=host)
    figures = get(app, "/metrics", client="192.0.2.2", Host="localhost").text
    assert 'lookalike_problems_total{code="wrong-host"} 2.0' in figures
    assert 'lookalike_problems_total{code="too-many-requests"} 1.0' in figures


# ---- failures


async def _fails(scope: Scope, receive: Receive, send: Send) -> None:
    raise RuntimeError("secret of /srv/inside")


async def _fails_late(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await _fails(scope, receive, send)


@pytest.mark.parametrize("path", ["/v1/search", "/config"])
def test_failure_response_has_the_request_id_and_the_log_the_details(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        found = get(protect(_fails, _settings(), Telemetry()), path)
    assert found.status_code == 500
    assert not any(word in found.text for word in ("secret", "Traceback", "inside", "RuntimeError"))
    assert {name: found.headers.get(name) for name in HEADERS} == HEADERS
    assert found.headers["x-request-id"] in caplog.text
    assert "secret of /srv/inside" in caplog.text


def test_failure_during_the_response_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    with (
        listening(protect(_fails_late, _settings(), Telemetry())) as port,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        httpx.get(f"http://127.0.0.1:{port}/v1/gallery")
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/nowhere", {}, 404),
        ("GET", "/nowhere", {}, 404),
        ("DELETE", "/v1/gallery", {}, 405),
        ("GET", "/v1/gallery", {"Host": "evil.example"}, 400),
        ("POST", "/v1/search", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", "/v1/search", {"Content-Length": "99999999", "Expect": "100-continue"}, 413),
        ("POST", "/v1/search", {"Content-Type": "text/plain"}, 415),
        ("GET", "/v1/items/0", {}, 404),
    ],
)
def test_every_error_has_security_headers_and_one_format(
    api: ASGIApp, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    found = _send(api, method, path, **headers)
    assert found.status_code == status
    assert {name: found.headers.get(name) for name in HEADERS} == HEADERS
    if path.startswith("/v1"):
        assert found.headers["content-type"] == "application/problem+json"
        assert found.json()["status"] == status
        assert found.headers["x-request-id"] in found.json()["instance"]


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/items/1/../../../etc/passwd", "/v1/items/%2e%2e/%2e%2e/etc/passwd", "/v1/items/1%2f..%2f2"),
        *(
            "/v1/items/..%5c..%5cetc%5cpasswd",
            "/static/../../../etc/passwd",
            "/static/%2e%2e/%2e%2e/etc/passwd",
        ),
        *(
            "/assets/..%2f..%2f..%2fetc%2fpasswd",
            "//etc/passwd",
            "/etc/passwd",
            "/gradio_api/file=etc/passwd",
        ),
        *("/gradio_api/file=..%2f..%2fetc%2fpasswd", "/gradio_api/file=/proc/self/environ", "/.env", "/%00"),
        *(
            "/gradio_api/file=/etc/../etc/passwd",
            "/gradio_api/file=%2fetc%2fpasswd",
            "/gradio_api//file=/etc/passwd",
        ),
        *("/login", "/logout", "/monitoring", "/gradio_api/runs", "/gradio_api/mcp", "/gradio_api/deep_link"),
        *(
            "/gradio_api/startup-events",
            "/gradio_api/component_server",
            "/gradio_api/process_recording",
            "/gradio_api/user",
            "/pwa_icon",
        ),
        *(
            "/gradio_api/custom_component/1/client/component/index.js",
            "/gradio_api/stream/x",
            "/GRADIO_API/upload",
        ),
    ],
)
@pytest.mark.slow
def test_path_traversal_is_refused(server: Server, path: str) -> None:
    for method in (b"GET", b"POST"):
        # Sent raw: a client library would normalize the path.
        found = _raw(server, method + b" " + path.encode() + b" HTTP/1.1")
        assert found.split()[1] in (b"403", b"404", b"405"), found[:200]
        assert b"root:" not in found
        assert b"PATH=" not in found


def _raw(server: Server, line: bytes) -> bytes:
    host = server.url.removeprefix("http://")
    port = int(host.rpartition(":")[2])
    return receive_all(
        send_raw(port, line + b"\r\nHost: " + host.encode() + b"\r\nConnection: close\r\n\r\n")
    )


def test_no_unsafe_deserialization_is_used() -> None:
    """Formats that can execute code are not used, but between the processes of one run.

    Two readers, of weights and of published judgements, unpickle by classes that refuse all but arrays.
    """
    processes = (ROOT / "train/experiments/isolation.py", ROOT / "retrieval/images/decoders.py")
    restricted = (ROOT / "retrieval/model/lite0.py", ROOT / "train/data/judged.py")
    for file in restricted:
        assert set(re.findall(r"pickle\.(\w+)", file.read_text())) <= {"Unpickler", "UnpicklingError"}
        assert "def find_class" in file.read_text()
    for file in (
        file
        for name in ("lookalike", "serve", "retrieval", "train", "export")
        for file in (ROOT / name).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(
                ("torch.load", "torch.hub.load")
            ):
                assert "weights_only=True" in ast.unparse(node), file
            if isinstance(node, ast.ImportFrom) and node.module == "pickle":
                assert [alias.name for alias in node.names] == ["UnpicklingError"], file
            elif isinstance(node, ast.Import | ast.ImportFrom) and file not in (*processes, *restricted):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "marshal", "shelve", "dill", "joblib"} & set(names), file
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), file
                assert node.value.value is False, file
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), file
