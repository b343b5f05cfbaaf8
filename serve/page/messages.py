"""Status messages: notes, problems, progress, and error messages without paths of the server."""

from __future__ import annotations

import logging
from collections.abc import Callable

from markupsafe import Markup

from retrieval.errors import ImageError, InputError, StoreError
from retrieval.progress import Stage
from serve.core.errors import UNREACHABLE, ServerError
from serve.page.assets import render

_UNEXPECTED = "Internal error: the server's log has the details."
_log = logging.getLogger("lookalike.serve")


def note(text: str) -> Markup:
    """Return a status line."""
    return render("message", text=text, problem=False)


def problem(text: str) -> Markup:
    """Return a status line about a problem, with its solution."""
    return render("message", text=text, problem=True)


def progress(key: str, stage: Stage | None, title: str) -> Markup:
    """Return a progress bar.

    Args:
        key: The work that the component asks about again, see `poll.js`.
        stage: How far the work is; None if it has not started or reports nothing.
        title: What is being done: "Evaluating".
    """
    return render("progress", key=key, stage=stage, title=title)


def error_message(error: Exception) -> Markup:
    """Return an error as a status line; unexpected errors are logged, without details for the visitor."""
    if isinstance(error, ImageError):
        return problem(f"This image cannot be used: {error.detail}. Choose another one.")
    if isinstance(error, InputError | ServerError):  # their messages are written for visitors
        return problem(str(error))
    if isinstance(error, StoreError):
        _log.error("%s", error)
        return problem(f"{UNREACHABLE[0].upper()}{UNREACHABLE[1:]}.")
    # Such as damaged files, whose messages contain paths of the server.
    _log.error("an event of the page failed", exc_info=error)
    return problem(_UNEXPECTED)


def html_or_error(build: Callable[[], Markup]) -> Markup:
    """Return the HTML that a function builds, or its error as a status line."""
    try:
        return build()
    except Exception as error:
        return error_message(error)
