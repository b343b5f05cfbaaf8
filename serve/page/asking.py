"""A search as the page asks for it."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass, replace

from PIL import Image

from retrieval.errors import InputError
from retrieval.gallery import Hit
from retrieval.searching.query import Options
from serve.errors import OtherModelError
from serve.page.wishes import Wishes
from serve.service import Query, SearchService
from serve.thumbnails import Thumbnail


@dataclass(frozen=True, eq=False)
class Asked:
    """A query as a visitor's session keeps it.

    Attributes:
        query: what is searched for.
        picture: of at most 512 pixels a side, to be shown beside a result and compared with it; encoded,
            for it is kept for an hour.
    """

    query: Query
    picture: Thumbnail

    @property
    def image(self) -> Image.Image:
        """The picture's pixels."""
        return Image.open(io.BytesIO(self.picture.data)).convert("RGB")


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        query: what was searched for.
        wishes: how.
        hits: best first.
        search_ms: what it took, in milliseconds.
        best: the highest score there is where none reaches the lowest that was asked for.
    """

    query: Query
    wishes: Wishes
    hits: list[Hit]
    search_ms: float
    best: float | None = None

    def is_right(self, hit: Hit) -> bool | None:
        """Whether a hit has the label of the query; `None` where either is not known."""
        label = self.query.item.label if self.query.item else None
        return None if label is None or hit.label is None else hit.label == label

    @property
    def link(self) -> str | None:
        """The address that does this search again, for a query that is a picture of the gallery."""
        return self.wishes.link(self.query.item.id) if self.query.item else None


def search(service: SearchService, query: Query, wishes: Wishes) -> Found:
    """The pictures most like the query, without the query itself where it is in the gallery.

    Raises:
        OtherModelError: the query was made before the gallery was rebuilt with another model.
        UnknownItemError: the item it names has been removed.
        InputError: a condition that is none, a column that is not there, a score that none can have.
    """
    options = wishes.options()
    start = time.perf_counter()
    hits = _hits(service, query, options)
    took = 1000 * (time.perf_counter() - start)
    best = None
    if not hits and options.min_score is not None:
        nearest = _hits(service, query, replace(options, k=1, min_score=None))
        best = nearest[0].score if nearest else None
    return Found(query, wishes, hits, took, best)


def _hits(service: SearchService, query: Query, options: Options) -> list[Hit]:
    asked = query.vector if query.item is None else query.item.id
    assert asked is not None
    try:
        (found,) = service.find([asked], options, fingerprint=query.fingerprint).found
    except OtherModelError as error:
        raise OtherModelError(
            "the gallery was rebuilt with another model: choose the picture again"
        ) from error
    if isinstance(found, InputError):
        raise found
    return found
