"""A search as the page asks for it."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from retrieval.errors import InputError
from retrieval.gallery import Hit
from retrieval.search.query import SearchOptions
from serve.core.errors import ModelMismatchError
from serve.core.queries import MeanQuery, Region, SingleQuery
from serve.core.service import Query, SearchService
from serve.core.thumbnails import Thumbnail, encode
from serve.page.wishes import Wishes

_ICON = 96  # pixels
REBUILT = "the gallery was rebuilt with another model: choose the picture again"


@dataclass(frozen=True, eq=False)
class Part:
    """One picture of a query as a visitor's session keeps it; encoded, for it is kept for an hour.

    Attributes:
        query: what is searched for.
        whole: the picture, of at most 512 pixels a side.
        picture: what of it is searched with: its region, or all of it; to be shown beside a result and
            compared with it.
        icon: the same, of at most 96 pixels a side.
        aspect: the whole picture's width over its height.
        file: where an upload lies, for some minutes; `None` for a picture of the gallery.
        small: whether the region was cut out of the small copy, as the upload was not there any more.
    """

    query: Query
    whole: Thumbnail
    picture: Thumbnail
    icon: Thumbnail
    aspect: float
    file: Path | None = None
    small: bool = False

    @property
    def image(self) -> Image.Image:
        """The pixels of what is searched with."""
        return Image.open(io.BytesIO(self.picture.data)).convert("RGB")


Asked = tuple[Part, ...]  # a query: one picture, or several views of one thing


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        queries: what was searched for; several are one query, the mean of them.
        wishes: how.
        hits: best first.
        search_ms: what it took, in milliseconds.
        best: the highest score there is where none reaches the lowest that was asked for.
    """

    queries: Sequence[Query]
    wishes: Wishes
    hits: list[Hit]
    search_ms: float
    best: float | None = None

    @property
    def embed_ms(self) -> float:
        """What decoding and embedding took, in milliseconds."""
        return sum(query.embed_ms for query in self.queries)

    def is_right(self, hit: Hit) -> bool | None:
        """Whether a hit has the label that all pictures of the query have; `None` where one is not known."""
        labels = {query.item.label if query.item else None for query in self.queries}
        label = labels.pop() if len(labels) == 1 else None
        return None if label is None or hit.label is None else hit.label == label

    @property
    def link(self) -> str | None:
        """The address that does this search again, for a query that is of pictures of the gallery."""
        name = named(self.queries)
        return self.wishes.address(name) if name else None


def named(queries: Sequence[Query]) -> list[tuple[str, str]]:
    """A query of pictures of the gallery as an address names it: ids, and regions; empty for another one."""
    cropped = any(query.region for query in queries)
    name = []
    for query in queries:
        if query.item is None:
            return []
        name.append(("id", str(query.item.id)))
        if cropped:  # one for each id, empty for all of a picture
            name.append(("region", str(query.region or "")))
    return name


def of_upload(service: SearchService, file: Path) -> Part:
    """An upload as a query; the errors are those of `SearchService.embed_query`."""
    query, image = service.embed_query(file)
    return _part(query, image, encode(image), image.width / image.height, file)


def of_item(service: SearchService, item: int, region: Region | None = None) -> Part:
    """A picture of the gallery, or a region of it, as a query; the errors are those of the service."""
    image = service.image(item)
    whole, aspect = encode(image), image.width / image.height
    if region is None:
        return _part(service.item_query(item), image, whole, aspect)
    query, part = service.embed_query(item, region)
    return _part(query, part, whole, aspect)


def of_part(service: SearchService, part: Part, region: Region | None) -> Part:
    """Another region of the same picture; of its small copy where the upload is deleted by now."""
    if part.query.item is not None:
        return of_item(service, part.query.item.id, region)
    assert part.file is not None
    gone = not part.file.exists()
    query, image = service.embed_query(part.whole.data if gone else part.file, region)
    other = _part(query, image, part.whole, part.aspect, part.file)
    return replace(other, small=gone and region is not None)


def _part(
    query: Query, image: Image.Image, whole: Thumbnail, aspect: float, file: Path | None = None
) -> Part:
    picture = whole if query.region is None else encode(image)
    icon = image.copy()
    icon.thumbnail((_ICON, _ICON))
    return Part(query, whole, picture, encode(icon), aspect, file)


def search(service: SearchService, queries: Sequence[Query], wishes: Wishes) -> Found:
    """The pictures most like the query, without those of the gallery that it is made of.

    Raises:
        ModelMismatchError: a query was made before the gallery was rebuilt with another model.
        UnknownItemError: an item it names has been removed.
        InputError: a condition that is none, a column that is not there, a score that none can have; or
            pictures whose mean points nowhere.
    """
    options = wishes.options()
    start = time.perf_counter()
    hits = _hits(service, queries, options)
    took = 1000 * (time.perf_counter() - start)
    best = None
    if not hits and options.min_score is not None:
        nearest = _hits(service, queries, replace(options, k=1, min_score=None))
        best = nearest[0].score if nearest else None
    return Found(queries, wishes, hits, took, best)


def _hits(service: SearchService, queries: Sequence[Query], options: SearchOptions) -> list[Hit]:
    fingerprint = queries[0].fingerprint
    if any(query.fingerprint != fingerprint for query in queries):
        raise ModelMismatchError(REBUILT)
    ones = [_one(query) for query in queries]
    own = [query.item.id for query in queries if query.item is not None and query.vector is not None]
    asked = ones[0] if len(ones) == 1 else MeanQuery(ones)
    try:
        (found,) = service.find([asked], replace(options, exclude=own), fingerprint=fingerprint).found
    except ModelMismatchError as error:
        raise ModelMismatchError(REBUILT) from error
    if isinstance(found, InputError):
        raise found
    return found


def _one(query: Query) -> SingleQuery:
    if query.vector is not None:
        return query.vector
    assert query.item is not None
    return query.item.id
