"""Decisions about images on a served gallery: the log, that an image is right as it is, and undo."""

from __future__ import annotations

from collections.abc import Callable

from retrieval.errors import pointing
from retrieval.storage.decisions import Decision, DecisionLog
from serve.core.changes import Check, check_allowed, writing
from serve.core.errors import UnknownDecisionError
from serve.core.queries import find_item
from serve.core.service import SearchService


def list_decisions(service: SearchService, limit: int, before: int | None = None) -> list[Decision]:
    """Return the newest decisions, those that were undone among them, newest first.

    Args:
        service: The gallery.
        limit: Largest number of them.
        before: Return those with a number below this one.

    Raises:
        ChangesNotAllowedError: Visitors may not change the gallery.
        LookalikeError: The log is damaged.
    """
    check_allowed(service)
    found = [one for one in DecisionLog(service.folder).read() if before is None or one.n < before]
    return found[: -limit - 1 : -1]


def read_decision(service: SearchService, number: int) -> Decision:
    """Return a decision.

    Raises:
        ChangesNotAllowedError: Visitors may not change the gallery.
        UnknownDecisionError: There is no such decision.
        LookalikeError: The log is damaged.
    """
    check_allowed(service)
    for found in DecisionLog(service.folder).read():
        if found.n == number:
            return found
    raise UnknownDecisionError(f"there is no decision {number}: the list of decisions has all")


def keep(service: SearchService, item: int, check: Check | None = None) -> None:
    """Log that an image and its label are right as they are: it is not suspected any more.

    Args:
        service: The gallery.
        item: Id of the item.
        check: As for `serve.core.changes.update`.

    Raises:
        UnknownItemError: There is no such image.
        ChangesNotAllowedError, BusyError, UnavailableError, UnwritableError: As for `serve.core.changes.add`.
    """
    check_allowed(service)
    with writing(service) as editor:
        service.refresh()  # another process may have removed the image
        with pointing("#/id"):
            found = find_item(service.gallery, item)
        if check is not None:
            check(found)
        (stored,) = editor.stored_items([item])
        editor.keep(stored)


def undo(service: SearchService, number: int, check: Callable[[Decision], None] | None = None) -> None:
    """Withdraw a decision. A label changes back; a removed image comes back when its folder is indexed.

    Args:
        service: The gallery.
        number: Number of the decision.
        check: Receives the decision as it is now; what it raises keeps it.

    Raises:
        UnknownDecisionError: There is no such decision.
        ChangesNotAllowedError, BusyError, UnavailableError, UnwritableError: As for `serve.core.changes.add`.
    """
    check_allowed(service)
    with writing(service) as editor:
        found = read_decision(service, number)
        if check is not None:
            check(found)
        editor.undo([number])
