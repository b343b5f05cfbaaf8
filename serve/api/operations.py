"""What operators ask a server: whether it lives, whether it can answer, and how it fares."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from serve.core.errors import UnavailableError
from serve.core.service import SearchService, facts_of
from serve.core.telemetry import MEDIA_TYPE

_FRESH = {"Cache-Control": "no-store"}


def router(services: Sequence[SearchService]) -> APIRouter:
    """`/healthz`, `/readyz` and `/metrics`."""
    routes = APIRouter()

    @routes.get("/healthz")
    async def healthz() -> Response:
        """Whether the process answers; restart it where it does not."""
        return JSONResponse({"status": "ok"}, headers=_FRESH)

    @routes.get("/readyz")
    async def readyz() -> Response:
        """Whether galleries and models are there; send it no requests where they are not."""
        found = await asyncio.to_thread(facts_of, services)
        galleries = {one.name: {"images": one.images, "fingerprint": one.fingerprint} for one in found}
        return JSONResponse({"status": "ready", "galleries": galleries}, headers=_FRESH)

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(await asyncio.to_thread(_figures, services), media_type=MEDIA_TYPE, headers=_FRESH)

    return routes


def _figures(services: Sequence[SearchService]) -> bytes:
    telemetry = services[0].telemetry
    for service in services:
        with suppress(UnavailableError):  # the figures of the rest are wanted then all the more
            found = service.describe()
            telemetry.images.labels(service.name).set(found.facts.images)
            telemetry.unindexed.labels(service.name).set(found.unindexed)
    return telemetry.text()
