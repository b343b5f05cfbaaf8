"""Which galleries a server has, for programs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fastapi import APIRouter

from serve.addresses import api_of
from serve.api import schemas
from serve.api.errors import COMMON, documented
from serve.core.service import SearchService, facts_of


def router(services: Sequence[SearchService]) -> APIRouter:
    """`/galleries`."""
    routes = APIRouter()

    @routes.get(
        "/galleries",
        summary="The galleries of this server.",
        response_model=schemas.GalleriesAnswer,
        responses=documented(*COMMON),
    )
    async def galleries() -> schemas.GalleriesAnswer:
        """Everything below /v1 is about the first one, and is there for each at its address."""
        found = await asyncio.to_thread(facts_of, services)
        return schemas.GalleriesAnswer(
            galleries=[
                schemas.ServedGallery(
                    name=one.name, images=one.images, fingerprint=one.fingerprint, address=api_of(one.name)
                )
                for one in found
            ]
        )

    return routes
