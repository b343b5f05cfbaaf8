"""The search tab: the query, the search form, and the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from retrieval.errors import InputError
from serve.core.queries import MAX_TOGETHER, Region
from serve.core.url_fetcher import MAX_URL_LENGTH
from serve.page.assets import render, script
from serve.page.messages import error_message, html_or_error, note, problem
from serve.page.query import download_image, from_item, from_upload, run_search, with_region
from serve.page.results import examples, history_list, query_images, result_list, status_line
from serve.page.tab import Handler, Shared, Tab, events, fresh
from serve.page.visit import MAX_K, MAX_TEXT, Address, QueryImage, QueryImages, SearchForm, Visit

_HINT = "Drop, paste or choose an image to find similar ones."
_TEXTS = "Drop, paste or choose an image, or write what to find."
_ITEMS = "Choose an image of the gallery to find similar ones: it has no model to embed other images."
_FORGOTTEN = "That search used an image that is no longer kept: drop it again."
# The outputs of most handlers: the visit, the query's images, status, results, and history.
Outputs = tuple[Visit, str, str, str, str]


@dataclass(frozen=True)
class _Parts:
    """The components; `url` is None unless images may be downloaded from URLs."""

    image: gr.Image
    query: gr.HTML
    more: gr.UploadButton
    url: gr.HTML | None
    form: gr.HTML
    status: gr.HTML
    history: gr.HTML
    results: gr.HTML


class SearchTab(Tab):
    """Search with images; failures become a status line."""

    label, elem_id, content = "Search", "search-tab", "results"

    # ---- components

    def lay_out(self, shared: Shared, tab: gr.Tab) -> None:
        """Create the components."""
        with gr.Row(equal_height=False):
            with gr.Column(scale=1, min_width=260, elem_id="ask"):
                query = _html("asked", "empty", "coalesce", "query_box")
                image, more = _image_box(), _more_button()
                url = None
                if self._service.permissions.urls:
                    url = _html("address", "url_form", "url_form", max_length=MAX_URL_LENGTH)
                form = _form()
            with gr.Column(scale=3, min_width=300):
                status = _html("status", "live_region", "coalesce", "address_bar", "camera")
                past = _html("trail", None, "coalesce", "history")
                found = _html("results", None, "select_item", "download")
        self._parts = parts = _Parts(image, query, more, url, form, status, past, found)
        self._outputs = [shared.visit, query, status, found, past]
        shared.pickers.append(parts.history)
        shared.results.append(parts.results)
        shared.search_again = Handler(self.again, [shared.visit, form], self._outputs)

    def connect(self, shared: Shared) -> None:
        """Attach the event handlers."""
        parts, outputs, given = self._parts, self._outputs, [shared.visit, self._parts.form]
        quiet = events("minimal", show_progress_on=[parts.results])
        # Each is sent at once, as it is: Gradio sends what it makes wait with old data.
        each: dict[str, Any] = {"trigger_mode": "multiple", **quiet}
        shared.blocks.load(self.on_load, None, [shared.header, parts.form, *outputs], **quiet)
        # The box is emptied for the next image; the one that was sent is shown above it.
        # Images from the clipboard and from a camera come with no other event than `change`. The next one
        # may come while the box is being emptied, which is a change of it, too.
        parts.image.change(self.upload, [parts.image, *given], [*outputs, parts.image], **each)
        parts.more.upload(self.add, [parts.more, *given], outputs, **quiet)
        parts.query.crop(self.crop, given, outputs, **each)
        parts.query.remove(self.remove_image, given, outputs, **quiet)
        parts.query.select(self.select_image, [shared.visit], [shared.visit, parts.query], **each)
        parts.form.submit(self.again, given, outputs, trigger_mode="always_last", **quiet)
        parts.history.repeat(self.repeat, given, [parts.form, *outputs], **each)
        parts.status.navigate(self.on_popstate, [shared.visit], [parts.form, *outputs], **each)
        shared.dialog.include(self.include, given, outputs, **quiet)
        for picker in (shared.dialog, *shared.pickers):
            picker.submit(self.pick, given, outputs, **each)
        if parts.url is not None:
            parts.url.submit(self.fetch, given, outputs, **quiet)

    # ---- the page is opened, or navigates to an address

    def on_load(self, request: gr.Request) -> tuple[str, dict[str, Any], *Outputs]:
        """Open the page, perhaps at the address of a search."""
        address = Address.parse(str(request.query_params))
        visit = Visit()
        try:
            described = self._service.describe()
            header = render("header", gallery=described.summary)
            fields = address.form.fields(
                described.columns, calibrated=described.calibrated, texts=described.texts
            )
        except Exception as error:
            return "", address.form.fields([]), visit, "", error_message(error), "", ""
        return header, fields, *self._at(address, visit)

    def on_popstate(self, visit: Visit, event: gr.EventData) -> tuple[dict[str, Any], *Outputs]:
        """Go to an address of this page that the browser went back or forward to."""
        address = Address.parse(str(event.address))
        return self._fields(address.form), *self._at(address, visit)

    def _at(self, address: Address, visit: Visit) -> Outputs:
        if address.items:
            return self._search(
                visit, lambda: tuple(from_item(self._service, *item) for item in address.items), address.form
            )
        entry = visit.entry(address.entry)
        if entry is not None:
            return self._search(visit, lambda: entry.images, address.form)
        if address.form.text and not address.entry:
            return self._search(visit, tuple, address.form)
        return self._empty(visit, _FORGOTTEN if address.entry else None)

    def repeat(self, visit: Visit, form: SearchForm, event: gr.EventData) -> tuple[dict[str, Any], *Outputs]:
        """Repeat a search of the history."""
        entry = visit.entry(int(event.entry))
        if entry is None:
            return self._fields(form), *self._empty(visit, _FORGOTTEN)
        return self._fields(entry.form), *self._search(visit, lambda: entry.images, entry.form)

    def _fields(self, form: SearchForm) -> dict[str, Any]:
        try:
            described = self._service.describe()
            return form.fields(described.columns, calibrated=described.calibrated, texts=described.texts)
        except Exception:  # the search reports what is wrong
            return form.fields([])

    # ---- another query

    def upload(self, path: str | None, visit: Visit, form: SearchForm) -> tuple[*Outputs, None]:
        """Search with an image that was dropped, pasted, chosen or taken."""
        if path is None:  # the box was emptied
            return gr.skip(), gr.skip(), gr.skip(), gr.skip(), gr.skip(), None
        return *self._search(visit, lambda: (from_upload(self._service, Path(path)),), form), None

    def fetch(self, visit: Visit, form: SearchForm, event: gr.EventData) -> Outputs:
        """Search with the image at a URL."""
        return self._search(
            visit, lambda: (from_upload(self._service, download_image(str(event.address))),), form
        )

    def pick(self, visit: Visit, form: SearchForm, event: gr.EventData) -> Outputs:
        """Search with an image of the gallery."""
        return self._search(visit, lambda: (from_item(self._service, int(event.item)),), form)

    # ---- the query changes

    def add(self, paths: list[str], visit: Visit, form: SearchForm) -> Outputs:
        """Add uploads to the query."""
        return self._add(visit, form, lambda: tuple(from_upload(self._service, Path(path)) for path in paths))

    def include(self, visit: Visit, form: SearchForm, event: gr.EventData) -> Outputs:
        """Add an image of the gallery to the query."""
        return self._add(visit, form, lambda: (from_item(self._service, int(event.item)),))

    def _add(self, visit: Visit, form: SearchForm, load: Callable[[], QueryImages]) -> Outputs:
        def added() -> Visit:
            images = visit.images + load()
            if len(images) > MAX_TOGETHER:
                raise InputError(f"a query has at most {MAX_TOGETHER} images: remove some first")
            return visit.with_query(images, len(images) - 1)

        return self._change(visit, added, form)

    def crop(self, visit: Visit, form: SearchForm, event: gr.EventData) -> Outputs:
        """Search with a region of an image of the query, or with all of it."""

        def cropped() -> Visit:
            number = int(event.part)
            region = None if event.region is None else Region.of(event.region)
            image = with_region(self._service, _image(visit, number), region)
            return visit.with_query((*visit.images[:number], image, *visit.images[number + 1 :]), number)

        return self._change(visit, cropped, form)

    def remove_image(self, visit: Visit, form: SearchForm, event: gr.EventData) -> Outputs:
        """Remove an image from the query."""
        if len(visit.images) < 2:
            return self._empty(visit)

        def fewer() -> Visit:
            number = int(event.part)
            _image(visit, number)
            shown = visit.shown - (number < visit.shown)
            return visit.with_query((*visit.images[:number], *visit.images[number + 1 :]), shown)

        return self._change(visit, fewer, form)

    def select_image(self, visit: Visit, event: gr.EventData) -> tuple[Visit, str]:
        """Show another image of the query in large."""
        visit = visit.with_query(visit.images, int(event.part))
        return self._output(visit, Markup())[:2]

    def again(self, visit: Visit, form: SearchForm) -> Outputs:
        """Search again: the form, or the gallery, has changed."""
        return self._search(visit, lambda: visit.images, form, visit.shown)

    # ---- outputs

    def _change(self, visit: Visit, change: Callable[[], Visit], form: SearchForm) -> Outputs:
        """Search with the changed query; a failed change leaves the query and its results as they are."""
        try:
            changed = change()
        except Exception as error:
            return *self._output(visit, _without_address(error))[:3], gr.skip(), gr.skip()
        return self._search(visit, lambda: changed.images, form, changed.shown)

    def _search(
        self, visit: Visit, load: Callable[[], QueryImages], form: SearchForm, shown: int = 0
    ) -> Outputs:
        visit, before = visit.with_query(()), visit
        try:
            if not self._service.summary().images:
                return self._empty(before)
            images = load()
            if not images and not form.text:
                return self._empty(before)
            visit = visit.with_query(images, shown)
            result = run_search(self._service, [image.query for image in images], form)
            if images:  # the history shows images; a search by text alone has an address of its own
                visit = visit.with_search(form)
            address = result.link or form.url_query([("q", str(visit.history[0].number))])
            hits = result_list(result, self._service.summary())
            return self._output(visit, status_line(result, address), hits)
        except Exception as error:
            # The visitor can correct the form: an image that could be read stays.
            return self._output(visit, _without_address(error) if visit.images else error_message(error))

    def _empty(self, visit: Visit, reason: str | None = None) -> Outputs:
        """Return no query, and the reason or a hint."""
        return self._output(visit.with_query(()), html_or_error(lambda: self._hint(reason)))

    def _hint(self, reason: str | None) -> Markup:
        gallery = self._service.gallery
        if not len(gallery):
            here = ", or the Gallery tab" if self._service.permissions.changes else ""
            return problem(f"This gallery is empty: `lookalike index add GALLERY IMAGES` fills it{here}.")
        if not gallery.manifest.has_model:
            return note(reason or _ITEMS)
        return note(reason or (_TEXTS if gallery.embedder.has_text else _HINT))

    def _output(self, visit: Visit, status: Markup, results: str = "") -> Outputs:
        try:
            gallery, summary = self._service.gallery, self._service.summary()
            query = query_images(visit, summary, crops=gallery.manifest.has_model)
            others = history_list(visit, summary, () if visit.images or results else examples(gallery))
        except Exception as error:  # the gallery cannot be read just now
            return visit, "", error_message(error), "", ""
        return visit, fresh(query), fresh(status), results, fresh(others)


def _html(name: str, template: str | None, *scripts: str, **variables: object) -> gr.HTML:
    html_template = {} if template is None else {"html_template": render(template, **variables)}
    return gr.HTML("", elem_id=name, apply_default_css=False, js_on_load=script(*scripts), **html_template)


def _image_box() -> gr.Image:
    box = gr.Image(
        label="Query image",
        show_label=False,
        elem_id="query",
        alt_text="The image being uploaded",
        type="filepath",
        image_mode=None,
        sources=["upload", "clipboard", "webcam"],
        buttons=[],
        height=280,
        placeholder="Drop an image here",
    )
    # Our own loader decodes, so that pixels and errors are the same everywhere. This holds as long as no
    # event answers the component with an update: Gradio would then create it again.
    box.preprocess = lambda payload: None if payload is None else payload.path
    return box


def _more_button() -> gr.UploadButton:
    button = gr.UploadButton(
        "Add another image", file_count="multiple", file_types=["image"], size="sm", elem_id="more"
    )
    button.preprocess = lambda payload: [file.path for file in payload or []]  # as for the image box
    return button


def _form() -> gr.HTML:
    """Create the form, whose value handlers get as a `SearchForm`; every change is a `submit`.

    This holds as long as no event answers it with an update: Gradio would then create it again.
    """
    form = gr.HTML(
        SearchForm().fields([]),
        elem_id="form",
        apply_default_css=False,
        html_template=render("search_form", max_k=MAX_K, k=SearchForm.k, max_text=MAX_TEXT),
        js_on_load=script("search_form"),
    )
    form.preprocess = SearchForm.parse
    return form


def _without_address(error: Exception) -> Markup:
    """Return an error that leaves the address of the search before, see `address_bar.js`."""
    return render("kept", message=error_message(error))


def _image(visit: Visit, number: int) -> QueryImage:
    if not 0 <= number < len(visit.images):
        raise InputError("the image is no longer part of the query")
    return visit.images[number]
