"""The page: two tabs over the search service. It holds no logic beyond showing what the service says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from retrieval.errors import ImageError, InputError, LookalikeError
from retrieval.report import render
from serve import views
from serve.service import Query, SearchService
from serve.thumbnails import shrink

MAX_K = 100
_HINT = "Drop, paste or choose a picture to see what looks like it."
_BROKEN = "Something went wrong here; the server's log has the details."
# A click on a result, or Enter on it, tells the server which item it was.
_PICK = """
element.addEventListener('click', event => {
  const card = event.target.closest('button[data-item]');
  if (card) trigger('select', {item: Number(card.dataset.item)});
});
"""
_log = logging.getLogger("lookalike.serve")
# What an event of the search tab answers: the query to keep, status, results, and the query's picture.
Kept = tuple[Query | None, str, str]
Shown = tuple[Query | None, str, str, Image.Image | None]


def theme() -> gr.themes.Base:
    """Quiet colours and the fonts that the visitor's system has."""
    return gr.themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        radius_size="lg",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    ).set(body_text_color_subdued="*neutral_500", color_accent="*primary_600")


def build(service: SearchService) -> gr.Blocks:
    """The page over one gallery, to be mounted in a web application."""
    search = _Search(service)
    # Nothing is reported home; uploads older than five minutes are deleted every minute.
    with gr.Blocks(
        title=f"Lookalike: {service.facts().name}", analytics_enabled=False, delete_cache=(60, 300)
    ) as blocks:
        header = gr.HTML(elem_id="header", apply_default_css=False)
        with gr.Tab("Search", elem_id="search-tab"):
            query = gr.State(None, time_to_live=3600)
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
                    k = gr.Slider(1, MAX_K, value=10, step=1, label="Results (K)", elem_id="k")
                with gr.Column(scale=3, min_width=300):
                    status = gr.HTML(
                        elem_id="status",
                        apply_default_css=False,
                        html_template="<div role='status' aria-live='polite'>${value}</div>",
                    )
                    results = gr.HTML("", elem_id="results", apply_default_css=False, js_on_load=_PICK)
        with gr.Tab("Evaluation", elem_id="evaluation-tab") as evaluation:
            report = gr.HTML("", elem_id="report", apply_default_css=False)

        # Our own loader decodes, for the same pixels and the same reasons for refusal everywhere. This holds
        # as long as no event answers these two with an update: the framework would then make them anew.
        picture.preprocess = lambda payload: None if payload is None else payload.path
        k.preprocess = _whole_number

        kept, shown = [query, status, results], [query, status, results, picture]
        quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
        on_results = {**quiet, "show_progress_on": [results]}
        blocks.load(search.arrive, None, [header, status], **quiet)
        picture.upload(search.upload, [picture, k], shown, **on_results)
        # Not `clear`: the picture also goes away when an upload is refused on its way.
        picture.change(search.gone, [query, picture], kept, **on_results)
        results.select(search.pick, [k], shown, **on_results)
        k.change(search.again, [query, k], kept, trigger_mode="always_last", **on_results)
        evaluation.select(lambda: _evaluation(service), None, [report], **quiet)
    blocks.queue(max_size=64, default_concurrency_limit=4, api_open=False)
    return blocks


class _Search:
    """What happens on the search tab. Failures become a line of status over emptied results."""

    def __init__(self, service: SearchService) -> None:
        self._service = service

    def arrive(self) -> tuple[str, str]:
        """A visitor opens the page -> header and status."""
        return views.header(self._service.facts()), self._hint()

    def upload(self, path: str | None, k: int) -> Shown:
        """A picture was dropped, pasted or chosen."""
        return self._show(lambda: self._service.query_picture(Path(path or "")), k)

    def pick(self, k: int, event: gr.EventData) -> Shown:
        """A result was chosen to search with."""

        def ask() -> tuple[Query, Image.Image]:
            item = int(event.item)
            return self._service.query_item(item), self._service.picture(item)

        return self._show(ask, k)

    def again(self, query: Query | None, k: int) -> Kept:
        """K changed."""
        if query is None:
            return None, self._hint(), ""
        return self._show(lambda: (query, None), k)[:3]

    def gone(self, query: Query | None, path: str | None) -> Kept:
        """The query picture changed: nothing to do unless it was taken away from its results."""
        if query is None or path is not None:
            return gr.skip(), gr.skip(), gr.skip()
        return None, self._hint(), ""

    def _show(self, ask: Callable[[], tuple[Query, Image.Image | None]], k: int) -> Shown:
        try:
            query, image = ask()
            if not self._service.facts().images:
                return None, self._hint(), "", None
            answer = self._service.search(query, k)
            found = views.results(answer, self._service.facts().uuid)
            return query, views.status(answer), found, None if image is None else shrink(image)
        except ImageError as error:
            text = f"This picture cannot be used: {error.detail}. Choose another one."
        except LookalikeError as error:
            text = str(error)
        except Exception:
            _log.exception("a search from the page failed")
            text = _BROKEN
        return None, views.trouble(text), "", None

    def _hint(self) -> str:
        if self._service.facts().images:
            return views.note(_HINT)
        folder = self._service.folder
        return views.trouble(f"This gallery is empty: `lookalike index add {folder} IMAGES` fills it.")


def _evaluation(service: SearchService) -> str:
    try:
        report = service.report()
    except InputError as error:
        return views.trouble(str(error))
    if report is None:
        return views.note(
            f"No evaluation yet. `lookalike evaluate {service.folder} --data DATA` makes one; "
            "it shows here the next time this tab is opened."
        )
    return render(report)


def _whole_number(value: Any) -> int:
    """What the number box holds as a K: it may be empty, or out of range while someone types."""
    return int(min(max(value, 1), MAX_K)) if isinstance(value, int | float) else 10
