"""The map tab: a client of the HTTP API in the browser."""

from __future__ import annotations

import gradio as gr

from serve.page.assets import module, render
from serve.page.tab import Tab


class MapTab(Tab):
    """The images on a plane, neighbours beside each other; `modules/map.js` does the work."""

    label, elem_id, content = "Map", "map-tab", "map"

    def lay_out(self, tab: gr.Tab) -> None:
        """Create the component."""
        gr.HTML(
            "",
            elem_id="map",
            apply_default_css=False,
            html_template=render("map"),
            js_on_load=module("map", self._service.summary().address),
        )

    def connect(self) -> None:
        """Attach no handlers: the tab needs none."""
