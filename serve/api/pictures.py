"""API routes of query pictures: as a browser shows them, and shared ones, which a link can name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from retrieval.errors import ImageError, InputError, pointing
from serve.api.bodies import BYTES, FORM, JSON, read_body
from serve.api.context import Pictures, RequestWorkers, Service
from serve.api.exception_handlers import BODY, LOAD, documented, validate
from serve.api.openapi import accepts
from serve.core.errors import (
    FetchError,
    RateLimitError,
    SharingNotAllowedError,
    UnknownPictureError,
    UrlsNotAllowedError,
)
from serve.core.shared_pictures import SharedPictures
from serve.core.thumbnails import QUERY_SIDE, query_picture
from serve.wire.queries import PreviewRequest, ShareRequest

router = APIRouter()
_NO_STORE = {"Cache-Control": "no-store"}


class ShareAnswer(BaseModel):
    """A shared picture."""

    id: str = Field(description="Its id, in the address of the page as `shared:ID`.")
    address: str = Field(description="Path to read it from.")
    expires: datetime = Field(description="Time from which on it cannot be read, ISO 8601, UTC.")


@router.post(
    "/preview",
    summary="A picture as every browser shows it.",
    response_class=Response,
    responses={
        200: {"content": {"image/webp": {}}, "description": "The picture."},
        **documented(*BODY, ImageError, UrlsNotAllowedError, FetchError, *LOAD),
    },
    openapi_extra=accepts(PreviewRequest, image="image"),
)
async def preview(request: Request, service: Service, workers: RequestWorkers) -> Response:
    """Send the bytes of an image, a form with the file `image`, or JSON with `image` or `url`. The answer is
    upright, has at most 1,024 pixels a side and no metadata; nothing is kept. The page searches with it where
    the browser cannot decode a file, such as HEIC, and by URL."""
    body = await read_body(request, JSON, FORM, BYTES)

    def work(data: bytes) -> Response:
        with pointing("#/image"):
            found = query_picture(service.upright(data, side=QUERY_SIDE))
        return Response(found.data, media_type=found.media_type, headers=_NO_STORE)

    async with workers.deadline():
        query = await workers.run(lambda: validate(PreviewRequest, body.values("image")), request.receive)
        data = await service.fetch(query.url) if query.url is not None else query.image or b""
        return await workers.run(lambda: work(data), request.receive)


@router.post(
    "/pictures",
    summary="Share a query picture.",
    status_code=201,
    response_model=ShareAnswer,
    responses=documented(*BODY, ImageError, SharingNotAllowedError, RateLimitError, *LOAD),
    openapi_extra=accepts(ShareRequest, image="image"),
)
async def share_picture(
    request: Request, service: Service, pictures: Pictures, workers: RequestWorkers
) -> Response:
    """Send the bytes of an image, a form with the file `image`, or JSON. The server keeps a copy of at most
    1,024 pixels a side, without metadata, for the hours of `--share-pictures`; everybody who may
    use the server can read it by its id. Beyond 1,000 pictures or 200 MB the oldest are deleted."""
    store = _allowed(pictures)
    body = await read_body(request, JSON, FORM, BYTES)

    def work() -> Response:
        with pointing("#/image"):
            image = service.upright(validate(ShareRequest, body.values("image")).image, side=QUERY_SIDE)
        found = store.share(image)
        answer = ShareAnswer(
            id=found.id,
            address=f"{service.address}/pictures/{found.id}",
            expires=datetime.fromtimestamp(found.expires, UTC),
        )
        return Response(answer.model_dump_json(), 201, {"Location": answer.address}, JSON)

    return await workers.run(work, request.receive)


@router.get(
    "/pictures/{id}",
    summary="A shared query picture.",
    response_class=Response,
    responses={
        200: {"content": {"image/webp": {}}, "description": "The picture."},
        **documented(UnknownPictureError, SharingNotAllowedError, InputError, *LOAD),
    },
)
async def shared_picture(
    id: Annotated[str, Path(description="The id of a shared picture.", max_length=100)],
    pictures: Pictures,
    workers: RequestWorkers,
) -> Response:
    """It cannot be listed, only read by its id."""
    store = _allowed(pictures)
    found = await workers.run(lambda: store.read(id))
    return Response(found.data, media_type=found.media_type, headers=_NO_STORE)


def _allowed(pictures: SharedPictures | None) -> SharedPictures:
    if pictures is None:
        raise SharingNotAllowedError("sharing pictures is disabled: allow it with --share-pictures")
    return pictures
