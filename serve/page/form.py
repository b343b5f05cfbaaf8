"""The form beside the query picture."""

from __future__ import annotations

import gradio as gr

from serve.page.assets import script
from serve.page.wishes import MAX_K, Wishes

_FORM = f"""
<form novalidate autocomplete="off"><details><summary>Settings</summary><div>
  <label>Results (K)<input name="k" type="number" min="1" max="{MAX_K}" step="1"
    value="{Wishes.k}"></label>
  <label>Lowest score<input name="min_score" type="number" min="-1" max="1" step="0.05"
    placeholder="any"></label>
  <label class="wide">Filter<input name="where" type="text" maxlength="4096" spellcheck="false"
    autocapitalize="off"></label>
  <label class="wide">One result for each<select name="group_by"></select></label>
</div></details></form>
"""


def make() -> gr.HTML:
    """A component whose value handlers receive as `Wishes`; its `submit` comes with every change.

    This holds as long as no event answers it with an update: the framework would then make it anew.
    """
    form = gr.HTML(
        Wishes().form([]),
        elem_id="form",
        apply_default_css=False,
        html_template=_FORM,
        js_on_load=script("search_form"),
    )
    form.preprocess = Wishes.of
    return form
