"""The gallery tab: what there is, and all of it to look through."""

from __future__ import annotations

from typing import Any

import gradio as gr

from serve.page import browsing, gallery_view
from serve.page.failures import guarded
from serve.page.search_tab import PICK
from serve.service import SearchService

_BROWSE = """
<form novalidate autocomplete="off" role="search">
  <label>Filter<input name="where" type="text" maxlength="4096" spellcheck="false"
    autocapitalize="off"></label>
</form>
<div class="pages">${value}</div>
"""
# The filter of an answer is that of the pictures below it.
_SCRIPT = (
    PICK
    + """
const form = element.querySelector('form');
const fill = () => {
  const shown = element.querySelector('[data-where]');
  if (!shown) return;
  form.where.value = shown.dataset.where;
  form.where.placeholder = shown.dataset.example;
};
watch('value', fill);
form.addEventListener('submit', event => {
  event.preventDefault();
  trigger('submit', {where: form.where.value, page: 0});
});
element.addEventListener('click', event => {
  const button = event.target.closest('button[data-page]');
  if (!button) return;
  trigger('submit', {where: element.querySelector('[data-where]').dataset.where,
                     page: Number(button.dataset.page)});
  form.scrollIntoView({block: 'nearest'});
});
"""
)


def lay_out() -> tuple[gr.HTML, gr.HTML]:
    """Make the components: what there is, and the pictures."""
    stock = gr.HTML("", elem_id="stock", apply_default_css=False)
    browse = gr.HTML("", elem_id="browse", apply_default_css=False, html_template=_BROWSE, js_on_load=_SCRIPT)
    return stock, browse


def listen(service: SearchService, tab: gr.Tab, stock: gr.HTML, browse: gr.HTML) -> None:
    """Connect the components with what happens."""
    quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}

    def opened() -> tuple[str, str]:
        return guarded(lambda: gallery_view.stock(service.gallery)), guarded(lambda: _page(service, "", 0))

    def turned(event: gr.EventData) -> str:
        return guarded(lambda: _page(service, str(event.where).strip(), int(event.page)))

    tab.select(opened, None, [stock, browse], **quiet)
    browse.submit(turned, None, [browse], trigger_mode="always_last", **quiet)


def _page(service: SearchService, where: str, page: int) -> str:
    gallery = service.gallery
    found = browsing.page(gallery, where, page)
    return gallery_view.pictures(service.facts(), gallery.store.columns(), found)
