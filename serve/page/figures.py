"""The figures of a gallery's embeddings, on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gradio as gr

from retrieval.analysis.embeddings import embeddings_of
from retrieval.analysis.triplets import triplets
from retrieval.analysis.tsne import SHOWN, tsne_map
from retrieval.analysis.tsne_marks import WALK
from retrieval.errors import InputError
from retrieval.evaluation.gallery import check_labels, state_of
from serve.core.errors import BusyError
from serve.core.service import SearchService
from serve.page import figures_view
from serve.page.assets import script
from serve.page.background import Background, progress, still
from serve.page.failures import guarded, nameless

_MAPPED = 2000  # t-SNE of more takes minutes
_COMPARED = 10_000
_UNLABELLED = "no label"

_SCRIPT = "\n".join([script("poll", "search_item"), WALK, script("figures")])


def lay_out() -> gr.HTML:
    """Make the component; its `submit` says which picture to search with."""
    return gr.HTML(figures_view.panel("", ""), elem_id="figures", apply_default_css=False, js_on_load=_SCRIPT)


class Figures:
    """What happens with the figures. Each is computed once for a state of the gallery."""

    def __init__(self, service: SearchService) -> None:
        self._service = service
        self._makers: dict[str, Callable[[], str]] = {"triplets": self._triplets, "map": self._map}
        self._works: dict[str, Background[str]] = {name: Background() for name in self._makers}

    def listen(self, figures: gr.HTML) -> None:
        """Connect the component with what happens."""
        quiet: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        figures.select(self.open, None, [figures], **quiet)
        figures.tick(self.look, None, [figures], **quiet)

    def open(self, event: gr.EventData) -> str:
        """A figure, or none, was chosen."""
        return guarded(lambda: self._shown(str(event.of), again=True))

    def look(self, event: gr.EventData) -> str:
        """How the figure stands that is being made."""
        return guarded(lambda: self._shown(str(event.of), again=False))

    def _shown(self, name: str, *, again: bool) -> str:
        if name not in self._works:
            return figures_view.panel("", "")
        return figures_view.panel(name, guarded(lambda: self._made(name, again)))

    def _made(self, name: str, again: bool) -> str:
        """The figure of the gallery as it is; `again`: also where it failed before."""
        work, state = self._works[name], state_of(self._service.gallery)
        look = work.look()
        if not look.running and (look.key != state or (again and look.failure)):
            with suppress(BusyError):
                work.begin(state, self._makers[name])
            look = work.look()
        if look.running:
            return progress(name, look.stage, "Computing")
        if look.key != state:
            return progress(name, None, "Waiting for other work to end")
        return look.failure or str(look.result)

    def _triplets(self) -> str:
        with nameless(self._service):
            gallery = still(self._service)
            check_labels(gallery)
            found = gallery.embeddings(labelled=True, limit=_COMPARED)
            return figures_view.triplet_diagram(
                triplets(embeddings_of(gallery, found, self._service.name)), found.total
            )

    def _map(self) -> str:
        with nameless(self._service):
            gallery = still(self._service)
            found = gallery.embeddings(limit=_MAPPED)
            if not found.total:
                raise InputError("there are no pictures yet")
            largest = Counter(label for label in found.labels if label).most_common(SHOWN)
            embeddings = embeddings_of(gallery, found, self._service.name, _UNLABELLED)
            placed = tsne_map(embeddings, shown=sorted(label for label, _ in largest))
            return figures_view.map_of(placed, found.ids.tolist(), found.total, self._service.facts())
