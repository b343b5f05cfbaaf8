"""A gallery's pictures in pages, oldest first, all of them or those that fulfil a condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from retrieval.gallery import Gallery, Item
from retrieval.search.query import nameable
from retrieval.search.where import Value, compile_sql, parse
from retrieval.storage.schema import ALIVE

SIZE = 60


@dataclass(frozen=True)
class Page:
    """Some of the pictures.

    Attributes:
        items: those of this page.
        where: the condition; empty: none.
        number: of the page, from 0.
        total: pictures on all pages.
    """

    items: list[Item]
    where: str
    number: int
    total: int


def page(gallery: Gallery, where: str, number: int) -> Page:
    """The pictures of one page; of the last one where there are not as many pages.

    Raises:
        InputError: a condition that is none, or with a column that is not there.
    """
    condition: str = "1"
    values: tuple[Value, ...] = ()
    if where:
        condition, values = compile_sql(parse(where), nameable(gallery.store))
    wanted = f"FROM items JOIN metadata USING (id) WHERE {ALIVE} AND ({condition})"

    def rows(query: str, *more: Any) -> list[Any]:
        return gallery.store.rows(query, (*values, *more))

    total = rows(f"SELECT count(*) {wanted}")[0][0]
    number = min(max(number, 0), last_page(total, SIZE))
    ids = rows(f"SELECT items.id {wanted} ORDER BY items.id LIMIT {SIZE} OFFSET ?", number * SIZE)
    found = gallery.items([i for (i,) in ids])
    return Page([found[i] for (i,) in ids if i in found], where, number, total)


def last_page(total: int, size: int) -> int:
    """The number of the last page, from 0."""
    return max(0, (total - 1) // size)
