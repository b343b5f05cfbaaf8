"""The state of a visit: the query, the search form, the address of the page, and the searches so far.

Nothing of it is stored on disk.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

from PIL import Image

from retrieval.errors import InputError
from retrieval.search.query import SearchOptions
from serve.core.queries import MAX_TOGETHER, Region
from serve.core.service import EmbeddedQuery
from serve.core.thumbnails import Thumbnail

MAX_K = 100
MAX_TEXT = 1000  # characters
MAX_ENTRIES = 12  # searches in the history
_MAX_IMAGES = 24  # images in the history: it is kept for an hour, and there may be many visitors


@dataclass(frozen=True)
class SearchForm:
    """The fields beside the query: how many results, and which.

    Attributes:
        k: Number of results, 1 to `MAX_K`.
        where: Filter condition, see `retrieval.search.where`; empty for none.
        min_score: Minimum score; None for any.
        min_probability: Minimum probability in a calibrated gallery; None for any.
        group_by: Column of whose values each gives its best hit only; empty for none.
        text: What the hits should show, for a model with a text encoder; empty for none.
        without: What to move away from; empty for none.
    """

    k: int = 10
    where: str = ""
    min_score: float | None = None
    min_probability: float | None = None
    group_by: str = ""
    text: str = ""
    without: str = ""

    @classmethod
    def parse(cls, values: Any) -> SearchForm:
        """Read what a browser sent: the form, an address, or K alone.

        Visitors are still typing, and links are cut: a value that is not a number is ignored.
        """
        given: Mapping[str, Any] = values if isinstance(values, Mapping) else {"k": values}
        k = _number(given.get("k"))
        return cls(
            k=cls.k if k is None else int(min(max(k, 1), MAX_K)),
            where=str(given.get("where") or "").strip(),
            min_score=_number(given.get("min_score")),
            min_probability=_number(given.get("min_probability")),
            group_by=str(given.get("group_by") or ""),
            text=str(given.get("text") or "").strip()[:MAX_TEXT],
            without=str(given.get("without") or "").strip()[:MAX_TEXT],
        )

    def options(self) -> SearchOptions:
        """Return the options of the search; raises `InputError` for an impossible number."""
        return SearchOptions(
            k=self.k,
            where=self.where or None,
            min_score=self.min_score,
            min_probability=self.min_probability,
            group_by=self.group_by or None,
        )

    def fields(
        self, columns: Sequence[str], *, calibrated: bool = False, texts: bool = False
    ) -> dict[str, Any]:
        """Return the value of the form component: every field as text, and facts about the gallery.

        Args:
            columns: Metadata columns of the gallery.
            calibrated: Whether its hits have probabilities; without them, that field is hidden.
            texts: Whether it can be searched by text; otherwise these fields are hidden.
        """
        facts = {
            "groups": ["label", *columns],
            "example": filter_example(columns),
            "calibrated": calibrated,
            "texts": texts,
        }
        return {**self._texts(), **facts}

    def url_query(self, query: Sequence[tuple[str, str]]) -> str:
        """Return the address of a search from its `?` on; `query` has the parameters that name the query."""
        given = [(name, value) for name, value in self._texts().items() if value]
        return "?" + urlencode([*query, *given], safe=",")

    def _texts(self) -> dict[str, str]:
        min_score = "" if self.min_score is None else str(self.min_score)
        lowest = "" if self.min_probability is None else str(self.min_probability)
        return {
            "k": str(self.k),
            "where": self.where,
            "min_score": min_score,
            "min_probability": lowest,
            "group_by": self.group_by,
            "text": self.text,
            "without": self.without,
        }


def filter_example(columns: Sequence[str]) -> str:
    """Return a hint at what filter conditions can use, given the metadata columns."""
    return ", ".join(["label = '…'", *columns, "path", "width"])


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


@dataclass(frozen=True)
class Address:
    """A search as the address of the page names it.

    Attributes:
        items: Images of the gallery, each with its region; None for all of the image.
        entry: Number of a search in the history, for a query with images from outside; 0 for none.
        form: The other fields of the search.
    """

    items: tuple[tuple[int, Region | None], ...]
    entry: int
    form: SearchForm

    @classmethod
    def parse(cls, query: str) -> Address:
        """Read what follows the `?`. Addresses are cut: impossible parameters are ignored."""
        given = parse_qs(query.removeprefix("?"), keep_blank_values=True)
        ids = [int(value) for value in given.get("id", []) if value.isdecimal() and len(value) < 20]
        regions = [_region(value) for value in given.get("region", [])]
        regions += [None] * (len(ids) - len(regions))
        number = given.get("q", [""])[-1]
        return cls(
            tuple(zip(ids, regions, strict=False))[:MAX_TOGETHER],
            int(number) if number.isdecimal() and len(number) < 10 else 0,
            SearchForm.parse({name: values[-1] for name, values in given.items()}),
        )


def _region(value: str) -> Region | None:
    try:
        return Region.of([float(part) for part in value.split(",")])
    except (InputError, ValueError):
        return None


@dataclass(frozen=True, eq=False)
class QueryImage:
    """One image of a query; encoded, because a visit is kept for an hour.

    Attributes:
        query: What is searched for.
        whole: The image, at most 512 pixels a side.
        searched: The part of it that is searched for; shown beside a result and compared with it.
        icon: The same, at most 96 pixels a side.
        aspect: Width over height of the whole image.
        file: An upload, which is deleted after some minutes; None for an image of the gallery.
        from_thumbnail: Whether the region was cut out of `whole`, because the upload had been deleted.
    """

    query: EmbeddedQuery
    whole: Thumbnail
    searched: Thumbnail
    icon: Thumbnail
    aspect: float
    file: Path | None = None
    from_thumbnail: bool = False

    def pixels(self) -> Image.Image:
        """Decode the part that is searched for."""
        return Image.open(io.BytesIO(self.searched.data)).convert("RGB")


QueryImages = tuple[QueryImage, ...]  # a query: one image, or several views of one thing


def url_parameters(queries: Sequence[EmbeddedQuery]) -> list[tuple[str, str]]:
    """Return the ids and regions that name a query in an address; empty with an image from outside."""
    cropped = any(query.region for query in queries)
    parameters = []
    for query in queries:
        if query.item is None:
            return []
        parameters.append(("id", str(query.item.id)))
        if cropped:  # one for each id, empty for all of an image
            parameters.append(("region", str(query.region or "")))
    return parameters


@dataclass(frozen=True, eq=False)
class HistoryEntry:
    """A search of this visit.

    Attributes:
        number: Its number in addresses, from 1.
        images: The query.
        form: The other fields of the search.
    """

    number: int
    images: QueryImages
    form: SearchForm


@dataclass(frozen=True, eq=False)
class Visit:
    """The state of one page in a browser.

    Attributes:
        images: The query; empty for none.
        shown: Which of its images is shown in large.
        history: Searches, newest first.
        last_number: Number of the newest search ever.
    """

    images: QueryImages = ()
    shown: int = 0
    history: tuple[HistoryEntry, ...] = ()
    last_number: int = 0

    def with_query(self, images: QueryImages, shown: int = 0) -> Visit:
        """Return the visit with another query, which is not in the history yet."""
        return replace(self, images=images, shown=max(0, min(shown, len(images) - 1)))

    def with_search(self, form: SearchForm) -> Visit:
        """Return the visit with its query in the history; the same query with another form replaces it."""
        before = next((entry for entry in self.history if _same(entry.images, self.images)), None)
        number = self.last_number + 1 if before is None else before.number
        others = (entry for entry in self.history if entry is not before)
        kept = [HistoryEntry(number, self.images, form), *others][:MAX_ENTRIES]
        while len(kept) > 1 and sum(len(entry.images) for entry in kept) > _MAX_IMAGES:
            kept.pop()
        return replace(self, history=tuple(kept), last_number=max(self.last_number, number))

    def entry(self, number: int) -> HistoryEntry | None:
        """Return a search by its number; None if it is no longer kept."""
        return next((entry for entry in self.history if entry.number == number), None)


def _same(one: QueryImages, other: QueryImages) -> bool:
    name = url_parameters([image.query for image in one])
    return one is other or (bool(name) and name == url_parameters([image.query for image in other]))
