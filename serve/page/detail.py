"""The dialog that shows one picture in large: chosen among results, or while browsing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gradio as gr

from retrieval.analysis.heatmaps import heatmaps, overlay
from retrieval.embedder import Embedder
from retrieval.errors import InputError
from retrieval.storage.identity import DECLARED
from retrieval.storage.records import StoredItem
from serve.page import detail_view
from serve.page.asking import Asked
from serve.page.failures import sentence
from serve.service import SearchService

# The dialog is no part of the template: the framework would take from it that it is open. What was shown is
# forgotten when it closes, so that the same picture can be shown again.
_SCRIPT = """
const dialog = document.createElement('dialog');
dialog.id = 'dialog';
dialog.setAttribute('aria-labelledby', 'detail-title');
element.append(dialog);
watch('value', () => {
  if (!props.value) return;
  const pressed = dialog.contains(document.activeElement) && document.activeElement.ariaPressed;
  dialog.innerHTML = props.value;
  if (!dialog.open) dialog.showModal();
  (dialog.querySelector(pressed ? '[aria-pressed]' : '[data-close]') || dialog).focus();
});
dialog.addEventListener('close', () => { props.value = ''; dialog.replaceChildren(); });
dialog.addEventListener('click', event => {
  const button = event.target.closest('button');
  if (event.target === dialog || (button && 'close' in button.dataset)) dialog.close();
  else if (button && button.dataset.search) {
    dialog.close();
    document.getElementById('search-tab-button').click();
    trigger('submit', {item: Number(button.dataset.search)});
  }
  else if (button && button.dataset.compare) trigger('compare', {item: Number(button.dataset.compare)});
  else if (button && button.dataset.show) trigger('restore', {item: Number(button.dataset.show)});
});
"""


def lay_out() -> gr.HTML:
    """Make the component; its `submit` says which picture to search with."""
    return gr.HTML(
        "", elem_id="detail", apply_default_css=False, html_template="<i hidden></i>", js_on_load=_SCRIPT
    )


class Detail:
    """What happens in the dialog."""

    def __init__(self, service: SearchService) -> None:
        self._service = service

    def listen(self, detail: gr.HTML, asked: gr.State, results: gr.HTML, browse: gr.HTML) -> None:
        """Connect the component with the lists that open it."""
        quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        results.select(self.show, [asked], [detail], **quiet)
        browse.select(self.show_alone, None, [detail], **quiet)
        detail.compare(self.compare, [asked], [detail], **quiet)
        detail.restore(self.show, [asked], [detail], **quiet)

    def show(self, asked: Asked | None, event: gr.EventData) -> str:
        """A result in large, beside the query."""
        return _guarded(lambda: self._shown(int(event.item), asked))

    def show_alone(self, event: gr.EventData) -> str:
        """A picture of the gallery in large."""
        return _guarded(lambda: self._shown(int(event.item), None))

    def compare(self, asked: Asked | None, event: gr.EventData) -> str:
        """Where a result and the query look alike."""
        return _guarded(lambda: self._compared(int(event.item), asked))

    def _shown(self, number: int, asked: Asked | None) -> str:
        item = self._item(number)
        show = partial(detail_view.detail, item, self._service.facts())
        if asked is None:
            return show(None, None, compares=False)
        embedder = self._embedder()
        return show(
            asked.picture, self._cosine(asked, number), compares=embedder is not None and embedder.has_map
        )

    def _compared(self, number: int, asked: Asked | None) -> str:
        embedder = self._embedder()
        if asked is None or embedder is None:
            raise InputError("there is nothing to compare with: search again")
        item = self._item(number)
        found = heatmaps(embedder, asked.image, self._service.picture(number))
        query = overlay(found.pixels_a, found.contributions_a, found.limit)
        result = overlay(found.pixels_b, found.contributions_b, found.limit)
        return detail_view.compared(item, self._cosine(asked, number), query, result)

    def _item(self, number: int) -> StoredItem:
        self._service.item(number)  # refuses one that is not there
        (item,) = self._service.gallery.store.items([number])
        return item

    def _cosine(self, asked: Asked, number: int) -> float:
        gallery = self._service.gallery
        query = asked.query
        if query.fingerprint != gallery.fingerprint:
            raise InputError("the gallery was rebuilt with another model: choose the picture again")
        vector = gallery.vector(query.item.id) if query.item is not None else query.vector
        return float(gallery.vector(number) @ vector)

    def _embedder(self) -> Embedder | None:
        gallery = self._service.gallery
        return None if DECLARED in gallery.store.meta else gallery.embedder


def _guarded(make: Callable[[], str]) -> str:
    try:
        return make()
    except Exception as error:
        return detail_view.failed(sentence(error))
