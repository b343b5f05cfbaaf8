"""What an error comes to as an answer: every one of them a problem, none of them telling of the inside."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from retrieval.errors import ImageError, InputError, LookalikeError
from serve.api.unknown import unknown_field
from serve.core.errors import (
    BusyError,
    FetchError,
    LateError,
    NoModelError,
    NotAllowedError,
    OtherModelError,
    UnavailableError,
    UnknownItemError,
    UnwritableError,
)
from serve.core.telemetry import Telemetry
from serve.http.problem import CODES, INTERNAL, MEDIA_TYPE, RETRY_SECONDS, Problem, instance

_OF_ERROR: Sequence[tuple[type[LookalikeError], str]] = (
    (ImageError, "unusable-image"),
    (UnknownItemError, "no-such-image"),
    (OtherModelError, "model-mismatch"),
    (NoModelError, "no-model"),
    (FetchError, "not-fetched"),
    (InputError, "invalid-request"),
    (BusyError, "busy"),
    (LateError, "deadline-exceeded"),
    (UnavailableError, "gallery-unavailable"),
    (NotAllowedError, "changes-not-allowed"),
    (UnwritableError, "not-stored"),
)
# The codes of problems that an address may answer with: any of them; one that reads a body; one that works.
ANYWHERE = ("sign-in", "too-many-requests", "too-many-tries", "internal-error", "gallery-unavailable")
BODY = ("malformed-body", "too-slow", "too-large", "unsupported-media-type", "invalid-request")
LOAD = ("busy", "deadline-exceeded", *ANYWHERE)
_OF_STATUS = {400: "malformed-body", 404: "not-found", 405: "method-not-allowed", 413: "too-large"}
_MOST_FAULTS = 20  # that are listed: a small request may have very many
_BROKEN = "something went wrong here; the server's log has the details"
_log = logging.getLogger("lookalike.serve")
M = TypeVar("M", bound=BaseModel)


def of_error(error: LookalikeError) -> Problem:
    """The problem that an error of ours comes to; what is the server's own fault is not told."""
    code = next((code for kind, code in _OF_ERROR if isinstance(error, kind)), INTERNAL)
    if isinstance(error, ImageError):
        return Problem(code, error.detail, reason=error.reason)
    return Problem(code, _BROKEN if code == INTERNAL else str(error))


def validated(model: type[M], values: Any) -> M:
    """Values as a model; a `Problem` that lists what is wrong with them."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise _invalid(found, model) from None


def install(app: FastAPI, telemetry: Telemetry) -> None:
    """Answer every error of an application with a problem, and count it."""

    def answer(problem: Problem, request: Request) -> Response:
        telemetry.problems.labels(problem.code).inc()
        return problem.response(request.scope)

    @app.exception_handler(Problem)
    async def raised(request: Request, error: Problem) -> Response:
        return answer(error, request)

    @app.exception_handler(LookalikeError)
    async def ours(request: Request, error: LookalikeError) -> Response:
        problem = of_error(error)
        # Who is refused is counted: under overload, lines would be written faster than anybody takes them.
        if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, BusyError):
            _log.error("%s: %s: %s", instance(request.scope), problem.code, error)
        return answer(problem, request)

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        code = _OF_STATUS.get(error.status_code, INTERNAL)
        return answer(Problem(code, _sentence(code, error), headers=error.headers), request)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        route = request.scope.get("route")
        asked = [one.field_info.annotation for one in route.dependant.query_params] if route else []
        return answer(_invalid(error.errors(), next(iter(asked), None), beside=1), request)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # as others count it; nobody is there to read it

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        return answer(Problem(INTERNAL, _BROKEN), request)  # the framework raises it again, for the log


def documented(*codes: str) -> dict[int | str, dict[str, Any]]:
    """The answers of an address that are problems, for its OpenAPI description."""
    answers: dict[int | str, dict[str, Any]] = {}
    for code in codes:
        status, title = CODES[code]
        content = {"schema": {"$ref": "#/components/schemas/ProblemDetails"}, "examples": {}}
        blank = {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: content}}
        answer = answers.setdefault(status, blank)
        value = Problem(code, "...").members("urn:uuid:1b4e28ba-2fa1-41d2-883f-0016d3cca427")
        answer["content"][MEDIA_TYPE]["examples"][code] = {"summary": title, "value": value}
        if code in RETRY_SECONDS:
            answer["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return answers


def _sentence(code: str, error: HTTPException) -> str:
    if code == "not-found":
        return "there is nothing at this address; the OpenAPI description lists all that there is"
    if code == "method-not-allowed":
        return "the address does not take this method; the Allow header says which ones it takes"
    if code == "malformed-body":
        return f"the body cannot be read: {error.detail}"
    return CODES[code][1]


def _invalid(found: Sequence[Any], model: Any = None, beside: int = 0) -> Problem:
    """A request that is not what it has to be.

    Args:
        found: what the validation says.
        model: what it has to be.
        beside: parts of a fault's place that come before those of the model.
    """

    def sentence(fault: Any) -> str:
        unknown = fault["type"] == "extra_forbidden"
        return unknown_field(model, fault["loc"][beside:]) if unknown else str(fault["msg"])

    faults = [{"pointer": _pointer(one["loc"]), "detail": sentence(one)} for one in found[:_MOST_FAULTS]]
    first = faults[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return Problem("invalid-request", f"{first['pointer']}: {first['detail']}{more}", errors=faults)


def _pointer(place: Sequence[int | str]) -> str:
    """RFC 6901, as the fragment of a URI."""
    parts = [str(part).replace("~", "~0").replace("/", "~1") for part in place]
    return "#" + "".join(f"/{part}" for part in parts)
