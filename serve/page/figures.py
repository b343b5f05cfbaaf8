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
from retrieval.storage.contents import stored
from serve.core.errors import BusyError
from serve.core.service import SearchService
from serve.page import figures_view
from serve.page.background import POLL, Background, progress, still
from serve.page.failures import guarded, nameless
from serve.page.searching import SEARCH

_MAPPED = 2000  # t-SNE of more takes minutes
_COMPARED = 10_000
_UNLABELLED = "no label"

_SCRIPT = (
    POLL
    + SEARCH
    + WALK
    + """
element.addEventListener('click', event => {
  const button = event.target.closest('[data-figure]');
  if (button) trigger('select', {of: button.ariaPressed === 'true' ? '' : button.dataset.figure});
});
let walked = null;
const onMap = () => {
  const map = element.querySelector('.map');
  if (!map) return;
  if (map === walked?.map) { walked.anew(); return; }
  const group = map.querySelector('g');
  const show = i => {
    const mark = group.children[i], text = element.querySelector('#pointed');
    const shown = text.nextElementSibling;
    shown.hidden = !mark;
    text.textContent = mark ? `${mark.dataset.label}, item ${mark.dataset.item}` : 'Nothing is pointed at.';
    group.classList.toggle('lit', Boolean(mark));
    for (const one of group.children) {
      one.classList.toggle('on', mark?.dataset.class === one.dataset.class);
    }
    if (!mark) return;
    const picture = shown.querySelector('img');
    picture.src = picture.getAttribute('src').replace(/\\d+(?=\\/thumbnail)/, mark.dataset.item);
    picture.alt = mark.dataset.label;
    shown.querySelector('button').dataset.search = mark.dataset.item;
  };
  walked = {map, ...walkOn(map, group, show)};
  const pick = () => { if (map.querySelector('.at')) element.querySelector('.card button').click(); };
  map.addEventListener('click', event => { if (event.pointerType === 'mouse') pick(); });
  map.addEventListener('keydown', event => { if (event.key === 'Enter') pick(); });
};
watch('value', onMap);
"""
)


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
            found = stored(gallery, labelled=True, limit=_COMPARED)
            return figures_view.triplet_diagram(
                triplets(embeddings_of(gallery, found, self._service.name)), found.total
            )

    def _map(self) -> str:
        with nameless(self._service):
            gallery = still(self._service)
            found = stored(gallery, limit=_MAPPED)
            if not found.total:
                raise InputError("there are no pictures yet")
            largest = Counter(label for label in found.labels if label).most_common(SHOWN)
            embeddings = embeddings_of(gallery, found, self._service.name, _UNLABELLED)
            placed = tsne_map(embeddings, shown=sorted(label for label, _ in largest))
            return figures_view.map_of(placed, found.ids.tolist(), found.total, self._service.facts())
