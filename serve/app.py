"""The web application over one gallery: an API for programs, and the page for people."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from retrieval.decoding import cores
from serve.api import documentation, failures, operations, routes
from serve.service import SearchService
from serve.style import CSS, ICON
from serve.telemetry import Measured
from serve.workers import Limits, Workers

MAX_UPLOAD = "20mb"
_GATHERING = 32  # threads whose pictures gather while a GPU is at work


def create_app(service: SearchService, *, page: bool = True, limits: Limits | None = None) -> FastAPI:
    """Everything the server answers.

    Args:
        service: the gallery.
        page: whether there is a page for people; without it the page's framework is not even loaded.
        limits: what is taken on at a time; the defaults where it is left out.
    """
    limits = limits or Limits()
    threads = limits.threads or (_GATHERING if service.batching else cores())
    workers = Workers(threads, limits, service.telemetry)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        workers.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_middleware(Measured, service.telemetry)
    app.mount("/v1", _api(service, workers))
    app.include_router(operations.router(service))
    failures.install(app, service.telemetry)
    if page:
        _add_page(app, service)
    return app


def _api(service: SearchService, workers: Workers) -> FastAPI:
    """An application of its own, so that everything below its address is answered in its manner."""
    api = FastAPI(
        docs_url=None,  # it would come from another site
        redoc_url=None,
        openapi_url="/openapi.json",
        version="1",
        generate_unique_id_function=lambda route: route.name,
    )
    api.include_router(routes.router(service, workers))
    failures.install(api, service.telemetry)
    documentation.describe(api)
    return api


def _add_page(app: FastAPI, service: SearchService) -> None:
    import gradio as gr  # takes seconds

    from serve import page

    @app.get("/favicon.ico")
    async def favicon() -> Response:
        return Response(ICON, media_type="image/svg+xml", headers={"Cache-Control": "private, max-age=3600"})

    app.add_middleware(CORSMiddleware, allow_origins=[])  # without it the page's framework lets any site in
    blocks = page.build(service)
    gr.mount_gradio_app(
        app,
        blocks,
        path="/",
        allowed_paths=[],
        show_error=False,
        max_file_size=MAX_UPLOAD,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        enable_monitoring=False,
        mcp_server=False,
        pwa=False,
        theme=page.theme(),
        css=CSS,
    )
    # Gradio checks that a file was uploaded by its user only in apps that it launched itself.
    blocks.has_launched = True
    mounted = app.routes[-1].app  # type: ignore[attr-defined]
    app.state.stop_streams = mounted.stop_event.set
