"""Figures of a gallery's embeddings, computed on demand: the triplet diagram."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import gradio as gr
from markupsafe import Markup

from retrieval.analysis import triplets
from retrieval.analysis.embeddings import embeddings_of
from retrieval.evaluation.gallery import check_labels
from retrieval.reports.figures import render_figure
from retrieval.reports.pages import figure_fragment
from serve.core.analyses import hide_paths
from serve.core.background import Background
from serve.core.errors import BusyError
from serve.core.service import SearchService
from serve.page.assets import render, script
from serve.page.messages import error_message, html_or_error, note, progress
from serve.page.tab import events

_TITLES = {"triplets": "Triplet diagram"}
_COMPARED = 10_000  # images


class Figures:
    """The figures; each is computed once for each state of the gallery."""

    def __init__(self, service: SearchService) -> None:
        self._service = service
        self._builders: dict[str, Callable[[], Markup]] = {"triplets": self._triplets}
        self._works: dict[str, Background[Markup]] = {name: Background() for name in self._builders}

    def component(self) -> gr.HTML:
        """Create the component; its `submit` names an item to search with."""
        scripts = script("poll", "figures")
        return gr.HTML(panel("", Markup()), elem_id="figures", apply_default_css=False, js_on_load=scripts)

    def connect(self, component: gr.HTML) -> None:
        """Attach the event handlers."""
        component.select(self.open, None, [component], **events())
        component.tick(self.poll, None, [component], **events())

    def open(self, event: gr.EventData) -> str:
        """Open a figure, or close it."""
        return html_or_error(lambda: self._panel(str(event.of), retry=True))

    def poll(self, event: gr.EventData) -> str:
        """Return the progress of a figure, or the figure."""
        return html_or_error(lambda: self._panel(str(event.of), retry=False))

    def _panel(self, name: str, *, retry: bool) -> Markup:
        if name not in self._works:
            return panel("", Markup())
        return panel(name, html_or_error(lambda: self._figure(name, retry)))

    def _figure(self, name: str, retry: bool) -> Markup:
        """Return the figure of the gallery's current state, started again after a failure with `retry`."""
        work, state = self._works[name], self._service.gallery.state_digest()
        status = work.status()
        if not status.running and (status.key != state or (retry and status.failure)):
            with suppress(BusyError):
                work.start(state, self._builders[name])
            status = work.status()
        if status.running:
            return progress(name, status.stage, "Computing")
        if status.key != state:
            return progress(name, None, "Waiting for other work to finish")
        if status.failure:
            return error_message(status.failure)
        return status.result or Markup()

    def _triplets(self) -> Markup:
        with hide_paths(self._service):
            gallery = self._service.gallery.fixed()
            check_labels(gallery)
            found = gallery.embeddings(labelled=True, limit=_COMPARED)
            embeddings = embeddings_of(gallery, found, self._service.name)
            return triplet_diagram(triplets.triplets(embeddings), found.total)


def panel(chosen: str, content: Markup) -> Markup:
    """Return the buttons that open the figures, and the one that is open; empty for none."""
    return render("figures", titles=_TITLES, chosen=chosen, content=content)


def triplet_diagram(found: triplets.Triplets, total: int) -> Markup:
    """Return the similarity of each labelled image to the nearest of its own and of another class."""
    count = len(found.positive)
    sampled = count + found.left_out < total
    of = f", a random sample of {total:,}, compared among themselves" if sampled else ""
    alone = f" {found.left_out:,} are alone in their class and left out." if found.left_out else ""
    panels = [[triplets.Panel("labelled images", [found])]]
    label = f"Triplet diagram: of {100 * found.hard_share:.1f}% of the images another class is nearer"
    words = note(
        f"{count:,} labelled images{of}: horizontally the similarity to the nearest of the same class, "
        f"vertically to the nearest of another class. Above the diagonal, Recall@1 fails.{alone}"
    )
    draw = partial(triplets.draw_triplet_diagram, panels)
    drawing = render_figure(draw, *triplets.diagram_size(panels)).decode()
    return words + Markup(figure_fragment(drawing, label))
