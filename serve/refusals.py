"""What is answered in place of the application: a problem document for programs, a sentence for people."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope

from serve.api.problems import Problem


def refusal(scope: Scope, code: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error's answer: under /v1 a problem document, elsewhere its sentence as text.

    `scope["state"]["refused"]` has the code, for those who count.

    Args:
        scope: the request.
        code: one of `serve.api.problems.CODES`, which has the status.
        detail: one sentence for people.
        headers: such as `Retry-After`.
    """
    scope.setdefault("state", {})["refused"] = code
    problem = Problem(code, detail, headers=headers)
    if scope["path"].startswith("/v1/"):
        return problem.response(scope)
    return PlainTextResponse(f"{detail}\n", problem.status, problem.headers)
