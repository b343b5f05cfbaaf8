"""API route of events: changes of the gallery as they happen."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from serve.api.context import GalleryFeed
from serve.api.exception_handlers import LOAD, documented
from serve.core.feed import Feed, GalleryState
from serve.wire.galleries import GalleryEvent

_TYPE = "text/event-stream"
_RETRY_MS = 3000  # after which browsers connect again
router = APIRouter()


@router.get(
    "/events",
    summary="Changes of the gallery, as they happen.",
    response_class=Response,
    responses={
        200: {
            "content": {_TYPE: {"schema": {"$ref": "#/components/schemas/GalleryEvent"}}},
            "description": "Server-sent events named `gallery`, whose data is JSON.",
        },
        **documented(*LOAD),
    },
)
async def events(feed: GalleryFeed) -> Response:
    """The first event is the present state, so that nothing is lost between two connections. Others follow
    within about a second of a change: of the number of images, of the `generation`, with which lists and
    counts may change, or of the progress of indexing. A comment every 15 seconds keeps the connection open.
    It ends when the server stops."""
    first = await feed.state()  # or its problem
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx would collect events
    return StreamingResponse(_stream(feed, first), headers=headers, media_type=_TYPE)


async def _stream(feed: Feed, first: GalleryState) -> AsyncIterator[str]:
    yield f"retry: {_RETRY_MS}\n"
    async for state in feed.states(first):
        if state is None:
            yield ": nothing new\n\n"
        else:
            data = GalleryEvent.model_validate(state, from_attributes=True).model_dump_json()
            yield f"event: gallery\nid: {state.generation}\ndata: {data}\n\n"
