"""Exception handlers of the API: every error becomes a problem document.

Errors of the project carry their code and status; those of FastAPI, Starlette and pydantic get them here.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, TypeVar, get_args

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from retrieval.errors import ImageError, InputError, LookalikeError, StoreError, did_you_mean
from serve.core.errors import (
    INTERNAL_DETAIL,
    UNREACHABLE,
    BusyError,
    DeadlineExceededError,
    FetchError,
    InternalError,
    InvalidRequestError,
    MalformedBodyError,
    MethodNotAllowedError,
    ModelMismatchError,
    NoModelError,
    NoTextEncoderError,
    NotFoundError,
    RateLimitError,
    ServerError,
    SignInError,
    SignInRateLimitError,
    SlowRequestError,
    TooLargeError,
    UnavailableError,
    UnsupportedMediaTypeError,
    UrlsNotAllowedError,
)
from serve.core.telemetry import Telemetry
from serve.http.problem import (
    CLIENT_CLOSED_REQUEST,
    MEDIA_TYPE,
    instance_of,
    problem_members,
    problem_response,
)

# Errors that are documented for all routes, for those that read a body, for those that embed images and
# texts, and for those with a thread pool.
COMMON = (SignInError, RateLimitError, SignInRateLimitError, LookalikeError, UnavailableError)
BODY = (MalformedBodyError, SlowRequestError, TooLargeError, UnsupportedMediaTypeError, InputError)
CONTENT = (
    ModelMismatchError,
    NoModelError,
    NoTextEncoderError,
    ImageError,
    UrlsNotAllowedError,
    FetchError,
)
LOAD = (BusyError, DeadlineExceededError, *COMMON)
_EXAMPLE_INSTANCE = "urn:uuid:1b4e28ba-2fa1-41d2-883f-0016d3cca427"
_MAX_FAULTS = 20  # in one response: a small request may have very many
# Names of fields in other search servers.
_SYNONYMS = {
    "threshold": "min_score",
    "score_threshold": "min_score",
    "min_similarity": "min_score",
    "limit": "k",
    "top_k": "k",
    "filter": "where",
}
_MAX_HINT_LENGTH = 50  # characters of an unknown name to compare with the known ones, which takes time
_log = logging.getLogger("lookalike.serve")
M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], values: Any) -> M:
    """Return values as an instance of a model; raise an `InvalidRequestError` that lists all faults."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        places = [_place(fault["loc"], values, fault["type"]) for fault in faults]
        placed = [{**fault, "loc": place} for fault, place in zip(faults, places, strict=True)]
        raise _invalid_request(placed, model) from None


