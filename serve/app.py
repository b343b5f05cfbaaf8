"""The web application over one gallery: endpoints for programs, and the page for people."""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Mount

from retrieval.errors import InputError
from serve import page
from serve.guard import Guard
from serve.service import SearchService
from serve.style import CSS, ICON
from serve.thumbnails import MISSING

MAX_UPLOAD = "20mb"


def create_app(service: SearchService, hosts: Sequence[str] = ("localhost", "127.0.0.1", "::1")) -> FastAPI:
    """Everything the server answers.

    Args:
        service: the gallery.
        hosts: names this server may be called by in a request's Host header, `*` for any. A list keeps other
            sites from reaching a local server under a name of theirs (DNS rebinding).
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_routes(app, service)
    app.add_middleware(CORSMiddleware, allow_origins=[])  # without it the page's framework lets any site in
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    app.add_middleware(Guard)
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
    mounted = next(route.app for route in app.routes if isinstance(route, Mount))
    app.state.stop_streams = mounted.stop_event.set  # type: ignore[attr-defined]
    return app


def _add_routes(app: FastAPI, service: SearchService) -> None:
    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/images/{item:int}/thumbnail")
    def thumbnail(item: int) -> Response:
        try:
            found = service.thumbnail(item)
        except InputError:
            return JSONResponse({"error": {"code": "not-found", "message": "no such image"}}, 404)
        # A missing file may come back; a picture under its id never changes.
        caching = "no-store" if found is MISSING else "private, max-age=3600"
        return Response(found.data, media_type=found.media_type, headers={"Cache-Control": caching})

    @app.get("/favicon.ico")
    def favicon() -> Response:
        return Response(ICON, media_type="image/svg+xml", headers={"Cache-Control": "private, max-age=3600"})
