"""The page of a server of several processes: all of them serve it, one of them loads it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from retrieval.machine.resources import cores
from serve.http.forwarding import Forwarder, listening
from tests.conftest import wait_until
from tests.serve.serving import SERVE, Server, serving

_MOST_THREADS = (
    6  # of a worker: main, two that watch the server, one each for requests and thumbnails, opening
)


def _counted(server: Server, session: str) -> str:
    """Open the statistics of the gallery tab as a browser does, every request on a connection of its own."""
    config = httpx.get(f"{server.url}/config", timeout=60).json()
    event = next(one["id"] for one in config["dependencies"] if one["targets"][0][1] == "expand")
    sent = {"data": [], "fn_index": event, "session_hash": session}
    httpx.post(f"{server.url}/gradio_api/queue/join", json=sent, timeout=60).raise_for_status()
    where = f"{server.url}/gradio_api/queue/data?session_hash={session}"
    with httpx.stream("GET", where, timeout=60) as stream:
        for line in stream.iter_lines():
            found = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
            if found.get("msg") == "process_completed":
                return str(found["output"]["data"][0])
    raise AssertionError("the event has no end")


@pytest.mark.slow
def test_page_is_served_by_all_workers_and_outlives_its_process(shop_gallery: Path, tmp_path: Path) -> None:
    with serving([*SERVE, str(shop_gallery), "--workers", "2"], tmp_path) as server:
        for session in range(8):  # whichever process accepts the connection
            page = httpx.get(server.url, headers={"Accept": "text/html"}, timeout=60).text
            assert "Lookalike: shop" in page
            assert "window.gradio_config" in page
            assert "3 labels" in _counted(server, f"s{session}")
        (first, second) = sorted(server.workers())
        for killed in (first, second):
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda killed=killed: len(server.workers() - {killed}) == 2)
            server.wait_for_page()
            assert "3 labels" in _counted(server, f"after{killed}")
        with httpx.stream("GET", f"{server.url}/gradio_api/heartbeat/held", timeout=60):
            code, output = server.stop()
    assert code == 0
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_libraries_are_in_memory_once_and_threads_are_divided(shop_gallery: Path, tmp_path: Path) -> None:
    """The workers are forked from a process that has imported them; the main process has not."""
    command = [*SERVE, str(shop_gallery), "--no-page", "--workers", str(2 * cores())]
    with serving(command, tmp_path) as server:
        workers = server.workers()
        assert len(workers) == 2 * cores()
        assert "onnxruntime" not in Path(f"/proc/{server.process.pid}/maps").read_text()
        for worker in workers:
            assert "onnxruntime" in Path(f"/proc/{worker}/maps").read_text()
            shared = re.findall(
                r"^Shared_Dirty: +(\d+) kB", Path(f"/proc/{worker}/smaps_rollup").read_text(), re.M
            )
            assert int(shared[0]) > 10_000  # pages of the process that it was forked from
            # A session, BLAS and OpenMP with one thread each have none besides those that run requests.
            assert len(list(Path(f"/proc/{worker}/task").iterdir())) <= _MOST_THREADS


async def _echo(request: Request) -> Response:
    parts = {"path": request.url.path, "query": request.url.query, "scheme": request.url.scheme}
    body = (await request.body()).decode()
    found = {**parts, "method": request.method, "body": body, "host": request.headers["host"]}
    response = JSONResponse(found, 418)
    response.set_cookie("a", "1")
    response.set_cookie("b", "2")
    return response


async def _endless(_: Request) -> Response:
    async def ticks() -> AsyncIterator[str]:
        while True:
            yield "tick"
            await asyncio.sleep(0.01)

    return StreamingResponse(ticks())


@pytest.mark.anyio
async def test_requests_and_streams_are_forwarded(tmp_path: Path) -> None:
    """Also where the path of the folder is too long for a socket."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    routes = [Route("/echo/{rest:path}", _echo, methods=["GET", "PUT"]), Route("/endless", _endless)]
    forwarder = Forwarder(folder, PlainTextResponse("nobody", 503))
    transport = httpx.ASGITransport(forwarder)
    async with httpx.AsyncClient(transport=transport, base_url="https://shop.example") as client:
        assert (await client.get("/echo/x")).status_code == 503
        async with listening(Starlette(routes=routes), folder):
            while (found := await client.put("/echo/a%2Fb?c=d&e", content="f")).status_code == 503:
                await asyncio.sleep(0.01)
            assert found.status_code == 418
            assert found.json() == {
                **{"path": "/echo/a/b", "query": "c=d&e", "scheme": "https"},
                **{"method": "PUT", "body": "f", "host": "shop.example"},
            }
            assert found.headers.get_list("set-cookie") == [
                "a=1; Path=/; SameSite=lax",
                "b=2; Path=/; SameSite=lax",
            ]
            assert (await client.get("/nowhere")).status_code == 404
            stream = asyncio.create_task(client.get("/endless"))
            await asyncio.sleep(0.2)
            assert not stream.done()
            await forwarder.close()
            assert (await asyncio.wait_for(stream, 10)).text.startswith("ticktick")
        assert (await client.get("/echo/x")).status_code == 503
