"""Routes of the page: its documents, its files, and the parts of it that the server draws."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from fastapi import APIRouter
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from retrieval.machine.extras import missing_extra
from serve.addresses import page_of
from serve.core.analyses import hide_paths
from serve.core.errors import UnavailableError
from serve.core.service import SearchService
from serve.core.workers import Workers
from serve.page.assets import FILES, files, files_path, icon
from serve.page.contents import summary
from serve.page.document import Document
from serve.page.on_device import VERSION, WORKER, DeviceModels, RuntimeFile, streamed
from serve.page.reports import Reports
from serve.page.statistics import CachedStatistics, statistics_view

_log = logging.getLogger("lookalike.serve")
_HTML = "text/html; charset=utf-8"
_LEVEL = 6  # of gzip
_RUNTIME = f"{FILES}/onnxruntime-web-{VERSION}"
_NO_CACHE, _FOR_EVER = "private, no-cache", "private, max-age=31536000, immutable"


def page_router(
    services: Sequence[SearchService],
    workers: Mapping[str, Workers],
    runtime: Mapping[str, RuntimeFile] | None = None,
) -> APIRouter:
    """Return the routes of all pages: the first gallery's at the root, the others' under their names.

    Args:
        services: The galleries.
        workers: Thread pools by gallery that draw the parts of the pages, which may take seconds.
        runtime: Files of ONNX Runtime for browsers, if pictures may be embedded there.
    """
    router = APIRouter(include_in_schema=False)
    names = [service.name for service in services]
    addresses = {names[0]: "/"} | {name: f"{page_of(name)}/" for name in names[1:]}
    for service in services:
        pool = workers[service.name]
        _add_page(router, service, addresses[service.name], names, pool, offers_device=bool(runtime))
        if runtime:
            _add_device(router, DeviceModels(service), addresses[service.name], runtime, pool)

    @router.get(f"{_RUNTIME}/{{name}}")
    async def runtime_file(name: str, request: Request) -> Response:
        if not runtime or name not in runtime:
            raise HTTPException(404)
        found, headers = runtime[name], {"Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding"}
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return streamed(found.content, found.kind, headers)
        packed = await asyncio.to_thread(lambda: found.packed)
        return streamed(packed, found.kind, {**headers, "Content-Encoding": "gzip"})

    @router.get(f"{FILES}/{{version}}/{{name}}")
    async def file(version: str, name: str, request: Request) -> Response:
        if name not in files() or version != files_path().rpartition("/")[2]:
            raise HTTPException(404)
        if name == WORKER:
            if not runtime:
                raise HTTPException(404)
            request.state.compiles_wasm = True
        return _answer(request, *_file(name), _FOR_EVER)

    @router.get("/favicon.ico")
    async def favicon() -> Response:
        return Response(
            icon(), media_type="image/svg+xml", headers={"Cache-Control": "private, max-age=3600"}
        )

    @router.get(page_of("{name:path}"))
    async def redirect_to_page(name: str, request: Request) -> Response:
        address = addresses.get(name.removesuffix("/"))
        if address is None:
            raise HTTPException(404)
        return RedirectResponse(f"{address}?{request.url.query}".rstrip("?"))

    return router


def _add_page(
    router: APIRouter,
    service: SearchService,
    base: str,
    names: Sequence[str],
    workers: Workers,
    *,
    offers_device: bool,
) -> None:
    document, reports = Document(service, names, offers_device=offers_device), Reports(service)
    statistics = CachedStatistics()

    @router.get(base)
    async def page(request: Request) -> Response:
        found = await service.run(lambda: _packed(document.render(request)))
        return _answer(request, *found, _HTML, _NO_CACHE)

    async def part(request: Request, draw: Callable[[], str]) -> Response:
        found = await workers.run(lambda: _packed(_drawn(draw)), request.receive)
        return _answer(request, *found, _HTML, _NO_CACHE)

    @router.get(f"{base}parts/report")
    async def report(request: Request, report: str, against: str = "") -> Response:
        def draw() -> Markup:
            with hide_paths(service):
                return reports.view(report, against)

        return await part(request, draw)

    @router.get(f"{base}parts/about")
    async def about(request: Request) -> Response:
        return await part(request, lambda: summary(service.gallery, service.summary().license))

    @router.get(f"{base}parts/statistics")
    async def counts(request: Request) -> Response:
        return await part(request, lambda: statistics_view(statistics.of(service.gallery)))


def _add_device(
    router: APIRouter, models: DeviceModels, base: str, runtime: Mapping[str, RuntimeFile], workers: Workers
) -> None:
    address = f"{base}parts/device"

    @router.get(address)
    async def describe(request: Request) -> Response:
        model = await workers.run(models.newest, request.receive)
        return JSONResponse(model.describe(address, runtime, _RUNTIME))

    @router.get(f"{address}/{{fingerprint}}")
    async def model_file(fingerprint: str, request: Request) -> Response:
        model = await workers.run(models.newest, request.receive)
        if fingerprint != model.fingerprint:
            raise HTTPException(404)
        return streamed(model.content, "application/octet-stream", {"Cache-Control": _FOR_EVER})


def _drawn(draw: Callable[[], str]) -> str:
    try:
        return draw()
    except ModuleNotFoundError as error:
        if lacking := missing_extra(error):
            _log.error("a part of the page %s", lacking)
            raise UnavailableError("this server was installed without what this part needs") from error
        raise


def _packed(text: str) -> tuple[bytes, bytes]:
    return text.encode(), gzip.compress(text.encode(), _LEVEL)


@cache
def _file(name: str) -> tuple[bytes, bytes, str]:
    """Return the content of a file, plain and compressed, and its media type."""
    content, kind = files()[name]
    return content, gzip.compress(content, 9), kind


def _answer(request: Request, plain: bytes, compressed: bytes, kind: str, caching: str) -> Response:
    """Return content as the client takes it, or 304 if it has it."""
    etag = f'"{hashlib.sha256(plain).hexdigest()[:20]}"'
    headers = {"Cache-Control": caching, "ETag": etag, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(compressed, media_type=kind, headers={**headers, "Content-Encoding": "gzip"})
    return Response(plain, media_type=kind, headers=headers)
