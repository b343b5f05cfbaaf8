"""Web application: the API and a page for each gallery."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal, TypeVar
from urllib.parse import quote

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval.machine.resources import cores
from retrieval.system import lock, try_lock
from serve.addresses import API, api_of, page_of
from serve.api import (
    changes,
    decisions,
    embeddings,
    evaluation,
    events,
    exception_handlers,
    heatmap,
    items,
    openapi,
    reference,
    routes,
)
from serve.api import jobs as job_routes
from serve.api import pictures as picture_routes
from serve.api.context import Context, set_context
from serve.core.errors import BusyError
from serve.core.feed import Feed
from serve.core.jobs import Jobs
from serve.core.service import SearchService
from serve.core.shared_pictures import SharedPictures
from serve.core.workers import Limits, Workers
from serve.http.forwarding import Forwarder, listening
from serve.http.head import HeadMiddleware
from serve.http.old_paths import OldPathsMiddleware
from serve.http.problem import refusal
from serve.http.representations import CompressionMiddleware, EntityTagMiddleware
from serve.http.request_metrics import RequestMetricsMiddleware
from serve.page.gradio_import import import_gradio, one_parser

T = TypeVar("T")
Page = bool | Literal["late", "shared"]
_log = logging.getLogger("lookalike.serve")
LOADING, WAITING = "loading the page", "waiting for the page"  # names of threads
_FORGETTING_SECONDS = 300
_BATCHING_THREADS = 32  # more than cores: their images wait for the GPU
# A page requests a hundred thumbnails at once, and a browser does not retry.
_QUEUED_THUMBNAILS, _THUMBNAIL_SECONDS = 512, 60.0


def create_app(
    *services: SearchService,
    page: Page = True,
    limits: Limits | None = None,
    folder: Path | None = None,
) -> FastAPI:
    """Build the web application.

    Args:
        services: The galleries; the first is the default. All use the telemetry of the first.
        page: Whether to serve the page; otherwise Gradio is not loaded. "late" loads it once the application
            has started; until then, visitors see the outline of the page, which asks for it again. "shared"
            does that in one of the processes that share `folder`.
        limits: Limits on concurrent requests.
        folder: Private folder for jobs, shared pictures and the page, which several processes share; by
            default one of this application, which is deleted with it.
    """
    own = None if folder else Path(tempfile.mkdtemp(prefix="lookalike-work-"))
    folder = folder or own
    assert folder
    hours = services[0].permissions.sharing
    pictures = SharedPictures(folder / "pictures", hours * 3600) if hours else None
    limits = limits or Limits()
    threads = limits.threads or (_BATCHING_THREADS if services[0].batching else cores())
    telemetry = services[0].telemetry
    workers = Workers(threads, limits, telemetry)
    # Thumbnails have threads of their own and may wait until their deadline: a late one is still cached.
    thumbnail_threads = max(1, (limits.threads or cores()) // 2)
    seconds = max(limits.seconds, _THUMBNAIL_SECONDS)
    thumbnail_limits = Limits(queued=_QUEUED_THUMBNAILS, seconds=seconds, queue_share=1.0)
    thumbnail_workers = Workers(thumbnail_threads, thumbnail_limits, telemetry)

    shared = folder / "page" if page == "shared" else None
    pages = Pages(services, late=page == "late", shared=shared) if page else None

    stopping = asyncio.Event()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        forgetting = asyncio.create_task(_forget_expired(pictures)) if pictures else None
        async with pages.running() if pages else nullcontext():
            yield {"pages": pages, "stopping": stopping}
        if forgetting:
            forgetting.cancel()
        workers.close()
        thumbnail_workers.close()
        if own:
            shutil.rmtree(own, ignore_errors=True)

    feeds = {service.name: Feed(service, stopping) for service in services}
    jobs = {service.name: Jobs(folder / "jobs" / quote(service.name, safe="")) for service in services}

    def context(service: SearchService) -> Context:
        name = service.name
        return Context(services, service, jobs[name], workers, thumbnail_workers, feeds[name], pictures)

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
    # Before the page, which would answer with its own errors.
    app.router.routes.append(Route(API, _Refusing(404)))
    for route in routes.operations_router.routes:
        assert isinstance(route, Route)
        app.router.routes.append(Route(route.path, _Refusing(405, {"Allow": "GET, HEAD"})))
    exception_handlers.install(app, telemetry)
    if pages:
        app.add_middleware(CORSMiddleware, allow_origins=[])  # else Gradio allows all origins
        app.mount("/", pages)
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
        evaluation.router,
        heatmap.router,
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


class Pages:
    """ASGI application of the pages of all galleries: the first at the root, the others under their names.

    Of several processes, the first one loads them, and the others forward their requests to it: a visitor's
    session is in one process, and Gradio in memory once. If it ends, another one takes its place.

    Args:
        services: The galleries.
        late: Whether to load them once the application runs, and not now.
        shared: Private folder of the processes that share the pages, which are loaded late; None for one.
    """

    def __init__(self, services: Sequence[SearchService], *, late: bool, shared: Path | None = None) -> None:
        self._services = services
        self._shared = shared
        self._gradio: list[Any] = []
        self._forwarder: Forwarder | None = None
        self._app: ASGIApp = _outline(services[0]) if late or shared else self._load()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; until the pages are loaded, the outline answers."""
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let Gradio do its work; load the pages first, beside the requests, if they are late."""
        if isinstance(self._app, FastAPI):
            async with self._app.router.lifespan_context(self._app):
                yield
            return
        loading = asyncio.create_task(self._run_late())
        yield
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)

    async def _run_late(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                if self._shared:
                    stack.enter_context(await self._first(self._shared))
                with one_parser():
                    app = await asyncio.wrap_future(_in_daemon(self._load))
                await stack.enter_async_context(app.router.lifespan_context(app))
                if self._shared:
                    await stack.enter_async_context(listening(app, self._shared))
                self._app = app
                await asyncio.Event().wait()
        except Exception:
            _log.exception("the page could not be loaded")

    async def _first(self, shared: Path) -> IO[str]:
        """Forward requests until it is the turn of this process to load the pages; return its lock."""
        shared.mkdir(parents=True, exist_ok=True)
        turn = (shared / "turn").open("w")
        if not try_lock(turn):
            self._forwarder = Forwarder(shared, self._app)
            self._app = self._forwarder
            await asyncio.wrap_future(_in_daemon(lambda: lock(turn), WAITING))
        return turn

    def _load(self) -> FastAPI:
        """Import Gradio and build the pages, which takes seconds."""
        import_gradio()
        services = self._services
        names = [service.name for service in services]
        addresses = {names[0]: "/"} | {name: f"{page_of(name)}/" for name in names[1:]}
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        exception_handlers.install(app, services[0].telemetry)
        _add_files(app)
        others = [_add_page(app, service, page_of(service.name), names) for service in services[1:]]

        @app.get(page_of("{name:path}"))  # before the page at the root, which would answer every path
        async def redirect_to_page(name: str, request: Request) -> Response:
            address = addresses.get(name.removesuffix("/"))
            if address is None:
                raise HTTPException(404)
            return RedirectResponse(f"{address}?{request.url.query}".rstrip("?"))

        self._gradio = [_add_page(app, services[0], "/", names), *others]
        return app

    def stop_streams(self) -> None:
        """End the event streams of open pages."""
        for gradio_app in self._gradio:
            gradio_app.stop_event.set()
        if self._forwarder:
            self._closing = asyncio.ensure_future(self._forwarder.close())


def _in_daemon(function: Callable[[], T], name: str = LOADING) -> Future[T]:
    """Run a function in a thread that a server which is stopped does not wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _add_files(app: FastAPI) -> None:
    from serve.page.assets import MODULES, STATIC, modules_version, static

    @app.get("/favicon.ico")
    async def favicon() -> Response:
        return Response(
            static("icon.svg"), media_type="image/svg+xml", headers={"Cache-Control": "private, max-age=3600"}
        )

    app.mount(f"{MODULES}/{modules_version()}", _Immutable(directory=STATIC / "modules"))


