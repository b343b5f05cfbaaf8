"""What a visitor has searched for since the page was opened; nothing of it is on the disk."""

from __future__ import annotations

from dataclasses import dataclass, replace

from serve.page.asking import Asked, named
from serve.page.wishes import Wishes

LONGEST = 12  # searches that are remembered
_MOST = 24  # pictures in them: they are kept for an hour, and there may be many visitors


@dataclass(frozen=True, eq=False)
class Entry:
    """A search of this visit.

    Attributes:
        number: that an address knows it by, from 1.
    """

    number: int
    asked: Asked
    wishes: Wishes


@dataclass(frozen=True, eq=False)
class Visit:
    """The state of one page in a browser.

    Attributes:
        asked: the query; empty: none.
        shown: which of its pictures is shown in large.
        past: searches, newest first.
        last: the number of the newest search ever.
    """

    asked: Asked = ()
    shown: int = 0
    past: tuple[Entry, ...] = ()
    last: int = 0

    def asking(self, asked: Asked, shown: int = 0) -> Visit:
        """With another query, that is not a search yet."""
        return replace(self, asked=asked, shown=max(0, min(shown, len(asked) - 1)))

    def searched(self, wishes: Wishes) -> Visit:
        """The query was searched for; the same one in another way is no other search."""
        before = next((entry for entry in self.past if _same(entry.asked, self.asked)), None)
        number = self.last + 1 if before is None else before.number
        past = [Entry(number, self.asked, wishes), *(entry for entry in self.past if entry is not before)]
        kept = past[:LONGEST]
        while len(kept) > 1 and sum(len(entry.asked) for entry in kept) > _MOST:
            kept.pop()
        return replace(self, past=tuple(kept), last=max(self.last, number))

    def entry(self, number: int) -> Entry | None:
        """A search by its number; `None` where it is forgotten."""
        return next((entry for entry in self.past if entry.number == number), None)


def _same(one: Asked, other: Asked) -> bool:
    name = named([part.query for part in one])
    return one is other or (bool(name) and name == named([part.query for part in other]))
