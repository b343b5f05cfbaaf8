"""The HTML document of a gallery's page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from retrieval.errors import LookalikeError
from serve.addresses import page_of
from serve.core.analyses import LOWEST
from serve.core.service import SearchService
from serve.core.url_fetcher import MAX_URL_LENGTH
from serve.limits import MAX_TEXT
from serve.page.assets import ENTRY, files_path, first_modules, later_modules, page_options, render
from serve.wire.galleries import GalleryAnswer

TABS = {"search": "results", "gallery": "collection", "map": "map", "evaluation": "report"}
"""The tabs, and the element with the content of each, to which the keyboard skips."""
_ITEM = re.compile(r"\d+(?=@|$)")


class Document:
    """The document of one gallery.

    It has the markup of all tabs and the description of the gallery, so that the page is complete before its
    scripts have loaded; and what is shown of a link to it elsewhere.

    Args:
        service: The gallery.
        names: Names of all galleries of the server; the first one's page is at the root.
        offers_device: Whether browsers may embed pictures themselves.
    """

    def __init__(self, service: SearchService, names: Sequence[str], *, offers_device: bool = False) -> None:
        self._service, self._offers_device = service, offers_device
        self._pages = [(name, "/" if name == names[0] else f"{page_of(name)}/") for name in names]
        self._base = next(address for name, address in self._pages if name == service.name)

    def render(self, request: Request) -> str:
        """Return the document as it is opened at an address."""
        gallery = self._gallery()
        tab = request.query_params.get("tab")
        asks = not {"like", "text"}.isdisjoint(request.query_params)
        return render(
            "page",
            name=self._service.name,
            api=self._service.address,
            base=self._base,
            pages=self._pages,
            gallery=gallery,
            device=self._offers_device and gallery is not None and gallery["embeds"],
            tabs=TABS,
            tab=tab if tab in TABS else next(iter(TABS)),
            url=request.url,
            image=self._image(request),
            files=files_path(),
            entry=ENTRY,
            modules=first_modules() + (later_modules() if asks else []),
            later=[] if asks else later_modules(),
            max_text=MAX_TEXT,
            max_url=MAX_URL_LENGTH,
            example="label = '…'",
            options=page_options(),
            lowest=LOWEST,
        )

    def _gallery(self) -> dict[str, Any] | None:
        """Return the description of the gallery as /v1/gallery does; None if it cannot be read now."""
        try:
            found = self._service.describe()
        except LookalikeError:
            return None
        return GalleryAnswer(**(vars(found) | vars(found.summary))).model_dump(mode="json")

    def _image(self, request: Request) -> str | None:
        """Return the URL of the first image that is searched with, if it is one of the gallery."""
        item = _ITEM.match(next(iter(request.query_params.getlist("like")), ""))
        if item is None:
            return None
        path = f"{self._service.address}/items/{item[0]}/thumbnail"
        return str(request.url.replace(path=path, query="", fragment=""))
