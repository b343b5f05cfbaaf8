"""A picture by its address on the web."""

from __future__ import annotations

from pathlib import Path

import gradio as gr
from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder

from serve.core.errors import BusyError
from serve.core.fetch_url import MAX_URL_LENGTH, fetch
from serve.http.upload_limit import is_full
from serve.page.assets import script

_FORM = f"""
<form novalidate autocomplete="off">
  <label>Address of a picture<input name="address" type="url" maxlength="{MAX_URL_LENGTH}" spellcheck="false"
    placeholder="https://"></label>
  <button type="submit">Fetch</button>
</form>
"""


def make() -> gr.HTML:
    """A component whose `submit` says the address."""
    return gr.HTML(
        "", elem_id="address", apply_default_css=False, html_template=_FORM, js_on_load=script("url_form")
    )


def fetched(address: str) -> Path:
    """The picture at an address, kept as long as an upload.

    Raises:
        FetchError: there is none.
        BusyError: as much is kept as may be.
    """
    folder = get_upload_folder()
    if is_full(Path(folder)):
        raise BusyError("too many pictures are being looked at: try again in a few minutes")
    return Path(save_bytes_to_cache(fetch(address), "picture", folder))
