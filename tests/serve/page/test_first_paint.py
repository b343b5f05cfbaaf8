"""The outline in the page's document, before its scripts."""

from __future__ import annotations

import gzip

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from serve.page.first_paint import FirstPaint

DOCUMENT = '<html><head></head><body\n style="margin: 0"><gradio-app></gradio-app></body></html>'


async def document(_: Request) -> Response:
    return HTMLResponse(DOCUMENT)


async def text(_: Request) -> Response:
    return PlainTextResponse("<body>")


@pytest.fixture
def app() -> FirstPaint:
    return FirstPaint(Starlette(routes=[Route("/", document), Route("/text", text)]), "<b>shop</b>", "/v1")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_outline_is_the_first_thing_in_the_body(
    app: FirstPaint, encoding: str, anyio_backend: str
) -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        request = client.build_request("GET", "/", headers={"Accept-Encoding": encoding})
        answer = await client.send(request, stream=True)
        raw = b"".join([part async for part in answer.aiter_raw()])
        assert int(answer.headers["content-length"]) == len(raw)
        assert (answer.headers.get("content-encoding") == "gzip") == (encoding == "gzip")
        page = (gzip.decompress(raw) if encoding == "gzip" else raw).decode()
        before, outline, after = page.partition('<div id="first-paint"')
        head, preview, rest = before.partition('<meta property="og:site_name"')
        assert (head, preview != "") == ("<html><head>", True)
        assert (
            rest.partition("</head>")[2] == DOCUMENT[DOCUMENT.index("<body") : DOCUMENT.index("<gradio-app>")]
        )
        assert outline
        assert after.endswith(DOCUMENT[DOCUMENT.index("<gradio-app>") :])
        assert "&lt;b&gt;shop&lt;/b&gt;" in after
        plain = await client.get("/text")
        assert plain.text == "<body>"
