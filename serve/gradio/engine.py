"""Gradio's API engine beside the page: its queue and endpoints, loaded at the first request to them."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval.machine.extras import needs
from serve.core.errors import InternalError, MalformedBodyError, NotFoundError
from serve.core.jobs import Jobs
from serve.core.service import SearchService
from serve.gradio.loading import import_gradio, one_parser
from serve.http.problem import refusal

T = TypeVar("T")
LOADING = "loading Gradio"  # name of the thread
_QUEUED, _AT_ONCE = 64, 4  # events that wait, and of one endpoint that run
_KEPT_SECONDS = 3600  # uploaded files
_SPACE_SECONDS = 1.0
_MALFORMED = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
)  # what Gradio's routes raise for such events
_log = logging.getLogger("lookalike.serve")


class Engine:
    """ASGI application of Gradio's routes. The middleware lets through only those of its clients.

    Args:
        services: The galleries.
        jobs: Their jobs, by name.
    """

    def __init__(self, services: Sequence[SearchService], jobs: Mapping[str, Jobs]) -> None:
        self._services, self._jobs = services, jobs
        self._running: asyncio.Task[None] | None = None
        self._loaded: asyncio.Future[ASGIApp] | None = None
        self._stop: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if find_spec("gradio") is None:
            error = NotFoundError(f"Gradio's API {needs('gradio')}; /v1 has the same without it")
            await refusal(scope, error)(scope, receive, send)
            return
        if self._loaded is None:
            self._loaded = asyncio.get_running_loop().create_future()
            self._running = asyncio.create_task(self._run(self._loaded))
        if not self._loaded.done() and scope["path"] == "/config":
            send = await _kept_alive(self._loaded, send)
        try:
            app = await asyncio.shield(self._loaded)
        except InternalError as error:
            await refusal(scope, error)(scope, receive, send)
            return
        await app(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """End what was loaded meanwhile."""
        yield
        if self._running:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    def stop_streams(self) -> None:
        """End the event streams of clients."""
        self._stop()

    async def _run(self, loaded: asyncio.Future[ASGIApp]) -> None:
        try:
            with one_parser():
                app = await asyncio.wrap_future(_in_daemon(self._load))
            async with app.router.lifespan_context(app):
                loaded.set_result(app)
                await asyncio.Event().wait()
        except Exception:
            _log.exception("Gradio could not be loaded")
            self._loaded = None  # tried again with the next request
            with suppress(asyncio.InvalidStateError):
                loaded.set_exception(
                    InternalError("Gradio could not be loaded: the server's log has the details")
                )

    def _load(self) -> FastAPI:
        """Import Gradio and build its application, which takes seconds."""
        import_gradio()
        import gradio as gr

        from serve.gradio.endpoints import Endpoints

        endpoints = Endpoints(self._services, self._jobs, _uploads())
        with gr.Blocks(mode="server", analytics_enabled=False, delete_cache=(_KEPT_SECONDS,) * 2) as blocks:
            for name, function in endpoints.public().items():
                gr.api(function, api_name=name)
        blocks.queue(max_size=_QUEUED, default_concurrency_limit=_AT_ONCE, api_open=False)
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        app.add_middleware(CORSMiddleware, allow_origins=[])  # else Gradio allows all origins
        # `gr.Server` would be the same with a server of its own: only its `launch` starts it.
        gr.mount_gradio_app(
            app,
            blocks,
            path="/",
            allowed_paths=[],
            show_error=False,
            footer_links=[],
            run_history=False,
            ssr_mode=False,
            enable_monitoring=False,
            mcp_server=False,
            pwa=False,
        )
        # Gradio checks that a file was uploaded by its user only in apps that it launched itself.
        blocks.has_launched = True
        mounted = app.routes[-1].app  # type: ignore[attr-defined]
        for kind in _MALFORMED:
            mounted.add_exception_handler(kind, _refuse)
        self._stop = mounted.stop_event.set
        return app


async def _refuse(request: Request, _: Exception) -> Response:
    return refusal(request.scope, MalformedBodyError("there is no such event of Gradio: load /config again"))


def _uploads() -> Path:
    """Return the folder where Gradio keeps uploaded files."""
    return Path(os.environ.get("GRADIO_TEMP_DIR") or Path(tempfile.gettempdir()) / "gradio")


async def _kept_alive(loaded: asyncio.Future[ASGIApp], send: Send) -> Send:
    """Begin the answer with white space until Gradio is loaded: its client waits five silent seconds.

    JSON may begin so. Return a function that sends the rest.
    """
    kind = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": kind})
    while not loaded.done():
        await send({"type": "http.response.body", "body": b" ", "more_body": True})
        await asyncio.wait([loaded], timeout=_SPACE_SECONDS)

    async def send_body(message: dict) -> None:  # type: ignore[type-arg]
        if message["type"] == "http.response.body":
            await send(message)

    return send_body  # type: ignore[return-value]


def _in_daemon(function: Callable[[], T]) -> Future[T]:
    """Run a function in a thread that a server which is stopped does not wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=LOADING, daemon=True).start()
    return future
