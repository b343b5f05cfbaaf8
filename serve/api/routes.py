"""The addresses under /v1."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from retrieval.errors import ImageError, InputError
from retrieval.gallery import Hit, Item
from serve.api import schemas
from serve.api.bodies import BYTES, FORM, JSON, Body, read
from serve.api.errors import BODY, COMMON, LOAD, documented, validate
from serve.api.openapi import accepts
from serve.api.schemas import (
    BatchParameters,
    BatchRequest,
    ByIdRequest,
    EmbedRequest,
    SearchOptions,
    SearchParameters,
    SearchRequest,
)
from serve.core.errors import (
    FetchError,
    ModelMismatchError,
    NoModelError,
    UnknownItemError,
    UrlsNotAllowedError,
)
from serve.core.fetch_url import fetched
from serve.core.permissions import Permissions
from serve.core.queries import Asked, Together
from serve.core.service import Facts, SearchService
from serve.core.thumbnails import MISSING
from serve.core.workers import Workers
from serve.http.problem import instance_of, problem

_QUERY = (UnknownItemError, ModelMismatchError, NoModelError, ImageError)
_SEARCH = documented(*BODY, *_QUERY, UrlsNotAllowedError, FetchError, *LOAD)
Options = Annotated[SearchParameters, Query()]
BatchOptions = Annotated[BatchParameters, Query()]
Key = Annotated[schemas.Key, Query(description="The key of an image.", examples=["red/1.png"])]
Number = Annotated[int, Path(description="The id of an image.", ge=0)]


def router(service: SearchService, workers: Workers, pictures: Workers) -> APIRouter:
    """Everything a program can ask for.

    Args:
        workers: for what is searched for; `pictures` for those that are shown. What is only looked up waits
            for neither, nor for a thread of the web framework: the page's work may have all of them.
    """
    routes = APIRouter()

    def encoded(answer: BaseModel, **how: Any) -> Response:
        """Bytes of an answer, made in the thread that made the answer."""
        with service.telemetry.stage("encode"):
            return Response(answer.model_dump_json(**how), media_type=JSON)

    def one(query: Asked, options: SearchOptions, fingerprint: str | None) -> Response:
        found = service.find([query], options.options(), fingerprint=fingerprint)
        (hits,) = found.found
        if isinstance(hits, InputError):
            raise hits
        return encoded(
            schemas.SearchAnswer(hits=_hits(hits, found.facts), fingerprint=found.facts.fingerprint)
        )

    def known(name: int | str) -> schemas.Image:
        return schemas.Image(**about(service.item(name), service.facts()))

    @routes.post(
        "/search",
        summary="Find the images that look like one.",
        responses={200: {"model": schemas.SearchAnswer, "description": "What was found."}, **_SEARCH},
        openapi_extra=accepts(SearchRequest, image="image"),
    )
    async def search(request: Request, options: Options) -> Response:
        """Send the bytes of an image, a form with the file `image`, or JSON with one of `image`, `id`,
        `vector` and `url`. Options go into the query string, or into the JSON or the form, which count where
        both have one. An image of the gallery is not among its own hits."""
        body = await read(request, JSON, FORM, BYTES)

        def work() -> Response | SearchRequest:
            asked = validate(SearchRequest, _merged(options, body, "image"))
            return asked if asked.url is not None else one(asked.asked(), asked, asked.fingerprint)

        async with workers.in_time():
            answer = await workers.run(work, request.receive)
            if isinstance(answer, Response):
                return answer
            asked = await _fetched(answer, service.permissions)  # which keeps no worker waiting
            return await workers.run(lambda: one(asked.asked(), asked, asked.fingerprint), request.receive)

    @routes.post(
        "/search/by-id",
        summary="Find the images that look like one of the gallery.",
        responses={
            200: {"model": schemas.SearchAnswer, "description": "What was found, without the image itself."},
            **documented(*BODY, UnknownItemError, NoModelError, ImageError, *LOAD),
        },
        openapi_extra=accepts(ByIdRequest),
    )
    async def search_by_id(request: Request, options: Options) -> Response:
        """The same as /v1/search with `id`, or a region of it, alone."""
        body = await read(request, JSON)

        def work() -> Response:
            asked = validate(ByIdRequest, _merged(options, body))
            return one(asked.asked(), asked, None)

        return await workers.run(work, request.receive)

    @routes.post(
        "/search:batch",
        summary="Search with several queries at once.",
        responses={
            200: {"model": schemas.BatchAnswer, "description": "A result or a problem for each query."},
            **documented(*BODY, UnknownItemError, ModelMismatchError, NoModelError, ImageError, *LOAD),
        },
        openapi_extra=accepts(BatchRequest, files="images"),
    )
    async def search_batch(request: Request, options: BatchOptions) -> Response:
        """Send JSON, or a form with a file `images` for each query. Images go through the model together, and
        one that cannot be used has a problem for a result, which leaves the others alone; unless all are
        searched for `together`."""
        body = await read(request, JSON, FORM)

        def work() -> Response:
            values = _merged(options, body)
            if body.media_type == FORM:
                values["queries"] = [{"image": image} for image in values.pop("images", ())]
            asked = validate(BatchRequest, values)
            each = [query.asked() for query in asked.queries]
            queries: list[Asked] = [Together(each)] if asked.together else [*each]
            answer = service.find(queries, asked.options(), fingerprint=asked.fingerprint)
            if asked.together and isinstance(answer.found[0], InputError):
                raise answer.found[0]
            results = [_result(hits, request, answer.facts) for hits in answer.found]
            found = schemas.BatchAnswer(results=results, fingerprint=answer.facts.fingerprint)
            return encoded(found, exclude_unset=True)

        return await workers.run(work, request.receive)

    @routes.post(
        "/embed",
        summary="The vectors of images.",
        responses={
            200: {"model": schemas.EmbedAnswer, "description": "Vectors of the gallery's model."},
            **documented(*BODY, NoModelError, ImageError, *LOAD),
        },
        openapi_extra=accepts(EmbedRequest, image="images", files="images"),
    )
    async def embed(request: Request) -> Response:
        """Send the bytes of an image, a form with a file `images` for each, or JSON."""
        body = await read(request, JSON, FORM, BYTES)

        def work() -> Response:
            asked = validate(EmbedRequest, body.values("images"))
            found, fingerprint = service.embed(asked.images)
            vectors = [_numbers(vector) for vector in found]
            return encoded(schemas.EmbedAnswer(vectors=vectors, fingerprint=fingerprint))

        return await workers.run(work, request.receive)

    @routes.get(
        "/gallery",
        summary="What is searched.",
        response_model=schemas.GalleryAnswer,
        responses=documented(*COMMON),
    )
    async def gallery() -> schemas.GalleryAnswer:
        """Its size, its columns, its model and its index."""
        found = await asyncio.to_thread(service.describe)
        return schemas.GalleryAnswer(**(vars(found) | vars(found.facts)))

    @routes.get(
        "/images/by-key",
        summary="What is known about the image of a key.",
        response_model=schemas.Image,
        responses=documented(UnknownItemError, InputError, *COMMON),
    )
    async def image_by_key(key: Key) -> schemas.Image:
        """The same as by its id."""
        return await asyncio.to_thread(known, key)

    @routes.get(
        "/images/{number:int}",
        summary="What is known about an image of the gallery.",
        response_model=schemas.Image,
        responses=documented(UnknownItemError, InputError, *COMMON),
    )
    async def image(number: Number) -> schemas.Image:
        """Its key, its label and its metadata."""
        return await asyncio.to_thread(known, number)

    @routes.get(
        "/images/{number:int}/thumbnail",
        summary="A small picture of an image of the gallery.",
        response_class=Response,
        responses={
            200: {
                "content": {"image/webp": {}, "image/svg+xml": {}},
                "description": "A grey tile where the file is gone, or is not the one that was indexed.",
            },
            **documented(UnknownItemError, InputError, *LOAD),
        },
    )
    async def thumbnail(request: Request, number: Number) -> Response:
        """At most 512 pixels a side, encoded anew: nothing but pixels of the original leaves the server."""
        found = await asyncio.to_thread(service.kept_thumbnail, number)
        if found is None:
            found = await pictures.run(lambda: service.thumbnail(number), request.receive)
        # A missing file may come back; a picture under its id never changes.
        caching = "no-store" if found is MISSING else "private, max-age=3600"
        return Response(found.data, media_type=found.media_type, headers={"Cache-Control": caching})

    return routes


async def _fetched(asked: SearchRequest, permissions: Permissions) -> SearchRequest:
    """With the image at its address in the address's place."""
    assert asked.url is not None
    if not permissions.urls:
        raise UrlsNotAllowedError("this server fetches no images: send the image itself")
    return asked.model_copy(update={"image": await fetched(asked.url), "url": None})


