"""The gallery tab: what there is, what it consists of, and all of it to look through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from serve.core.service import SearchService
from serve.page import changing, detail_view, duplicates_view, gallery_view
from serve.page.assets import script
from serve.page.background import progress
from serve.page.changing import Changing, shown
from serve.page.duplicates import LOWEST, Duplicates
from serve.page.failures import guarded, sentence

_BROWSE = """
<form novalidate autocomplete="off" role="search">
  <label>Filter<input name="where" type="text" maxlength="4096" spellcheck="false"
    autocapitalize="off"></label>
</form>
<div class="pages">${value}</div>
"""
_STATISTICS = "<template><summary>Statistics</summary><div class='made' tabindex='-1'></div></template>"
_DUPLICATES = f"""<template><summary>Near-duplicates</summary>
<form novalidate autocomplete="off">
  <label>Lowest similarity<input name="score" type="number" min="{LOWEST}" max="1" step="0.01"
    value="0.95"></label>
  <button>Find</button>
</form>
<div class="made" tabindex="-1"></div></template>
"""


@dataclass(frozen=True)
class Parts:
    """The components that others listen to or answer; `add` is `None` where nothing may be changed."""

    stock: gr.HTML
    add: changing.Parts | None
    statistics: gr.HTML
    duplicates: gr.HTML
    browse: gr.HTML


def lay_out(*, changes: bool) -> Parts:
    """Make the components, where the caller has opened the tab."""

    def part(name: str, template: str, script: str | None) -> gr.HTML:
        return gr.HTML("", elem_id=name, apply_default_css=False, html_template=template, js_on_load=script)

    return Parts(
        stock=part("stock", "${value}", None),
        add=changing.lay_out() if changes else None,
        statistics=part("statistics", _STATISTICS, script("fold", "statistics")),
        duplicates=part("duplicates", _DUPLICATES, script("fold", "poll", "confirm", "duplicates")),
        browse=part("browse", _BROWSE, script("select_item", "coalesce", "browse")),
    )


class GalleryTab:
    """What happens on the gallery tab."""

    def __init__(self, service: SearchService) -> None:
        self._service = service
        self._changing = Changing(service)
        self._duplicates = Duplicates(service)

    def listen(self, tab: gr.Tab, parts: Parts, header: gr.HTML, detail: gr.HTML) -> list[Any]:
        """Connect the components with what happens -> the events that remove pictures."""
        quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
        still = {**quiet, "show_progress": "hidden"}
        anew = [header, parts.stock, parts.statistics, parts.browse]
        tab.select(
            self.opened, [parts.browse], [parts.stock, parts.browse], js=script("gallery_place"), **quiet
        )
        for part in (parts.browse, parts.statistics):
            part.submit(self.turned, None, [parts.browse], trigger_mode="multiple", **quiet)
        parts.statistics.expand(self._changing.counted, None, [parts.statistics], **still)
        parts.duplicates.submit(self.compared, None, [parts.duplicates], **still)
        parts.duplicates.tick(self.looked, None, [parts.duplicates], **still)
        parts.duplicates.turn(self.groups_turned, None, [parts.duplicates], **still)
        if parts.add is None:
            return []
        add = parts.add
        adding = add.go.click(
            self._changing.add,
            [add.files, add.label],
            [add.outcome, add.files, *anew],
            show_progress_on=[add.outcome],
            **quiet,
        )
        adding.failure(self._changing.missed, None, [add.outcome, add.files], **still)
        return [
            parts.duplicates.remove(self.thinned, None, [parts.duplicates, *anew], **still),
            detail.remove(self.removed, None, [detail, parts.duplicates, *anew], **still),
        ]

    def opened(self, place: Any) -> tuple[str, str]:
        """The tab was opened, with the place in it that is to be shown."""
        at = place if isinstance(place, Mapping) else {}
        where, number = str(at.get("where", "")), str(at.get("number", ""))
        pictures = shown(self._service, where, int(number) if number.isdecimal() else 0)
        return guarded(lambda: gallery_view.stock(self._service.gallery)), pictures

    def turned(self, event: gr.EventData) -> str:
        """Other pictures are wanted."""
        return shown(self._service, str(event.where).strip(), int(event.page))

    def compared(self, event: gr.EventData) -> str:
        """Near-duplicates are wanted."""

        def begin() -> str:
            self._duplicates.begin(float(event.score))
            return self._groups(float(event.score), 0)

        return guarded(begin)

    def looked(self, event: gr.EventData) -> str:
        """How far the comparison has come, or what came of it."""
        return guarded(lambda: self._groups(float(event.of), 0))

    def groups_turned(self, event: gr.EventData) -> str:
        """Another page of near-duplicates is wanted."""
        return guarded(lambda: self._groups(float(event.score), int(event.group_page)))

    def thinned(self, event: gr.EventData) -> tuple[Any, ...]:
        """All but the first of a group are to go."""
        try:
            self._changing.remove(event)
        except Exception as error:
            return sentence(error) + self.groups_turned(event), *([gr.skip()] * 4)
        return self.groups_turned(event), *self._anew(event)

    def removed(self, event: gr.EventData) -> tuple[Any, ...]:
        """The picture in the detail view is to go."""
        try:
            self._changing.remove(event)
        except Exception as error:
            return detail_view.failed(sentence(error), "Not removed"), *([gr.skip()] * 5)
        groups = self.groups_turned(event) if event.score else gr.skip()
        return "", groups, *self._anew(event)

    def _anew(self, event: gr.EventData) -> tuple[str, str, Any, str]:
        return self._changing.anew(str(event.where), int(event.page))

    def _groups(self, min_score: float, page: int) -> str:
        look, facts = self._duplicates.look(min_score), self._service.facts()
        if look.running:
            return progress(look.key, look.stage, "Comparing all pictures with each other")
        removes = self._service.permissions.changes
        found = duplicates_view.groups(look.result or [], page, facts, removes=removes)
        return look.failure or f"<div data-score='{look.key}' data-number='{page}'>{found}</div>"
