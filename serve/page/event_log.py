"""Log of events that fail in Gradio: one line each in place of a traceback.

Anybody can send an event with a function that does not exist or with data of the wrong kind. Gradio prints a
traceback of some 20 lines for each, or lets the server print one, and has no setting for that.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from traceback import extract_tb

from fastapi import FastAPI
from gradio import queueing, routes
from starlette.requests import Request
from starlette.responses import Response

from serve.core.errors import MalformedBodyError
from serve.http.problem import refusal

_MAX_MESSAGE = 200  # characters
_MALFORMED = (LookupError, ValueError, TypeError, AttributeError)  # what Gradio's routes raise
_log = logging.getLogger("lookalike.serve")


class _EventLog:
    """Stands for the module `traceback` in Gradio's modules that process events."""

    @staticmethod
    def print_exc() -> None:
        """Log the exception that is being handled."""
        error = sys.exc_info()[1]
        if error is not None:
            _report(error)


def log_event_errors(app: FastAPI) -> None:
    """Let a page log failed events in one line each.

    Args:
        app: Gradio's application, which has not handled a request yet.
    """
    for module in (queueing, routes):  # where events are run
        module.traceback = _EventLog
    for kind in _MALFORMED:  # raised before they are run
        app.add_exception_handler(kind, _refuse)


async def _refuse(request: Request, error: Exception) -> Response:
    _report(error)
    return refusal(request.scope, MalformedBodyError("the event cannot be processed: reload the page"))


def _report(error: BaseException) -> None:
    """Log an error in one line; its traceback only with `--log-level debug`."""
    place = extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    message = " ".join(str(error).split())[:_MAX_MESSAGE]
    _log.error("an event of the page failed at %s: %s: %s", where, type(error).__name__, message)
    _log.debug("its traceback", exc_info=error)
