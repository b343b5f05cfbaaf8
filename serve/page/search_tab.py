"""The search tab: a picture, how to search with it, and what is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from serve.page import form, search_view, views
from serve.page.asking import Asked, search
from serve.page.failures import sentence
from serve.page.wishes import Wishes
from serve.service import SearchService
from serve.thumbnails import encode

_HINT = "Drop, paste or choose a picture to see what looks like it."
# A click on a result, or Enter on it, tells the server which item it was.
PICK = """
element.addEventListener('click', event => {
  const card = event.target.closest('button[data-item]');
  if (card) trigger('select', {item: Number(card.dataset.item)});
});
"""
# The address bar follows the link that comes with an answer; other parameters of the address stay. Another
# query is a step that the browser's Back takes back, by opening the address that it was.
_ADDRESS = """
let shown = location.search;
watch('value', () => {
  const params = new URLSearchParams(location.search);
  const before = params.get('id');
  for (const name of ['id', 'k', 'where', 'min_score', 'group_by']) params.delete(name);
  const link = element.querySelector('a[href^="?"]');
  const ours = new URLSearchParams(link ? link.getAttribute('href') : '');
  for (const [name, value] of ours) params.set(name, value);
  const address = params.size ? '?' + params : location.pathname;
  const failed = !link && element.querySelector('.trouble');  // Back would fail again
  if (failed || before === params.get('id')) history.replaceState(history.state, '', address);
  else history.pushState(history.state, '', address);
  shown = location.search;
});
addEventListener('popstate', () => { if (location.search !== shown) location.reload(); });
"""
# What an event answers: the query to keep, status, results, and the query's picture.
Kept = tuple[Asked | None, str, str]
Shown = tuple[Asked | None, str, str, Image.Image | None]


@dataclass(frozen=True)
class Parts:
    """The components that others listen to or answer."""

    asked: gr.State
    picture: gr.Image
    form: gr.HTML
    status: gr.HTML
    results: gr.HTML


def lay_out() -> Parts:
    """Make the components, where the caller has opened the tab."""
    asked = gr.State(None, time_to_live=3600)
    with gr.Row(equal_height=False):
        with gr.Column(scale=1, min_width=260, elem_id="ask"):
            picture = gr.Image(
                label="Query picture",
                show_label=False,
                elem_id="query",
                alt_text="The query picture",
                type="filepath",
                image_mode=None,
                sources=["upload", "clipboard"],
                buttons=[],
                height=280,
                placeholder="Drop a picture here",
            )
            fields = form.make()
        with gr.Column(scale=3, min_width=300):
            status = gr.HTML(
                elem_id="status",
                apply_default_css=False,
                html_template="<div role='status' aria-live='polite'>${value}</div>",
                js_on_load=_ADDRESS,
            )
            results = gr.HTML("", elem_id="results", apply_default_css=False, js_on_load=PICK)
    # Our own loader decodes, for the same pixels and the same reasons for refusal everywhere. This holds as
    # long as no event answers the picture with an update: the framework would then make it anew.
    picture.preprocess = lambda payload: None if payload is None else payload.path
    return Parts(asked, picture, fields, status, results)


class Search:
    """What happens on the search tab. Failures become a line of status over emptied results."""

    def __init__(self, service: SearchService) -> None:
        self._service = service

    def listen(self, parts: Parts, blocks: gr.Blocks, header: gr.HTML, detail: gr.HTML) -> None:
        """Connect the components with what happens."""
        kept = [parts.asked, parts.status, parts.results]
        shown = [*kept, parts.picture]
        quiet: dict[str, Any] = {
            "api_visibility": "private",
            "show_progress": "minimal",
            "show_progress_on": [parts.results],
        }
        blocks.load(self.arrive, None, [header, parts.form, *shown], **quiet)
        parts.picture.upload(self.upload, [parts.picture, parts.form], shown, **quiet)
        # Not `clear`: the picture also goes away when an upload is refused on its way.
        parts.picture.change(self.gone, [parts.asked, parts.picture], kept, **quiet)
        parts.form.submit(self.again, [parts.asked, parts.form], kept, trigger_mode="always_last", **quiet)
        detail.submit(self.pick, [parts.form], shown, **quiet)

    def arrive(self, request: gr.Request) -> tuple[str, dict[str, Any], *Shown]:
        """A visitor opens the page, perhaps at an address that names a search."""
        address = dict(request.query_params)
        wishes = Wishes.of(address)
        try:
            described = self._service.describe()
            header, fields = views.header(described.facts), wishes.form(described.columns)
        except Exception as error:
            return "", wishes.form([]), None, sentence(error), "", None
        if address.get("id", "").isdecimal() and described.facts.images:
            return header, fields, *self._show(lambda: self._item(int(address["id"])), wishes)
        return header, fields, None, self._hint(), "", None

    def upload(self, path: str | None, wishes: Wishes) -> Shown:
        """A picture was dropped, pasted or chosen."""

        def ask() -> Asked:
            query, image = self._service.query_picture(Path(path or ""))
            return Asked(query, encode(image))

        return self._show(ask, wishes)

    def pick(self, wishes: Wishes, event: gr.EventData) -> Shown:
        """A picture of the gallery was chosen to search with."""
        return self._show(lambda: self._item(int(event.item)), wishes)

    def again(self, asked: Asked | None, wishes: Wishes) -> Kept:
        """The form changed."""
        if asked is None:
            return None, self._hint(), ""
        _, status, results, _ = self._show(lambda: asked, wishes)
        return asked, status, results  # a mistake in the form is put right: the picture stays

    def gone(self, asked: Asked | None, path: str | None) -> Kept:
        """The query picture changed: nothing to do unless it was taken away from its results."""
        if asked is None or path is not None:
            return gr.skip(), gr.skip(), gr.skip()
        return None, self._hint(), ""

    def _item(self, item: int) -> Asked:
        return Asked(self._service.query_item(item), encode(self._service.picture(item)))

    def _show(self, ask: Callable[[], Asked], wishes: Wishes) -> Shown:
        asked = None
        try:
            if not self._service.facts().images:
                return None, self._hint(), "", None
            asked = ask()
            found = search(self._service, asked.query, wishes)
            results = search_view.results(found, self._service.facts())
            return asked, search_view.status(found), results, asked.image
        except Exception as error:
            # What was wrong with the form can be put right: a picture that was understood stays.
            return asked, sentence(error), "", None if asked is None else asked.image

    def _hint(self) -> str:
        if self._service.facts().images:
            return views.note(_HINT)
        folder = self._service.folder
        return views.trouble(f"This gallery is empty: `lookalike index add {folder} IMAGES` fills it.")
