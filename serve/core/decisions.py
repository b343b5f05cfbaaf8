"""Decisions about images of a served gallery: the log, that an image is right, undo, and saved views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from retrieval.errors import InputError, pointing
from retrieval.storage.decisions import Decision, DecisionLog, SavedView
from serve.core.changes import Check, check_allowed, writing
from serve.core.errors import ChangedError, UnknownDecisionError, UnknownItemError
from serve.core.queries import find_item
from serve.core.service import SearchService

MAX_VIEWS = 200  # of a gallery


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


@dataclass(frozen=True)
class Undone:
    """What became of decisions that were to be undone.

    Attributes:
        undone: Numbers of those that are withdrawn now.
        already: Numbers of those that were withdrawn before.
        left: Label that the image keeps, which is not the one decided on any more, by number of the decision.
    """

    undone: list[int]
    already: list[int]
    left: dict[int, str | None]


def undo_many(service: SearchService, numbers: Sequence[int]) -> Undone:
    """Withdraw decisions, the newest first, as `undo` does for one.

    Raises:
        UnknownDecisionError: One of them does not exist; none is undone.
        ChangesNotAllowedError, BusyError, UnavailableError, UnwritableError: As for `serve.core.changes.add`.
    """
    check_allowed(service)
    with writing(service) as editor:
        known = {one.n: one for one in DecisionLog(service.folder).read()}
        if unknown := next((number for number in numbers if number not in known), None):
            raise UnknownDecisionError(f"there is no decision {unknown}: the list of decisions has all")
        chosen = [known[number] for number in numbers if not known[number].undone]
        changed = editor.undo([one.n for one in chosen])
    left: dict[int, str | None] = {}
    for one in chosen:
        if one.action == "label" and one.n not in changed:
            with suppress(UnknownItemError):  # it was removed
                left[one.n] = service.item(one.key).label or None
    undone = [one.n for one in chosen]
    return Undone(undone, [number for number in numbers if number not in undone], left)


def list_views(service: SearchService) -> list[SavedView]:
    """Return the saved views, by name.

    Raises:
        LookalikeError: The log is damaged.
    """
    return DecisionLog(service.folder).views()


def save_view(
    service: SearchService, name: str, address: str | None, old: str | None, items: Sequence[int] = ()
) -> list[SavedView]:
    """Save a view, and return all views.

    Args:
        service: The gallery.
        name: Name of the view.
        address: Query string of the page; None deletes the view.
        old: The address that the client has read under this name; None if there was none.
        items: Ids of images of the gallery, if the view is a collection of them.

    Raises:
        UnknownItemError: One of the images does not exist.
        ChangedError: Another address is saved under this name, or none any more.
        InputError: There are too many views.
        ChangesNotAllowedError, BusyError, UnavailableError, UnwritableError: As for `serve.core.changes.add`.
    """
    check_allowed(service)
    log = DecisionLog(service.folder)
    with writing(service):  # nobody else saves one between the check and the change
        present = {view.name: view.address for view in log.views()}
        if present.get(name) != old:
            what = "is another one now" if name in present else "was deleted"
            with pointing("#/old"):
                raise ChangedError(f"the view {name!r} {what}: look at it again")
        if address is not None and name not in present and len(present) >= MAX_VIEWS:
            raise InputError(f"there are {len(present)} views already: delete one first")
        with pointing("#/items"):
            if items and len(known := service.gallery.items(items)) < len({*items}):
                missing = next(item for item in items if item not in known)
                raise UnknownItemError(f"the gallery has no item {missing}")
        if address != old or items:
            log.save_view(name, address, items)
    return log.views()
