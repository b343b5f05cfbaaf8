"""Named endpoints for Gradio's clients. Importing it imports Gradio, which takes seconds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradio as gr
from gradio import FileData

from retrieval.errors import InputError, LookalikeError, did_you_mean
from serve.api.exception_handlers import validate
from serve.api.jobs import start
from serve.api.routes import search_answer
from serve.core.errors import INTERNAL_DETAIL, ServerError
from serve.core.jobs import Jobs
from serve.core.service import SearchService
from serve.wire.queries import SearchRequest

_MAX_FILE = 32 * 2**20  # bytes
_PAUSE = 0.1  # seconds between two looks at a job


class Endpoints:
    """The endpoints: the answers are those of the HTTP API.

    Args:
        services: The galleries; the first is the default.
        jobs: Their jobs, by name.
        uploads: Folder where Gradio keeps uploaded files.
    """

    def __init__(self, services: Sequence[SearchService], jobs: Mapping[str, Jobs], uploads: Path) -> None:
        self._services = {service.name: service for service in services}
        self._jobs, self._uploads = jobs, uploads.resolve()

    def public(self) -> dict[str, Callable[..., Any]]:
        """Return the endpoints by name."""
        listed = (self.search, self.search_text, self.evaluate, self.duplicates, self.suspects, self.map)
        return {function.__name__: function for function in listed}

    def search(self, image: FileData, k: int = 24, where: str = "", gallery: str = "") -> dict[str, Any]:
        """Find the k most similar images of a gallery; `where` is a condition on their label and columns."""
        with _told():
            query = {"image": self._read(image), "k": k, "where": where or None}
            return self._search(query, gallery)

    def search_text(
        self, text: str, without: str = "", k: int = 24, where: str = "", gallery: str = ""
    ) -> dict[str, Any]:
        """Find the images that match a text; the model must have a text encoder."""
        with _told():
            query = {"text": [text], "without": [without] if without else [], "k": k, "where": where or None}
            return self._search(query, gallery)

    def evaluate(self, gallery: str = "") -> dict[str, Any]:
        """Search for each labelled image among all others, and measure the results."""
        return self._work(gallery, kind="evaluation")

    def duplicates(self, min_score: float = 0.95, limit: int = 1000, gallery: str = "") -> dict[str, Any]:
        """Find groups of near-duplicates."""
        return self._work(gallery, kind="duplicates", min_score=min_score, limit=limit)

    def suspects(self, limit: int = 100, gallery: str = "") -> dict[str, Any]:
        """Find images whose label is probably wrong."""
        return self._work(gallery, kind="suspects", limit=limit)

    def map(self, limit: int = 20_000, gallery: str = "") -> dict[str, Any]:
        """Place the images on a plane, neighbours beside each other."""
        return self._work(gallery, kind="map", limit=limit)

    def _service(self, name: str) -> SearchService:
        if not isinstance(name, str) or not name:
            return next(iter(self._services.values()))
        if name not in self._services:
            hint = did_you_mean(name[:50], self._services, ", ".join(self._services))
            raise InputError(f"there is no gallery {name[:50]!r}; {hint}")
        return self._services[name]

    def _search(self, query: Mapping[str, Any], gallery: str) -> dict[str, Any]:
        request = validate(SearchRequest, {name: value for name, value in query.items() if value is not None})
        answer = search_answer(self._service(gallery), request, None)
        return answer.model_dump(mode="json")

    def _read(self, image: Any) -> bytes:
        """Return the bytes of an uploaded file, and of no other."""
        given = image.get("path") if isinstance(image, dict) else image
        path = Path(str(given).replace("\0", "")).resolve()
        if not (path.is_relative_to(self._uploads) and path.is_file()):
            raise InputError("upload the image first, as handle_file of gradio_client does")
        if path.stat().st_size > _MAX_FILE:
            raise InputError(f"the image has more than {_MAX_FILE // 2**20} MB")
        return path.read_bytes()

    def _work(self, gallery: str, **values: Any) -> dict[str, Any]:
        """Do a job, and wait for its result in Gradio's queue."""
        with _told():
            service = self._service(gallery)
            jobs = self._jobs[service.name]
            job = start(service, jobs, values)
            while (now := jobs.get(job.id)).state == "running":
                time.sleep(_PAUSE)
            if now.failure:
                raise InputError(now.failure.detail)
            found: dict[str, Any] = json.loads(jobs.result(job.id))
            return found


@contextmanager
def _told() -> Iterator[None]:
    """Turn an error whose message is for visitors into one of Gradio's, without its traceback in the log."""
    try:
        yield
    except LookalikeError as error:
        message = str(error) if isinstance(error, InputError | ServerError) else INTERNAL_DETAIL
        raise gr.Error(message, print_exception=False) from error
