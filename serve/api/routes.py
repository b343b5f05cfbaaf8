"""API routes for searching, embedding and reading, and the routes for operators at the root."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from retrieval.errors import ImageError, InputError, LookalikeError, StoreError, did_you_mean, pointing
from retrieval.galleries.items import Hit, Hits, Item, View
from retrieval.search.options import SearchOptions
from retrieval.storage.query_log import new_id
from serve.addresses import api_of
from serve.api.bodies import BYTES, FORM, JSON, Body, read_body
from serve.api.context import AllServices, RequestWorkers, SearchedTogether, Service
from serve.api.exception_handlers import BODY, COMMON, CONTENT, LOAD, documented, validate
from serve.api.openapi import accepts
from serve.core.errors import (
    UNREACHABLE,
    InvalidRequestError,
    ModelMismatchError,
    NoModelError,
    NoTextEncoderError,
    NotRecordedError,
    RateLimitError,
    SignInError,
    SignInRateLimitError,
    UnavailableError,
    UnknownItemError,
)
from serve.core.queries import AnyQuery, ComposedQuery
from serve.core.service import GallerySummary, SearchService
from serve.core.telemetry import MEDIA_TYPE, Telemetry
from serve.core.together import find_in
from serve.http.problem import instance_of, problem_document
from serve.wire import hits as answers
from serve.wire.galleries import (
    GalleriesAnswer,
    GalleryAnswer,
    HealthAnswer,
    ReadyAnswer,
    ReadyGallery,
    ServedGallery,
)
from serve.wire.problems import ProblemDetails
from serve.wire.queries import (
    BatchParameters,
    BatchRequest,
    ByIdRequest,
    EmbedRequest,
    SearchFields,
    SearchParameters,
    SearchRequest,
)

_log = logging.getLogger("lookalike.serve")
_NO_STORE = {"Cache-Control": "no-store"}
_AT_ROOT = {"servers": [{"url": "/"}]}  # in the OpenAPI description of /v1
_OPERATOR_ERRORS = (SignInError, RateLimitError, SignInRateLimitError, LookalikeError)
# Routes of each gallery, of the server as a whole, and at its root.
router = APIRouter()
galleries_router = APIRouter()
operations_router = APIRouter(generate_unique_id_function=lambda route: route.name)


@router.post(
    "/search",
    summary="Find the images most similar to a query.",
    responses={
        200: {
            "model": answers.SearchAnswer,
            "description": "The hits, best first.",
        },
        **documented(*BODY, UnknownItemError, *CONTENT, *LOAD),
    },
    openapi_extra=accepts(SearchRequest, image="image"),
)
async def search(
    request: Request,
    options: Annotated[SearchParameters, Query()],
    service: Service,
    together: SearchedTogether,
    workers: RequestWorkers,
) -> Response:
    """Send the bytes of an image, a form with the file `image`, or JSON with one of `image`, `id`, `vector`
    and `url`, or several of them in `like` and `unlike`; or texts in `text`, alone or with images. Options go
    into the query string, or into the JSON or the form, which take precedence. An image of the gallery is not
    among its own hits. With `galleries`, several galleries are searched at once, and each hit names its
    own."""
    body = await read_body(request, JSON, FORM, BYTES)

    def answer_to(query: SearchRequest) -> Response:
        id = query_id_of(request, service, query.query_id)
        again = query.query_id is not None
        if query.galleries:
            new = None if again else id
            answer = _search_together(_named(query.galleries, together), query, new)
        else:
            answer = search_answer(service, query, query.fingerprint, id, again=again)
        answer.query_id = id
        return encode(answer, service.telemetry)

    def work() -> Response | SearchRequest:
        query = validate(SearchRequest, _merge(options, body, "image"))
        return query if query.urls() else answer_to(query)

    async with workers.deadline():
        answer = await workers.run(work, request.receive)
        if isinstance(answer, Response):
            return answer
        query = await _fetch_images(answer, service)  # without occupying a thread
        return await workers.run(lambda: answer_to(query), request.receive)


@router.post(
    "/search/by-id",
    summary="Find the images most similar to one of the gallery.",
    deprecated=True,
    responses={
        200: {
            "model": answers.SearchAnswer,
            "description": "The hits, best first, without the image itself.",
        },
        **documented(*BODY, UnknownItemError, NoModelError, NoTextEncoderError, ImageError, *LOAD),
    },
    openapi_extra=accepts(ByIdRequest),
)
async def search_by_id(
    request: Request,
    options: Annotated[SearchParameters, Query()],
    service: Service,
    workers: RequestWorkers,
) -> Response:
    """An old name: /v1/search takes an `id`, too."""
    body = await read_body(request, JSON)

    def work() -> Response:
        query = validate(ByIdRequest, _merge(options, body))
        id = query_id_of(request, service)
        answer = search_answer(service, query, None, id)
        answer.query_id = id
        return encode(answer, service.telemetry)

    return await workers.run(work, request.receive)


@router.post(
    "/search:batch",
    summary="Search with several queries at once.",
    responses={
        200: {"model": answers.BatchAnswer, "description": "A result or a problem for each query."},
        **documented(
            *BODY, UnknownItemError, ModelMismatchError, NoModelError, NoTextEncoderError, ImageError, *LOAD
        ),
    },
    openapi_extra=accepts(BatchRequest, files="images"),
)
async def search_batch(
    request: Request,
    options: Annotated[BatchParameters, Query()],
    service: Service,
    workers: RequestWorkers,
) -> Response:
    """Send JSON, or a form with a file `images` for each query. The images are embedded together. The result
    of an unusable image is a problem, which does not affect the others, unless all are searched for
    `together`."""
    body = await read_body(request, JSON, FORM)

    def work() -> Response:
        values = _merge(options, body, "images")
        if body.media_type == FORM:
            values["queries"] = [{"image": image} for image in values.pop("images", ())]
        batch = validate(BatchRequest, values)
        views = [query.query() for query in batch.queries]
        queries: list[AnyQuery] = [ComposedQuery.of(views)] if batch.together else [*views]
        chosen = batch.options()
        given = [query_id_of(request, service) for _ in queries]
        ids = None if None in given else [id for id in given if id]
        answer = service.find(queries, chosen, fingerprint=batch.fingerprint, ids=ids)
        for number, hits in enumerate(answer.found):
            if isinstance(hits, InputError):
                own = (hits.pointer or batch.queries[number].place).removeprefix("#")
                hits.pointer = "#/queries" if batch.together else f"#/queries/{number}{own}"
        if batch.together and isinstance(answer.found[0], InputError):
            raise answer.found[0]
        each = zip(answer.found, answer.interleaved, given, strict=True)
        results = [_batch_result(*one, chosen, request, answer.summary) for one in each]
        found = answers.BatchAnswer(results=results, fingerprint=answer.summary.fingerprint)
        return encode(found, service.telemetry, exclude_unset=True)

    return await workers.run(work, request.receive)


@router.post(
    "/outcomes",
    summary="Record what was done with a hit.",
    status_code=204,
    responses=documented(*BODY, NotRecordedError, *LOAD),
    openapi_extra=accepts(answers.OutcomeRequest),
)
async def record_outcome(request: Request, service: Service, workers: RequestWorkers) -> Response:
    """Only if the server records searches, whose answers then have a `query_id`; `recorded` of the gallery
    says whether it does. Nothing is recorded of a request with the header `Sec-GPC: 1` or `DNT: 1`."""
    body = await read_body(request, JSON)

    def work() -> Response:
        query = validate(answers.OutcomeRequest, body.values())
        if not service.records or query_id_of(request, service):
            service.record_outcome(query.query_id, query.item, query.outcome)
        return Response(status_code=204)

    return await workers.run(work, request.receive)


@router.post(
    "/embed",
    summary="Embed images or texts.",
    responses={
        200: {"model": answers.EmbedAnswer, "description": "Vectors of the gallery's model."},
        **documented(*BODY, NoModelError, NoTextEncoderError, ImageError, *LOAD),
    },
    openapi_extra=accepts(EmbedRequest, image="images", files="images"),
)
async def embed(request: Request, service: Service, workers: RequestWorkers) -> Response:
    """Send the bytes of an image, a form with a file `images` for each, or JSON with `images` or `texts`."""
    body = await read_body(request, JSON, FORM, BYTES)

    def work() -> Response:
        query = validate(EmbedRequest, body.values("images"))
        field = "texts" if query.images is None else "images"
        try:
            with pointing(f"#/{field}"):
                found, fingerprint = service.embed(query.contents())
        except NoTextEncoderError as error:
            error.pointer = "#/texts"  # not that of a search
            raise
        vectors = []
        for number, vector in enumerate(found):
            with pointing(f"#/{field}/{number}"):
                vectors.append(vector_values(vector))
        return encode(answers.EmbedAnswer(vectors=vectors, fingerprint=fingerprint), service.telemetry)

    return await workers.run(work, request.receive)


@router.get(
    "/gallery",
    summary="The description of the gallery.",
    response_model=GalleryAnswer,
    responses=documented(*COMMON),
)
async def gallery(service: Service) -> GalleryAnswer:
    """Size, columns, model and index of the gallery."""
    found = await service.run(service.describe)
    return GalleryAnswer(**(vars(found) | vars(found.summary)))


# ---- the server as a whole


@galleries_router.get(
    "/galleries",
    summary="The galleries of this server.",
    response_model=GalleriesAnswer,
    response_model_exclude_unset=True,
    responses=documented(*COMMON),
)
async def galleries(request: Request, services: AllServices) -> GalleriesAnswer:
    """The routes under /v1 are those of the first gallery; each gallery has the same under its address. One
    that cannot be read at the moment has a `problem`."""
    states = await _states(services, request)
    return GalleriesAnswer(
        galleries=[ServedGallery(name=name, address=api_of(name), **state) for name, state in states.items()]
    )


@operations_router.get(
    "/healthz",
    summary="Whether the process answers.",
    response_model=HealthAnswer,
    responses=documented(LookalikeError),
    response_description="The process answers.",
    openapi_extra={**_AT_ROOT, "security": []},
)
async def healthz() -> Response:
    """If it does not answer, restart it. Needs no sign-in and has no rate limit."""
    return JSONResponse({"status": "ok"}, headers=_NO_STORE)


@operations_router.get(
    "/readyz",
    summary="Whether galleries and models are available.",
    response_model=ReadyAnswer,
    responses=documented(*_OPERATOR_ERRORS, UnavailableError),
    response_description="Galleries and models are available.",
    openapi_extra=_AT_ROOT,
)
async def readyz(request: Request, services: AllServices) -> Response:
    """Each gallery has its state. The answer is 503 if none of them can be read: then send no requests to
    the server."""
    states = await _states(services, request)
    problems = [state["problem"] for state in states.values() if "problem" in state]
    if len(problems) == len(services):
        raise UnavailableError(problems[0].detail)
    ready = ReadyAnswer(
        status="degraded" if problems else "ready",
        galleries={name: ReadyGallery(**state) for name, state in states.items()},
    )
    return Response(ready.model_dump_json(exclude_unset=True), headers=_NO_STORE, media_type=JSON)


@operations_router.get(
    "/metrics",
    summary="Metrics for Prometheus.",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **documented(*_OPERATOR_ERRORS),
    },
    response_description="The metrics.",
    openapi_extra=_AT_ROOT,
)
async def metrics(services: AllServices) -> Response:
    """Metrics of all processes and all galleries of the server."""
    text = await _metrics_text(services)
    return Response(text, media_type=MEDIA_TYPE, headers=_NO_STORE)


# ---- helpers


def image_fields(item: Item, summary: GallerySummary) -> dict[str, Any]:
    """Return the public fields of an item, without its path on the server."""
    part, width, height = item.part, item.width, item.height
    if part is not None:
        left, top, right, bottom = part
        width, height = round((right - left) * width), round((bottom - top) * height)
    return {
        "id": item.id,
        "key": item.key,
        "label": item.label,
        "metadata": item.metadata,
        "width": width or None,
        "height": height or None,
        "part": part,
        "thumbnail": summary.thumbnail(item),
    }


def problem_details(error: LookalikeError, request: Request) -> ProblemDetails:
    """Return the problem of one of several images or queries in a request."""
    return ProblemDetails(**problem_document(error, instance_of(request.scope)))


def query_id_of(request: Request, service: SearchService, given: str | None = None) -> str | None:
    """Return the id of a search: that of an earlier answer, or a new one; None if it is not recorded.

    A browser whose user objects to being recorded says so, by Global Privacy Control or Do Not Track.
    """
    objects = "1" in (request.headers.get("sec-gpc"), request.headers.get("dnt"))
    return (given or new_id()) if service.records and not objects else None


def search_answer(
    service: SearchService,
    query: SearchRequest | ByIdRequest,
    fingerprint: str | None,
    id: str | None = None,
    *,
    again: bool = False,
) -> answers.SearchAnswer:
    """Search, and record it under an id if there is one, unless it is; errors as for `SearchService.find`."""
    options, ids = query.options(), None if id is None else [id]
    with pointing(query.place):
        answer = service.find([query.query()], options, fingerprint=fingerprint, ids=ids, again=again)
    (hits,) = answer.found
    if isinstance(hits, InputError):
        with pointing(query.place):
            raise hits
    summary = answer.summary
    return answers.SearchAnswer(
        hits=[_hit(hit, summary) for hit in hits],
        nothing_like_it=options.is_nothing_like_it(hits),
        fingerprint=summary.fingerprint,
        interleaved=answer.interleaved[0],
    )


def _search_together(
    services: Sequence[SearchService], query: SearchRequest, id: str | None
) -> answers.SearchAnswer:
    with pointing(query.place):
        found = find_in(services, query.query(), query.options(), fingerprint=query.fingerprint, id=id)
    return answers.SearchAnswer(
        hits=[_hit(hit, summary, summary.name) for hit, summary in found],
        nothing_like_it=False,
        fingerprint=services[0].gallery.fingerprint,
    )


def _named(names: Sequence[str], services: Mapping[str, SearchService]) -> list[SearchService]:
    unknown = [number for number, name in enumerate(names) if name not in services]
    if unknown:
        name = names[unknown[0]][:50]
        known = "/v1/galleries lists the galleries"
        hint = did_you_mean(name, services, known) if services else "search several galleries at /v1/search"
        detail = f"there is no gallery {name!r} here; {hint}"
        fault = {"pointer": f"#/galleries/{unknown[0]}", "detail": detail}
        raise InvalidRequestError(f"galleries: {detail}", [fault])
    return [services[name] for name in names]


def encode(answer: BaseModel, telemetry: Telemetry, *, exclude_unset: bool = False) -> Response:
    """Return an answer as JSON, encoded in the thread that built it."""
    with telemetry.stage("encode"):
        return Response(answer.model_dump_json(exclude_unset=exclude_unset), media_type=JSON)


async def _fetch_images(query: SearchRequest, service: SearchService) -> SearchRequest:
    """Return a query with the images in place of their URLs."""

    async def fetch(url: str, pointer: str) -> bytes:
        try:
            return await service.fetch(url)
        except InputError as error:
            error.pointer = pointer
            raise

    urls = query.urls()
    found = await asyncio.gather(*(fetch(url, pointer) for url, pointer in urls.items()))
    return query.with_images(dict(zip(urls, found, strict=True)))


def _merge(options: SearchFields, body: Body, image_field: str | None = None) -> dict[str, Any]:
    """Return the values of query string and body; those of the body take precedence."""
    return {**options.model_dump(exclude_unset=True), **body.values(image_field)}


def _hit(hit: Hit, summary: GallerySummary, gallery: str | None = None) -> answers.Hit:
    fields = image_fields(hit, summary)
    if hit.view_count:
        fields |= {"group": hit.group, "view_count": hit.view_count}
        fields["variant_count"] = hit.variant_count or None
    if hit.views:
        fields["views"] = [_view(one, summary) for one in hit.views]
    return answers.Hit(**fields, score=hit.score, probability=hit.probability, gallery=gallery)


def _view(view: View, summary: GallerySummary) -> answers.HitView:
    return answers.HitView(
        id=view.id,
        key=view.key,
        score=view.score,
        thumbnail=summary.thumbnail(view),
        variant=view.variant,
        view_count=view.view_count or None,
    )


def _batch_result(
    hits: Hits | InputError,
    interleaved: bool,
    id: str | None,
    options: SearchOptions,
    request: Request,
    summary: GallerySummary,
) -> answers.BatchResult:
    if isinstance(hits, InputError):
        return answers.BatchResult(problem=problem_details(hits, request))
    shown, nothing = [_hit(hit, summary) for hit in hits], options.is_nothing_like_it(hits)
    return answers.BatchResult(hits=shown, nothing_like_it=nothing, interleaved=interleaved, query_id=id)


def vector_values(vector: np.ndarray | InputError) -> list[float]:
    """Return the numbers of a vector in the fewest digits that restore the same float32."""
    if isinstance(vector, InputError):
        raise vector
    return [float(f"{number:.9g}") for number in vector]


async def _states(services: Sequence[SearchService], request: Request) -> dict[str, dict[str, Any]]:
    """Return the public state of each gallery by name; none waits long for a database."""

    async def state(service: SearchService) -> dict[str, Any]:
        try:
            found = await service.soon(service.check)
        except StoreError as error:
            _log.error("%s: %s", service.name, error)
            return {"problem": problem_details(UnavailableError(UNREACHABLE), request)}
        except UnavailableError as error:
            return {"problem": problem_details(error, request)}
        return {"images": found.images, "fingerprint": found.fingerprint}

    states = await asyncio.gather(*map(state, services))
    return dict(zip((service.name for service in services), states, strict=True))


async def _metrics_text(services: Sequence[SearchService]) -> bytes:
    telemetry = services[0].telemetry

    async def update(service: SearchService) -> None:
        is_up = telemetry.gallery_up.labels(service.name)
        try:
            found = await service.soon(service.describe)
        except (UnavailableError, StoreError):  # the other metrics are still needed
            is_up.set(0)
            return
        is_up.set(1)
        telemetry.gallery_images.labels(service.name).set(found.summary.images)
        telemetry.gallery_unindexed.labels(service.name).set(found.unindexed)

    await asyncio.gather(*map(update, services))
    return await asyncio.to_thread(telemetry.text)
