"""Queries of the page: image from an upload, a URL or the gallery, its regions, and the search with them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradio.processing_utils import save_bytes_to_cache
from gradio.utils import get_upload_folder
from PIL import Image

from retrieval.errors import InputError
from retrieval.search.query import SearchOptions
from retrieval.searchable import Hit
from serve.core.errors import BusyError, ModelMismatchError
from serve.core.queries import ComposedQuery, Region, SingleQuery, TextQuery
from serve.core.service import EmbeddedQuery, SearchService
from serve.core.thumbnails import Thumbnail, encode
from serve.core.url_fetcher import fetch_image
from serve.http.upload_limit import is_full
from serve.page.visit import QueryImage, SearchForm, url_parameters

_ICON = 96  # pixels
REBUILT = "the gallery was rebuilt with another model: choose the image again"


def from_upload(service: SearchService, file: Path) -> QueryImage:
    """Embed an upload; the errors are those of `SearchService.embed_query`."""
    query, image = service.embed_query(file)
    return _query_image(query, image, encode(image), image.width / image.height, file)


def from_item(service: SearchService, item: int, region: Region | None = None) -> QueryImage:
    """Query with an image of the gallery, or a region of it; the errors are those of the service."""
    image = service.image(item)
    whole, aspect = encode(image), image.width / image.height
    if region is None:
        return _query_image(service.item_query(item), image, whole, aspect)
    query, part = service.embed_query(item, region)
    return _query_image(query, part, whole, aspect)


def with_region(service: SearchService, image: QueryImage, region: Region | None) -> QueryImage:
    """Query with another region of the same image; of its thumbnail if the upload has been deleted."""
    if image.query.item is not None:
        return from_item(service, image.query.item.id, region)
    assert image.file is not None
    deleted = not image.file.exists()
    query, part = service.embed_query(image.whole.data if deleted else image.file, region)
    other = _query_image(query, part, image.whole, image.aspect, image.file)
    return replace(other, from_thumbnail=deleted and region is not None)


def _query_image(
    query: EmbeddedQuery, searched: Image.Image, whole: Thumbnail, aspect: float, file: Path | None = None
) -> QueryImage:
    icon = searched.copy()
    icon.thumbnail((_ICON, _ICON))
    return QueryImage(
        query, whole, whole if query.region is None else encode(searched), encode(icon), aspect, file
    )


def download_image(url: str) -> Path:
    """Download an image into the folder of uploads, where it is deleted like them.

    Raises:
        FetchError: The address gives no image.
        BusyError: The folder of uploads is full.
    """
    folder = get_upload_folder()
    if is_full(Path(folder)):
        raise BusyError("too many uploads are in use: try again in a few minutes")
    return Path(save_bytes_to_cache(fetch_image(url), "image", folder))


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Attributes:
        queries: What was searched for; several are one query, their mean.
        form: The other fields of the search.
        hits: Best first.
        search_ms: Duration of the search in milliseconds.
        best: The best hit in the gallery if no hit reached the lowest score or probability of the form.
    """

    queries: Sequence[EmbeddedQuery]
    form: SearchForm
    hits: list[Hit]
    search_ms: float
    best: Hit | None = None

    @property
    def embed_ms(self) -> float:
        """Duration of decoding and embedding in milliseconds."""
        return sum(query.embed_ms for query in self.queries)

    def is_right(self, hit: Hit) -> bool | None:
        """Whether a hit has the one label of all images of the query; None if either label is not known."""
        labels = {query.item.label if query.item else None for query in self.queries}
        label = labels.pop() if len(labels) == 1 else None
        return None if label is None or hit.label is None else hit.label == label

    @property
    def link(self) -> str | None:
        """The address that repeats this search; None for a query with images from outside."""
        parameters = url_parameters(self.queries)
        return self.form.url_query(parameters) if parameters or not self.queries else None


def run_search(service: SearchService, queries: Sequence[EmbeddedQuery], form: SearchForm) -> SearchResult:
    """Return the images most similar to the query, without those of the gallery that it consists of.

    The texts of the form are part of the query, which may have no images then.

    Raises:
        ModelMismatchError: The gallery was rebuilt with another model after the query was embedded.
        UnknownItemError: An item of the query has been removed.
        InputError: The filter, the column or the score is not valid, or the mean of the query is zero.
    """
    options = form.options()
    start = time.perf_counter()
    hits = _hits(service, queries, form, options)
    search_ms = 1000 * (time.perf_counter() - start)
    best = None
    if not hits and (options.min_score is not None or options.min_probability is not None):
        nearest = _hits(service, queries, form, replace(options, k=1, min_score=None, min_probability=None))
        best = nearest[0] if nearest else None
    return SearchResult(queries, form, hits, search_ms, best)


def _hits(
    service: SearchService, queries: Sequence[EmbeddedQuery], form: SearchForm, options: SearchOptions
) -> list[Hit]:
    fingerprints = {query.fingerprint for query in queries}
    if len(fingerprints) > 1:
        raise ModelMismatchError(REBUILT)
    fingerprint = next(iter(fingerprints), None)
    ones: list[SingleQuery] = [_one(query) for query in queries]
    ones += [TextQuery(form.text)] if form.text else []
    without = [TextQuery(form.without)] if form.without else []
    own = [query.item.id for query in queries if query.item is not None and query.vector is not None]
    target = ones[0] if len(ones) == 1 and not without else ComposedQuery(ones, without)
    try:
        (found,) = service.find([target], replace(options, exclude=own), fingerprint=fingerprint).found
    except ModelMismatchError as error:
        raise ModelMismatchError(REBUILT) from error
    if isinstance(found, InputError):
        raise found
    return found


def _one(query: EmbeddedQuery) -> SingleQuery:
    if query.vector is not None:
        return query.vector
    assert query.item is not None
    return query.item.id
