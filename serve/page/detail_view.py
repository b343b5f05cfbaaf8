"""One picture in large, beside the query, as HTML."""

from __future__ import annotations

from html import escape

from PIL import Image

from retrieval.storage.records import StoredItem
from serve.core.service import Facts
from serve.core.thumbnails import Thumbnail, encode
from serve.page.query_view import embedded
from serve.page.views import definitions, picture


def detail(
    item: StoredItem,
    gallery: Facts,
    query: tuple[Thumbnail, str] | None,
    score: float | None,
    *,
    compares: bool,
    more: str = "",
) -> str:
    """A picture with all that is known about it.

    Args:
        item: the picture.
        gallery: where it is.
        query: the query's picture and what it is called, shown beside it; `None` where nothing is searched
            for.
        score: the cosine of the two.
        compares: whether it can be shown where the two look alike.
        more: further buttons.
    """
    shown = picture(gallery, item.id, f"item {item.id}, {item.label or 'no label'}")
    figures = _figure(shown, f"item {item.id}")
    if query is not None:
        figures = _figure(embedded(query[0], "the query"), query[1]) + figures
    likeness = "" if query is None or score is None else _likeness(score, query[1])
    toggle = _toggle("compare", item, "false") if compares else ""
    return _frame(item, likeness, figures, toggle + more)


def include(item: int) -> str:
    """A button that makes a picture part of the query."""
    return f"<button type='button' data-include='{item}'>Add to the query</button>"


def compared(
    item: StoredItem, score: float, query: tuple[Image.Image, str], result: Image.Image, *, more: str = ""
) -> str:
    """The same with the heatmaps of the two in place of the pictures."""
    figures = _figure(embedded(encode(query[0]), "where the query looks like the item"), query[1])
    figures += _figure(embedded(encode(result), "where the item looks like the query"), f"item {item.id}")
    key = "<p class='quiet'>Orange: adds to the similarity. Blue: takes from it.</p>"
    return _frame(item, _likeness(score, query[1]), figures, _toggle("show", item, "true") + more, key)


def failed(sentence: str, title: str = "Not shown") -> str:
    """What went wrong in place of a picture."""
    return f"{_head(title)}{sentence}"


def _likeness(score: float, query: str) -> str:
    return f" <span class='quiet'>cosine similarity {score:.4f} to {escape(query)}</span>"


def _frame(item: StoredItem, likeness: str, figures: str, toggle: str, key: str = "") -> str:
    title = escape(item.label or "no label")
    return (
        f"{_head(title + likeness)}<div class='figures'>{figures}</div>{key}"
        f"<p class='actions'><button type='button' class='main' data-search='{item.id}'>"
        f"Search with this one</button>{toggle}</p>{_facts(item)}"
    )


def _head(title: str) -> str:
    close = "<button type='button' data-close aria-label='Close'>✕</button>"
    return f"<header><h2 id='detail-title'>{title}</h2>{close}</header>"


def _toggle(way: str, item: StoredItem, pressed: str) -> str:
    state = f"data-{way}='{item.id}' aria-pressed='{pressed}'"
    return f"<button type='button' {state}>Where they look alike</button>"


def _figure(image: str, caption: str) -> str:
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def _facts(item: StoredItem) -> str:
    known = {
        "item": item.id,
        "key": "" if item.key in (item.path, str(item.full)) else item.key,
        "path": item.path,
        "size": f"{item.width} × {item.height}" if item.width else "",
        **item.metadata,
    }
    return definitions((name, escape(str(value))) for name, value in known.items() if value != "")
