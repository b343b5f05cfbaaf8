"""The search tab as HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from retrieval.gallery import Hit
from retrieval.text import pluralize
from serve.core.service import Facts, Query
from serve.page.asking import Found
from serve.page.views import called, known_as, note, picture, table, trouble

_SHOWN = 2  # values of metadata on a card; the table and the large view have all
_SAVE = (
    "<p class='actions'><button type='button' data-save='csv'>Download CSV</button>"
    "<button type='button' data-save='json'>Download JSON</button></p>"
)
_MARKS = {True: ("right", "✓", "same label"), False: ("wrong", "✗", "other label")}


def status(found: Found, address: str) -> str:
    """How many were found, how long it took and what was searched with.

    Args:
        address: that this search has in this visit, from its `?` on.
    """
    stored = all(query.vector is None for query in found.queries)
    parts = [
        f"<b>{pluralize(len(found.hits), 'result')}</b>",
        _agreement(found),
        _what(found.queries),
        "<span>stored embedding</span>" if stored else f"<span>embedding {found.embed_ms:.1f} ms</span>",
        f"<span>search {found.search_ms:.1f} ms</span>",
    ]
    if found.link is not None:
        parts.append(f"<a href='{escape(found.link)}'>link to this search</a>")
    return f"<p data-address='{escape(address)}'>{''.join(parts)}</p>{_why_nothing(found)}"


def _what(queries: Sequence[Query]) -> str:
    """What was searched with, where it is not a picture from outside as it is."""
    if len(queries) > 1:
        items = sum(query.item is not None for query in queries)
        out = f", {pluralize(items, 'item')} among them left out" if items else ""
        return f"<span>like the mean of {len(queries)} pictures{out}</span>"
    (query,) = queries
    part = "" if query.region is None else "a part of "
    if query.item is None:
        return f"<span>like {part}the picture</span>" if part else ""
    return f"<span>like {part}item {query.item.id}, itself left out</span>"


def _agreement(found: Found) -> str:
    """How many of the hits have the label of the query."""
    judged = [found.is_right(hit) for hit in found.hits]
    known = [right for right in judged if right is not None]
    return f"<span>{sum(known)} of {len(known)} with its label</span>" if known else ""


def _why_nothing(found: Found) -> str:
    if found.hits:
        return ""
    if found.best is not None:
        lowest = found.wishes.min_score
        return trouble(f"Nothing scores {lowest:g} or more: the best score there is {found.best:.4f}.")
    if found.wishes.where:
        return trouble("No picture fulfils the filter.")
    return note("There is no other picture.")


def results(found: Found, gallery: Facts) -> str:
    """The hits as a grid of buttons, and as a table with their metadata and keys."""
    if not found.hits:
        return ""
    cards = "".join(_card(rank, hit, found, gallery) for rank, hit in enumerate(found.hits, 1))
    names = list(dict.fromkeys(name for hit in found.hits for name in hit.metadata))
    head = ("Rank", "Score", "Label", "Item", *names, "Key")
    rows = (_row(rank, hit, names) for rank, hit in enumerate(found.hits, 1))
    return (
        f"<ol class='grid'>{cards}</ol>"
        f"<details data-hits='{escape(_objects(found.hits))}'><summary>Scores and keys</summary>{_SAVE}"
        f"{table(head, rows)}</details>"
    )


def _objects(hits: Sequence[Hit]) -> str:
    """The hits as JSON."""
    return json.dumps(
        [
            {
                "rank": rank,
                "score": hit.score,
                "id": hit.id,
                "key": known_as(hit),
                "label": hit.label,
                "metadata": hit.metadata,
            }
            for rank, hit in enumerate(hits, 1)
        ],
        ensure_ascii=False,
    )


def _card(rank: int, hit: Hit, found: Found, gallery: Facts) -> str:
    kind, symbol, judged = _MARKS.get(found.is_right(hit), ("", "", ""))  # type: ignore[arg-type]
    label = hit.label or "no label"
    alt = " · ".join(filter(None, [str(rank), f"{hit.score:.4f}", label, judged]))
    mark = f"<i>{symbol}</i> " if symbol else ""
    values = [f"{name}: {value}" for name, value in hit.metadata.items()]
    more = "".join(f"<span class='quiet'>{escape(value)}</span>" for value in values[:_SHOWN])
    return (
        f"<li><button type='button' class='{kind}' data-item='{hit.id}' title='{escape(known_as(hit))}'>"
        f"{picture(gallery, hit.id, alt)}"
        f"<span class='score' aria-hidden='true'><span>#{rank}</span><b>{hit.score:.4f}</b></span>"
        f"<span aria-hidden='true'>{mark}{escape(label)}</span>{more}"
        f"<span class='quiet'>{escape(called(hit))}</span></button></li>"
    )


def _row(rank: int, hit: Hit, names: list[str]) -> list[str]:
    values = [escape(str(hit.metadata.get(name, ""))) for name in names]
    key = f"<code>{escape(known_as(hit))}</code>"
    return [str(rank), f"{hit.score:.4f}", escape(hit.label or ""), str(hit.id), *values, key]
