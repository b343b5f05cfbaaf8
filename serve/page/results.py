"""What the search tab shows of a search: status line, results, the query's images, history and examples."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from retrieval.searchable import Hit, Item, SearchableGallery
from retrieval.storage.records import UPLOAD_NAME
from retrieval.text import pluralize
from serve.core.service import GallerySummary
from serve.page.assets import render, template_filter
from serve.page.messages import note, problem
from serve.page.query import SearchResult
from serve.page.visit import HistoryEntry, SearchForm, Visit

_METADATA_ON_CARD = 2  # values; the table and the dialog have all
_FILTER_LENGTH = 24  # characters of a filter in the history
_EXAMPLES = 6
_EXAMPLE_CANDIDATES = 64


class _Mark(NamedTuple):
    kind: str = ""
    symbol: str = ""
    text: str = ""


_MARKS = {True: _Mark("right", "✓", "same label"), False: _Mark("wrong", "✗", "other label"), None: _Mark()}


class _Card(NamedTuple):
    rank: int
    hit: Hit
    mark: _Mark


@template_filter
def display_name(item: Item) -> str:
    """Return the file name of an item; its key if it has no file, or one that the gallery named."""
    name = os.path.basename(item.path)  # much faster than a Path
    return item.key if not name or UPLOAD_NAME.fullmatch(name) else name


@template_filter
def public_key(item: Item) -> str:
    """Return the key of an item: the path below the indexed folder, not where that folder is."""
    return os.path.basename(item.key) if item.key == item.path else item.key


def status_line(result: SearchResult, address: str) -> Markup:
    """Return the number of results, the durations and what was searched for.

    Args:
        result: The search.
        address: The address of this search in this visit, from its `?` on.
    """
    judged = [right for right in map(result.is_right, result.hits) if right is not None]
    items = [query.item.id for query in result.queries if query.item is not None]
    return render(
        "status",
        result=result,
        address=address,
        right=sum(judged),
        judged=len(judged),
        items=len(items),
        item=items[0] if items else None,
        region=result.queries[0].region if result.queries else None,
        stored=bool(result.queries) and all(query.vector is None for query in result.queries),
        form=result.form,
        explanation=_no_hits(result),
    )


def _no_hits(result: SearchResult) -> str:
    if result.hits:
        return ""
    best, form = result.best, result.form
    if best is not None and form.min_score is not None and best.score < form.min_score:
        return problem(f"No result scores {form.min_score:g} or more: the best score is {best.score:.4f}.")
    if best is not None and best.probability is not None:
        return note(f"Nothing like it here: the best result has a probability of {best.probability:.0%}.")
    if result.form.where:
        return problem("No image matches the filter.")
    return note("There is no other image.")


def result_list(result: SearchResult, gallery: GallerySummary) -> Markup:
    """Return the hits as a grid of buttons, and as a table with their metadata and keys."""
    if not result.hits:
        return Markup()
    return render(
        "results",
        cards=[_Card(rank, hit, _MARKS[result.is_right(hit)]) for rank, hit in enumerate(result.hits, 1)],
        calibrated=result.hits[0].probability is not None,
        columns=list(dict.fromkeys(name for hit in result.hits for name in hit.metadata)),
        json=_json(result.hits),
        gallery=gallery,
        metadata_on_card=_METADATA_ON_CARD,
    )


def _json(hits: Sequence[Hit]) -> str:
    return json.dumps(
        [
            {
                "rank": rank,
                "score": hit.score,
                "probability": hit.probability,
                "id": hit.id,
                "key": public_key(hit),
                "label": hit.label,
                "metadata": hit.metadata,
            }
            for rank, hit in enumerate(hits, 1)
        ],
        ensure_ascii=False,
    )


def query_images(visit: Visit, gallery: GallerySummary, *, crops: bool) -> Markup:
    """Return the query: one image in large with its region, and all of them in small.

    Args:
        visit: The visit.
        gallery: The gallery.
        crops: Whether there is a model to embed regions and images from outside.
    """
    return render("query", visit=visit, gallery=gallery, crops=crops)


def history_list(visit: Visit, gallery: GallerySummary, examples: Sequence[Item]) -> Markup:
    """Return other searches: those of this visit, and examples before the first one."""
    # One search alone is no history.
    entries = visit.history if len(visit.history) > 1 or not visit.images else ()
    return render(
        "history",
        examples=() if visit.images else examples,
        entries=entries,
        titles={entry.number: _title(entry) for entry in entries},
        current=visit.images,
        gallery=gallery,
    )


def _title(entry: HistoryEntry) -> str:
    """Return the query and the fields of a search in a few words."""
    first = entry.images[0].query
    name = (first.item.label or f"item {first.item.id}") if first.item else "image"
    if len(entry.images) > 1:
        name = pluralize(len(entry.images), "image")
    elif first.region is not None:
        name = f"region of {name}"
    form = entry.form
    if form.text or form.without:
        name += f" + “{form.text}”" if form.text else ""
        name += f" − “{form.without}”" if form.without else ""
    where = form.where if len(form.where) <= _FILTER_LENGTH else form.where[: _FILTER_LENGTH - 1] + "…"
    fields = [
        where,
        f"K {form.k}" if form.k != SearchForm().k else "",
        f"≥ {form.min_score:g}" if form.min_score is not None else "",
        f"≥ {form.min_probability:.0%}" if form.min_probability is not None else "",
        f"one per {form.group_by}" if form.group_by else "",
    ]
    return " · ".join(filter(None, [name, *fields]))


def examples(gallery: SearchableGallery) -> list[Item]:
    """Return a few items, always the same ones: from all over the gallery, of many labels."""
    found = gallery.items(gallery.sample(_EXAMPLE_CANDIDATES))
    seen: Counter[str | None] = Counter()
    ranked = []  # with the number of items of its label before it
    for _, item in sorted(found.items()):
        ranked.append((seen[item.label], item))
        seen[item.label] += 1
    first = [item for rank, item in ranked if not rank]
    if len(first) >= _EXAMPLES:
        return [first[i] for i in np.linspace(0, len(first) - 1, _EXAMPLES).astype(int)]
    return [item for _, item in sorted(ranked, key=lambda pair: (pair[0], pair[1].id))][:_EXAMPLES]
