"""The gallery tab: a client of the HTTP API in the browser, and the facts of the gallery."""

from __future__ import annotations

import gradio as gr

from serve.core.analyses import LOWEST
from serve.page.assets import module, render, script
from serve.page.contents import summary
from serve.page.messages import html_or_error
from serve.page.statistics import CachedStatistics, statistics_view
from serve.page.tab import Tab, events


class GalleryTab(Tab):
    """Look through the gallery, and change it if that is allowed; `modules/collection.js` does the work."""

    label, elem_id, content = "Gallery", "gallery-tab", "collection"

    def lay_out(self, tab: gr.Tab) -> None:
        """Create the components."""
        self._tab = tab
        self._statistics = CachedStatistics()
        gr.HTML(
            "",
            elem_id="collection",
            apply_default_css=False,
            html_template=render("collection", lowest=LOWEST, example="label = '…'"),
            js_on_load=module("collection", self._service.summary().address),
        )
        # The facts are shown by the view "About".
        self._facts = gr.HTML("", elem_id="stock", apply_default_css=False, js_on_load=None)
        self._counts = gr.HTML(
            "",
            elem_id="statistics",
            apply_default_css=False,
            html_template=render("statistics_panel"),
            js_on_load=script("fold", "statistics"),
        )

    def connect(self) -> None:
        """Attach the event handlers."""
        self._tab.select(self.facts, None, [self._facts], **events())
        self._counts.expand(self.counts, None, [self._counts], **events())

    def facts(self) -> str:
        """Return counts, model, index, columns, unreadable files and the last runs."""
        return html_or_error(lambda: summary(self._service.gallery, self._service.summary().license))

    def counts(self) -> str:
        """Return the statistics of the labels, sizes and columns."""
        return html_or_error(lambda: statistics_view(self._statistics.of(self._service.gallery)))