def _merged(options: SearchOptions, body: Body, picture: str | None = None) -> dict[str, Any]:
    """What the query string says, and over it what the body says."""
    return {**options.model_dump(exclude_unset=True), **body.values(picture)}


def _hits(found: list[Hit], facts: Facts) -> list[schemas.Hit]:
    return [schemas.Hit(**about(hit, facts), score=hit.score) for hit in found]


def about(item: Item, facts: Facts) -> dict[str, Any]:
    """What may be told of an item of a gallery: its path is the server's own business."""
    return {
        "id": item.id,
        "key": item.key,
        "label": item.label,
        "metadata": item.metadata,
        "thumbnail": facts.thumbnail(item.id),
    }


def problem_of(error: InputError, request: Request) -> schemas.ProblemDetails:
    """What is wrong with one of several things that were asked for at once."""
    return schemas.ProblemDetails(**problem(error, instance_of(request.scope)))


def _result(hits: list[Hit] | InputError, request: Request, facts: Facts) -> schemas.BatchResult:
    if isinstance(hits, InputError):
        return schemas.BatchResult(problem=problem_of(hits, request))
    return schemas.BatchResult(hits=_hits(hits, facts))


def _numbers(vector: np.ndarray | InputError) -> list[float]:
    """A vector in as few digits as give back the same float32."""
    if isinstance(vector, InputError):
        raise vector
    return [float(f"{number:.9g}") for number in vector]
