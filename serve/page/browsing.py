"""A gallery's pictures in pages, oldest first, all of them or those that fulfil a condition."""

from __future__ import annotations

from dataclasses import dataclass

from retrieval.gallery import Gallery, Item
from retrieval.search.where import parse
from retrieval.storage.queries import item_page

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
    listed = item_page(gallery.store, parse(where) if where else None, number, SIZE)
    items = gallery.items(listed.ids)
    return Page([items[i] for i in listed.ids if i in items], where, listed.number, listed.total)


def last_page(total: int, size: int) -> int:
    """The number of the last page, from 0."""
    return max(0, (total - 1) // size)
