"""What a visitor asks for beside the query picture: in the form, and in an address that can be shared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from retrieval.search.query import SearchOptions

MAX_K = 100


@dataclass(frozen=True)
class Wishes:
    """Which pictures are wanted, and how many.

    Attributes:
        k: how many, 1 to `MAX_K`.
        where: a condition they fulfil, see `retrieval.search.where`; empty: any.
        min_score: the lowest score; `None`: any.
        group_by: a column, of whose values each gives its best picture alone; empty: none.
    """

    k: int = 10
    where: str = ""
    min_score: float | None = None
    group_by: str = ""

    @classmethod
    def of(cls, values: Any) -> Wishes:
        """Read what a browser sent: the form, an address, or K alone.

        People are still typing, and links are cut: what is no number is as if it were not there.
        """
        given: Mapping[str, Any] = values if isinstance(values, Mapping) else {"k": values}
        k = _number(given.get("k"))
        return cls(
            k=cls.k if k is None else int(min(max(k, 1), MAX_K)),
            where=str(given.get("where") or "").strip(),
            min_score=_number(given.get("min_score")),
            group_by=str(given.get("group_by") or ""),
        )

    def options(self) -> SearchOptions:
        """The same for the search; an `InputError` for a score that none can have."""
        return SearchOptions(
            k=self.k,
            where=self.where or None,
            min_score=self.min_score,
            group_by=self.group_by or None,
        )

    def form(self, columns: Sequence[str]) -> dict[str, Any]:
        """What the form shows: every field as text, and the columns of the gallery's metadata."""
        return {
            "k": str(self.k),
            "where": self.where,
            "min_score": self._lowest,
            "group_by": self.group_by,
            "groups": ["label", *columns],
            "example": example(columns),
        }

    def address(self, query: Sequence[tuple[str, str]]) -> str:
        """The address of a search in this way, from its `?` on; the query as names and values."""
        fields = {"k": str(self.k), "where": self.where, "min_score": self._lowest, "group_by": self.group_by}
        given = [(name, value) for name, value in fields.items() if value]
        return "?" + urlencode([*query, *given], safe=",")

    @property
    def _lowest(self) -> str:
        return "" if self.min_score is None else str(self.min_score)


def example(columns: Sequence[str]) -> str:
    """What a condition may look like, with the columns there are."""
    return ", ".join(["label = '…'", *columns, "path", "width"])


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
