"""The addresses under /v1."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from retrieval.errors import InputError
from retrieval.gallery import Hit, Item
from serve.api import schemas
from serve.api.bodies import BYTES, FORM, JSON, Body, read
from serve.api.documentation import accepts
from serve.api.failures import documented, of_error, validated
from serve.api.problems import instance
from serve.api.schemas import BatchRequest, ByIdRequest, EmbedRequest, SearchOptions, SearchRequest
from serve.service import Asked, SearchService
from serve.thumbnails import MISSING
from serve.workers import Workers

_ANYWHERE = ("sign-in", "too-many-requests", "too-many-tries", "internal-error", "gallery-unavailable")
_WORK = ("malformed-body", "too-slow", "too-large", "unsupported-media-type", "invalid-request")
_LOAD = ("busy", "deadline-exceeded", *_ANYWHERE)
_SEARCH = documented(*_WORK, "no-such-image", "model-mismatch", "no-model", "unusable-image", *_LOAD)
_MEDIA_TYPE = "application/json"
Options = Annotated[SearchOptions, Query()]
Number = Annotated[int, Path(description="The id of an image.", ge=0)]


def router(service: SearchService, workers: Workers) -> APIRouter:
    """Everything a program can ask for."""
    routes = APIRouter()

    def encoded(answer: BaseModel, **how: Any) -> Response:
        """Bytes of an answer, made in the thread that made the answer."""
        with service.telemetry.stage("encode"):
            return Response(answer.model_dump_json(**how), media_type=_MEDIA_TYPE)

    def one(query: Asked, options: SearchOptions, fingerprint: str | None) -> Response:
        found = service.find([query], options.options(), fingerprint=fingerprint)
        (hits,) = found.found
        if isinstance(hits, InputError):
            raise hits
        return encoded(schemas.SearchAnswer(hits=_hits(hits), fingerprint=found.facts.fingerprint))

    @routes.post(
        "/search",
        summary="Find the images that look like one.",
        responses={200: {"model": schemas.SearchAnswer, "description": "What was found."}, **_SEARCH},
        openapi_extra=accepts(SearchRequest, image="image"),
    )
    async def search(request: Request, options: Options) -> Response:
        """Send the bytes of an image, a form with the file `image`, or JSON with one of `image`, `id` and
        `vector`. Options go into the query string, or into the JSON or the form, which count where both have
        one. An image of the gallery is not among its own hits."""
        body = await read(request, JSON, FORM, BYTES)

        def work() -> Response:
            asked = validated(SearchRequest, _merged(options, body, "image"))
            return one(asked.asked(), asked, asked.fingerprint)

        return await workers.run(work)

    @routes.post(
        "/search/by-id",
        summary="Find the images that look like one of the gallery.",
        responses={
            200: {"model": schemas.SearchAnswer, "description": "What was found, without the image itself."},
            **documented(*_WORK, "no-such-image", *_LOAD),
        },
        openapi_extra=accepts(ByIdRequest),
    )
    async def search_by_id(request: Request, options: Options) -> Response:
        """The same as /v1/search with `id` alone."""
        body = await read(request, JSON)

        def work() -> Response:
            asked = validated(ByIdRequest, _merged(options, body))
            return one(asked.id, asked, None)

        return await workers.run(work)

    @routes.post(
        "/search:batch",
        summary="Search with several queries at once.",
        responses={
            200: {"model": schemas.BatchAnswer, "description": "A result or a problem for each query."},
            **documented(*_WORK, "model-mismatch", "no-model", *_LOAD),
        },
        openapi_extra=accepts(BatchRequest, files="images"),
    )
    async def search_batch(request: Request, options: Options) -> Response:
        """Send JSON, or a form with a file `images` for each query. Images go through the model together, and
        one that cannot be used has a problem for a result, which leaves the others alone."""
        body = await read(request, JSON, FORM)

        def work() -> Response:
            values = _merged(options, body)
            if body.media_type == FORM:
                values["queries"] = [{"image": image} for image in values.pop("images", ())]
            asked = validated(BatchRequest, values)
            queries = [query.asked() for query in asked.queries]
            answer = service.find(queries, asked.options(), fingerprint=asked.fingerprint)
            results = [_result(hits, request) for hits in answer.found]
            found = schemas.BatchAnswer(results=results, fingerprint=answer.facts.fingerprint)
            return encoded(found, exclude_unset=True)

        return await workers.run(work)

    @routes.post(
        "/embed",
        summary="The vectors of images.",
        responses={
            200: {"model": schemas.EmbedAnswer, "description": "Vectors of the gallery's model."},
            **documented(*_WORK, "no-model", "unusable-image", *_LOAD),
        },
        openapi_extra=accepts(EmbedRequest, image="images", files="images"),
    )
    async def embed(request: Request) -> Response:
        """Send the bytes of an image, a form with a file `images` for each, or JSON."""
        body = await read(request, JSON, FORM, BYTES)

        def work() -> Response:
            asked = validated(EmbedRequest, body.values("images"))
            found, fingerprint = service.embed(asked.images)
            vectors = [_numbers(vector) for vector in found]
            return encoded(schemas.EmbedAnswer(vectors=vectors, fingerprint=fingerprint))

        return await workers.run(work)

    @routes.get(
        "/gallery",
        summary="What is searched.",
        response_model=schemas.GalleryAnswer,
        responses=documented(*_ANYWHERE),
    )
    def gallery() -> schemas.GalleryAnswer:
        """Its size, its columns, its model and its index."""
        found = service.describe()
        return schemas.GalleryAnswer(**(vars(found) | vars(found.facts)))

    @routes.get(
        "/images/{number:int}",
        summary="What is known about an image of the gallery.",
        response_model=schemas.Image,
        responses=documented("no-such-image", "invalid-request", *_ANYWHERE),
    )
    def image(number: Number) -> schemas.Image:
        """Its key, its label and its metadata."""
        return _image(service.item(number))

    @routes.get(
        "/images/{number:int}/thumbnail",
        summary="A small picture of an image of the gallery.",
        response_class=Response,
        responses={
            200: {
                "content": {"image/webp": {}, "image/svg+xml": {}},
                "description": "A grey tile where the file is gone.",
            },
            **documented("no-such-image", "invalid-request", *_ANYWHERE),
        },
    )
    def thumbnail(number: Number) -> Response:
        """At most 512 pixels a side, encoded anew: nothing but pixels of the original leaves the server."""
        found = service.thumbnail(number)
        # A missing file may come back; a picture under its id never changes.
        caching = "no-store" if found is MISSING else "private, max-age=3600"
        return Response(found.data, media_type=found.media_type, headers={"Cache-Control": caching})

    return routes


def _merged(options: SearchOptions, body: Body, picture: str | None = None) -> dict[str, Any]:
    """What the query string says, and over it what the body says."""
    return {**options.model_dump(exclude_unset=True), **body.values(picture)}


def _image(item: Item) -> schemas.Image:
    return schemas.Image(**_facts(item))


def _hits(found: list[Hit]) -> list[schemas.Hit]:
    return [schemas.Hit(**_facts(hit), score=hit.score) for hit in found]


def _facts(item: Item) -> dict[str, Any]:
    """What may be told of an item: its path is the server's own business."""
    thumbnail = f"/v1/images/{item.id}/thumbnail"
    return {
        "id": item.id,
        "key": item.key,
        "label": item.label,
        "metadata": item.metadata,
        "thumbnail": thumbnail,
    }


def _result(hits: list[Hit] | InputError, request: Request) -> schemas.BatchResult:
    if isinstance(hits, InputError):
        members = of_error(hits).members(instance(request.scope))
        return schemas.BatchResult(problem=schemas.ProblemDetails(**members))
    return schemas.BatchResult(hits=_hits(hits))


def _numbers(vector: np.ndarray | InputError) -> list[float]:
    """A vector in as few digits as give back the same float32."""
    if isinstance(vector, InputError):
        raise vector
    return [float(f"{number:.9g}") for number in vector]
