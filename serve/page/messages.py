"""Status messages: notes, problems, and error messages without paths of the server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from markupsafe import Markup

from retrieval.errors import ImageError, InputError, StoreError
from serve.core.errors import UNREACHABLE, ServerError
from serve.core.service import SearchService
from serve.page.assets import render

_UNEXPECTED = "Internal error: the server's log has the details."
_log = logging.getLogger("lookalike.serve")


def note(text: str) -> Markup:
    """Return a status line."""
    return render("message", text=text, problem=False)


def problem(text: str) -> Markup:
    """Return a status line about a problem, with its solution."""
    return render("message", text=text, problem=True)


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


@contextmanager
def hide_paths(service: SearchService) -> Iterator[None]:
    """Hide folder and database of the gallery in the errors raised inside."""
    try:
        yield
    except InputError as error:
        message = str(error).replace(str(service.folder), service.name)
        raise InputError(service.gallery.public(message)) from error
