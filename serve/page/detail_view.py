"""One picture in large, beside the query, as HTML."""

from __future__ import annotations

import base64
from html import escape

from PIL import Image

from retrieval.storage.records import StoredItem
from serve.page.views import definitions, picture
from serve.service import Facts
from serve.thumbnails import Thumbnail, encode


def detail(
    item: StoredItem, gallery: Facts, query: Thumbnail | None, score: float | None, *, compares: bool
) -> str:
    """A picture with all that is known about it.

    Args:
        item: the picture.
        gallery: where it is.
        query: the query's picture, shown beside it; `None` where nothing is searched for.
        score: the cosine of the two.
        compares: whether it can be shown where the two look alike.
    """
    shown = picture(gallery, item.id, f"item {item.id}, {item.label or 'no label'}")
    figures = _figure(shown, f"item {item.id}")
    if query is not None:
        figures = _figure(_embedded(query, "the query"), "query") + figures
    toggle = (
        f"<button type='button' data-compare='{item.id}' aria-pressed='false'>Where they look alike</button>"
    )
    return _frame(item, score, figures, toggle if compares else "")


def compared(item: StoredItem, score: float, query: Image.Image, result: Image.Image) -> str:
    """The same with the heatmaps of the two in place of the pictures."""
    figures = _figure(_embedded(encode(query), "where the query looks like the item"), "query")
    figures += _figure(_embedded(encode(result), "where the item looks like the query"), f"item {item.id}")
    key = "<p class='quiet'>Orange: adds to the similarity. Blue: takes from it.</p>"
    toggle = f"<button type='button' data-show='{item.id}' aria-pressed='true'>Where they look alike</button>"
    return _frame(item, score, figures, toggle, key)


def failed(sentence: str) -> str:
    """What went wrong in place of a picture."""
    return (
        "<header><h2 id='detail-title'>Not shown</h2>"
        f"<button type='button' data-close aria-label='Close'>✕</button></header>{sentence}"
    )


def _embedded(made: Thumbnail, alt: str) -> str:
    """A picture inside the page itself."""
    data = base64.b64encode(made.data).decode()
    return f"<img src='data:{made.media_type};base64,{data}' alt='{escape(alt)}'>"


def _frame(item: StoredItem, score: float | None, figures: str, toggle: str, key: str = "") -> str:
    title = escape(item.label or "no label")
    cosine = "" if score is None else f" <span class='quiet'>cosine similarity {score:.4f}</span>"
    return (
        f"<header><h2 id='detail-title'>{title}{cosine}</h2>"
        "<button type='button' data-close aria-label='Close'>✕</button></header>"
        f"<div class='figures'>{figures}</div>{key}"
        f"<p class='actions'><button type='button' class='main' data-search='{item.id}'>"
        f"Search with this one</button>{toggle}</p>{_facts(item)}"
    )


def _figure(image: str, caption: str) -> str:
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def _facts(item: StoredItem) -> str:
    known = {
        "item": item.id,
        "key": "" if item.key == str(item.full) else item.key,
        "path": item.path,
        "size": f"{item.width} × {item.height}" if item.width else "",
        **item.metadata,
    }
    return definitions((name, escape(str(value))) for name, value in known.items() if value != "")
