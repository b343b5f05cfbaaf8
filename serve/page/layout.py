"""Layout of the page: header, tabs and dialog. Importing it imports Gradio, which takes seconds."""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr

from serve.addresses import page_of
from serve.core.service import SearchService
from serve.page.assets import module, render, script
from serve.page.evaluation import EvaluationTab
from serve.page.gallery import GalleryTab
from serve.page.map import MapTab
from serve.page.search import SearchTab
from serve.page.tab import Tab

TABS: tuple[type[Tab], ...] = (SearchTab, GalleryTab, MapTab, EvaluationTab)
_POLLING = 0.01  # seconds; Gradio's 0.001 costs an idle server 5 % of a core


def theme() -> gr.themes.Base:
    """Return quiet colours and the fonts of the visitor's system."""
    return gr.themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        radius_size="lg",
        font=["system-ui", "sans-serif"],
        font_mono=["ui-monospace", "monospace"],
    ).set(body_text_color_subdued="*neutral_500", color_accent="*primary_600")


def build_page(service: SearchService, names: Sequence[str]) -> gr.Blocks:
    """Build the page over one gallery, to be mounted in a web application.

    Args:
        service: The gallery.
        names: Names of all galleries of the server; the first one's page is at the root.
    """
    with gr.Blocks(title=f"Lookalike: {service.summary().name}", analytics_enabled=False) as blocks:
        _skip_link()
        _header(service, names)
        tabs = [tab(service) for tab in TABS]
        for tab in tabs:
            with gr.Tab(tab.label, elem_id=tab.elem_id) as element:
                tab.lay_out(element)
        _dialog(service)
        for tab in tabs:
            tab.connect()
    blocks.queue(max_size=64, default_concurrency_limit=4, api_open=False)
    blocks._queue.sleep_when_free = _POLLING
    return blocks


def _skip_link() -> None:
    """Create the first component: it skips to the content, and its script handles the keyboard."""
    gr.HTML(
        "",
        elem_id="skip",
        apply_default_css=False,
        html_template=render("skip", content=" ".join(tab.content for tab in TABS)),
        js_on_load=script("keyboard"),
        padding=False,
    )


def _header(service: SearchService, names: Sequence[str]) -> None:
    """Create the header: the gallery, a switch to the others of the server, and the theme."""
    pages = [(name, "/" if name == names[0] else f"{page_of(name)}/") for name in names]
    gr.HTML(
        "",
        elem_id="header",
        apply_default_css=False,
        html_template=render("header", gallery=service.summary(), pages=pages),
        js_on_load=module("header", [tab.elem_id for tab in TABS], service.summary().address),
        padding=False,
    )


def _dialog(service: SearchService) -> None:
    """Create the dialog that shows one image, for all tabs."""
    gr.HTML(
        "",
        elem_id="detail",
        apply_default_css=False,
        html_template=render("dialog"),
        js_on_load=module("dialog", service.summary().address),
        padding=False,
    )
