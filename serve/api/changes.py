"""Adding images to a gallery and removing them, where the server's owner lets visitors do that."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from retrieval.errors import ImageError, InputError
from serve.api import schemas
from serve.api.bodies import BYTES, FORM, JSON, read
from serve.api.errors import BODY, LOAD, documented, validate
from serve.api.openapi import accepts
from serve.api.routes import about, problem_of
from serve.core import changes
from serve.core.errors import (
    ChangesNotAllowedError,
    ForbiddenError,
    NoModelError,
    UnknownItemError,
    UnwritableError,
)
from serve.core.service import Facts, SearchService
from serve.core.workers import Workers

_CHANGE = (ForbiddenError, ChangesNotAllowedError, UnwritableError, *LOAD)
Parameters = Annotated[schemas.AddParameters, Query()]
Number = Annotated[int, Path(description="The id of an image.", ge=0)]


def router(service: SearchService, workers: Workers) -> APIRouter:
    """`POST /images` and `DELETE /images/{number}`."""
    routes = APIRouter()

    @routes.post(
        "/images",
        summary="Add images to the gallery.",
        status_code=201,
        responses={
            200: {"model": schemas.AddAnswer, "description": "None of them was new."},
            201: {"model": schemas.AddAnswer, "description": "A result or a problem for each image."},
            **documented(*BODY, NoModelError, ImageError, *_CHANGE),
        },
        openapi_extra=accepts(
            schemas.AddRequest, image="images", files="images", texts=("label", "metadata")
        ),
    )
    async def add_images(request: Request, parameters: Parameters) -> Response:
        """Send the bytes of an image, a form with a file `images` for each, or JSON; in a form, `metadata` is
        JSON. The gallery keeps the files. Bytes that it has already are not added again. One image that
        cannot be used leaves the others alone; a single one has its problem for an answer."""
        changes.check_allowed(service)
        body = await read(request, JSON, FORM, BYTES)

        def work() -> Response:
            values = {**parameters.model_dump(exclude_unset=True), **body.values("images")}
            if body.media_type == FORM:
                values["names"] = list(body.names)
            asked = validate(schemas.AddRequest, values)
            names = asked.names or [""] * len(asked.images)
            pictures = list(zip(names, asked.images, strict=True))
            found = changes.add(service, pictures, asked.label, asked.metadata)
            if len(found) == 1 and isinstance(found[0], InputError):
                raise found[0]
            facts = service.facts()
            answer = schemas.AddAnswer(results=[_result(one, request, facts) for one in found])
            is_new = any(one.added for one in answer.results)
            content = answer.model_dump_json(exclude_unset=True)
            return Response(content, 201 if is_new else 200, media_type=JSON)

        return await workers.run(work)

    @routes.delete(
        "/images/{number:int}",
        summary="Remove an image from the gallery.",
        status_code=204,
        responses=documented(UnknownItemError, InputError, *_CHANGE),
    )
    async def remove_image(number: Number) -> Response:
        """It is not found from then on. Its file goes with it if it was added here; other files stay."""
        changes.check_allowed(service)
        await workers.run(lambda: changes.remove(service, [number]))
        return Response(status_code=204)

    return routes


def _result(found: changes.Added | InputError, request: Request, facts: Facts) -> schemas.AddResult:
    if isinstance(found, InputError):
        return schemas.AddResult(problem=problem_of(found, request))
    return schemas.AddResult(image=schemas.Image(**about(found.item, facts)), added=found.is_new)
