"""The web application over galleries: an API for programs, and a page for people over each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from retrieval.images.decode import cores
from serve.addresses import API, api_of, page_of
from serve.api import changes, errors, listing, openapi, operations, routes
from serve.core.service import SearchService
from serve.core.telemetry import Measured
from serve.core.workers import Limits, Workers
from serve.http.head import HeadMiddleware

MAX_UPLOAD = "20mb"
_GATHERING = 32  # threads whose pictures gather while a GPU is at work
# A page asks for a hundred thumbnails at once, and a browser does not ask again for one that it did not get.
_THUMBNAILS, _THUMBNAIL_SECONDS = 512, 60.0  # that may wait, and for how long


def create_app(*services: SearchService, page: bool = True, limits: Limits | None = None) -> FastAPI:
    """Everything the server answers.

    Args:
        services: the galleries; what is asked of none by name is asked of the first. All count with the first
            one's telemetry.
        page: whether there is a page for people; without it the page's framework is not even loaded.
        limits: what is taken on at a time; the defaults where it is left out.
    """
    limits = limits or Limits()
    threads = limits.threads or (_GATHERING if services[0].batching else cores())
    telemetry = services[0].telemetry
    workers = Workers(threads, limits, telemetry)
    # Searches and thumbnails take no threads from each other. A thumbnail is kept once it is made, so that it
    # is not made in vain where it comes too late: it may wait for all of its time.
    few = max(1, (limits.threads or cores()) // 2)
    seconds = max(limits.seconds, _THUMBNAIL_SECONDS)
    pictures = Workers(few, Limits(waiting=_THUMBNAILS, seconds=seconds, share=1.0), telemetry)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        workers.close()
        pictures.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(Measured, telemetry)
    for service in services:
        app.mount(api_of(service.name), _api(service, workers, pictures, APIRouter()))
    app.mount(API, _api(services[0], workers, pictures, listing.router(services)))
    app.include_router(operations.router(services))
    errors.install(app, telemetry)
    if page:
        _add_pages(app, services)
    return app


def _api(service: SearchService, workers: Workers, pictures: Workers, more: APIRouter) -> FastAPI:
    """An application of its own, so that everything below its address is answered in its manner."""
    api = FastAPI(
        docs_url=None,  # it would come from another site
        redoc_url=None,
        openapi_url="/openapi.json",
        version="1",
        generate_unique_id_function=lambda route: route.name,
    )
    api.include_router(more)
    api.include_router(routes.router(service, workers, pictures))
    api.include_router(changes.router(service, workers))
    errors.install(api, service.telemetry)
    openapi.describe(api)
    return api


def _add_pages(app: FastAPI, services: Sequence[SearchService]) -> None:
    """A page over each gallery: the first one's at the root, the others' under their names."""
    from serve.page.assets import static

    @app.get("/favicon.ico")
    async def favicon() -> Response:
        return Response(
            static("icon.svg"), media_type="image/svg+xml", headers={"Cache-Control": "private, max-age=3600"}
        )

    app.add_middleware(CORSMiddleware, allow_origins=[])  # without it the page's framework lets any site in
    names = [service.name for service in services]
    others = [_add_page(app, service, page_of(service.name), names) for service in services[1:]]

    @app.get(page_of("{name:path}"))  # else the framework would answer what is below the root with its page
    async def elsewhere(name: str, request: Request) -> Response:
        page = {names[0]: "/", **{one: f"{page_of(one)}/" for one in names[1:]}}.get(name.removesuffix("/"))
        if page is None:
            raise HTTPException(404)
        return RedirectResponse(f"{page}?{request.url.query}".rstrip("?"))

    mounted = [_add_page(app, services[0], "/", names), *others]

    def stop_streams() -> None:
        for one in mounted:
            one.stop_event.set()

    app.state.stop_streams = stop_streams


def _add_page(app: FastAPI, service: SearchService, path: str, names: Sequence[str]) -> Any:
    """Mount one page; returns the framework's application."""
    import gradio as gr  # takes seconds

    from serve import page
    from serve.page.assets import stylesheet

    blocks = page.build(service, names)
    gr.mount_gradio_app(
        app,
        blocks,
        path=path,
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
        css=stylesheet(),
    )
    # Gradio checks that a file was uploaded by its user only in apps that it launched itself.
    blocks.has_launched = True
    return app.routes[-1].app  # type: ignore[attr-defined]