def install(app: FastAPI, telemetry: Telemetry, routers: Sequence[APIRouter] = ()) -> None:
    """Respond to every error of an application with a problem document, and count it.

    Args:
        app: The application.
        telemetry: Counts the problems.
        routers: Its routes, for the header `Allow`; FastAPI names the methods of one route of a path.
    """
    methods = defaultdict[str, set[str]](set)
    for router in routers:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            named = route.methods or set()
            methods[route.path] |= {*named, *(["HEAD"] if "GET" in named else [])}

    def respond(request: Request, error: LookalikeError, headers: Any = None) -> Response:
        telemetry.problems.labels(error.code).inc()
        return problem_response(error, request.scope, headers)

    @app.exception_handler(LookalikeError)
    async def handle_error(request: Request, error: LookalikeError) -> Response:
        # Refusals under overload are counted, not logged: the log could not keep up.
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, BusyError):
            _log.error("%s: %s: %s", instance_of(request.scope), error.code, error)
        if isinstance(error, InputError) and error.pointer and request.method == "GET":
            error.pointer = error.pointer.replace("#/", "#/query/", 1)  # as those of pydantic
        return respond(request, error)

    @app.exception_handler(StoreError)
    async def handle_store_error(request: Request, error: StoreError) -> Response:
        _log.error("%s: %s", instance_of(request.scope), error)
        return respond(request, UnavailableError(UNREACHABLE))

    @app.exception_handler(HTTPException)
    async def handle_http_exception(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        found = methods.get(getattr(request.scope.get("route"), "path", ""))
        if found and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(sorted(found))
        return respond(request, _of_http_exception(error), headers)

    @app.exception_handler(RequestValidationError)
    async def handle_invalid_parameters(request: Request, error: RequestValidationError) -> Response:
        route = request.scope.get("route")
        models = [field.field_info.annotation for field in route.dependant.query_params] if route else []
        return respond(request, _invalid_request(error.errors(), next(iter(models), None), prefix=1))

    @app.exception_handler(ClientDisconnect)
    async def handle_disconnect(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    @app.exception_handler(Exception)
    async def handle_unexpected(request: Request, error: Exception) -> Response:
        return respond(request, InternalError(INTERNAL_DETAIL))  # uvicorn logs the error


def documented(*kinds: type[LookalikeError]) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of a route for its OpenAPI description."""
    responses: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        content = {"schema": {"$ref": "#/components/schemas/ProblemDetails"}, "examples": {}}
        description = HTTPStatus(kind.status).phrase
        response = responses.setdefault(
            kind.status, {"description": description, "content": {MEDIA_TYPE: content}}
        )
        example = {"summary": kind.title, "value": problem_members(kind, "...", _EXAMPLE_INSTANCE)}
        response["content"][MEDIA_TYPE]["examples"][kind.code] = example
        if issubclass(kind, ServerError) and kind.retry_after is not None:
            response["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return responses


def _of_http_exception(error: HTTPException) -> ServerError:
    if error.status_code == HTTPStatus.NOT_FOUND:
        return NotFoundError("no such path: the OpenAPI description lists all routes")
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return MethodNotAllowedError("method not allowed: the Allow header lists the allowed ones")
    if error.status_code == HTTPStatus.BAD_REQUEST:
        return MalformedBodyError(f"malformed body: {error.detail}")
    if error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return TooLargeError("the request is too large")
    return InternalError(INTERNAL_DETAIL)


def _invalid_request(faults: Sequence[Any], model: Any = None, prefix: int = 0) -> InvalidRequestError:
    """Return the error for the faults that pydantic found in a request.

    Args:
        faults: Faults as pydantic reports them.
        model: Model of the request, for hints at unknown fields.
        prefix: Number of parts of a fault's location before those of the model.
    """

    def message(fault: Any) -> str:
        is_unknown = fault["type"] == "extra_forbidden"
        said = str(fault["msg"]).removeprefix("Value error, ")  # before words of ours
        return _unknown_field(model, fault["loc"][prefix:]) if is_unknown else said

    errors = [{"pointer": _pointer(fault["loc"]), "detail": message(fault)} for fault in faults[:_MAX_FAULTS]]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return InvalidRequestError(f"{errors[0]['pointer']}: {errors[0]['detail']}{more}", errors)


def _place(location: Sequence[int | str], values: Any, kind: str) -> list[int | str]:
    """Return the parts of a fault's location that are in the request: pydantic adds alternatives of a type.

    Args:
        location: Location as pydantic reports it.
        values: The request.
        kind: Kind of the fault; the last part of what is "missing" is not in the request.
    """
    found: list[int | str] = []
    for number, part in enumerate(location):
        is_list = isinstance(values, list) and isinstance(part, int)
        if is_list or (isinstance(values, dict) and part in values):
            values = values[part]
            found.append(part)
        elif kind == "missing" and number == len(location) - 1:
            found.append(part)
    return found


def _pointer(location: Sequence[int | str]) -> str:
    """Return a location as a JSON pointer in a URI fragment (RFC 6901)."""
    parts = [str(part).replace("~", "~0").replace("/", "~1") for part in location]
    return "#" + "".join(f"/{part}" for part in parts)


def _unknown_field(model: Any, location: Sequence[int | str]) -> str:
    """Return a message about an unknown field, with a hint at a known one.

    Args:
        model: Model of the request, or a type that contains it.
        location: Path of the field in the request, its own name last.
    """
    *parents, name = location
    for parent in parents:
        if isinstance(parent, str):
            model = next((one.model_fields[parent].annotation for one in _models(model)), None)
    known = [field for one in _models(model) for field in one.model_fields]
    synonym = _SYNONYMS.get(str(name))
    if synonym in known:
        return f"there is no such field; did you mean {synonym!r}?"
    hint = did_you_mean(str(name)[:_MAX_HINT_LENGTH], known, f"there are {', '.join(known)}")
    return f"there is no such field; {hint}"


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in a type such as `list[Query]`."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in get_args(kind):
        yield from _models(part)
