"""The query's pictures beside the results, and a rectangle on them that says what part to search with."""

from __future__ import annotations

import gradio as gr

from serve.page.assets import script


def make() -> gr.HTML:
    """A component whose value is the HTML of `query_view.query`.

    Its events: `crop` (part, region: four numbers or none), `omit` (part) and `enlarge` (part).
    """
    return gr.HTML(
        "",
        elem_id="asked",
        apply_default_css=False,
        html_template="<i hidden></i>",
        js_on_load=script("coalesce", "query_box"),
    )
