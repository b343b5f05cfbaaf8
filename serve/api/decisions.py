"""API routes of the decisions about images that people made by hand, where the server allows changes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from retrieval.errors import InputError, pointing
from retrieval.storage.decisions import Decision as StoredDecision
from serve.api.bodies import JSON, read_body
from serve.api.context import RequestWorkers, Service
from serve.api.exception_handlers import BODY, LOAD, documented, validate
from serve.api.items import IfMatch, unchanged
from serve.api.openapi import accepts
from serve.core import changes, decisions
from serve.core.errors import (
    ChangedError,
    ChangesNotAllowedError,
    ForbiddenError,
    UnknownDecisionError,
    UnknownItemError,
    UnwritableError,
)
from serve.http.representations import etag_of, matches
from serve.wire.decisions import (
    Decision,
    DecisionParameters,
    DecisionsAnswer,
    KeepRequest,
    LeftLabel,
    UndoAnswer,
    UndoRequest,
)

_ERRORS = (ForbiddenError, ChangesNotAllowedError, UnwritableError, *LOAD)
DecisionNumber = Annotated[int, Path(description="The number of a decision.", ge=1)]
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


@router.get(
    "/decisions/{n:int}",
    summary="A decision by its number.",
    response_model=Decision,
    responses=documented(UnknownDecisionError, InputError, *_ERRORS),
)
async def decision(n: DecisionNumber, service: Service) -> Response:
    """With its `ETag`, which changes when it is undone."""
    return Response(_body(await service.run(lambda: decisions.read_decision(service, n))), media_type=JSON)


@router.post(
    "/decisions",
    summary="Decide that an image is right as it is.",
    status_code=204,
    responses=documented(*BODY, UnknownItemError, ChangedError, *_ERRORS),
    openapi_extra=accepts(KeepRequest),
)
async def keep_image(request: Request, service: Service, workers: RequestWorkers) -> Response:
    """Jobs of the kind `suspects` leave it out while it has its present label. To change a label or remove an
    image, use the routes that do so: they log the decision themselves."""
    changes.check_allowed(service)
    body = await read_body(request, JSON)

    def work() -> Response:
        query = validate(KeepRequest, body.values())
        tags = None if query.etag is None else [query.etag]
        with pointing("#/etag"):
            decisions.keep(service, query.id, unchanged(service, tags))
        return Response(status_code=204)

    return await workers.run(work)


@router.post(
    "/decisions:undo",
    summary="Undo several decisions.",
    response_model=UndoAnswer,
    responses=documented(*BODY, UnknownDecisionError, *_ERRORS),
    openapi_extra=accepts(UndoRequest),
)
async def undo_decisions(request: Request, service: Service, workers: RequestWorkers) -> UndoAnswer:
    """At most 1,000, in one transaction. The answer says which of them were undone before, and which labels
    stay since somebody has changed them."""
    changes.check_allowed(service)
    body = await read_body(request, JSON)

    def work() -> UndoAnswer:
        query = validate(UndoRequest, body.values())
        with pointing("#/decisions"):
            found = decisions.undo_many(service, query.decisions)
        left = [LeftLabel(decision=number, label=label) for number, label in found.left.items()]
        return UndoAnswer(undone=found.undone, already=found.already, left=left)

    return await workers.run(work)


@router.delete(
    "/decisions/{n:int}",
    summary="Undo a decision.",
    status_code=204,
    responses=documented(UnknownDecisionError, ChangedError, InputError, *_ERRORS),
)
async def undo_decision(
    n: DecisionNumber, service: Service, workers: RequestWorkers, if_match: IfMatch = None
) -> Response:
    """A label changes back, if it is still the one decided on. An image that was removed comes back when its
    folder is indexed again. Undoing again has no further effect."""
    changes.check_allowed(service)

    def check(found: StoredDecision) -> None:
        if if_match is not None and not matches(", ".join(if_match), etag_of(_body(found))):
            raise ChangedError(f"decision {n} was undone in the meantime: look at it again")

    await workers.run(lambda: decisions.undo(service, n, check))
    return Response(status_code=204)


def _body(found: StoredDecision) -> bytes:
    return Decision.model_validate(found, from_attributes=True).model_dump_json().encode()
