"""The evaluation tab: evaluate the gallery, show its reports and figures of its embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr
from markupsafe import Markup

from retrieval.errors import InputError
from retrieval.evaluation.gallery import check_labels
from retrieval.evaluation.report import Report
from serve.core.analyses import evaluate, hide_paths
from serve.core.background import Background
from serve.core.errors import BusyError
from serve.core.reports import current_report
from serve.core.service import SearchService
from serve.page.assets import module, render, script
from serve.page.figures import Figures
from serve.page.messages import error_message, html_or_error, note, progress
from serve.page.reports import ReportChoice, Reports
from serve.page.tab import Tab, events


@dataclass(frozen=True)
class _Parts:
    """The components."""

    measure: gr.HTML
    figures: gr.HTML
    choice: gr.HTML
    report: gr.HTML


class EvaluationTab(Tab):
    """Evaluate the gallery, and look at its reports and figures."""

    label, elem_id, content = "Evaluation", "evaluation-tab", "report"

    def __init__(self, service: SearchService) -> None:
        super().__init__(service)
        self._work: Background[Report] = Background()
        self._reports = Reports(service)
        self._figures = Figures(service)

    def lay_out(self, tab: gr.Tab) -> None:
        """Create the components."""
        plain: dict[str, Any] = {"apply_default_css": False}
        self._tab = tab
        measure = gr.HTML("", elem_id="measure", js_on_load=script("poll", "measure"), **plain)
        self._parts = _Parts(
            measure,
            figures=self._figures.component(),
            choice=gr.HTML(
                ReportChoice().fields(),
                elem_id="choice",
                html_template=render("report_choice"),
                js_on_load=script("report_choice"),
                **plain,
            ),
            report=gr.HTML("", elem_id="report", js_on_load=script("search_item"), **plain),
        )
        gr.HTML(
            "",
            elem_id="classes",
            html_template=render("classes"),
            js_on_load=module("classes", self._service.summary().address),
            **plain,
        )

    def connect(self) -> None:
        """Attach the event handlers."""
        parts, hidden = self._parts, events()
        # One after the other, so that the visitor sees the last choice.
        shown = events(
            "minimal", show_progress_on=[parts.report], concurrency_id="reports", concurrency_limit=1
        )
        outputs = [parts.measure, parts.choice, parts.report]
        self._tab.select(self.open, [parts.choice], outputs, **shown)
        parts.measure.submit(self.start, None, [parts.measure], **hidden)
        parts.measure.tick(self.poll, None, outputs, **hidden)
        parts.choice.submit(
            self.show_report, [parts.choice], [parts.report], trigger_mode="always_last", **shown
        )
        self._figures.connect(parts.figures)

    def open(self, choice: Any) -> tuple[str, Any, str]:
        """Open the tab, with the report that was chosen before, or the newest."""
        before = ReportChoice.parse(choice)
        now = self._reports.current(before)
        # The form is left alone if there is nothing new: the visitor may be choosing already.
        return self._measure(), gr.skip() if now == before else now.fields(), self.show_report(now)

    def show_report(self, choice: Any) -> str:
        """Show the chosen report, alone or beside another one."""

        def build() -> Markup:
            with hide_paths(self._service):
                return self._reports.view(ReportChoice.parse(choice))

        return html_or_error(build)

    def start(self) -> str:
        """Start an evaluation, unless one is running."""
        return html_or_error(self._start)

    def poll(self) -> tuple[str, Any, Any]:
        """Return the progress of the evaluation, and the newest report when it is done."""
        if self._work.status().running:
            return self._measure(), gr.skip(), gr.skip()
        return self.open(ReportChoice())

    def _start(self) -> Markup:
        gallery = self._service.gallery
        if not self._work.status().running and not current_report(gallery):
            try:
                self._work.start(gallery.state_digest(), lambda: evaluate(self._service))
            except BusyError as error:
                return render("measure", done=False, failure=error_message(error))
        return self._measure()

    def _measure(self) -> Markup:
        """Return the progress of the evaluation, or the button that starts one."""
        return html_or_error(self._measure_or_raise)

    def _measure_or_raise(self) -> Markup:
        status, gallery = self._work.status(), self._service.gallery
        failure = error_message(status.failure) if status.failure else None
        if status.running:
            return progress("evaluation", status.stage, "Evaluating")
        try:
            with hide_paths(self._service):
                check_labels(gallery)
        except InputError as error:
            return note(f"{error}.")
        return render("measure", done=current_report(gallery) is not None, failure=failure)
