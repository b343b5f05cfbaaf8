"""Cursors of listings: opaque texts that hold the place where the next page starts.

A cursor holds the id of the last item and its value in the order, so the server keeps nothing. It also holds
what it belongs to, the gallery, the condition and the order, and is refused with others.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from retrieval.errors import InputError
from retrieval.search.where import is_text
from retrieval.storage.listing import Place

_DIGITS = 8  # of the gallery's UUID, and of the SHA-256 of condition and order


class CursorError(InputError):
    """A cursor that does not belong to the listing."""

    pointer = "#/cursor"


@dataclass(frozen=True)
class Listing:
    """What a cursor belongs to.

    Attributes:
        uuid: UUID of the gallery; ids of a rebuilt one are those of other images.
        where: Condition.
        order: Order, as text.
    """

    uuid: str
    where: str | None
    order: str

    def cursor(self, place: Place) -> str:
        """Return the cursor of a place."""
        values = [self.uuid[:_DIGITS], self._digest(), place.value, place.id]
        text = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    def place(self, cursor: str) -> Place:
        """Return the place of a cursor.

        Raises:
            CursorError: It is not a cursor of this listing.
        """
        uuid, digest, value, number = _decode(cursor)
        if uuid != self.uuid[:_DIGITS]:
            raise CursorError("cursor: the gallery was rebuilt in the meantime; list it again from the start")
        if digest != self._digest():
            what = "cursor: it belongs to another condition or order"
            raise CursorError(f"{what}; send those of the first page with every cursor")
        return Place(value, number)

    def _digest(self) -> str:
        text = json.dumps([self.where, self.order])
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _decode(cursor: str) -> tuple[str, str, Any, int]:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        uuid, digest, value, number = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise _invalid() from None
    whole = type(number) is int and 0 < number < 2**63
    if not whole or not (value is None or _is_stored(value)):
        raise _invalid()
    return uuid, digest, value, number


def _is_stored(value: object) -> bool:
    """Return whether a gallery can hold a value."""
    if type(value) is int:
        return -(2**63) <= value < 2**63
    return type(value) is float or (type(value) is str and is_text(value))


def _invalid() -> CursorError:
    return CursorError("cursor: not one of this API; send the next_cursor of the page before, unchanged")
