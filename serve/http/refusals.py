"""What is answered in place of the application: a problem document, or a sentence where people read it."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from serve.addresses import API, within_page
from serve.http.problem import Problem

_OF_PAGE = ("/gradio_api/", "/assets/", "/static/", "/config", "/theme.css", "/favicon.ico")


def refusal(scope: Scope, code: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error's answer: a problem document; on the page, and elsewhere for who reads HTML, its sentence.

    `scope["state"]["refused"]` has the code, for those who count.

    Args:
        scope: the request.
        code: one of `serve.http.problem.CODES`, which has the status.
        detail: one sentence for people.
        headers: such as `Retry-After`.
    """
    scope.setdefault("state", {})["refused"] = code
    problem = Problem(code, detail, headers=headers)
    if _is_read_by_people(scope):
        return PlainTextResponse(f"{detail}\n", problem.status, problem.headers)
    return problem.response(scope)


def _is_read_by_people(scope: Scope) -> bool:
    if scope["path"] == API or scope["path"].startswith(f"{API}/"):
        return False  # whatever it accepts: some programs say by default that they take HTML
    path = within_page(scope["path"])
    return path == "/" or path.startswith(_OF_PAGE) or "text/html" in Headers(scope=scope).get("accept", "")
