"""What operators ask a server: whether it lives, whether it can answer, and how it fares."""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from serve.errors import UnavailableError
from serve.service import SearchService
from serve.telemetry import MEDIA_TYPE

_FRESH = {"Cache-Control": "no-store"}


def router(service: SearchService) -> APIRouter:
    """`/healthz`, `/readyz` and `/metrics`."""
    routes = APIRouter()

    @routes.get("/healthz")
    async def healthz() -> Response:
        """Whether the process answers; restart it where it does not."""
        return JSONResponse({"status": "ok"}, headers=_FRESH)

    @routes.get("/readyz")
    def readyz() -> Response:
        """Whether gallery and model are there; send it no requests where they are not."""
        facts = service.facts()
        ready = {"status": "ready", "images": facts.images, "fingerprint": facts.fingerprint}
        return JSONResponse(ready, headers=_FRESH)

    @routes.get("/metrics")
    def metrics() -> Response:
        """Figures for Prometheus."""
        with suppress(UnavailableError):  # the figures of the rest are wanted then all the more
            found = service.describe()
            service.telemetry.images.set(found.facts.images)
            service.telemetry.unindexed.set(found.unindexed)
        return Response(service.telemetry.text(), media_type=MEDIA_TYPE, headers=_FRESH)

    return routes
