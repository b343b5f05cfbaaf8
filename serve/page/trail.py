"""Ways into a search: the searches of this visit, and before the first one, pictures to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import gradio as gr

from retrieval.gallery import Item
from retrieval.text import pluralize
from serve.core.service import Facts
from serve.page.assets import script
from serve.page.query_view import icon
from serve.page.views import picture
from serve.page.visit import Entry, Visit
from serve.page.wishes import Wishes

_FILTER = 24  # characters of one that are shown


def make() -> gr.HTML:
    """A component; its events: `submit` (item), and `repeat` (entry) for a search of this visit."""
    return gr.HTML("", elem_id="trail", apply_default_css=False, js_on_load=script("coalesce", "trail"))


def trail(visit: Visit, gallery: Facts, examples: Sequence[Item]) -> str:
    """Both as HTML; one search alone is no history."""
    begin = "" if visit.asked else _examples(gallery, examples)
    past = visit.past if len(visit.past) > 1 or not visit.asked else ()
    return begin + _past(visit, gallery, past)


def _examples(gallery: Facts, items: Sequence[Item]) -> str:
    if not items:
        return ""
    cards = "".join(
        f"<li><button type='button' data-item='{item.id}'>"
        f"{picture(gallery, item.id, 'Search with ' + (item.label or f'item {item.id}'))}"
        f"<span aria-hidden='true'>{escape(item.label or '')}</span></button></li>"
        for item in items
    )
    return f"<h2>Or start with one of these</h2><ul class='examples'>{cards}</ul>"


def _past(visit: Visit, gallery: Facts, past: Sequence[Entry]) -> str:
    if not past:
        return ""
    cards = "".join(_card(entry, gallery, current=entry.asked is visit.asked) for entry in past)
    return f"<h2>Searches of this visit</h2><ul class='past'>{cards}</ul>"


def _card(entry: Entry, gallery: Facts, *, current: bool) -> str:
    words = _words(entry)
    mark = " aria-current='true'" if current else ""
    return (
        f"<li><button type='button' data-entry='{entry.number}' title='{escape(words)}'{mark}>"
        f"{icon(entry.asked[0], gallery, '')}<span>{escape(words)}</span></button></li>"
    )


def _words(entry: Entry) -> str:
    """What was searched for, and how, in a word or two."""
    first = entry.asked[0].query
    name = (first.item.label or f"item {first.item.id}") if first.item else "picture"
    if len(entry.asked) > 1:
        name = pluralize(len(entry.asked), "picture")
    elif first.region is not None:
        name = f"part of {name}"
    wishes, usual = entry.wishes, Wishes()
    where = wishes.where if len(wishes.where) <= _FILTER else wishes.where[: _FILTER - 1] + "…"
    how = [
        where,
        f"K {wishes.k}" if wishes.k != usual.k else "",
        f"≥ {wishes.min_score:g}" if wishes.min_score is not None else "",
        f"one for each {wishes.group_by}" if wishes.group_by else "",
    ]
    return " · ".join(filter(None, [name, *how]))
