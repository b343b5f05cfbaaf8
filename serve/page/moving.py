"""Moving over the page with the keyboard: what the framework's own markup leaves out."""

from __future__ import annotations

import gradio as gr

from serve.page.assets import script

_SKIP = "<button type='button'>Skip to the content</button>"


def lay_out() -> gr.HTML:
    """Make the component, the first of the page: the way past what stands above the content."""
    return gr.HTML(
        "",
        elem_id="skip",
        apply_default_css=False,
        html_template=_SKIP,
        js_on_load=script("keyboard"),
        padding=False,
    )
