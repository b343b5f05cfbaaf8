"""The search tab: a client of the HTTP API in the browser, whose state is the address of the page."""

from __future__ import annotations

import gradio as gr

from serve.core.url_fetcher import MAX_URL_LENGTH
from serve.limits import MAX_TEXT
from serve.page.assets import module, page_options, render
from serve.page.tab import Tab


class SearchTab(Tab):
    """Search with images and texts; `modules/search.js` does the work."""

    label, elem_id, content = "Search", "search-tab", "results"

    def lay_out(self, tab: gr.Tab) -> None:
        """Create the component."""
        gr.HTML(
            "",
            elem_id="search",
            apply_default_css=False,
            html_template=render(
                "search",
                max_text=MAX_TEXT,
                max_url=MAX_URL_LENGTH,
                example="label = '…'",
                options=page_options(),
            ),
            js_on_load=module("search", self._service.summary().address),
        )

    def connect(self) -> None:
        """Attach no handlers: the tab needs none."""
