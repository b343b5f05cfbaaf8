"""The evaluation tab: measure the gallery, look at the reports it keeps, and at its embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from retrieval.errors import InputError
from retrieval.evaluation.gallery import check_labels, state_of
from retrieval.reports.folder import evaluate_and_keep
from serve.core.errors import BusyError
from serve.core.service import SearchService
from serve.page import evaluation_view, views
from serve.page import figures as figures_tab
from serve.page.assets import script
from serve.page.background import Background, progress, still
from serve.page.failures import guarded, nameless, sentence
from serve.page.report_choice import Choice, Reports

# What a visitor can set off is bounded: queries x images, but as many queries as say something.
_COMPARISONS, _FEWEST = 400_000_000, 1000

_CHOICE = """
<form novalidate autocomplete="off">
  <label>Report (times are UTC)<select name="report"></select></label>
  <label>Compare with<select name="against"></select></label>
</form>
"""


@dataclass(frozen=True)
class Parts:
    """The components; a `submit` of the report or of the figures says which picture to search with."""

    measure: gr.HTML
    figures: gr.HTML
    choice: gr.HTML
    report: gr.HTML


def lay_out() -> Parts:
    """Make the components, where the caller has opened the tab."""
    plain: dict[str, Any] = {"apply_default_css": False}
    measure = gr.HTML("", elem_id="measure", js_on_load=script("poll", "measure"), **plain)
    figures = figures_tab.lay_out()
    choice = gr.HTML(
        Choice().form, elem_id="choice", html_template=_CHOICE, js_on_load=script("report_choice"), **plain
    )
    report = gr.HTML("", elem_id="report", js_on_load=script("search_item"), **plain)
    return Parts(measure, figures, choice, report)


class Evaluation:
    """What happens on the evaluation tab."""

    def __init__(self, service: SearchService) -> None:
        self._service = service
        self._work: Background[None] = Background()
        self._reports = Reports(service)

    def listen(self, tab: gr.Tab, parts: Parts) -> None:
        """Connect the components with what happens."""
        still: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        # One after the other, so that what a visitor chose last is what he sees.
        quiet = {
            **still,
            "show_progress": "minimal",
            "show_progress_on": [parts.report],
            "concurrency_id": "reports",
            "concurrency_limit": 1,
        }
        shown = [parts.measure, parts.choice, parts.report]
        tab.select(self.opened, [parts.choice], shown, **quiet)
        parts.measure.submit(self.begin, None, [parts.measure], **still)
        parts.measure.tick(self.look, None, shown, **still)
        parts.choice.submit(self.shown, [parts.choice], [parts.report], trigger_mode="always_last", **quiet)
        figures_tab.Figures(self._service).listen(parts.figures)

    def opened(self, choice: Any) -> tuple[str, Any, str]:
        """All there is, with the report that was chosen before; the newest where that is gone."""
        before = Choice.of(choice)
        now = self._reports.among(before)
        # The form is left alone where there is nothing new: the visitor may be choosing already.
        return self._measure(), gr.skip() if now == before else now.form, self.shown(now)

    def shown(self, choice: Any) -> str:
        """The report that was chosen, alone or beside another."""

        def make() -> str:
            with nameless(self._service):
                return self._reports.shown(Choice.of(choice))

        return guarded(make)

    def begin(self) -> str:
        """Evaluate the gallery, unless that goes on already."""
        return guarded(self._begin)

    def look(self) -> tuple[str, Any, Any]:
        """How the evaluation stands, and the newest report when it is done."""
        if self._work.look().running:
            return self._measure(), gr.skip(), gr.skip()
        return self.opened(Choice())

    def _begin(self) -> str:
        state = state_of(self._service.gallery)
        if not self._work.look().running and not self._is_measured(state):
            try:
                self._work.begin(state, self._evaluate)
            except BusyError as error:
                return evaluation_view.offered(sentence(error))
        return self._measure()

    def _evaluate(self) -> None:
        with nameless(self._service):
            gallery = still(self._service)
            evaluate_and_keep(gallery, limit=max(_FEWEST, _COMPARISONS // max(1, len(gallery))))

    def _measure(self) -> str:
        """How the evaluation stands, and whether there is one to do."""
        return guarded(self._standing)

    def _standing(self) -> str:
        look, gallery = self._work.look(), self._service.gallery
        if look.running:
            return progress("evaluation", look.stage, "Evaluating")
        try:
            with nameless(self._service):
                check_labels(gallery)
        except InputError as error:
            return views.note(f"{error}.")
        if self._is_measured(state_of(gallery)):
            return evaluation_view.done()
        return evaluation_view.offered(look.failure)

    def _is_measured(self, state: str) -> bool:
        return any(report.state == state for report in self._reports.listed())
