"""The pictures of a query as HTML: one in large, with the region that is searched with, and all in small."""

from __future__ import annotations

import base64
from html import escape

from serve.core.queries import Region
from serve.core.service import Facts
from serve.core.thumbnails import Thumbnail
from serve.page.asking import Asked, Part
from serve.page.views import picture
from serve.page.visit import Visit

_CORNERS = ("top left", "top right", "bottom left", "bottom right")
_KEYS = (
    "Region to search with: the arrow keys move it, with Shift they resize it, Escape takes the whole picture"
)
_HOW = "Drag over the picture, or press arrow keys on it, to search with a part of it."
_MOVE = "Arrow keys move the region, with Shift they resize it; Escape takes the whole picture."
_SMALL = "Cut out of a small copy: the picture was deleted meanwhile. Drop it again for a sharper one."


def embedded(made: Thumbnail, alt: str) -> str:
    """A picture inside the page itself."""
    data = base64.b64encode(made.data).decode()
    return f"<img src='data:{made.media_type};base64,{data}' alt='{escape(alt)}'>"


def query(visit: Visit, gallery: Facts, *, crops: bool) -> str:
    """What is searched with.

    Args:
        crops: whether there is a model: for a region of a picture, or another picture.
    """
    closed = "" if crops else "<i data-closed hidden></i>"
    if not visit.asked:
        return f"<div class='none' hidden></div>{closed}"
    several = len(visit.asked) > 1
    return _large(visit, gallery, crops) + (_all(visit, gallery) if several else "") + closed


def icon(part: Part, gallery: Facts, alt: str) -> str:
    """What a part of a query is searched with, in small."""
    if part.query.item is not None and part.query.region is None:
        return picture(gallery, part.query.item.id, alt)
    return embedded(part.icon, alt)


def _large(visit: Visit, gallery: Facts, crops: bool) -> str:
    number, part = visit.shown, visit.asked[visit.shown]
    region = part.query.region
    name = "The query picture" if len(visit.asked) == 1 else f"Query picture {number + 1}"
    aspect = f"--aspect: {part.aspect:.4f}"  # the room it takes is known before it is there
    item = part.query.item
    image = embedded(part.whole, name) if item is None else picture(gallery, item.id, name)
    shape = _shape(region) if crops else ""
    tools = "<button type='button' data-whole>Whole picture</button>" if region else ""
    label = f"Remove {name[0].lower()}{name[1:]}"
    return (
        f"<div class='frame'><div class='cropping' data-part='{number}' style='{aspect}'>"
        f"{image}{shape}</div></div>"
        f"<p class='tools'>{tools}"
        f"<button type='button' data-omit='{number}' aria-label='{label}'>Remove</button></p>"
        + _hint(part, crops)
    )


def _hint(part: Part, crops: bool) -> str:
    if part.small:
        return f"<p class='quiet'>{_SMALL}</p>"
    if not crops:
        return ""
    if part.query.region is None:
        return f"<p class='quiet'>{_HOW}</p>"
    return f"<p class='quiet keys' aria-hidden='true'>{_MOVE}</p>"  # its label says so as well


def _shape(region: Region | None) -> str:
    corners = "".join(f"<i data-corner='{corner}'></i>" for corner in _CORNERS)
    values = "" if region is None else str(region)
    return (
        f"<button type='button' class='region' data-region='{values}' aria-label='{_KEYS}'>{corners}</button>"
    )


def _all(visit: Visit, gallery: Facts) -> str:
    return f"<ol class='parts' aria-label='Query pictures'>{_small(visit.asked, visit.shown, gallery)}</ol>"


def _small(asked: Asked, shown: int, gallery: Facts) -> str:
    items = []
    for number, part in enumerate(asked):
        current = " aria-current='true'" if number == shown else ""
        name = f"Show query picture {number + 1}"
        remove = f"Remove query picture {number + 1}"
        items.append(
            f"<li><button type='button' data-enlarge='{number}'{current}>{icon(part, gallery, name)}</button>"
            f"<button type='button' class='omit' data-omit='{number}' aria-label='{remove}'>✕</button></li>"
        )
    return "".join(items)
