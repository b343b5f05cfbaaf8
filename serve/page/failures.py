"""What visitors are told when something fails: one line, never where things lie on the server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from retrieval.errors import ImageError, InputError
from serve.core.errors import ServerError
from serve.core.service import SearchService
from serve.page import views

_BROKEN = "Something went wrong here; the server's log has the details."
_log = logging.getLogger("lookalike.serve")


def sentence(error: Exception) -> str:
    """A line of status for what was raised; what is no fault of the visitor goes to the log."""
    if isinstance(error, ImageError):
        return views.trouble(f"This picture cannot be used: {error.detail}. Choose another one.")
    if isinstance(error, InputError | ServerError):  # their messages are written for visitors
        return views.trouble(str(error))
    # Also damage on the disk: what is said of it names paths of the server.
    _log.error("an event of the page failed", exc_info=error)
    return views.trouble(_BROKEN)


@contextmanager
def nameless(service: SearchService) -> Iterator[None]:
    """What is raised inside says the name of the gallery in place of where it lies."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(str(service.folder), service.name)) from error


def guarded(make: Callable[[], str]) -> str:
    """The HTML that is made, or the sentence that says why not."""
    try:
        return make()
    except Exception as error:
        return sentence(error)
