"""What an address of the page asks for."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs

from retrieval.errors import InputError
from serve.core.queries import MAX_TOGETHER, Region
from serve.page.wishes import Wishes


@dataclass(frozen=True)
class Address:
    """A search that can be found again.

    Attributes:
        items: pictures of the gallery, each with its region, if not all of it is meant.
        number: of a search of this visit, for a query with pictures from outside; 0: none.
        wishes: how.
    """

    items: tuple[tuple[int, Region | None], ...]
    number: int
    wishes: Wishes

    @classmethod
    def of(cls, query: str) -> Address:
        """Read what follows the `?`. Addresses are cut: what cannot be is as if it were not there."""
        given = parse_qs(query.removeprefix("?"), keep_blank_values=True)
        ids = [int(value) for value in given.get("id", []) if value.isdecimal() and len(value) < 20]
        regions = [_region(value) for value in given.get("region", [])]
        regions += [None] * (len(ids) - len(regions))
        number = given.get("q", [""])[-1]
        return cls(
            tuple(zip(ids, regions, strict=False))[:MAX_TOGETHER],
            int(number) if number.isdecimal() and len(number) < 10 else 0,
            Wishes.of({name: values[-1] for name, values in given.items()}),
        )


def _region(value: str) -> Region | None:
    try:
        return Region.of([float(part) for part in value.split(",")])
    except (InputError, ValueError):
        return None