def _outline(service: SearchService) -> ASGIApp:
    """Return an application that answers with the outline of the page, which asks again every second.

    Requests of a loaded page, and of Gradio's clients, are asked to come back.
    """
    from serve.page.assets import page_options, render

    outline = render("first_paint", name=service.name, options=page_options())
    document = render("outline", outline=outline, name=service.name)
    response = Response(document, media_type="text/html", headers={"Cache-Control": "no-store"})

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].endswith("/") or "text/html" in Headers(scope=scope).get("accept", ""):
            await response(scope, receive, send)
        else:
            error = BusyError("the page is being loaded: try again in a moment", retry_after=1)
            await refusal(scope, error)(scope, receive, send)

    return answer


class _Immutable(StaticFiles):
    """Files whose address changes with their content."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """Return a file that browsers keep."""
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "private, max-age=31536000, immutable"
        return response


def _add_page(app: FastAPI, service: SearchService, path: str, names: Sequence[str]) -> Any:
    """Mount the page of a gallery. Return Gradio's application."""
    import gradio as gr

    from serve.page.assets import stylesheet
    from serve.page.event_log import log_event_errors
    from serve.page.first_paint import FirstPaint
    from serve.page.layout import build_page, theme

    blocks = build_page(service, names)
    gr.mount_gradio_app(
        app,
        blocks,
        path=path,
        allowed_paths=[],
        show_error=False,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        enable_monitoring=False,
        mcp_server=False,
        pwa=False,
        theme=theme(),
        css=stylesheet(),
    )
    # Gradio checks that a file was uploaded by its user only in apps that it launched itself.
    blocks.has_launched = True
    mount = app.routes[-1]
    assert isinstance(mount, Mount)
    gradio_app: Any = mount.app
    log_event_errors(gradio_app)
    mount.app = FirstPaint(gradio_app, service.name, service.address)
    return gradio_app
