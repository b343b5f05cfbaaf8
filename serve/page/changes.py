"""Adding and removing images on the page, if the server allows changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup

from retrieval.errors import ImageError, InputError
from serve.core import changes
from serve.core.changes import AddedImage
from serve.core.service import SearchService
from serve.page.assets import render
from serve.page.contents import images_or_error, summary
from serve.page.messages import error_message, html_or_error, problem
from serve.page.statistics import CachedStatistics, statistics_view

_LAST_PAGE = 10**9  # there are never as many pages


@dataclass(frozen=True)
class AddForm:
    """The components that add images."""

    files: gr.File
    label: gr.Textbox
    go: gr.Button
    outcome: gr.HTML


def add_form() -> AddForm:
    """Create the components, folded up."""
    with gr.Accordion("Add images", open=False, elem_id="add"):
        files = gr.File(label="Images to add", file_count="multiple", elem_id="add-files", height=160)
        with gr.Row(equal_height=False, elem_id="add-how"):
            label = gr.Textbox(
                label="Label for all of them",
                placeholder="none",
                max_length=changes.MAX_LABEL_LENGTH,
                elem_id="add-label",
                scale=3,
            )
            go = gr.Button("Add", variant="primary", elem_id="add-go", scale=1)
        outcome = gr.HTML(
            "", elem_id="add-outcome", apply_default_css=False, html_template=render("live_region")
        )
    # Our own loader decides whether a file is an image, and gives the reason; Gradio does not.
    files.preprocess = lambda payload: (
        [(one.path, one.orig_name or "") for one in payload.root] if payload else []
    )
    return AddForm(files, label, go, outcome)


class Changes:
    """Handlers that add or remove images, and refresh everything that counts them."""

    def __init__(self, service: SearchService) -> None:
        self._service, self._statistics = service, CachedStatistics()

    def add(self, files: Sequence[tuple[str, str]], label: str) -> tuple[Any, ...]:
        """Add files.

        Args:
            files: Path of each, and the name that the visitor has for it.
            label: Label for all of them; empty for none.

        Returns:
            The outcome of each, no files, and the outputs of `refresh` with the newest images.
        """
        try:
            if not files:
                raise InputError("choose images first")
            images = [(name or Path(path).name, Path(path).read_bytes()) for path, name in files]
            found = changes.add(self._service, images, label.strip() or None)
        except Exception as error:
            # Anything but files in their place would create the component again, without our `preprocess`.
            kept = [path for path, _ in files or ()] or None
            return error_message(error), kept, *([gr.skip()] * 3)
        outcome = added_view([name for name, _ in images], found, label.strip() or None)
        return outcome, None, *self.refresh("", _LAST_PAGE)

    def upload_failed(self) -> tuple[str, None]:
        """Handle an error in Gradio before `add`: it keeps uploads for some minutes only."""
        return problem("Nothing was added: choose the images again, and add them within a few minutes."), None

    def remove(self, event: gr.EventData) -> None:
        """Remove the items that a button names.

        Raises:
            LookalikeError: It is not possible; no item is removed then.
        """
        changes.remove(self._service, [int(number) for number in event.items], uuid=str(event.of))

    def refresh(self, where: str, page: int) -> tuple[str, Any, str]:
        """Return the summary, the statistics if they have been opened, and a page of images."""
        service = self._service
        return (
            html_or_error(lambda: summary(service.gallery)),
            self.statistics() if self._statistics.used else gr.skip(),
            images_or_error(service, where, page),
        )

    def statistics(self) -> str:
        """Return the statistics; `refresh` includes them from now on."""
        return html_or_error(lambda: statistics_view(self._statistics.of(self._service.gallery)))


def added_view(
    names: Sequence[str], found: Sequence[AddedImage | InputError], label: str | None = None
) -> Markup:
    """Return the outcome of adding each file, with the label that was asked for."""
    outcomes = [(name, *_outcome(one, label)) for name, one in zip(names, found, strict=True)]
    added = sum(isinstance(one, AddedImage) and one.is_new for one in found)
    return render("added", added=added, outcomes=outcomes)


def _outcome(found: AddedImage | InputError, label: str | None) -> tuple[str, bool]:
    """Return the outcome in words, and whether the file, or its label, was refused."""
    if isinstance(found, InputError):
        reason = found.detail if isinstance(found, ImageError) else str(found)
        return f"not added: {reason}", True
    if not found.is_new:
        other = label is not None and label != found.item.label
        kept = f", with the label {found.item.label or 'none'!r}, which stays" if other else ""
        return f"is in the gallery already, as item {found.item.id}{kept}", other
    return f"item {found.item.id}", False
