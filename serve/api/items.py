"""API routes of items: list, count and read them, and, if the server allows it, describe and remove them.

An item is an image of the gallery.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from retrieval.errors import InputError, pointing
from retrieval.galleries.items import Item
from retrieval.galleries.searchable import SearchableGallery
from retrieval.storage.facets import Facet, Facets
from retrieval.storage.listing import Order, Place
from serve.api.bodies import JSON, read_body
from serve.api.context import RequestWorkers, Service, ThumbnailWorkers
from serve.api.exception_handlers import BODY, COMMON, LOAD, documented, validate
from serve.api.openapi import accepts
from serve.api.routes import image_fields
from serve.core import changes
from serve.core.cursors import Listing
from serve.core.errors import (
    ChangedError,
    ChangesNotAllowedError,
    CountMismatchError,
    ForbiddenError,
    UnknownItemError,
    UnwritableError,
)
from serve.core.examples import examples
from serve.core.service import GallerySummary, SearchService
from serve.core.thumbnails import MISSING, Thumbnail
from serve.http.representations import etag_of, matches
from serve.wire.fields import Key
from serve.wire.images import Image
from serve.wire.items import (
    MAX_FACETS,
    SHOWN_IDS,
    ColumnFacet,
    DateRange,
    ExampleParameters,
    ExamplesAnswer,
    FacetParameters,
    FacetsAnswer,
    ItemsAnswer,
    LabelAnswer,
    LabelDecision,
    LabelRequest,
    ListParameters,
    NumberRange,
    RemoveAnswer,
    RemoveRequest,
    UpdateRequest,
    ValueCount,
)

_CHANGE_ERRORS = (ForbiddenError, ChangesNotAllowedError, UnwritableError, *LOAD)
_LINES, _PAGE_OF_LINES = "application/x-ndjson", 500
_BY_ACCEPT = {"Vary": "Accept"}
_NO_STORE = {"Cache-Control": "no-store"}
_REVALIDATED = "private, no-cache"  # the file of an id may change
_IMMUTABLE = "private, max-age=31536000, immutable"
_PICTURE: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"image/webp": {}, "image/svg+xml": {}},
        "description": "A grey tile if the file is missing, or is not the one that was indexed.",
    },
    304: {"description": "The picture of the request's If-None-Match is the present one."},
    **documented(UnknownItemError, InputError, *LOAD),
}
ItemId = Annotated[int, Path(description="The id of an image.", ge=0)]
Version = Annotated[
    str | None,
    Query(
        alias="v",
        max_length=100,
        description="Version of the file, as in the addresses of thumbnails: if it is the present one, the "
        "answer may be kept for a year.",
    ),
]

IfMatch = Annotated[
    list[str] | None,
    Header(description="`ETag` of what the client has read; if it is another one now, nothing is changed."),
]
router = APIRouter()


@router.get(
    "/items",
    summary="List the images of the gallery, page by page.",
    response_model=ItemsAnswer,
    responses={
        200: {"content": {_LINES: {"schema": {"$ref": "#/components/schemas/Image"}}}},
        **documented(InputError, *LOAD),
    },
)
async def list_items(
    request: Request,
    parameters: Annotated[ListParameters, Query()],
    service: Service,
    workers: RequestWorkers,
) -> Response:
    """Follow `next_cursor` until it is null. Every image that stays in the gallery is listed exactly once,
    also while others are added and removed; one whose value in `order` changes may be missed or repeated.
    With `Accept: application/x-ndjson`, all pages from there on come in one answer, an image a line, whatever
    the `limit`; if listing fails on the way, the connection breaks."""
    order = Order.parse(parameters.order)
    as_lines = _LINES in request.headers.get("accept", "")

    def page(cursor: str | None) -> ItemsAnswer:
        condition = service.condition(parameters.where)

        def read(gallery: SearchableGallery) -> tuple[list[Item], Place | None, Listing]:
            listing = Listing(gallery.manifest.uuid, parameters.where, parameters.order)
            after = None if cursor is None else listing.place(cursor)
            limit = _PAGE_OF_LINES if as_lines else parameters.limit
            with pointing("#/order"):
                return *gallery.contents.listing(condition, order, after, limit), listing

        (items, last, listing), summary = service.read(read)
        shown = [Image(**image_fields(item, summary)) for item in items]
        return ItemsAnswer(items=shown, next_cursor=None if last is None else listing.cursor(last))

    async def lines(found: ItemsAnswer) -> AsyncIterator[str]:
        yield _lines(found)
        while (cursor := found.next_cursor) is not None:
            found = await workers.run(partial(page, cursor))
            yield _lines(found)

    first = await workers.run(lambda: page(parameters.cursor), request.receive)
    if as_lines:
        return StreamingResponse(lines(first), headers=_BY_ACCEPT, media_type=_LINES)
    return Response(first.model_dump_json(), headers=_BY_ACCEPT, media_type=JSON)


@router.get(
    "/items/by-key",
    summary="An image of the gallery by its key.",
    response_model=Image,
    responses=documented(UnknownItemError, InputError, *COMMON),
)
async def item_by_key(
    key: Annotated[Key, Query(description="The key of an image.", examples=["red/1.png"])],
    service: Service,
) -> Response:
    """The same image as by its id."""
    with pointing("#/key"):
        return await service.run(lambda: _item(service, key))


@router.get(
    "/items/{id:int}",
    summary="An image of the gallery by its id.",
    response_model=Image,
    responses=documented(UnknownItemError, InputError, *COMMON),
)
async def item(id: ItemId, service: Service) -> Response:
    """Key, label and metadata of the image."""
    return await service.run(lambda: _item(service, id))


@router.get(
    "/items/{id:int}/thumbnail",
    summary="The thumbnail of an image of the gallery.",
    response_class=Response,
    responses=_PICTURE,
)
async def thumbnail(
    request: Request,
    id: ItemId,
    service: Service,
    workers: ThumbnailWorkers,
    version: Version = None,
    whole: Annotated[
        bool, Query(description="Of the whole picture, also if the image is a part of it.")
    ] = False,
) -> Response:
    """At most 512 pixels a side, re-encoded without metadata."""
    # The version first: a picture that replaces this one in between is not kept under the new one's address.
    current, found = await service.run(
        lambda: (service.version(id), service.cached_thumbnail(id, is_whole=whole))
    )
    if found is None:
        found = await workers.run(lambda: service.thumbnail(id, is_whole=whole), request.receive)
    return _picture(found, version == current)


@router.get(
    "/items/{id:int}/picture",
    summary="An image of the gallery in large.",
    response_class=Response,
    responses=_PICTURE,
)
async def picture(
    request: Request, id: ItemId, service: Service, workers: RequestWorkers, version: Version = None
) -> Response:
    """At most 2,048 pixels a side, re-encoded without metadata."""
    current, found = await workers.run(lambda: (service.version(id), service.picture(id)), request.receive)
    return _picture(found, version == current)


@router.get(
    "/examples",
    summary="A few images from all over the gallery.",
    response_model=ExamplesAnswer,
    responses=documented(InputError, *LOAD),
)
async def list_examples(
    request: Request,
    parameters: Annotated[ExampleParameters, Query()],
    service: Service,
    workers: RequestWorkers,
) -> Response:
    """Of as many labels as possible, always the same ones while the gallery does not change."""

    def work() -> Response:
        items, summary = service.read(lambda gallery: examples(gallery, parameters.limit))
        shown = [Image(**image_fields(item, summary)) for item in items]
        return Response(ExamplesAnswer(items=shown).model_dump_json(), media_type=JSON)

    return await workers.run(work, request.receive)


@router.get(
    "/facets",
    summary="Count the values of columns.",
    response_model=FacetsAnswer,
    responses=documented(InputError, *LOAD),
)
async def facets(
    request: Request,
    parameters: Annotated[FacetParameters, Query()],
    service: Service,
    workers: RequestWorkers,
) -> Response:
    """Images for each value of label and metadata, ranges of numbers and dates, and missing values."""

    def read(gallery: SearchableGallery) -> Facets:
        condition = service.condition(parameters.where)
        known = {"label", *gallery.contents.columns()}
        names = [
            name.strip()
            for given in parameters.columns
            for name in ([given] if given in known else given.split(","))  # a name may have a comma
        ]
        names = names or ["label", *gallery.contents.columns()][:MAX_FACETS]
        with pointing("#/columns"):
            if len(names) > MAX_FACETS:
                raise InputError(f"columns: {len(names)} are given; at most {MAX_FACETS} are counted at once")
            return gallery.contents.facets(names, condition, parameters.limit)

    def work() -> Response:
        found, _ = service.read(read)
        counts = [_facet(facet) for facet in found.facets]
        answer = FacetsAnswer(images=found.items, counted=found.counted, facets=counts)
        return Response(answer.model_dump_json(), media_type=JSON)

    return await workers.run(work, request.receive)


@router.patch(
    "/items/{id:int}",
    summary="Change the label or the metadata of an image.",
    response_model=Image,
    responses=documented(*BODY, UnknownItemError, ChangedError, *_CHANGE_ERRORS),
    response_description="The image as it is now.",
    openapi_extra=accepts(UpdateRequest),
)
async def update_item(
    id: ItemId,
    request: Request,
    service: Service,
    workers: RequestWorkers,
    if_match: IfMatch = None,
) -> Response:
    """What is not named stays. A new column is added; all values of a column are text, or all are numbers."""
    changes.check_allowed(service)
    body = await read_body(request, JSON)

    def work() -> Response:
        query = validate(UpdateRequest, body.values())
        label = query.label if "label" in query.model_fields_set else changes.UNCHANGED
        item = changes.update(service, id, label, query.metadata, check=unchanged(service, if_match))
        return _answer(item, service.summary())

    return await workers.run(work)


@router.post(
    "/items:label",
    summary="Change the labels of several images.",
    response_model=LabelAnswer,
    responses=documented(*BODY, *_CHANGE_ERRORS),
    openapi_extra=accepts(LabelRequest),
)
async def label_items(request: Request, service: Service, workers: RequestWorkers) -> LabelAnswer:
    """At most 1,000, in one transaction. An image that has another label than was read keeps it, and is in
    `changed`. Each new label is a decision of its own."""
    changes.check_allowed(service)
    body = await read_body(request, JSON)

    def work() -> LabelAnswer:
        query = validate(LabelRequest, body.values())
        wanted = [changes.NewLabel(one.id, one.old or None, one.label or None) for one in query.images]
        found, summary = changes.relabel(service, wanted), service.summary()
        return LabelAnswer(
            labelled=[LabelDecision(id=id, decision=number) for id, number in found.decisions.items()],
            changed=[Image(**image_fields(item, summary)) for item in found.changed],
            missing=found.missing,
        )

    return await workers.run(work)


@router.post(
    "/items:remove",
    summary="Remove all images that fulfil a condition.",
    response_model=RemoveAnswer,
    responses=documented(*BODY, CountMismatchError, *_CHANGE_ERRORS),
    openapi_extra=accepts(RemoveRequest),
)
async def remove_items(request: Request, service: Service, workers: RequestWorkers) -> RemoveAnswer:
    """By default a dry run, which counts them. To remove them, send its count as `expected`: if the condition
    selects more or fewer by then, nothing is removed. Files that the gallery stores, after an addition, are
    deleted; other files stay."""
    changes.check_allowed(service)
    body = await read_body(request, JSON)

    def work() -> RemoveAnswer:
        query = validate(RemoveRequest, body.values())
        if query.dry_run or query.expected is None:
            found = changes.select(service, query.where)
        else:
            found = changes.remove_selected(service, query.where, query.expected)
        count = len(found.ids)
        return RemoveAnswer(
            dry_run=query.dry_run,
            selected=count,
            removed=count if found.removed else 0,
            ids=found.ids[:SHOWN_IDS],
        )

    return await workers.run(work)


def _lines(page: ItemsAnswer) -> str:
    return "".join(f"{image.model_dump_json()}\n" for image in page.items)


def _item(service: SearchService, name: int | str) -> Response:
    return _answer(service.item(name), service.summary())


def unchanged(service: SearchService, tags: Sequence[str] | None) -> changes.Check | None:
    """Return a check that an item is still one that the client has read; `None` if it named none.

    Args:
        service: The gallery.
        tags: Values of the header `If-Match`.
    """
    if tags is None:
        return None
    condition = ", ".join(tags)

    def check(item: Item) -> None:
        if not matches(condition, etag_of(_body(item, service.summary()))):
            what = f"its label is {item.label!r}" if item.label else "it has no label"
            raise ChangedError(f"image {item.id} was changed in the meantime ({what} now): look at it again")

    return check


def _body(item: Item, summary: GallerySummary) -> bytes:
    return Image(**image_fields(item, summary)).model_dump_json().encode()


def _answer(item: Item, summary: GallerySummary) -> Response:
    """Return an item with its entity tag, which changes with its facts."""
    body = _body(item, summary)
    return Response(body, headers={"ETag": etag_of(body), "Cache-Control": _REVALIDATED}, media_type=JSON)


def _picture(found: Thumbnail, is_version: bool) -> Response:
    if found is MISSING:  # the file may come back
        return Response(found.data, media_type=found.media_type, headers=_NO_STORE)
    headers = {"Cache-Control": _IMMUTABLE if is_version else _REVALIDATED, "ETag": found.etag}
    return Response(found.data, media_type=found.media_type, headers=headers)


def _facet(facet: Facet) -> ColumnFacet:
    return ColumnFacet(
        column=facet.column,
        values=[ValueCount(value=value, count=count) for value, count in facet.values if value is not None],
        distinct=facet.distinct,
        missing=facet.missing,
        numbers=None if facet.numbers is None else NumberRange(min=facet.numbers[0], max=facet.numbers[1]),
        dates=None if facet.dates is None else DateRange(min=facet.dates[0], max=facet.dates[1]),
        histogram=facet.histogram,
    )
