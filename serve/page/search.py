"""The search tab: pictures, how to search with them, and what is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from retrieval.errors import InputError
from serve.core.queries import MAX_TOGETHER, Region
from serve.core.service import SearchService
from serve.page import form, query_box, query_view, search_view, trail, views, web_picture
from serve.page.address import Address
from serve.page.asking import Asked, Part, of_item, of_part, of_upload, search
from serve.page.assets import script
from serve.page.examples import examples
from serve.page.failures import guarded, sentence
from serve.page.newest import fresh
from serve.page.visit import Visit
from serve.page.wishes import Wishes

_HINT = "Drop, paste or choose a picture to see what looks like it."
_ITEMS = "Choose a picture of the gallery to see what looks like it: there is no model here for other ones."
_FORGOTTEN = "That search was made with a picture that is not kept any more: drop it again."
# What an event answers: the visit, the query's pictures, status, results, and other ways into a search.
Shown = tuple[Visit, str, str, str, str]


@dataclass(frozen=True)
class Parts:
    """The components that others listen to or answer."""

    visit: gr.State
    picture: gr.Image
    asked: gr.HTML
    more: gr.UploadButton
    address: gr.HTML | None
    form: gr.HTML
    status: gr.HTML
    trail: gr.HTML
    results: gr.HTML


def lay_out(*, urls: bool) -> Parts:
    """Make the components, where the caller has opened the tab.

    Args:
        urls: whether a picture may be named by its address on the web.
    """
    visit = gr.State(Visit(), time_to_live=3600)
    with gr.Row(equal_height=False):
        with gr.Column(scale=1, min_width=260, elem_id="ask"):
            asked = query_box.make()
            picture = gr.Image(
                label="Query picture",
                show_label=False,
                elem_id="query",
                alt_text="The picture that is being sent",
                type="filepath",
                image_mode=None,
                sources=["upload", "clipboard", "webcam"],
                buttons=[],
                height=280,
                placeholder="Drop a picture here",
            )
            more = gr.UploadButton(
                "Add another picture", file_count="multiple", file_types=["image"], size="sm", elem_id="more"
            )
            address = web_picture.make() if urls else None
            fields = form.make()
        with gr.Column(scale=3, min_width=300):
            status = gr.HTML(
                elem_id="status",
                apply_default_css=False,
                html_template="<div role='status' aria-live='polite'>${value}</div>",
                js_on_load=script("coalesce", "address_bar", "camera"),
            )
            others = trail.make()
            results = gr.HTML(
                "", elem_id="results", apply_default_css=False, js_on_load=script("select_item", "download")
            )
    # Our own loader decodes, for the same pixels and the same reasons for refusal everywhere. This holds as
    # long as no event answers these with an update: the framework would then make them anew.
    picture.preprocess = lambda payload: None if payload is None else payload.path
    more.preprocess = lambda payload: [file.path for file in payload or []]
    return Parts(visit, picture, asked, more, address, fields, status, others, results)


class Search:
    """What happens on the search tab. Failures become a line of status."""

    def __init__(self, service: SearchService) -> None:
        self._service = service

    def listen(
        self, parts: Parts, blocks: gr.Blocks, header: gr.HTML, dialog: gr.HTML, *pickers: gr.HTML
    ) -> None:
        """Connect the components with what happens; the `submit` of `pickers` says what to search with."""
        shown = [parts.visit, parts.asked, parts.status, parts.results, parts.trail]
        given = [parts.visit, parts.form]
        quiet: dict[str, Any] = {
            "api_visibility": "private",
            "show_progress": "minimal",
            "show_progress_on": [parts.results],
        }
        # Each is sent at once, as it is: what the framework makes wait, it asks for with old data.
        each: dict[str, Any] = {"trigger_mode": "multiple", **quiet}
        blocks.load(self.arrive, None, [header, parts.form, *shown], **quiet)
        # The box is empty again for the next picture; the one that was sent is shown above it.
        # Pictures from the clipboard and from a camera come with no other event than `change`. The next one
        # may come while the box is being emptied, which is a change of it, too.
        parts.picture.change(self.upload, [parts.picture, *given], [*shown, parts.picture], **each)
        parts.more.upload(self.add, [parts.more, *given], shown, **quiet)
        parts.asked.crop(self.crop, given, shown, **each)
        parts.asked.omit(self.omit, given, shown, **quiet)
        parts.asked.enlarge(self.enlarge, [parts.visit], [parts.visit, parts.asked], **each)
        parts.form.submit(self.again, given, shown, trigger_mode="always_last", **quiet)
        parts.trail.repeat(self.repeat, given, [parts.form, *shown], **each)
        parts.status.turn(self.turn, [parts.visit], [parts.form, *shown], **each)
        dialog.include(self.include, given, shown, **quiet)
        for picker in (dialog, parts.trail, *pickers):
            picker.submit(self.pick, given, shown, **each)
        if parts.address is not None:
            parts.address.submit(self.fetch, given, shown, **quiet)

    # ---- a page is opened, or an address returned to

    def arrive(self, request: gr.Request) -> tuple[str, dict[str, Any], *Shown]:
        """A visitor opens the page, perhaps at an address that names a search."""
        address = Address.of(str(request.query_params))
        visit = Visit()
        try:
            described = self._service.describe()
            header, fields = views.header(described.facts), address.wishes.form(described.columns)
        except Exception as error:
            return "", address.wishes.form([]), visit, "", sentence(error), "", ""
        return header, fields, *self._at(address, visit)

    def turn(self, visit: Visit, event: gr.EventData) -> tuple[dict[str, Any], *Shown]:
        """The browser went back or forth to an address of this page."""
        address = Address.of(str(event.address))
        return self._fields(address.wishes), *self._at(address, visit)

    def _at(self, address: Address, visit: Visit) -> Shown:
        if address.items:
            return self._show(
                visit, lambda: tuple(of_item(self._service, *one) for one in address.items), address.wishes
            )
        entry = visit.entry(address.number)
        if entry is not None:
            return self._show(visit, lambda: entry.asked, address.wishes)
        return self._empty(visit, _FORGOTTEN if address.number else None)

    def repeat(self, visit: Visit, wishes: Wishes, event: gr.EventData) -> tuple[dict[str, Any], *Shown]:
        """A search of this visit was chosen."""
        entry = visit.entry(int(event.entry))
        if entry is None:
            return self._fields(wishes), *self._empty(visit, _FORGOTTEN)
        return self._fields(entry.wishes), *self._show(visit, lambda: entry.asked, entry.wishes)

    def _fields(self, wishes: Wishes) -> dict[str, Any]:
        try:
            return wishes.form(self._service.describe().columns)
        except Exception:  # the search says what is wrong
            return wishes.form([])

    # ---- another query

    def upload(self, path: str | None, visit: Visit, wishes: Wishes) -> tuple[*Shown, None]:
        """A picture was dropped, pasted, chosen or taken."""
        if path is None:  # the box was emptied
            return gr.skip(), gr.skip(), gr.skip(), gr.skip(), gr.skip(), None
        return *self._show(visit, lambda: (of_upload(self._service, Path(path)),), wishes), None

    def fetch(self, visit: Visit, wishes: Wishes, event: gr.EventData) -> Shown:
        """The address of a picture was given."""
        return self._show(
            visit, lambda: (of_upload(self._service, web_picture.fetched(str(event.address))),), wishes
        )

    def pick(self, visit: Visit, wishes: Wishes, event: gr.EventData) -> Shown:
        """A picture of the gallery was chosen to search with."""
        return self._show(visit, lambda: (of_item(self._service, int(event.item)),), wishes)

    # ---- the query changes

    def add(self, paths: list[str], visit: Visit, wishes: Wishes) -> Shown:
        """More pictures were sent."""
        return self._more(
            visit, wishes, lambda: tuple(of_upload(self._service, Path(path)) for path in paths)
        )

    def include(self, visit: Visit, wishes: Wishes, event: gr.EventData) -> Shown:
        """A picture of the gallery joins the query."""
        return self._more(visit, wishes, lambda: (of_item(self._service, int(event.item)),))

    def _more(self, visit: Visit, wishes: Wishes, make: Callable[[], Asked]) -> Shown:
        def joined() -> Visit:
            asked = visit.asked + make()
            if len(asked) > MAX_TOGETHER:
                raise InputError(f"a query is made of {MAX_TOGETHER} pictures at most: remove some first")
            return visit.asking(asked, len(asked) - 1)

        return self._change(visit, joined, wishes)

    def crop(self, visit: Visit, wishes: Wishes, event: gr.EventData) -> Shown:
        """A region of a picture was drawn, or all of it taken again."""

        def cropped() -> Visit:
            number = int(event.part)
            part = _part(visit, number)
            region = None if event.region is None else Region.of(event.region)
            other = of_part(self._service, part, region)
            return visit.asking((*visit.asked[:number], other, *visit.asked[number + 1 :]), number)

        return self._change(visit, cropped, wishes)

    def omit(self, visit: Visit, wishes: Wishes, event: gr.EventData) -> Shown:
        """A picture was taken away."""
        if len(visit.asked) < 2:
            return self._empty(visit)

        def fewer() -> Visit:
            number = int(event.part)
            _part(visit, number)
            shown = visit.shown - (number < visit.shown)
            return visit.asking((*visit.asked[:number], *visit.asked[number + 1 :]), shown)

        return self._change(visit, fewer, wishes)

    def enlarge(self, visit: Visit, event: gr.EventData) -> tuple[Visit, str]:
        """Another picture of the query is to be shown in large."""
        visit = visit.asking(visit.asked, int(event.part))
        return self._answer(visit, "")[:2]

    def again(self, visit: Visit, wishes: Wishes) -> Shown:
        """The form changed."""
        return self._show(visit, lambda: visit.asked, wishes, visit.shown)

    # ---- answers

    def _change(self, visit: Visit, make: Callable[[], Visit], wishes: Wishes) -> Shown:
        """A search with the query as it is then; what goes wrong leaves it, and its results, as they are."""
        try:
            changed = make()
        except Exception as error:
            return *self._answer(visit, _kept(error))[:3], gr.skip(), gr.skip()
        return self._show(visit, lambda: changed.asked, wishes, changed.shown)

    def _show(self, visit: Visit, make: Callable[[], Asked], wishes: Wishes, shown: int = 0) -> Shown:
        visit, before = visit.asking(()), visit
        try:
            if not self._service.facts().images:
                return self._empty(before)
            asked = make()
            if not asked:
                return self._empty(before)
            visit = visit.asking(asked, shown)
            found = search(self._service, [part.query for part in asked], wishes)
            visit = visit.searched(wishes)
            address = found.link or wishes.address([("q", str(visit.past[0].number))])
            results = search_view.results(found, self._service.facts())
            return self._answer(visit, search_view.status(found, address), results)
        except Exception as error:
            # What was wrong with the form can be put right: a picture that was understood stays.
            return self._answer(visit, _kept(error) if visit.asked else sentence(error))

    def _empty(self, visit: Visit, why: str | None = None) -> Shown:
        """No query, why there is none, and what to do about it."""
        return self._answer(visit.asking(()), guarded(lambda: self._hint(why)))

    def _hint(self, why: str | None) -> str:
        gallery = self._service.gallery
        if not len(gallery):
            here = ", or the Gallery tab" if self._service.permissions.changes else ""
            return views.trouble(
                f"This gallery is empty: `lookalike index add GALLERY IMAGES` fills it{here}."
            )
        return views.note(why or (_HINT if gallery.store.manifest.has_model else _ITEMS))

    def _answer(self, visit: Visit, status: str, results: str = "") -> Shown:
        """Status and results, with what else is shown of the visit."""
        try:
            gallery, facts = self._service.gallery, self._service.facts()
            crops = gallery.store.manifest.has_model
            asked = query_view.query(visit, facts, crops=crops)
            others = trail.trail(visit, facts, () if visit.asked else examples(gallery))
        except Exception as error:  # the gallery cannot be read just now
            return visit, "", sentence(error), "", ""
        return visit, fresh(asked), fresh(status), results, fresh(others)


def _kept(error: Exception) -> str:
    """A line of status that leaves the address of the search before."""
    return f"<div data-kept>{sentence(error)}</div>"


def _part(visit: Visit, number: int) -> Part:
    if not 0 <= number < len(visit.asked):
        raise InputError("the picture is not part of the query any more")
    return visit.asked[number]
