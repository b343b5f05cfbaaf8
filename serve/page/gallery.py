"""The gallery tab: summary, statistics, near-duplicates, and all images in pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from serve.core.analyses import LOWEST
from serve.core.service import SearchService
from serve.page.assets import render, script
from serve.page.changes import AddForm, Changes, add_form
from serve.page.contents import images_or_error, summary
from serve.page.duplicates import Duplicates, groups_view
from serve.page.messages import error_message, html_or_error, progress
from serve.page.tab import Tab, events


@dataclass(frozen=True)
class _Parts:
    """The components; `add` is None unless the gallery may be changed."""

    summary: gr.HTML
    add: AddForm | None
    statistics: gr.HTML
    duplicates: gr.HTML
    browse: gr.HTML


class GalleryTab(Tab):
    """Look through the gallery, and change it if that is allowed."""

    label, elem_id, content = "Gallery", "gallery-tab", "browse"

    def __init__(self, service: SearchService) -> None:
        super().__init__(service)
        self._changes = Changes(service)
        self._duplicates = Duplicates(service)

    def lay_out(self, tab: gr.Tab) -> None:
        """Create the components."""

        def part(name: str, template: Markup, *scripts: str) -> gr.HTML:
            return gr.HTML(
                "",
                elem_id=name,
                apply_default_css=False,
                html_template=template,
                js_on_load=script(*scripts),
            )

        duplicates = render("duplicates_panel", lowest=LOWEST)
        self._tab = tab
        self._parts = _Parts(
            summary=gr.HTML("", elem_id="stock", apply_default_css=False, js_on_load=None),
            add=add_form() if self._service.permissions.changes and self._service.describe().embeds else None,
            statistics=part("statistics", render("statistics_panel"), "fold", "statistics"),
            duplicates=part("duplicates", duplicates, "fold", "poll", "confirm", "duplicates"),
            browse=part("browse", render("browse"), "select_item", "coalesce", "browse"),
        )

    def connect(self) -> None:
        """Attach the event handlers."""
        parts, hidden, shown = self._parts, events(), events("minimal")
        refreshed = [parts.summary, parts.statistics, parts.browse]
        # The tab opens with the page that it showed last.
        self._tab.select(
            self.open, [parts.browse], [parts.summary, parts.browse], js=script("gallery_place"), **shown
        )
        parts.browse.submit(self.show_page, None, [parts.browse], trigger_mode="multiple", **shown)
        parts.statistics.expand(self._changes.statistics, None, [parts.statistics], **hidden)
        parts.duplicates.submit(self.find_duplicates, None, [parts.duplicates], **hidden)
        parts.duplicates.tick(self.poll_duplicates, None, [parts.duplicates], **hidden)
        parts.duplicates.turn(self.show_groups, None, [parts.duplicates], **hidden)
        if parts.add is None:
            return
        add = parts.add
        adding = add.go.click(
            self._changes.add,
            [add.files, add.label],
            [add.outcome, add.files, *refreshed],
            show_progress_on=[add.outcome],
            **shown,
        )
        adding.failure(self._changes.upload_failed, None, [add.outcome, add.files], **hidden)
        parts.duplicates.remove(self.remove_others, None, [parts.duplicates, *refreshed], **hidden)

    def open(self, place: Any) -> tuple[str, str]:
        """Open the tab, at the filter and page that it showed last."""
        at = place if isinstance(place, Mapping) else {}
        where, number = str(at.get("where", "")), str(at.get("number", ""))
        images = images_or_error(self._service, where, int(number) if number.isdecimal() else 0)
        return html_or_error(lambda: summary(self._service.gallery)), images

    def show_page(self, event: gr.EventData) -> str:
        """Show another page, or the images of another filter."""
        return images_or_error(self._service, str(event.where).strip(), int(event.page))

    def find_duplicates(self, event: gr.EventData) -> str:
        """Start the search for near-duplicates."""

        def build() -> Markup:
            self._duplicates.start(float(event.score))
            return self._groups(float(event.score), 0)

        return html_or_error(build)

    def poll_duplicates(self, event: gr.EventData) -> str:
        """Return the progress of the search for near-duplicates, or its result."""
        return html_or_error(lambda: self._groups(float(event.of), 0))

    def show_groups(self, event: gr.EventData) -> Markup:
        """Show another page of near-duplicates."""
        return html_or_error(lambda: self._groups(float(event.score), int(event.group_page)))

    def remove_others(self, event: gr.EventData) -> tuple[Any, ...]:
        """Remove all but the first image of a group."""
        try:
            self._changes.remove(event)
        except Exception as error:
            return error_message(error) + self.show_groups(event), *([gr.skip()] * 3)
        return self.show_groups(event), *self._refresh(event)

    def _refresh(self, event: gr.EventData) -> tuple[str, Any, str]:
        return self._changes.refresh(str(event.where), int(event.page))

    def _groups(self, min_score: float, page: int) -> Markup:
        status, shown = self._duplicates.status(min_score), self._service.summary()
        if status.running:
            return progress(status.key, status.stage, "Comparing all images with each other")
        if status.failure:
            return error_message(status.failure)
        removes = self._service.permissions.changes
        return groups_view(status.result or [], status.key, page, shown, removes=removes)
