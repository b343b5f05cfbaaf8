"""A search of a gallery as Gradio components, to embed. Importing it imports Gradio, which takes seconds."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from retrieval.errors import InputError, LookalikeError
from retrieval.evaluation.gallery import check_labels
from retrieval.galleries.searchable import SearchableGallery
from retrieval.search.options import SearchOptions
from serve.core.analyses import evaluate, hide_paths
from serve.core.errors import INTERNAL_DETAIL, ServerError
from serve.core.reports import report_summaries
from serve.core.service import SearchService
from serve.page.reports import Reports

_MOST = 100  # hits
_SHOWN = 24


def blocks(gallery: SearchableGallery | str | Path) -> gr.Blocks:
    """Return a search by image, and the reports of a gallery, as components of Gradio.

    `launch()` shows them alone; within `with gr.Blocks():` or `with gr.Tab(...):` they become a part of
    another application, with `lookalike.blocks(...)` called there.

        import lookalike

        lookalike.blocks("shop.gallery").launch()

    Args:
        gallery: A gallery, or its folder.

    Raises:
        InputError: The folder is not a gallery.
    """
    folder = gallery.folder if isinstance(gallery, SearchableGallery) else Path(gallery)
    service = SearchService(folder)
    search, reports = _Search(service), _Evaluation(service)
    with gr.Blocks(title=f"Lookalike: {service.name}", analytics_enabled=False) as made:
        with gr.Tab("Search"):
            search.lay_out()
        with gr.Tab("Report"):
            reports.lay_out()
    return made


class _Search:
    """An image in, a gallery of hits out; a hit that is pressed becomes the query."""

    def __init__(self, service: SearchService) -> None:
        self._service = service

    def lay_out(self) -> None:
        with gr.Row():
            with gr.Column(scale=1):
                query = gr.Image(
                    label="Query", type="filepath", image_mode=None, sources=["upload", "clipboard"]
                )
                # Gradio would decode it before we can say what is wrong with it.
                query.preprocess = lambda given: given and given.path
                count = gr.Slider(1, _MOST, value=_SHOWN, step=1, label="Hits")
                where = gr.Textbox(label="Condition", placeholder="label = '…'")
            with gr.Column(scale=3):
                said = gr.Markdown()
                hits = gr.Gallery(
                    label="Hits", columns=6, object_fit="contain", format="jpeg", interactive=False
                )
        found = gr.State([])
        inputs, outputs = [query, count, where], [hits, said, found]
        gr.on(
            [query.change, count.release, where.submit],
            self.search,
            inputs,
            outputs,
            api_name="search",
            trigger_mode="always_last",
        )
        hits.select(self.search_again, [found, count, where], outputs, api_visibility="private")

    def search(self, query: str | None, count: int, where: str) -> tuple[list[Any], str, list[int]]:
        """Search with an image; the hits with their captions, a line about them, and their ids."""
        if not query:
            return [], "", []
        return self._show(Path(query).read_bytes(), count, where)

    def search_again(
        self, found: list[int], count: int, where: str, event: gr.SelectData
    ) -> tuple[list[Any], str, list[int]]:
        """Search with a hit."""
        return self._show(found[int(event.index)], count, where)

    def _show(self, query: bytes | int, count: int, where: str) -> tuple[list[Any], str, list[int]]:
        try:
            options = SearchOptions(k=int(min(count, _MOST)), where=where.strip() or None)
            (hits,) = self._service.find([query], options).found
            if isinstance(hits, InputError):
                raise hits
        except LookalikeError as error:
            return [], _sentence(error), []
        shown = [(self._thumbnail(hit.id), f"{hit.score:.2f} · {hit.label or 'no label'}") for hit in hits]
        return (
            shown,
            f"{len(hits)} hits" if hits else "No image passes the condition.",
            [hit.id for hit in hits],
        )

    def _thumbnail(self, item: int) -> Image.Image | None:
        found = self._service.thumbnail(item)
        if found.media_type == "image/svg+xml":  # the file is missing
            return Image.new("RGB", (64, 64), "#94a3b8")
        with Image.open(io.BytesIO(found.data)) as image:
            return image.convert("RGB")


class _Evaluation:
    """The newest report, and a button that evaluates the gallery."""

    def __init__(self, service: SearchService) -> None:
        self._service, self._reports = service, Reports(service)

    def lay_out(self) -> None:
        start = gr.Button("Evaluate this gallery", variant="primary")
        report = gr.HTML(self.newest())
        start.click(self.evaluate, None, [report], api_name="evaluate", concurrency_limit=1)

    def evaluate(self) -> str:
        """Evaluate the gallery, unless it has been since it changed; return its report in HTML."""
        try:
            with hide_paths(self._service):
                check_labels(self._service.gallery)
            evaluate(self._service)
        except LookalikeError as error:
            raise gr.Error(_sentence(error), print_exception=False) from error
        return self.newest()

    def newest(self) -> str:
        """Return the newest report in HTML."""
        kept = report_summaries(self._service.folder)
        try:
            return str(self._reports.view(kept[0].folder.name)) if kept else "There is no evaluation yet."
        except LookalikeError as error:
            return _sentence(error)


def _sentence(error: LookalikeError) -> str:
    return str(error) if isinstance(error, InputError | ServerError) else INTERNAL_DETAIL
