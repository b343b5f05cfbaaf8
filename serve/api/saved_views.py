"""API routes of the views of the page that people save under names."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from retrieval.errors import InputError
from retrieval.storage.decisions import SavedView as StoredView
from serve.api.bodies import JSON, read_body
from serve.api.context import RequestWorkers, Service
from serve.api.exception_handlers import BODY, LOAD, documented, validate
from serve.api.openapi import accepts
from serve.core import changes, decisions
from serve.core.errors import (
    ChangedError,
    ChangesNotAllowedError,
    ForbiddenError,
    UnknownItemError,
    UnwritableError,
)
from serve.wire.saved_views import SavedView, SavedViewsAnswer, SaveViewRequest

router = APIRouter()


@router.get(
    "/views",
    summary="List the saved views of the page.",
    response_model=SavedViewsAnswer,
    responses=documented(InputError, *LOAD),
)
async def list_views(request: Request, service: Service, workers: RequestWorkers) -> Response:
    """A view is an address of the page under a name, for all who use the gallery."""
    return await workers.run(lambda: _answer(decisions.list_views(service)), request.receive)


@router.post(
    "/views",
    summary="Save, replace or delete a view of the page.",
    response_model=SavedViewsAnswer,
    responses=documented(
        *BODY, ChangedError, ForbiddenError, ChangesNotAllowedError, UnknownItemError, UnwritableError, *LOAD
    ),
    openapi_extra=accepts(SaveViewRequest),
)
async def save_view(request: Request, service: Service, workers: RequestWorkers) -> Response:
    """The answer has all views. They are kept in the log of decisions, which a rebuilt gallery keeps. With
    `items`, it is a collection of up to 10,000 images, which conditions can name."""
    changes.check_allowed(service)
    body = await read_body(request, JSON)

    def work() -> Response:
        query = validate(SaveViewRequest, body.values())
        return _answer(decisions.save_view(service, query.name, query.address, query.old, query.items))

    return await workers.run(work)


def _answer(found: list[StoredView]) -> Response:
    shown = [
        SavedView(name=one.name, address=one.address, time=one.time, images=len(one.items) or None)
        for one in found
    ]
    return Response(SavedViewsAnswer(views=shown).model_dump_json(), media_type=JSON)
