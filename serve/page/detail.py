"""The dialog that shows one picture in large: chosen among results, or while browsing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr

from retrieval.analysis.heatmaps import heatmaps, overlay
from retrieval.embedder import Embedder
from retrieval.errors import InputError
from retrieval.storage.records import StoredItem
from serve.core.service import SearchService
from serve.page import detail_view
from serve.page.asking import REBUILT, Part
from serve.page.assets import script
from serve.page.changing import remove_button
from serve.page.failures import sentence
from serve.page.visit import Visit


def lay_out() -> gr.HTML:
    """Make the component; its `submit` says which picture to search with, its `include` which one as well."""
    return gr.HTML(
        "",
        elem_id="detail",
        apply_default_css=False,
        html_template="<i hidden></i>",
        js_on_load=script("confirm", "dialog"),
    )


class Detail:
    """What happens in the dialog."""

    def __init__(self, service: SearchService) -> None:
        self._service = service

    def listen(self, detail: gr.HTML, visit: gr.State, results: gr.HTML, *others: gr.HTML) -> None:
        """Connect the component with the lists that open it."""
        quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        results.select(self.show, [visit], [detail], **quiet)
        for other in others:
            other.select(self.show_alone, [visit], [detail], **quiet)
        detail.compare(self.compare, [visit], [detail], **quiet)
        detail.restore(self.show, [visit], [detail], **quiet)

    def show(self, visit: Visit, event: gr.EventData) -> str:
        """A result in large, beside the query."""
        return _guarded(lambda: self._shown(int(event.item), visit, beside=True))

    def show_alone(self, visit: Visit, event: gr.EventData) -> str:
        """A picture of the gallery in large."""
        return _guarded(lambda: self._shown(int(event.item), visit, beside=False))

    def compare(self, visit: Visit, event: gr.EventData) -> str:
        """Where a result and the query look alike."""
        return _guarded(lambda: self._compared(int(event.item), visit))

    def _shown(self, number: int, visit: Visit, *, beside: bool) -> str:
        item = self._item(number)
        show = partial(detail_view.detail, item, self._service.facts(), more=self._more(number, visit))
        if not visit.asked or not beside:
            return show(None, None, compares=False)
        part = visit.asked[visit.shown]
        embedder = self._embedder()
        compares = embedder is not None and embedder.has_map
        return show((part.picture, _name(visit)), self._cosine(part, number), compares=compares)

    def _compared(self, number: int, visit: Visit) -> str:
        embedder = self._embedder()
        if not visit.asked or embedder is None:
            raise InputError("there is nothing to compare with: search again")
        part = visit.asked[visit.shown]
        item = self._item(number)
        found = heatmaps(embedder, part.image, self._service.image(number))
        query = overlay(found.pixels_a, found.contributions_a, found.limit)
        result = overlay(found.pixels_b, found.contributions_b, found.limit)
        score, more = self._cosine(part, number), self._more(number, visit)
        return detail_view.compared(item, score, (query, _name(visit)), result, more=more)

    def _more(self, number: int, visit: Visit) -> str:
        """What else can be done with a picture."""
        more = detail_view.include(number) if visit.asked and not _has(visit, number) else ""
        if self._service.permissions.changes:
            more += remove_button([number], self._service.facts(), "Remove")
        return more

    def _item(self, number: int) -> StoredItem:
        self._service.item(number)  # refuses one that is not there
        (item,) = self._service.gallery.store.items([number])
        return item

    def _cosine(self, part: Part, number: int) -> float:
        gallery = self._service.gallery
        query = part.query
        if query.fingerprint != gallery.fingerprint:
            raise InputError(REBUILT)
        vector = query.vector
        if vector is None:
            assert query.item is not None
            vector = gallery.vector(query.item.id)
        return float(gallery.vector(number) @ vector)

    def _embedder(self) -> Embedder | None:
        gallery = self._service.gallery
        return gallery.embedder if gallery.store.manifest.has_model else None


def _has(visit: Visit, number: int) -> bool:
    return any(part.query.item is not None and part.query.item.id == number for part in visit.asked)


def _name(visit: Visit) -> str:
    """What the picture of the query is called: one of several is compared by itself."""
    several = len(visit.asked) > 1
    return f"query picture {visit.shown + 1} of {len(visit.asked)}" if several else "the query"


def _guarded(make: Callable[[], str]) -> str:
    try:
        return make()
    except Exception as error:
        return detail_view.failed(sentence(error))
