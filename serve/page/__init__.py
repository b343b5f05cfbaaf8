"""The page: tabs over the search service. It holds no logic beyond showing what the service says."""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr

from serve.core.service import SearchService
from serve.page import detail, moving, views
from serve.page import evaluation as evaluation_tab
from serve.page import gallery as gallery_tab
from serve.page import search as search_tab

_SESSIONS = 500  # visits that are kept: each may hold some megabytes of pictures for an hour


def theme() -> gr.themes.Base:
    """Quiet colours and the fonts that the visitor's system has."""
    return gr.themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        radius_size="lg",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    ).set(body_text_color_subdued="*neutral_500", color_accent="*primary_600")


def build(service: SearchService, names: Sequence[str]) -> gr.Blocks:
    """The page over one gallery, to be mounted in a web application.

    Args:
        service: the gallery.
        names: of all galleries of the server, the first one's at the root.
    """
    # Nothing is reported home; uploads older than five minutes are deleted every minute.
    with gr.Blocks(
        title=f"Lookalike: {service.facts().name}", analytics_enabled=False, delete_cache=(60, 300)
    ) as blocks:
        moving.lay_out()
        header = gr.HTML(views.header(service.facts()), elem_id="header", apply_default_css=False)
        if len(names) > 1:
            gr.HTML(views.galleries(names, service.name), elem_id="galleries", apply_default_css=False)
        with gr.Tab("Search", elem_id="search-tab"):
            parts = search_tab.lay_out(urls=service.permissions.urls)
        with gr.Tab("Gallery", elem_id="gallery-tab") as gallery:
            stock = gallery_tab.lay_out(changes=service.permissions.changes)
        with gr.Tab("Evaluation", elem_id="evaluation-tab") as evaluated:
            evaluation = evaluation_tab.lay_out()
        dialog = detail.lay_out()

        search = search_tab.Search(service)
        search.listen(parts, blocks, header, dialog, evaluation.report, evaluation.figures)
        detail.Detail(service).listen(dialog, parts.visit, parts.results, stock.browse, stock.duplicates)
        for removed in gallery_tab.GalleryTab(service).listen(gallery, stock, header, dialog):
            # What was removed may be among the results.
            shown = [parts.visit, parts.asked, parts.status, parts.results, parts.trail]
            removed.then(search.again, [parts.visit, parts.form], shown, api_visibility="private")
        evaluation_tab.Evaluation(service).listen(evaluated, evaluation)
    blocks.state_session_capacity = _SESSIONS
    blocks.queue(max_size=64, default_concurrency_limit=4, api_open=False)
    return blocks
