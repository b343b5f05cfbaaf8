"""API routes of the decisions about images that people made by hand, where the server allows changes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from retrieval.errors import InputError
from serve.api.bodies import JSON, read_body
from serve.api.context import RequestWorkers, Service
from serve.api.exception_handlers import BODY, LOAD, documented, validate
from serve.api.openapi import accepts
from serve.core import changes, decisions
from serve.core.errors import (
    ChangesNotAllowedError,
    ForbiddenError,
    UnknownDecisionError,
    UnknownItemError,
    UnwritableError,
)
from serve.wire.decisions import Decision, DecisionParameters, DecisionsAnswer, KeepRequest

_ERRORS = (ForbiddenError, ChangesNotAllowedError, UnwritableError, *LOAD)
router = APIRouter()


@router.get(
    "/decisions",
    summary="List the decisions about images.",
    response_model=DecisionsAnswer,
    responses=documented(InputError, *_ERRORS),
)
async def list_decisions(
    request: Request,
    parameters: Annotated[DecisionParameters, Query()],
    service: Service,
    workers: RequestWorkers,
) -> Response:
    """Labels that were changed, images that were removed or kept as they are; by this server or a command."""

    def work() -> Response:
        found = decisions.list_decisions(service, parameters.limit, parameters.before)
        shown = [Decision.model_validate(one, from_attributes=True) for one in found]
        return Response(DecisionsAnswer(decisions=shown).model_dump_json(), media_type=JSON)

    return await workers.run(work, request.receive)


@router.post(
    "/decisions",
    summary="Decide that an image is right as it is.",
    status_code=204,
    responses=documented(*BODY, UnknownItemError, *_ERRORS),
    openapi_extra=accepts(KeepRequest),
)
async def keep_image(request: Request, service: Service, workers: RequestWorkers) -> Response:
    """Jobs of the kind `suspects` leave it out while it has its present label. To change a label or remove an
    image, use the routes that do so: they log the decision themselves."""
    changes.check_allowed(service)
    body = await read_body(request, JSON)

    def work() -> Response:
        decisions.keep(service, validate(KeepRequest, body.values()).id)
        return Response(status_code=204)

    return await workers.run(work)


@router.delete(
    "/decisions/{n:int}",
    summary="Undo a decision.",
    status_code=204,
    responses=documented(UnknownDecisionError, InputError, *_ERRORS),
)
async def undo_decision(
    n: Annotated[int, Path(description="The number of a decision.", ge=1)],
    service: Service,
    workers: RequestWorkers,
) -> Response:
    """A label changes back, if it is still the one decided on. An image that was removed comes back when its
    folder is indexed again. Undoing again has no further effect."""
    changes.check_allowed(service)
    await workers.run(lambda: decisions.undo(service, n))
    return Response(status_code=204)
