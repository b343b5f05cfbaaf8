"""API routes of items that add and remove them, if the server allows it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from retrieval.errors import ImageError, InputError
from serve.api.bodies import BYTES, FORM, JSON, read_body
from serve.api.context import RequestWorkers, Service
from serve.api.exception_handlers import BODY, LOAD, documented, validate
from serve.api.items import IfMatch, ItemId, unchanged
from serve.api.openapi import accepts
from serve.api.routes import image_fields, problem_details
from serve.core import changes
from serve.core.errors import (
    ChangedError,
    ChangesNotAllowedError,
    ForbiddenError,
    NoModelError,
    UnknownItemError,
    UnwritableError,
)
from serve.core.service import GallerySummary
from serve.wire.images import AddAnswer, AddConflict, AddParameters, AddRequest, AddResult, Image

_CHANGE_ERRORS = (ForbiddenError, ChangesNotAllowedError, UnwritableError, *LOAD)
router = APIRouter()


@router.post(
    "/items",
    summary="Add images to the gallery.",
    status_code=201,
    responses={
        200: {
            "model": AddAnswer,
            "description": "The gallery had all of the images already, or near-duplicates that were refused.",
        },
        201: {"model": AddAnswer, "description": "A result or a problem for each image."},
        **documented(*BODY, NoModelError, ImageError, *_CHANGE_ERRORS),
    },
    openapi_extra=accepts(
        AddRequest, image="images", files="images", texts=("label", "metadata", "duplicates")
    ),
)
async def add_items(
    request: Request, parameters: Annotated[AddParameters, Query()], service: Service, workers: RequestWorkers
) -> Response:
    """Send the bytes of an image, a form with a file `images` for each, or JSON; in a form, `metadata` is
    JSON. The gallery keeps the files. Bytes that it has already are not added again, nor near-duplicates with
    `duplicates=refuse`, whose result has their `similarity` to the `image` that is there; if they are sent
    with another label or other metadata, the result has a `conflict`. An unusable image does not affect the
    others; if it is the only one, the response is its problem."""
    changes.check_allowed(service)
    body = await read_body(request, JSON, FORM, BYTES)

    def work() -> Response:
        values = {**parameters.model_dump(exclude_unset=True), **body.values("images")}
        if body.media_type == FORM:
            values["names"] = list(body.names)
        query = validate(AddRequest, values)
        names = query.names or [""] * len(query.images)
        images = list(zip(names, query.images, strict=True))
        found = changes.add(service, images, query.label, query.metadata, duplicates=query.duplicates)
        for number, one in enumerate(found):
            if isinstance(one, InputError):
                one.pointer = f"#/images/{number}"
        if len(found) == 1 and isinstance(found[0], InputError):
            raise found[0]
        summary = service.summary()
        answer = AddAnswer(results=[_result(one, query, request, summary) for one in found])
        is_new = any(one.added for one in answer.results)
        content = answer.model_dump_json(exclude_unset=True)
        return Response(content, 201 if is_new else 200, media_type=JSON)

    return await workers.run(work)


@router.delete(
    "/items/{id:int}",
    summary="Remove an image from the gallery.",
    status_code=204,
    responses=documented(UnknownItemError, ChangedError, InputError, *_CHANGE_ERRORS),
)
async def remove_item(
    id: ItemId, service: Service, workers: RequestWorkers, if_match: IfMatch = None
) -> Response:
    """Its file is deleted if the gallery stores it, after an addition; other files stay."""
    changes.check_allowed(service)
    await workers.run(lambda: changes.remove(service, [id], check=unchanged(service, if_match)))
    return Response(status_code=204)


def _result(
    found: changes.AddedImage | InputError, query: AddRequest, request: Request, summary: GallerySummary
) -> AddResult:
    if isinstance(found, InputError):
        return AddResult(problem=problem_details(found, request))
    result = AddResult(image=Image(**image_fields(found.item, summary)), added=found.is_new)
    if found.similarity is not None:
        result.similarity = round(found.similarity, 6)
    if not found.is_new and (conflict := _conflict(found, query, summary)):
        result.conflict = conflict
    return result


def _conflict(found: changes.AddedImage, query: AddRequest, summary: GallerySummary) -> AddConflict | None:
    """Return which of the label and metadata asked for an image of the gallery does not have."""
    item = found.item
    label = query.label if query.label and query.label != item.label else None
    metadata = found.other_metadata(query.metadata)
    if label is None and not metadata:
        return None
    stored = f"label {item.label!r}" if item.label else "no label"
    others = [] if label is None else [f"label {label!r}"]
    others += [f"metadata {', '.join(map(repr, metadata))}"] if metadata else []
    what = "has the same bytes" if found.similarity is None else "looks like it"
    what = f"image {item.id} {what} and has {stored}; {' and '.join(others)} was not stored"
    detail = f"{what}: change it with PATCH {summary.address}/items/{item.id}"
    return AddConflict(label=label, metadata=metadata or None, detail=detail)
