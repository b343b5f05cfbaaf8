"""Web application: the API and a page for each gallery."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from retrieval.galleries.database_folder import is_store
from retrieval.machine.resources import cores
from serve.addresses import API, api_of
from serve.api import (
    changes,
    decisions,
    embeddings,
    evaluation,
    events,
    exception_handlers,
    heatmap,
    items,
    objects,
    openapi,
    reference,
    routes,
    saved_views,
)
from serve.api import jobs as job_routes
from serve.api import pictures as picture_routes
from serve.api.context import Context, set_context
from serve.core.feed import Feed
from serve.core.jobs import Jobs
from serve.core.service import SearchService
from serve.core.shared_pictures import SharedPictures
from serve.core.workers import Limits, Workers
from serve.gradio.engine import Engine
from serve.http.head import HeadMiddleware
from serve.http.old_paths import OldPathsMiddleware
from serve.http.representations import CompressionMiddleware, EntityTagMiddleware
from serve.http.request_metrics import RequestMetricsMiddleware
from serve.page.on_device import read_runtime
from serve.page.routes import page_router

_FORGETTING_SECONDS = 300
_BATCHING_THREADS = 32  # more than cores: their images wait for the GPU
# A page requests a hundred thumbnails at once, and a browser does not retry.
_QUEUED_THUMBNAILS, _THUMBNAIL_SECONDS = 512, 60.0


def create_app(
    *services: SearchService,
    page: bool = True,
    limits: Limits | None = None,
    folder: Path | None = None,
    on_device: Path | None = None,
) -> FastAPI:
    """Build the web application.

    Args:
        services: The galleries; the first is the default. All use the telemetry of the first.
        page: Whether to serve the page, and Gradio's API, which is loaded at its first call.
        limits: Limits on concurrent requests.
        folder: Private folder for jobs and shared pictures, which several processes share; by default one of
            this application, which is deleted with it. Processes that share one have no API of Gradio, whose
            queue is in the memory of one.
        on_device: Folder of ONNX Runtime for browsers; with it, the models are served to the page, so that
            pictures can be embedded there.

    Raises:
        InputError: That folder has not the files of the version that is known.
    """
    runtime = read_runtime(on_device) if on_device else None
    own = None if folder else Path(tempfile.mkdtemp(prefix="lookalike-work-"))
    folder = folder or own
    assert folder
    hours = services[0].permissions.sharing
    pictures = SharedPictures(folder / "pictures", hours * 3600) if hours else None
    limits = limits or Limits()
    threads = limits.threads or (_BATCHING_THREADS if services[0].batching else cores())
    telemetry = services[0].telemetry
    # Thumbnails have threads of their own and may wait until their deadline: a late one is still cached.
    thumbnail_threads = max(1, (limits.threads or cores()) // 2)
    seconds = max(limits.seconds, _THUMBNAIL_SECONDS)
    thumbnail_limits = Limits(queued=_QUEUED_THUMBNAILS, seconds=seconds, queue_share=1.0)

    def pools() -> tuple[Workers, Workers]:
        drawing = Workers(thumbnail_threads, thumbnail_limits, telemetry)
        return Workers(threads, limits, telemetry), drawing

    # A database that does not answer keeps the threads of its gallery waiting, and no others.
    shared = pools()
    workers = {one.name: pools() if is_store(one.folder) else shared for one in services}

    jobs = {service.name: Jobs(folder / "jobs" / quote(service.name, safe="")) for service in services}

    gradio = Engine(services, jobs) if page and own else None
    stopping = asyncio.Event()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        forgetting = asyncio.create_task(_forget_expired(pictures)) if pictures else None
        async with gradio.running() if gradio else nullcontext():
            yield {"gradio": gradio, "stopping": stopping}
        if forgetting:
            forgetting.cancel()
        for pool in {one for both in workers.values() for one in both}:
            pool.close()
        if own:
            shutil.rmtree(own, ignore_errors=True)

    feeds = {service.name: Feed(service, stopping) for service in services}

    def context(service: SearchService) -> Context:
        name = service.name
        return Context(services, service, jobs[name], *workers[name], feeds[name], pictures)

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    if own:  # without a lifespan
        weakref.finalize(app, shutil.rmtree, own, ignore_errors=True)
    set_context(app, context(services[0]))
    app.add_middleware(EntityTagMiddleware)
    app.add_middleware(CompressionMiddleware)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(RequestMetricsMiddleware, telemetry)
    for service in services:
        app.mount(api_of(service.name), _create_api(context(service)))
    app.mount(API, _create_api(context(services[0]), is_root=True))
    app.include_router(routes.operations_router)
    # Before Gradio, which would answer with its own errors.
    app.router.routes.append(Route(API, _Refusing(404)))
    for route in routes.operations_router.routes:
        assert isinstance(route, Route)
        app.router.routes.append(Route(route.path, _Refusing(405, {"Allow": "GET, HEAD"})))
    exception_handlers.install(app, telemetry)
    if page:
        of_pages = {name: pool for name, (pool, _) in workers.items()}
        app.include_router(page_router(services, of_pages, runtime))
        if gradio:
            app.mount("/", gradio)
    else:
        app.add_api_route("/", _redirect_to_reference)
    return app


class _Refusing:
    """ASGI application that refuses all requests.

    Args:
        status: The HTTP status.
        headers: Headers of the response.
    """

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        self._status, self._headers = status, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        raise HTTPException(self._status, headers=self._headers)


async def _redirect_to_reference() -> Response:
    return RedirectResponse(f"{API}/docs")


async def _forget_expired(pictures: SharedPictures) -> None:
    """Delete expired pictures, also if nobody asks for any."""
    while True:
        await asyncio.sleep(_FORGETTING_SECONDS)
        await asyncio.to_thread(pictures.forget)


def _create_api(context: Context, *, is_root: bool = False) -> FastAPI:
    """Build the API of a gallery, an application of its own with its own error handlers.

    Args:
        context: The gallery and thread pools.
        is_root: Whether it is the API at /v1, which also lists the galleries.
    """
    api = FastAPI(
        docs_url=None,  # it would load scripts from another site
        redoc_url=None,
        openapi_url=None,  # `serve.api.reference` encodes it once
        version="1",
        generate_unique_id_function=lambda route: route.name,
    )
    set_context(api, replace(context, is_root=is_root))
    api.add_middleware(OldPathsMiddleware)
    routers = [
        *([routes.galleries_router] if is_root else []),
        routes.router,
        embeddings.router,
        changes.router,
        items.router,
        decisions.router,
        saved_views.router,
        evaluation.router,
        heatmap.router,
        objects.router,
        picture_routes.router,
        job_routes.router,
        events.router,
        reference.router,
    ]
    for router in routers:
        api.include_router(router)
    exception_handlers.install(api, context.service.telemetry, routers)
    openapi.complete_description(api, routes.operations_router)
    return api
