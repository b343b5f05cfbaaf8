"""The dialog that shows one image: alone, beside the query, or with heatmaps of where the two look alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import gradio as gr
from markupsafe import Markup
from PIL import Image

from retrieval.analysis.heatmaps import heatmaps, overlay
from retrieval.embedder import Embedder
from retrieval.errors import InputError
from retrieval.search.vectors import bounded_cosine
from retrieval.storage.records import StoredItem
from serve.core.errors import UnknownItemError
from serve.core.service import GallerySummary, SearchService
from serve.core.thumbnails import Thumbnail, encode
from serve.page.assets import render, script
from serve.page.messages import error_message
from serve.page.query import REBUILT
from serve.page.tab import Shared, events
from serve.page.visit import QueryImage, Visit


class ShownQuery(NamedTuple):
    """The query as the dialog shows it.

    Attributes:
        image: The image.
        name: Its name: "the query".
        score: Its cosine similarity to the item.
    """

    image: Thumbnail
    name: str
    score: float


class Actions(NamedTuple):
    """The buttons for an item: whether it can join the query, and whether it can be removed."""

    include: bool = False
    remove: bool = False


_NO_ACTIONS = Actions()


class Dialog:
    """The dialog; its `submit` names an item to search with, its `include` one to add to the query."""

    def __init__(self, service: SearchService) -> None:
        self._service = service
        self.component = gr.HTML(
            "",
            elem_id="detail",
            apply_default_css=False,
            html_template=render("empty"),
            js_on_load=script("confirm", "dialog"),
            render=False,
        )

    def connect(self, shared: Shared) -> None:
        """Attach the event handlers to the dialog and to the lists that open it."""
        inputs, outputs = [shared.visit], [self.component]
        for results in shared.results:
            results.select(self.show, inputs, outputs, **events())
        for items in shared.lists:
            items.select(self.show_alone, inputs, outputs, **events())
        self.component.compare(self.compare, inputs, outputs, **events())
        self.component.restore(self.show, inputs, outputs, **events())

    def show(self, visit: Visit, event: gr.EventData) -> str:
        """Show an item beside the query."""
        return _html_or_error(lambda: self._show(int(event.item), visit, beside=True))

    def show_alone(self, visit: Visit, event: gr.EventData) -> str:
        """Show an item alone."""
        return _html_or_error(lambda: self._show(int(event.item), visit, beside=False))

    def compare(self, visit: Visit, event: gr.EventData) -> str:
        """Show heatmaps of where an item and the query look alike."""
        return _html_or_error(lambda: self._compare(int(event.item), visit))

    def _show(self, number: int, visit: Visit, *, beside: bool) -> Markup:
        item, actions, summary = self._item(number), self._actions(number, visit), self._service.summary()
        if not visit.images or not beside:
            return item_view(item, summary, None, compares=False, actions=actions)
        image = visit.images[visit.shown]
        embedder = self._embedder()
        compares = embedder is not None and embedder.has_map
        query = ShownQuery(image.searched, _name(visit), self._cosine(image, number))
        return item_view(item, summary, query, compares=compares, actions=actions)

    def _compare(self, number: int, visit: Visit) -> Markup:
        embedder = self._embedder()
        if not visit.images or embedder is None:
            raise InputError("there is nothing to compare with: search again")
        image = visit.images[visit.shown]
        item = self._item(number)
        found = heatmaps(embedder, image.pixels(), self._service.image(number))
        maps = (
            overlay(found.pixels_a, found.contributions_a, found.limit),
            overlay(found.pixels_b, found.contributions_b, found.limit),
        )
        score, actions = self._cosine(image, number), self._actions(number, visit)
        return heatmap_view(item, self._service.summary(), _name(visit), score, maps, actions=actions)

    def _actions(self, number: int, visit: Visit) -> Actions:
        items = {image.query.item.id for image in visit.images if image.query.item is not None}
        return Actions(
            include=bool(visit.images) and number not in items, remove=self._service.permissions.changes
        )

    def _item(self, number: int) -> StoredItem:
        self._service.item(number)  # raises if there is no such item
        item = next(iter(self._service.gallery.stored_items([number])), None)
        if item is None:  # removed just now
            raise UnknownItemError(f"the gallery has no item {number}: search again")
        return item

    def _cosine(self, image: QueryImage, number: int) -> float:
        gallery = self._service.gallery
        query = image.query
        if query.fingerprint != gallery.fingerprint:
            raise InputError(REBUILT)
        vector = query.vector
        if vector is None:
            assert query.item is not None
            vector = gallery.vector(query.item.id)
        return bounded_cosine(float(gallery.vector(number) @ vector))

    def _embedder(self) -> Embedder | None:
        gallery = self._service.gallery
        return gallery.embedder if gallery.manifest.has_model else None


def item_view(
    item: StoredItem,
    gallery: GallerySummary,
    query: ShownQuery | None,
    *,
    compares: bool,
    actions: Actions = _NO_ACTIONS,
) -> Markup:
    """Return an item with all its details.

    Args:
        item: The item.
        gallery: The gallery.
        query: The query, shown beside it; None to show the item alone.
        compares: Whether heatmaps of the two can be computed.
        actions: Further buttons.
    """
    return render(
        "detail",
        item=item,
        gallery=gallery,
        query=query and query.image,
        query_name=query and query.name,
        score=query and query.score,
        heatmaps=None,
        compares=compares,
        actions=actions,
        facts=_facts(item),
    )


def heatmap_view(
    item: StoredItem,
    gallery: GallerySummary,
    query_name: str,
    score: float,
    maps: tuple[Image.Image, Image.Image],
    *,
    actions: Actions = _NO_ACTIONS,
) -> Markup:
    """Return an item with the heatmaps of the query and of itself in place of the images."""
    return render(
        "detail",
        item=item,
        gallery=gallery,
        query=None,
        query_name=query_name,
        score=score,
        heatmaps=[encode(image) for image in maps],
        compares=True,
        actions=actions,
        facts=_facts(item),
    )


def message_view(message: Markup, title: str = "Not shown") -> Markup:
    """Return an error message in place of an item."""
    return render("dialog_message", message=message, title=title)


def _facts(item: StoredItem) -> list[tuple[str, object]]:
    known = {
        "item": item.id,
        "key": "" if item.key in (item.path, str(item.full)) else item.key,
        "path": item.path,
        "size": f"{item.width} × {item.height}" if item.width else "",
        **item.metadata,
    }
    return [(name, value) for name, value in known.items() if value != ""]


def _name(visit: Visit) -> str:
    """Return what the query is called: one of several images is compared alone."""
    several = len(visit.images) > 1
    return f"query image {visit.shown + 1} of {len(visit.images)}" if several else "the query"


def _html_or_error(build: Callable[[], Markup]) -> Markup:
    try:
        return build()
    except Exception as error:
        return message_view(error_message(error))
