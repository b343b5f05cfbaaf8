"""The page: tabs over the search service. It has no logic but showing what the service returns."""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr

from serve.core.service import SearchService
from serve.page.assets import render, script
from serve.page.detail import Dialog
from serve.page.evaluation import EvaluationTab
from serve.page.gallery import GalleryTab
from serve.page.search import SearchTab
from serve.page.tab import Shared, Tab
from serve.page.visit import Visit

TABS: tuple[type[Tab], ...] = (SearchTab, GalleryTab, EvaluationTab)
_SESSIONS = 500  # visits that are kept: each may hold some megabytes of images for an hour
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
    # Nothing is reported home; uploads older than five minutes are deleted every minute.
    with gr.Blocks(
        title=f"Lookalike: {service.summary().name}", analytics_enabled=False, delete_cache=(60, 300)
    ) as blocks:
        _skip_link()
        header = render("header", gallery=service.summary())
        dialog = Dialog(service)
        shared = Shared(
            blocks,
            header=gr.HTML(header, elem_id="header", apply_default_css=False),
            visit=gr.State(Visit(), time_to_live=3600),
            dialog=dialog.component,
        )
        if len(names) > 1:
            gr.HTML(_galleries(names, service.name), elem_id="galleries", apply_default_css=False)
        tabs = [tab(service) for tab in TABS]
        for tab in tabs:
            with gr.Tab(tab.label, elem_id=tab.elem_id) as element:
                tab.lay_out(shared, element)
        dialog.component.render()
        for tab in tabs:
            tab.connect(shared)
        dialog.connect(shared)
    blocks.state_session_capacity = _SESSIONS
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


def _galleries(names: Sequence[str], shown: str) -> str:
    """Return links to the pages of all galleries of the server."""
    root = "./" if shown == names[0] else "../../"
    links = [(name, root if name == names[0] else f"{root}galleries/{name}/") for name in names]
    return render("galleries", links=links, shown=shown)
