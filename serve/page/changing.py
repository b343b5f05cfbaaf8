"""Adding pictures on the page, and removing them; there only where the server's owner allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from retrieval.errors import ImageError, InputError
from retrieval.text import pluralize
from serve.core import changes
from serve.core.changes import Added
from serve.core.service import Facts, SearchService
from serve.page import browsing, gallery_view, views
from serve.page.failures import guarded, sentence
from serve.page.newest import fresh
from serve.page.statistics import Counted
from serve.page.statistics_view import statistics

_LAST = 10**9  # there are never as many pages


@dataclass(frozen=True)
class Parts:
    """The components with which pictures are added."""

    files: gr.File
    label: gr.Textbox
    go: gr.Button
    outcome: gr.HTML


def lay_out() -> Parts:
    """Make the components, folded up."""
    with gr.Accordion("Add images", open=False, elem_id="add"):
        files = gr.File(
            label="Images to add",
            file_count="multiple",
            elem_id="add-files",
            height=160,
        )
        with gr.Row(equal_height=False, elem_id="add-how"):
            label = gr.Textbox(
                label="Label of all of them",
                placeholder="none",
                max_length=changes.MAX_LABEL_LENGTH,
                elem_id="add-label",
                scale=3,
            )
            go = gr.Button("Add", variant="primary", elem_id="add-go", scale=1)
        outcome = gr.HTML(
            "",
            elem_id="add-outcome",
            apply_default_css=False,
            html_template="<div role='status' aria-live='polite'>${value}</div>",
        )
    # Whether it is an image is for our own loader to say, with a reason, and not for the framework.
    files.preprocess = lambda payload: (
        [(one.path, one.orig_name or "") for one in payload.root] if payload else []
    )
    return Parts(files, label, go, outcome)


class Changing:
    """What happens when pictures are added or removed: everything that counts them is shown anew."""

    def __init__(self, service: SearchService) -> None:
        self._service, self._counted = service, Counted()

    def add(self, files: Sequence[tuple[str, str]], label: str) -> tuple[Any, ...]:
        """Add files, by path and the name that the visitor has for each -> what became of each, no files, and
        the gallery anew, with the newest pictures."""
        try:
            if not files:
                raise InputError("choose images first")
            pictures = [(name or Path(path).name, Path(path).read_bytes()) for path, name in files]
            found = changes.add(self._service, pictures, label.strip() or None)
        except Exception as error:
            # Anything but files in their place would make the component anew, without our `preprocess`.
            kept = [path for path, _ in files or ()] or None
            return sentence(error), kept, *([gr.skip()] * 4)
        names = [name for name, _ in pictures]
        return outcomes(names, found, self._service.facts()), None, *self.anew("", _LAST)

    def missed(self) -> tuple[str, None]:
        """The framework did not get so far as to add anything: it keeps uploads for some minutes only."""
        return views.trouble("Nothing was added: choose the images again, and add them within minutes."), None

    def remove(self, event: gr.EventData) -> None:
        """Remove what a button names.

        Raises:
            LookalikeError: it cannot be done; nothing is removed then.
        """
        changes.remove(self._service, [int(number) for number in event.items], uuid=str(event.of))

    def anew(self, where: str, page: int) -> tuple[str, str, Any, str]:
        """The header, what there is, statistics where they were looked at, and a page of the pictures."""
        service = self._service
        return (
            guarded(lambda: views.header(service.facts())),
            guarded(lambda: gallery_view.stock(service.gallery)),
            self.counted() if self._counted.used else gr.skip(),
            shown(service, where, page),
        )

    def counted(self) -> str:
        """The statistics, from now on shown anew with the rest."""
        return guarded(lambda: statistics(self._counted.of(self._service.gallery)))


def shown(service: SearchService, where: str, page: int) -> str:
    """A page of the pictures as HTML, or why there is none."""

    def make() -> str:
        gallery = service.gallery
        found = browsing.page(gallery, where, page)
        return gallery_view.pictures(service.facts(), gallery.store.columns(), found)

    return fresh(guarded(make))


def remove_button(items: Sequence[int], gallery: Facts, text: str) -> str:
    """A button that removes items, once it was asked and clicked again."""
    sure = f"Really remove {pluralize(len(items), 'picture')}?"
    ids = " ".join(map(str, items))
    return (
        f"<button type='button' class='remove' aria-live='polite' data-remove='{ids}' "
        f"data-of='{escape(gallery.uuid)}' data-sure='{sure}'>{escape(text)}</button>"
    )


def outcomes(names: Sequence[str], found: Sequence[Added | InputError], gallery: Facts) -> str:
    """What became of each file."""
    added = sum(isinstance(one, Added) and one.is_new for one in found)
    rows = "".join(
        f"<li><b>{escape(name)}</b> {_outcome(one, gallery)}</li>"
        for name, one in zip(names, found, strict=True)
    )
    return f"<p>{pluralize(added, 'picture')} added.</p><ul class='outcomes'>{rows}</ul>"


def _outcome(found: Added | InputError, gallery: Facts) -> str:
    if isinstance(found, ImageError):
        return f"<span class='disagree'>not added: {escape(found.detail)}</span>"
    if isinstance(found, InputError):
        return f"<span class='disagree'>not added: {escape(str(found))}</span>"
    if not found.is_new:
        return f"<span>is there already, as item {found.item.id}</span>"
    return f"<span>item {found.item.id}</span>"
