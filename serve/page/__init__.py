"""The page: tabs over the search service. It holds no logic beyond showing what the service says."""

from __future__ import annotations

from typing import Any

import gradio as gr

from serve.page import detail, gallery_tab, search_tab
from serve.page.evaluation_tab import evaluation
from serve.service import SearchService


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
    # Nothing is reported home; uploads older than five minutes are deleted every minute.
    with gr.Blocks(
        title=f"Lookalike: {service.facts().name}", analytics_enabled=False, delete_cache=(60, 300)
    ) as blocks:
        header = gr.HTML(elem_id="header", apply_default_css=False)
        with gr.Tab("Search", elem_id="search-tab"):
            parts = search_tab.lay_out()
        with gr.Tab("Gallery", elem_id="gallery-tab") as gallery:
            stock, browse = gallery_tab.lay_out()
        with gr.Tab("Evaluation", elem_id="evaluation-tab") as evaluated:
            report = gr.HTML("", elem_id="report", apply_default_css=False)
        dialog = detail.lay_out()

        search_tab.Search(service).listen(parts, blocks, header, dialog)
        detail.Detail(service).listen(dialog, parts.asked, parts.results, browse)
        gallery_tab.listen(service, gallery, stock, browse)
        quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
        evaluated.select(lambda: evaluation(service), None, [report], **quiet)
    blocks.queue(max_size=64, default_concurrency_limit=4, api_open=False)
    return blocks
