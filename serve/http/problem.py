"""Error responses: RFC 9457 problem documents, or a plain sentence for browsers."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Scope

from retrieval.errors import ImageError, InputError, LookalikeError
from serve.addresses import API, within_api, within_page
from serve.core.errors import INTERNAL_DETAIL, InvalidRequestError, ServerError

_OPENAI_PATH = re.compile(r"/(embeddings|models(/.*)?)")  # of the routes for clients of OpenAI's API
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_NO_RETRY = {"x-should-retry": "false"}  # OpenAI's clients repeat requests with status 409
MEDIA_TYPE = "application/problem+json"
CLIENT_CLOSED_REQUEST = 499  # nginx's status for a client that disconnected before the response
_PAGE_PATHS = ("/gradio_api/", "/page/", "/config", "/favicon.ico")


def problem_document(error: LookalikeError, instance: str) -> dict[str, Any]:
    """Return an error as the members of a problem document.

    Args:
        error: The error; its class has the code, status and title.
        instance: URI of this occurrence, see `instance_of`.
    """
    members = problem_members(type(error), _detail(error), instance)
    if isinstance(error, ImageError):
        members["reason"] = error.reason
    if isinstance(error, InputError) and error.pointer is not None:
        members["errors"] = [{"pointer": error.pointer, "detail": members["detail"]}]
    if isinstance(error, InvalidRequestError):
        members["errors"] = error.errors
    return members


def problem_members(kind: type[LookalikeError], detail: str, instance: str) -> dict[str, Any]:
    """Return the members that every problem document of an error class has."""
    return {
        "type": f"urn:lookalike:problem:{kind.code}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "instance": instance,
        "code": kind.code,
    }


def problem_response(
    error: LookalikeError, scope: Scope, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the problem document of an error as the response to a request.

    Args:
        error: The error.
        scope: ASGI scope of the request.
        headers: Headers to add to those of the error.
    """
    content = problem_document(error, instance_of(scope))
    headers = _headers(error) | dict(headers or {})
    if scope["path"].startswith(API) and _OPENAI_PATH.fullmatch(within_api(scope["path"])):
        content["error"] = openai_error(content)
        headers |= _NO_RETRY if error.status == HTTPStatus.CONFLICT else {}
    return JSONResponse(content, error.status, headers, media_type=MEDIA_TYPE)


def openai_error(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem document as the `error` object that clients of OpenAI's API read."""
    status = problem["status"]
    faults = problem.get("errors") or [{}]
    return {
        "message": problem["detail"],
        "type": _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error"),
        "param": faults[0].get("pointer"),
        "code": problem["code"],
    }


def refusal(scope: Scope, error: ServerError) -> Response:
    """Return the response of middleware that refuses a request.

    It is a problem document, or the sentence alone on the page and for clients that accept HTML. Stores the
    problem code in `scope["state"]["refused"]`, from where the access log counts it.
    """
    scope.setdefault("state", {})["refused"] = error.code
    if _is_read_by_people(scope):
        return PlainTextResponse(f"{error}\n", error.status, _headers(error))
    return problem_response(error, scope)


def instance_of(scope: Scope) -> str:
    """Return the URI of a request: its `request_id`, or a new UUID if it has none."""
    return f"urn:uuid:{scope.get('state', {}).get('request_id') or uuid.uuid4()}"


def _detail(error: LookalikeError) -> str:
    """Return the message of an error, or a general one if it may contain internals such as paths."""
    if isinstance(error, ImageError):
        return error.detail
    return str(error) if isinstance(error, InputError | ServerError) else INTERNAL_DETAIL


def _headers(error: LookalikeError) -> dict[str, str]:
    return {"Cache-Control": "no-store"} | (error.headers if isinstance(error, ServerError) else {})


def _is_read_by_people(scope: Scope) -> bool:
    if scope["path"] == API or scope["path"].startswith(f"{API}/"):
        return False  # regardless of the Accept header: some programs accept HTML by default
    path = within_page(scope["path"])
    return (
        path == "/" or path.startswith(_PAGE_PATHS) or "text/html" in Headers(scope=scope).get("accept", "")
    )
