"""Python client of a Lookalike server.

    from lookalike import Client

    with Client("https://search.example.com", token="...") as client:
        for hit in client.search("query.jpg", k=5, where="price < 30"):
            print(f"{hit.score:.3f}  {hit.key}  {hit.metadata}")

`AsyncClient` is the same for asyncio.

Every failure is a `LookalikeError`. Error responses raise an `ApiError` with a stable `code`, which is empty
if the response is not from a Lookalike server but, say, from a proxy. A server that does not answer raises
an `UnreachableError`, an image file that cannot be read an `ImageError` before anything is sent.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack
from urllib.parse import quote

import httpx
from pydantic import BaseModel, Field

from retrieval.errors import InputError, LookalikeError
from retrieval.search.options import (
    Duplicates,
    SearchKeywords,
    SearchOptions,
    each_name,
    takes_search_options,
)
from serve.addresses import API, api_of
from serve.exchanges import (
    Asynchronous,
    Blocking,
    Found,
    ListingSteps,
    Request,
    Steps,
    UnreachableError,
    exchange,
    listing,
)
from serve.wire.decisions import Decision, DecisionsAnswer, UndoAnswer
from serve.wire.evaluation import EvaluationAnswer as Evaluation
from serve.wire.evaluation import EvaluationMetric as Metric
from serve.wire.evaluation import EvaluationResult as Result
from serve.wire.galleries import GalleriesAnswer, ServedGallery
from serve.wire.galleries import GalleryAnswer as Gallery
from serve.wire.heatmaps import SCALE, HeatmapAnswer
from serve.wire.heatmaps import Heatmap as WireHeatmap
from serve.wire.hits import BatchAnswer, BatchResult, Hit, ObjectsAnswer, SearchAnswer
from serve.wire.hits import EmbedAnswer as Vectors
from serve.wire.images import AddAnswer, AddResult, Image
from serve.wire.images import AddConflict as Conflict
from serve.wire.items import ColumnFacet, DateRange, FacetsAnswer, LabelAnswer, NumberRange
from serve.wire.items import ItemsAnswer as ItemPage
from serve.wire.items import RemoveAnswer as Removal
from serve.wire.jobs import JobAnswer
from serve.wire.problems import ProblemDetails
from serve.wire.saved_views import SavedView, SavedViewsAnswer

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image as Pillow

    from retrieval.storage.query_log import Outcome

    ImageSource = str | Path | bytes | Pillow.Image
    View = ImageSource | Mapping[str, Any]
    Vector = Sequence[float] | np.ndarray

__all__ = [  # the answers are part of the interface of the client
    "UNCHANGED",
    "Added",
    "ApiError",
    "AsyncClient",
    "Client",
    "Conflict",
    "Evaluation",
    "Facet",
    "Facets",
    "Gallery",
    "Heatmap",
    "Heatmaps",
    "Hit",
    "Hits",
    "Image",
    "ItemPage",
    "Job",
    "Metric",
    "Removal",
    "Requests",
    "Result",
    "ServedGallery",
    "Unchanged",
    "UnreachableError",
    "Vectors",
]
_TIMEOUT_SECONDS = 35.0  # longer than the default deadline of the server
_BYTES_HEADERS = {"Content-Type": "application/octet-stream"}
_MAX_EXCERPT = 100  # characters of a response that is not from a Lookalike server
_FACTS = ("id", "key", "label", "metadata", "width", "height")
_IF_MATCH = "If-Match"
T = TypeVar("T")


class Unchanged:
    """Stands for a label that `Client.update` leaves as it is, where `None` is no label."""


UNCHANGED = Unchanged()


class ApiError(LookalikeError):
    """An error response: a problem document (RFC 9457), or a response of another server.

    Attributes:
        code: Stable code of the problem, such as "busy"; empty if the response is not from a Lookalike
            server.
        status: HTTP status.
        detail: One sentence for people.
        instance: URI of the occurrence, which the server's log contains.
        retry_after: Seconds after which a retry may succeed, if known.
        more: Further members of the problem, such as the `reason` why an image is unusable.
    """

    def __init__(
        self,
        code: str,
        status: int,
        detail: str,
        instance: str = "",
        retry_after: float | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(code, status, detail)
        self.code, self.status, self.detail, self.instance = code, status, detail, instance
        self.retry_after, self.more = retry_after, more or {}

    def __str__(self) -> str:
        return f"{self.status} {self.code}".rstrip() + f": {self.detail}"


class Added(Image):
    """The result of adding an image; it is not new if the gallery had its bytes, or one like it, already."""

    is_new: bool = Field(description="Whether it was added.")
    similarity: float | None = Field(None, description="To the image, if it was refused as a near-duplicate.")
    conflict: Conflict | None = Field(description="If it was not, what was asked for it and not stored.")


@dataclass(frozen=True)
class Facet:
    """The values of a column.

    Attributes:
        column: Column name.
        values: The most frequent values with their numbers of images.
        distinct: Number of different values.
        missing: Images without a value.
        numbers: Lowest and highest number, if there are any.
        dates: First and last date, if all values are dates.
        histogram: Images in 24 parts of equal width of the range, if there is one.
    """

    column: str
    values: list[tuple[str | int | float, int]]
    distinct: int
    missing: int
    numbers: tuple[float, float] | None
    dates: tuple[str, str] | None
    histogram: list[int] | None


@dataclass(frozen=True)
class Facets:
    """Counts of the values of columns.

    Attributes:
        images: Images that fulfil the condition.
        counted: Images whose values are counted: all of these, or a random sample.
        facets: Column name -> its values.
    """

    images: int
    counted: int
    facets: dict[str, Facet]


@dataclass(frozen=True, eq=False)
class Heatmap:
    """What each location of an image contributes to a score.

    Attributes:
        box: What the grid covers: left, top, right and bottom, as fractions of the upright image.
        contributions: float64 [h, w]; they sum to the score.
        strengths: Their contrast, float64 [h, w], -1 to 1.
    """

    box: tuple[float, float, float, float]
    contributions: np.ndarray
    strengths: np.ndarray


@dataclass(frozen=True, eq=False)
class Heatmaps:
    """Where a query and an image of the gallery look alike.

    Attributes:
        score: Their cosine similarity.
        query: Heatmap of the query.
        item: Heatmap of the image of the gallery.
        similarities: Cosine of each location of the query with each of the image, float64 [h w, h w].
        fingerprint: Fingerprint of the model.
    """

    score: float
    query: Heatmap
    item: Heatmap
    similarities: np.ndarray
    fingerprint: str


class Job(JobAnswer):
    """Long work of the server; see `POST /v1/jobs`."""

    progress: dict[str, Any] | None = Field(  # type: ignore[assignment]
        description='"what", "done", "total" and "unit"; `None` if unknown.'
    )
    problem: dict[str, Any] | None = Field(  # type: ignore[assignment]
        description="Why it failed: a problem document."
    )


class Hits(list[Hit]):
    """Hits of a search, best first.

    Args:
        hits: The hits.
        query_id: Id of the search, for `Client.record_outcome`; `None` if the server does not record it.
        interleaved: Whether hits of a second gallery are mixed in, so that scores do not fall.
    """

    def __init__(
        self, hits: Iterable[Hit] = (), query_id: str | None = None, interleaved: bool = False
    ) -> None:
        super().__init__(hits)
        self.query_id = query_id
        self.interleaved = interleaved


class _Jobs(BaseModel):
    jobs: list[Job]


class Requests:
    """The requests of both clients: `Client` returns the answers, `AsyncClient` coroutines of them."""

    _api: str

    @exchange
    @takes_search_options
    def search(
        self,
        image: ImageSource | None = None,
        *,
        id: int | str | None = None,
        vector: Vector | None = None,
        url: str | None = None,
        like: View | Iterable[View] = (),
        unlike: View | Iterable[View] = (),
        text: str | Sequence[str] = (),
        without: str | Sequence[str] = (),
        region: Sequence[float] | None = None,
        fingerprint: str | None = None,
        k: int = SearchOptions.k,
        galleries: str | Iterable[str] = (),
        **options: Unpack[SearchKeywords],
    ) -> Steps[Hits]:
        """Return the images most similar to an image, an item, a vector or a URL, to texts, or to both.

        Args:
            image: Path, bytes of a file, or a Pillow image, which is sent upright and in 8-bit RGB.
            id: Id or key of an image of the gallery, which is not among its own hits.
            vector: Vector of the gallery's model.
            url: URL of an image for the server to fetch, if it allows that.
            like: Images that the hits should look like, in place of one image, item, vector or URL. Each is
                as `image`, or a mapping with `image`, `id`, `vector` or `url`, and perhaps `region`, such
                as `{"id": 17}`; or one. At most 16 together with those of `unlike`.
            unlike: Images to move away from, each as in `like`.
            text: Texts that the hits should show, alone or together with the image, for a model with a text
                encoder.
            without: Texts to move away from.
            region: Left, top, right and bottom of the region of the image to search with, as fractions of its
                width and height.
            fingerprint: Model of the vector; another one than the gallery's is refused.
            k: Number of images to find, 1 to 1000.
            galleries: Names of galleries of one model to search together, in place of that of the client.
                Ids are of the first.
            options: Further options of a search, such as `where` and `min_score`: fields of
                `retrieval.SearchOptions`.

        Raises:
            ApiError: The server refuses the request.
            ImageError: The file cannot be read, or the Pillow image cannot be used.
            InputError: Several of image, id, vector, url and like, or nothing.
            UnreachableError: The server does not answer. So do all other methods.
        """
        views = {"like": [*map(_view, _each(like))], "unlike": [*map(_view, _each(unlike))]}
        number = sum(one is not None for one in (image, id, vector, url)) + bool(views["like"])
        if number > 1 or not (number or text):
            raise InputError("search: give exactly one of image, id, vector, url and like, or text")
        given = _options(k, options)
        for name, texts in (("text", text), ("without", without)):
            if texts:
                given[name] = _texts(texts)
        if names := _texts(galleries):
            given["galleries"] = names
        if region is not None:
            given["region"] = [float(part) for part in region]
        given |= {name: side for name, side in views.items() if side}
        if image is not None and not views["unlike"]:
            request: dict[str, Any] = {"params": given, "content": _bytes(image), "headers": _BYTES_HEADERS}
        else:
            query = {"image": image, "id": id, "vector": vector, "url": url}
            request = {"json": given | _view(query) | _without_none({"fingerprint": fingerprint})}
        if names:
            request["api"] = API
        answer = yield from self._ask(SearchAnswer.model_validate_json, "POST", "/search", **request)
        return Hits(answer.hits, answer.query_id, answer.interleaved)

    @exchange
    @takes_search_options
    def search_batch(
        self,
        images: ImageSource | Iterable[ImageSource],
        *,
        together: bool = False,
        k: int = SearchOptions.k,
        **options: Unpack[SearchKeywords],
    ) -> Steps[list[Hits | ApiError]]:
        """Return the hits of each image, or its error. What is not listed is as for `search`.

        Args:
            images: At most 64 images, each as for `search`; or one.
            together: Whether all images are views of one object: one list of hits. Groups are compared with
                each view, single images with their mean.

        Raises:
            ApiError: The server refuses the request; with `together`, also for a single unusable image.
        """
        params = _options(k, options) | {"together": together}
        files = _files(images)
        return (yield from self._ask(_batch, "POST", "/search:batch", params=params, files=files))

    @exchange
    def record_outcome(self, query_id: str, item: int, outcome: Outcome) -> Steps[None]:
        """Tell a server that records searches what was done with a hit; see `lookalike coverage`.

        Args:
            query_id: Id of the search, which its hits have.
            item: Id of the image.
            outcome: "opened", "right" or "wrong".

        Raises:
            ApiError: The server refuses the request; "not-recorded" if it records nothing.
        """
        body = {"query_id": query_id, "item": item, "outcome": outcome}
        yield from self._no_content("POST", "/outcomes", json=body)

    @exchange
    def embed_texts(self, texts: Sequence[str]) -> Steps[Vectors]:
        """Return the vectors of texts, of unit length; raise an `ApiError` without a text encoder."""
        return (
            yield from self._ask(Vectors.model_validate_json, "POST", "/embed", json={"texts": list(texts)})
        )

    @exchange
    def embed(self, images: ImageSource | Iterable[ImageSource]) -> Steps[Vectors]:
        """Return the vectors of images, or of one, of unit length.

        Raises:
            ApiError: The server refuses the request, also for a single unusable image.
        """
        return (yield from self._ask(Vectors.model_validate_json, "POST", "/embed", files=_files(images)))

    @exchange
    def heatmap(
        self,
        item: int | str,
        image: ImageSource | None = None,
        *,
        id: int | str | None = None,
        region: Sequence[float] | None = None,
    ) -> Steps[Heatmaps]:
        """Return where a query and an image of the gallery look alike.

        Args:
            item: Id or key of the image of the gallery.
            image: The query: an image as for `search`.
            id: The query: id or key of another image of the gallery.
            region: Region of the query, as for `search`.

        Raises:
            ApiError: The server refuses the request; "no-embedding-map" if the model has none.
        """
        given = {"item": item, "region": None if region is None else [float(part) for part in region]}
        if image is None:
            request: dict[str, Any] = {"json": _without_none({**given, "id": id})}
        else:
            content = _bytes(image)
            request = {"params": _without_none(given), "content": content, "headers": _BYTES_HEADERS}
        return (yield from self._ask(_heatmaps, "POST", "/heatmap", **request))

    @exchange
    @takes_search_options
    def objects(
        self,
        image: ImageSource | None = None,
        *,
        id: int | str | None = None,
        k: int = SearchOptions.k,
        **options: Unpack[SearchKeywords],
    ) -> Steps[ObjectsAnswer]:
        """Return what the gallery has of the things that stand in an image, and where they are.

        Args:
            image: An image as for `search`.
            id: Id or key of an image of the gallery, which is not among its own hits.
            k: Number of hits.
            options: Further options of a search, without `rerank`, `order`, `diversity` and
                `min_probability`.

        Raises:
            ApiError: The server refuses the request.
        """
        given = _options(k, options)
        if image is None:
            request: dict[str, Any] = {"json": {**given, **_without_none({"id": id})}}
        else:
            request = {"params": given, "content": _bytes(image), "headers": _BYTES_HEADERS}
        return (yield from self._ask(ObjectsAnswer.model_validate_json, "POST", "/objects", **request))

    @exchange
    def image(self, id: int | str) -> Steps[Image]:
        """Return an image of the gallery by its id or key; raise an `ApiError` if there is none."""
        read = Image.model_validate_json
        if isinstance(id, str):
            return (yield from self._ask(read, "GET", "/items/by-key", params={"key": id}))
        return (yield from self._ask(read, "GET", f"/items/{id}"))

    @exchange
    def thumbnail(self, id: int) -> Steps[bytes]:
        """Return the thumbnail of an image: WebP, or SVG if its file is missing."""
        answer = yield from self._send("GET", f"/items/{id}/thumbnail")
        if not answer.headers.get("Content-Type", "").startswith("image/"):
            raise _foreign_error(answer)
        return answer.content

    @exchange
    def add(
        self,
        images: ImageSource | Iterable[ImageSource],
        *,
        label: str | None = None,
        metadata: Mapping[str, str | int | float | None] | None = None,
        duplicates: Duplicates = "keep",
    ) -> Steps[list[Added | ApiError]]:
        """Add images to the gallery, if the server allows it. Return the result of each, or its error.

        Args:
            images: At most 64 paths, whose last part becomes the key, bytes of files, or Pillow images; or
                one.
            label: Label of all images.
            metadata: Metadata of all images.
            duplicates: "refuse" does not add images that look like another one, of the gallery or among
                those before them.

        Raises:
            ApiError: The server refuses the request.
        """
        sources = _each(images)
        names = [Path(source).name if isinstance(source, str | Path) else "" for source in sources]
        files = [base64.b64encode(_bytes(source)).decode() for source in sources]
        body = _without_none({"images": files, "names": names, "label": label, "metadata": metadata})
        body |= {} if duplicates == "keep" else {"duplicates": duplicates}
        try:
            return (yield from self._ask(_additions, "POST", "/items", json=body))
        except ApiError as error:
            if len(sources) == 1 and error.code == "unusable-image":
                return [error]
            raise

    @exchange
    def list_items(
        self,
        *,
        limit: int = 100,
        cursor: str | None = None,
        where: str | None = None,
        order: str = "id",
    ) -> Steps[ItemPage]:
        """Return one page of the images of the gallery; `items` follows the cursors.

        Args:
            limit: Largest number of images, 1 to 1000.
            cursor: `next_cursor` of the page before, for the same condition and order.
            where: Condition on the images, such as `label = 'red'`.
            order: Column, and "desc" for high values first, such as "price desc"; in a database "id" only.

        Raises:
            ApiError: The server refuses the request.
        """
        params = _without_none({"limit": limit, "cursor": cursor, "where": where, "order": order})
        return (yield from self._ask(ItemPage.model_validate_json, "GET", "/items", params=params))

    @listing
    def items(
        self, where: str | None = None, order: str = "id", *, page_size: int = 500
    ) -> ListingSteps[Image]:
        """Yield all images of the gallery, each once, also while others are added and removed.

        Args:
            where: As for `list_items`.
            order: As for `list_items`.
            page_size: Images in a request, 1 to 1000.

        Raises:
            ApiError: The server refuses a request.
        """
        cursor, is_first = None, True
        while is_first or cursor is not None:
            page = yield from Requests.list_items(
                self, limit=page_size, cursor=cursor, where=where, order=order
            )
            yield Found(page.items)
            cursor, is_first = page.next_cursor, False

    @exchange
    def facets(
        self, columns: str | Iterable[str] = (), *, where: str | None = None, limit: int = 20
    ) -> Steps[Facets]:
        """Return how many images have each value of columns.

        Args:
            columns: Column names, or one; by default the label and all metadata.
            where: Condition on the images.
            limit: Largest number of values of a column, 1 to 1000.

        Raises:
            ApiError: The server refuses the request.
        """
        params = _without_none({"columns": _texts(columns), "where": where, "limit": limit})
        return (yield from self._ask(_facets, "GET", "/facets", params=params))

    @exchange
    def update(
        self,
        id: int,
        *,
        label: str | Unchanged | None = UNCHANGED,
        metadata: Mapping[str, str | int | float | None] | None = None,
        expected: Image | None = None,
    ) -> Steps[Image]:
        """Change the label or metadata of an image, if the server allows it, and return the image.

        Args:
            id: Its id.
            label: Its new label; `None` for none.
            metadata: New values by column; `None` removes a value.
            expected: The image as it was read, also a hit; nothing is changed if it is not so any more.

        Raises:
            ApiError: There is no such image, or the server refuses the request; "changed" if the image is not
                as expected.
        """
        body: dict[str, Any] = {} if isinstance(label, Unchanged) else {"label": label}
        if metadata is not None:
            body["metadata"] = dict(metadata)
        headers = yield from self._condition(id, expected)
        read = Image.model_validate_json
        return (yield from self._ask(read, "PATCH", f"/items/{id}", json=body, headers=headers))

    @exchange
    def relabel(self, labels: Iterable[tuple[Image, str | None]]) -> Steps[LabelAnswer]:
        """Change the labels of images at once, those that are still what they were when they were read.

        Args:
            labels: Each image as it was read, also a hit, and its new label; `None` for none. At most 1,000.

        Raises:
            ApiError: The server refuses the request; no label is changed.
        """
        body = {"images": [{"id": one.id, "old": one.label, "label": label} for one, label in labels]}
        return (yield from self._ask(LabelAnswer.model_validate_json, "POST", "/items:label", json=body))

    @exchange
    def remove_where(self, where: str, expected: int | None = None) -> Steps[Removal]:
        """Remove all images that fulfil a condition; by default a dry run, which counts them only.

        Args:
            where: Condition on the images.
            expected: Number of images to remove, from a dry run; `None` for a dry run.

        Raises:
            ApiError: The server refuses the request; "count-mismatch" if the condition selects another number
                of images now, and none was removed.
        """
        body = _without_none({"where": where, "dry_run": expected is None, "expected": expected})
        return (yield from self._ask(Removal.model_validate_json, "POST", "/items:remove", json=body))

    @exchange
    def decisions(self, *, limit: int = 100, before: int | None = None) -> Steps[list[Decision]]:
        """Return the newest decisions about images, newest first, if the server allows changes.

        Args:
            limit: Largest number of them.
            before: Return those with a number below this one.
        """
        params = _without_none({"limit": limit, "before": before})
        read = DecisionsAnswer.model_validate_json
        return (yield from self._ask(read, "GET", "/decisions", params=params)).decisions

    @exchange
    def keep(self, id: int, *, expected: Image | None = None) -> Steps[None]:
        """Decide that an image is right as it is: it is not suspected any more. See `update`."""
        headers = yield from self._condition(id, expected)
        body = _without_none({"action": "keep", "id": id, "etag": headers.get(_IF_MATCH)})
        yield from self._no_content("POST", "/decisions", json=body)

    @exchange
    def undo_decision(self, n: int) -> Steps[None]:
        """Withdraw a decision; raise an `ApiError` if there is none or the server refuses."""
        yield from self._no_content("DELETE", f"/decisions/{n}")

    @exchange
    def undo_decisions(self, numbers: Iterable[int]) -> Steps[UndoAnswer]:
        """Withdraw up to 1,000 decisions at once; the answer says which labels somebody has changed since."""
        body = {"decisions": list(numbers)}
        return (yield from self._ask(UndoAnswer.model_validate_json, "POST", "/decisions:undo", json=body))

    @exchange
    def views(self) -> Steps[list[SavedView]]:
        """Return the saved views of the page, by name."""
        return (yield from self._ask(SavedViewsAnswer.model_validate_json, "GET", "/views")).views

    @exchange
    def save_view(
        self, name: str, address: str | None, *, old: str | None = None, items: Iterable[int] = ()
    ) -> Steps[list[SavedView]]:
        """Save a view of the page under a name, if the server allows changes, and return all views.

        Args:
            name: Its name.
            address: Query string of the page, with its "?"; `None` deletes the view.
            old: The address that was read under this name; `None` if there was none.
            items: Ids of up to 10,000 images: the view is a collection of them, and a condition may have
                `id in collection 'to check'`, with its name.

        Raises:
            ApiError: The server refuses; "changed" if another address is saved under this name by now.
        """
        body = {"name": name, "address": address, "old": old, "items": [*items]}
        read = SavedViewsAnswer.model_validate_json
        return (yield from self._ask(read, "POST", "/views", json=body)).views

    @exchange
    def remove(self, id: int, *, expected: Image | None = None) -> Steps[None]:
        """Remove an image from the gallery; raise an `ApiError` if there is none or the server refuses.

        Args:
            id: Its id.
            expected: As for `update`.
        """
        headers = yield from self._condition(id, expected)
        yield from self._no_content("DELETE", f"/items/{id}", headers=headers)

    @exchange
    def gallery(self) -> Steps[Gallery]:
        """Return the description of the gallery."""
        return (yield from self._ask(Gallery.model_validate_json, "GET", "/gallery"))

    @exchange
    def evaluation(self) -> Steps[Evaluation]:
        """Return the newest evaluation of the gallery.

        Raises:
            ApiError: "no-evaluation" if the gallery keeps none.
        """
        return (yield from self._ask(Evaluation.model_validate_json, "GET", "/evaluation"))

    @exchange
    def start_job(self, /, kind: str, **options: Any) -> Steps[Job]:
        """Start long work on the gallery and return it.

        Args:
            kind: "evaluation", "duplicates", "suspects", "calibration", "coverage", "map" or "triplets".
            options: Those of the kind, such as `min_score` of "duplicates".

        Raises:
            ApiError: "busy" while the server does other long work; or the server refuses the request.
        """
        return (
            yield from self._ask(Job.model_validate_json, "POST", "/jobs", json={"kind": kind, **options})
        )

    @exchange
    def job(self, id: str) -> Steps[Job]:
        """Return a job, with its result if it is done; raise an `ApiError` if there is none."""
        return (yield from self._ask(Job.model_validate_json, "GET", f"/jobs/{quote(id, safe='')}"))

    @exchange
    def jobs(self) -> Steps[list[Job]]:
        """Return the jobs of the gallery without their results, the newest first."""
        return (yield from self._ask(_Jobs.model_validate_json, "GET", "/jobs")).jobs

    @exchange
    def wait(self, id: str, *, every: float = 1.0) -> Steps[Any]:
        """Wait until a job has ended and return its result.

        Args:
            id: Id of the job.
            every: Seconds between two requests.

        Raises:
            ApiError: The problem of the job; or there is no such job.
        """
        while (job := (yield from Requests.job(self, id))).state == "running":
            yield every
        if job.problem is not None:
            raise _error(job.problem)
        return job.result

    @exchange
    def remove_job(self, id: str) -> Steps[None]:
        """Cancel and forget a job; raise an `ApiError` if there is none."""
        yield from self._no_content("DELETE", f"/jobs/{quote(id, safe='')}")

    @exchange
    def galleries(self) -> Steps[list[ServedGallery]]:
        """Return all galleries of the server; the first is the default."""
        return (
            yield from self._ask(GalleriesAnswer.model_validate_json, "GET", "/galleries", api=API)
        ).galleries

    def _ask(self, read: Callable[[bytes], T], method: str, path: str, **request: Any) -> Steps[T]:
        return _read(read, (yield from self._send(method, path, **request)))

    def _condition(self, id: int, expected: Image | None) -> Steps[dict[str, str]]:
        """Return the header with which a change of an image needs it to be as expected."""
        if expected is None:
            return {}
        answer = yield from self._send("GET", f"/items/{id}")
        present = _read(Image.model_validate_json, answer)
        if any(getattr(present, fact) != getattr(expected, fact) for fact in _FACTS):
            raise ApiError("changed", 412, f"image {id} was changed in the meantime: look at it again")
        return {_IF_MATCH: answer.headers["ETag"]}

    def _no_content(self, method: str, path: str, **request: Any) -> Steps[None]:
        answer = yield from self._send(method, path, **request)
        if answer.status_code != 204:
            raise _foreign_error(answer)

    def _send(self, method: str, path: str, api: str | None = None, **request: Any) -> Steps[httpx.Response]:
        if "json" in request:
            headers = {**request.pop("headers", {}), "Content-Type": "application/json"}
            request |= {"content": _json(request.pop("json")), "headers": headers}
        answer: httpx.Response = yield Request(method, (api or self._api) + path, request)
        if answer.is_success:
            return answer
        try:
            problem = answer.json()
        except ValueError:
            raise _foreign_error(answer) from None
        if not (isinstance(problem, dict) and isinstance(problem.get("code"), str) and "detail" in problem):
            raise _foreign_error(answer)
        raise _error({**problem, "status": answer.status_code}, _retry_after(answer))


class Client(Blocking, Requests):
    """Thread-safe client of one server. Keeps connections open until `close()` or the end of `with`.

    Args:
        url: Address of the server, such as `http://127.0.0.1:7860`.
        token: Token, if the server requires one.
        user: User name and password, if the server requires them.
        gallery: Name of a gallery; by default the first.
        seconds: Timeout of a request.
        transport: Transport of httpx, for tests without a network.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        user: tuple[str, str] | None = None,
        gallery: str | None = None,
        seconds: float = _TIMEOUT_SECONDS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._api = _root(gallery)
        self._http = httpx.Client(
            base_url=_address(url), headers=_headers(token), auth=user, timeout=seconds, transport=transport
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(Asynchronous, Requests):
    """The same client for asyncio: its methods are awaited, its listings are for `async for`.

        async with AsyncClient("http://127.0.0.1:7860") as client:
            first, second = await asyncio.gather(client.search("1.jpg"), client.search("2.jpg"))

    Image files are read, and Pillow images encoded, in the event loop. The arguments are those of `Client`.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        user: tuple[str, str] | None = None,
        gallery: str | None = None,
        seconds: float = _TIMEOUT_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._api = _root(gallery)
        self._http = httpx.AsyncClient(
            base_url=_address(url), headers=_headers(token), auth=user, timeout=seconds, transport=transport
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _read(read: Callable[[bytes], T], answer: httpx.Response) -> T:
    try:
        return read(answer.content)
    except ValueError:  # not JSON, or of another server
        raise _foreign_error(answer) from None


def _root(gallery: str | None) -> str:
    return API if gallery is None else api_of(quote(gallery, safe=""))


def _address(url: str) -> httpx.URL:
    """Return the address of a server; that of its API, which other clients are given, is taken, too."""
    try:
        found = httpx.URL(url)
        return found.copy_with(path=found.path.rstrip("/").removesuffix("/v1") or "/")
    except (httpx.InvalidURL, TypeError) as error:
        what = "not the address of a server; give one such as http://127.0.0.1:7860"
        raise InputError(f"{url!r}: {what}") from error


def _headers(token: str | None) -> dict[str, str]:
    token = (token or "").strip()  # a file of one ends in a line break
    if not (token.isascii() and token.isprintable()):
        raise InputError("token: has a character that is not printable ASCII, as no token of a server has")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _json(value: object) -> bytes:
    """Return the JSON of a value, also with numbers and arrays of NumPy."""

    def plain(value: Any) -> Any:
        if hasattr(value, "dtype") and hasattr(value, "tolist"):
            return value.tolist()
        raise TypeError(f"a {type(value).__name__} is neither text nor a number")

    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=plain)
        return text.encode()
    except (TypeError, ValueError) as error:  # such as of a number that is not finite
        raise InputError(f"the request is no JSON ({error}); leave out or convert the value") from error


def _each(images: Any) -> list[Any]:
    """Return the images of a collection, or the only one."""
    is_one = isinstance(images, str | bytes | bytearray | memoryview | Path | Mapping)
    if is_one or hasattr(images, "read") or not hasattr(images, "__iter__"):
        return [images]
    return [images] if getattr(images, "ndim", 4) < 4 else [*images]


def _texts(texts: str | Iterable[str]) -> list[str]:
    """Return the texts of a collection, or the only one."""
    return [texts] if isinstance(texts, str) else [*texts]


def _options(k: int, given: Mapping[str, Any]) -> dict[str, Any]:
    options = _without_none({"k": k, **given})
    if "exclude" in options:
        options["exclude"] = each_name(options["exclude"])
    return options


def _view(view: View) -> dict[str, Any]:
    """Return one image of a query as JSON."""
    found = _without_none(view if isinstance(view, Mapping) else {"image": view})
    if "image" in found:
        found["image"] = base64.b64encode(_bytes(found["image"])).decode()
    if "vector" in found:
        try:
            found["vector"] = [float(number) for number in found["vector"]]
        except (TypeError, ValueError) as error:
            raise InputError("vector: give its numbers, [D]") from error
    return found


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _files(images: ImageSource | Iterable[ImageSource]) -> list[tuple[str, tuple[str, bytes]]]:
    files = [("images", (f"{number}", _bytes(image))) for number, image in enumerate(_each(images))]
    if not files:  # a form without a part has no type
        raise InputError("no images: give at least one")
    return files


def _bytes(image: ImageSource) -> bytes:
    if isinstance(image, bytes):
        return image
    from retrieval.images.load import load_image, read_bytes
    from retrieval.images.location import locate

    if isinstance(image, str | Path) and not locate(image).box:
        return read_bytes(image, regular=False)
    buffer = io.BytesIO()
    load_image(image).save(buffer, "PNG")
    return buffer.getvalue()


def _batch(content: bytes) -> list[Hits | ApiError]:
    def read(result: BatchResult) -> Hits | ApiError:
        if result.hits is None:
            return _problem(result.problem)
        return Hits(result.hits, result.query_id, result.interleaved)

    return [read(result) for result in BatchAnswer.model_validate_json(content).results]


def _additions(content: bytes) -> list[Added | ApiError]:
    def read(result: AddResult) -> Added | ApiError:
        if result.image is None:
            return _problem(result.problem)
        return Added(
            **dict(result.image),
            is_new=bool(result.added),
            similarity=result.similarity,
            conflict=result.conflict,
        )

    return [read(result) for result in AddAnswer.model_validate_json(content).results]


def _facets(content: bytes) -> Facets:
    def ends(one: NumberRange | DateRange | None) -> Any:
        return None if one is None else (one.min, one.max)

    def read(one: ColumnFacet) -> Facet:
        values = [(pair.value, pair.count) for pair in one.values]
        numbers, dates = ends(one.numbers), ends(one.dates)
        return Facet(one.column, values, one.distinct, one.missing, numbers, dates, one.histogram)

    answer = FacetsAnswer.model_validate_json(content)
    return Facets(answer.images, answer.counted, {one.column: read(one) for one in answer.facets})


def _heatmaps(content: bytes) -> Heatmaps:
    import numpy as np

    def read(one: WireHeatmap) -> Heatmap:
        left, top, right, bottom = one.box
        return Heatmap((left, top, right, bottom), np.array(one.contributions), np.array(one.strengths))

    answer = HeatmapAnswer.model_validate_json(content)
    places = answer.height * answer.width
    similarities = np.frombuffer(base64.b64decode(answer.similarities), "<i2").reshape(places, places)
    read_maps = read(answer.query), read(answer.item)
    return Heatmaps(answer.score, *read_maps, similarities / SCALE, answer.fingerprint)


def _problem(problem: ProblemDetails | None) -> ApiError:
    """Return the error of one of several images."""
    if problem is None:
        raise ValueError("neither a result nor a problem")
    return _error(problem.model_dump(exclude_unset=True))


def _error(problem: Mapping[str, Any], retry_after: float | None = None) -> ApiError:
    known = {name: str(problem.get(name, "")) for name in ("code", "detail", "instance")}
    more = {name: value for name, value in problem.items() if name in ("reason", "errors")}
    return ApiError(**known, status=int(problem["status"]), retry_after=retry_after, more=more)


def _foreign_error(answer: httpx.Response) -> ApiError:
    """Return the error for a response that is not from a Lookalike server."""
    kind = answer.headers.get("Content-Type", "").partition(";")[0] or "no type"
    shown = " ".join(answer.text[: 10 * _MAX_EXCERPT].split())[:_MAX_EXCERPT]
    detail = f"{answer.reason_phrase}: not a response of a Lookalike server, but {kind}: {shown!r}"
    return ApiError("", answer.status_code, detail, retry_after=_retry_after(answer))


def _retry_after(answer: httpx.Response) -> float | None:
    """Return the seconds of the Retry-After header; None if absent or a date, as some proxies send."""
    given = answer.headers.get("Retry-After", "")
    return float(given) if given.isdecimal() else None
