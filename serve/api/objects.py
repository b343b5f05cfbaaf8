"""API route of objects: what a gallery has of the things that stand in an image, and where they are."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from retrieval.errors import ImageError, pointing
from retrieval.galleries.items import PartHit
from serve.api.bodies import BYTES, FORM, JSON, read_body
from serve.api.context import RequestWorkers, Service
from serve.api.exception_handlers import BODY, LOAD, documented, validate
from serve.api.openapi import accepts
from serve.api.routes import encode, image_fields, query_id_of
from serve.core.errors import NoModelError, UnknownItemError
from serve.core.service import GallerySummary
from serve.wire import hits as answers
from serve.wire.queries import ObjectsRequest, SearchFields

router = APIRouter()


@router.post(
    "/objects",
    summary="Find what stands in an image, and where.",
    responses={
        200: {"model": answers.ObjectsAnswer, "description": "The hits and the boxes, best first."},
        **documented(*BODY, UnknownItemError, NoModelError, ImageError, *LOAD),
    },
    openapi_extra=accepts(ObjectsRequest, image="image"),
)
async def objects(
    request: Request,
    parameters: Annotated[SearchFields, Query()],
    service: Service,
    workers: RequestWorkers,
) -> Response:
    """Send the bytes of an image, a form with the file `image`, or JSON with `image` or `id`; options go into
    the query string, or into the JSON or the form. Not with `rerank`, `order`, `diversity` and
    `min_probability`."""
    body = await read_body(request, JSON, FORM, BYTES)

    def work() -> Response:
        values = {**parameters.model_dump(exclude_unset=True), **body.values("image")}
        query = validate(ObjectsRequest, values)
        with pointing("#/image" if query.id is None else "#/id"):
            id = query_id_of(request, service)
            found, summary = service.find_objects(query.image_or_item(), query.options(), id=id)
        answer = answers.ObjectsAnswer(
            hits=[_hit(hit, summary) for hit in found.hits],
            boxes=[_hit(hit, summary) for hit in found.boxes],
            fingerprint=summary.fingerprint,
            query_id=id,
        )
        return encode(answer, service.telemetry)

    return await workers.run(work, request.receive)


def _hit(hit: PartHit, summary: GallerySummary) -> answers.PartHit:
    return answers.PartHit(**image_fields(hit, summary), score=hit.score, probability=None, box=hit.box)
