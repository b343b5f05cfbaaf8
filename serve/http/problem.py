"""Errors as RFC 9457 problem details: one shape for everything that goes wrong, with a stable code."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Scope

MEDIA_TYPE = "application/problem+json"
INTERNAL = "internal-error"
# What a program may rely on: code -> status and title.
CODES = {
    "malformed-body": (400, "The body cannot be read"),
    "wrong-host": (400, "The server does not go by this name"),
    "sign-in": (401, "Sign-in is needed"),
    "forbidden": (403, "Not allowed"),
    "changes-not-allowed": (403, "Images are not added or removed here"),
    "urls-not-allowed": (403, "Addresses of images are not fetched"),
    "not-found": (404, "No such address"),
    "no-such-image": (404, "No such image"),
    "method-not-allowed": (405, "The address has no such method"),
    "too-slow": (408, "The request took too long to arrive"),
    "model-mismatch": (409, "The vector is of another model"),
    "no-model": (409, "The gallery has no model"),
    "too-large": (413, "The request is too large"),
    "unsupported-media-type": (415, "The body is of a type that is not taken"),
    "invalid-request": (422, "The request cannot be used"),
    "unusable-image": (422, "The image cannot be used"),
    "not-fetched": (422, "There is no image at the address"),
    "too-many-requests": (429, "Too many requests"),
    "too-many-tries": (429, "Too many wrong tries to sign in"),
    INTERNAL: (500, "The server failed"),
    "busy": (503, "The server is busy"),
    "gallery-unavailable": (503, "The gallery cannot be read"),
    "deadline-exceeded": (504, "The request took too long to answer"),
    "not-stored": (507, "The server cannot store it"),
}
RETRY_SECONDS = {"busy": "1", "gallery-unavailable": "5"}


class Problem(Exception):  # noqa: N818  the standard's word
    """Raise it in an endpoint to answer with a problem; middleware, which cannot, sends its `response`.

    Args:
        code: one of `CODES`.
        detail: a sentence for the caller, without paths of the server.
        headers: to send along.
        more: further members of the answer.
    """

    def __init__(
        self, code: str, detail: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(detail)
        self.code, self.detail, self.more = code, detail, more
        self.status, self.title = CODES[code]
        retry = {"Retry-After": RETRY_SECONDS[code]} if code in RETRY_SECONDS else {}
        self.headers = {"Cache-Control": "no-store", **retry, **(headers or {})}

    def members(self, instance: str) -> dict[str, Any]:
        """The problem as JSON values; `instance` names this occurrence."""
        return {
            "type": f"urn:lookalike:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "instance": instance,
            "code": self.code,
            **self.more,
        }

    def response(self, scope: Scope) -> Response:
        """The answer to a request."""
        members = self.members(instance(scope))
        return JSONResponse(members, self.status, self.headers, media_type=MEDIA_TYPE)


def instance(scope: Scope) -> str:
    """Names one request: by the `request_id` of its state, a UUID, where it was given one."""
    return f"urn:uuid:{scope.get('state', {}).get('request_id') or uuid.uuid4()}"
