"""Items of a gallery, and hits: items with their scores. Both are tables for other libraries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, NamedTuple, SupportsIndex, TypeVar, overload

import numpy as np

from retrieval import arrow
from retrieval.display import Displayed
from retrieval.images import boxes
from retrieval.images.resampling import Box
from retrieval.search.groups import Ranking, Views
from retrieval.search.vectors import bounded_cosine
from retrieval.storage.records import StoredItem, Value
from retrieval.storage.schema import BUILT_IN
from retrieval.text import align_columns, pluralize

# Columns of a table of items, in this order and before the metadata columns, and their kinds.
ITEM_KINDS = {
    "id": "integer",
    "key": "text",
    "path": "text",
    "label": "text",
    "width": "integer",
    "height": "integer",
}
HIT_KINDS = {**ITEM_KINDS, "score": "score", "probability": "score"}
T = TypeVar("T")
_ANY_SIDE = 10**6  # pixels, of a picture whose size is not known
_PRINTED = 20  # hits in the text that stands for many


@dataclass(frozen=True)
class Item(Displayed):
    """An image in a gallery.

    Attributes:
        id: Number of the item, which stays with the key and is never used for another one.
        path: Path of its file; empty if it has none.
        label: Label, if any.
        metadata: Values by column, without the missing ones.
        key: Stable id: the one that the user gave it, or its path.
        width, height: Image size in pixels; 0 if unknown.
        content_sha256: SHA-256 of the bytes of its file; empty if it has none.
    """

    id: int
    path: str
    label: str | None
    metadata: dict[str, Any] = field(default_factory=dict)
    key: str = ""
    width: int = 0
    height: int = 0
    content_sha256: str = ""

    @property
    def part(self) -> Box | None:
        """Part of the picture that the image is: left, top, right and bottom, as fractions of the upright
        picture's width and height; `None` for a whole picture."""
        return part_of(self.key if not self.path else self.path, self.width, self.height)


def part_of(path: str, width: int, height: int) -> Box | None:
    """Return the box in the path of an image, in a picture of a size in pixels; `None` if there is none."""
    box = boxes.parse(boxes.split(path)[1]) if boxes.MARK in path else None
    if box is None or (box.in_pixels and not width):
        return None
    try:
        return box.within(width or _ANY_SIDE, height or _ANY_SIDE)
    except ValueError:  # it was not embedded from this box
        return None


# The values of an `Item`: making one takes longer than a tuple, and a search makes many.
ItemValues = tuple[int, str, str | None, dict[str, Any], str, int, int, str]


def item_values(item: StoredItem, path: str) -> ItemValues:
    """Return the values of an `Item`, whose file is at `path`."""
    known = item.id, path, item.label, item.metadata, item.key, item.width, item.height
    return *known, item.content_sha256


@dataclass(frozen=True)
class View:
    """One of the images of a hit with several views.

    Attributes:
        id: Number of the item.
        path: Path of its file; empty if it has none.
        key: Stable id.
        score: Cosine similarity to the query; to several views of the query, the mean.
        content_sha256: SHA-256 of the bytes of its file; empty if it has none.
        variant: Variant of the product that it shows best; `None` if it has none.
        view_count: Number of images of that variant; 0 if products have no variants.
    """

    id: int
    path: str
    key: str
    score: float
    content_sha256: str = ""
    variant: Value = None
    view_count: int = 0


@dataclass(frozen=True)
class Hit(Item):
    """A search result.

    Attributes:
        score: Cosine similarity to the query, unless re-ranked; see `retrieval.search.options.RERANKS`.
        probability: Probability that it shows the same thing as the query, 1 if it is the same picture;
            `None` in a gallery that is not calibrated, and if re-ranked. See `retrieval.search.calibration`.
        group: Value of its group, such as its product, if hits are grouped and it has one.
        view_count: Number of images of the group; 0 if hits are not grouped.
        views: The first of them, best first, as many as `SearchOptions.group_size`; empty if that is 1. The
            first is the hit itself. Of products with variants, the best view of each variant.
        variant_count: Number of variants of the product; 0 if products have none.
    """

    score: float = 0.0
    probability: float | None = None
    group: Value = None
    view_count: int = 0
    views: tuple[View, ...] = ()
    variant_count: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "score", bounded_cosine(self.score))

    @classmethod
    def of(cls, values: ItemValues, score: float) -> Hit:
        """Return the hit of an item, with a score from -1 to 1; in a third of the constructor's time."""
        hit = cls.__new__(cls)
        facts = hit.__dict__
        (
            facts["id"],
            facts["path"],
            facts["label"],
            facts["metadata"],
            facts["key"],
            facts["width"],
            facts["height"],
            facts["content_sha256"],
        ) = values
        facts["score"] = score
        facts["probability"] = None
        return hit

    def grouped(self, column: str, count: int, views: tuple[View, ...], variants: int = 0) -> Hit:
        """Return the hit as the best view of a group.

        Args:
            column: Column of the groups.
            count: Number of views.
            views: The first of them; see `Hit.views`.
            variants: Number of variants.
        """
        hit = Hit.__new__(Hit)
        value = item_value(self, column)
        hit.__dict__.update(self.__dict__, group=value, view_count=count, views=views, variant_count=variants)
        return hit

    def judged(self, probability: float) -> Hit:
        """Return the hit with a probability."""
        hit = Hit.__new__(Hit)
        hit.__dict__.update(self.__dict__, probability=probability)
        return hit


@dataclass(frozen=True)
class PartHit(Hit):
    """A result of a search for objects.

    Attributes:
        box: Part of the query picture that looks like it: left, top, right and bottom, as fractions of the
            upright picture's width and height.
    """

    box: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)

    @classmethod
    def part_of(cls, hit: Hit, score: float, box: tuple[float, float, float, float]) -> PartHit:
        """Return a hit with the score and the part of the query that it is found by."""
        found = cls.__new__(cls)
        found.__dict__.update(hit.__dict__, score=bounded_cosine(score), probability=None, box=box)
        return found


def item_value(item: Item | StoredItem, column: str) -> Value:
    """Return the value of an item in a column, of metadata or its own; `None` if it is missing."""
    names = {name.lower(): name for name in BUILT_IN}
    if own := names.get(column.lower()):
        return getattr(item, own)  # type: ignore[no-any-return]
    if column in item.metadata:
        return item.metadata[column]
    return next((value for name, value in item.metadata.items() if name.lower() == column.lower()), None)


class Ranked(NamedTuple):
    """What a query has found.

    Attributes:
        scores: Scores, best first.
        read: Function that returns the hits, for which it reads their facts.
    """

    scores: list[float]
    read: Callable[[], list[Hit]]


def ranked(
    found: Iterable[Ranking],
    items: Callable[[], Mapping[int, ItemValues]],
    column: str | None = None,
    variant: str | None = None,
) -> list[Ranked]:
    """Return what queries have found.

    Args:
        found: For each query, the numbers of items or of rows, with their scores.
        items: Function that returns the values of items by number, views among them; those that it lacks are
            no hits.
        column: Column of the groups, if hits are grouped.
        variant: Column of the variants in each, if there are any.
    """

    def read(one: Ranking, scores: list[float]) -> list[Hit]:
        known = items()
        both = zip(one.rows.tolist(), scores, strict=True)
        hits = [Hit.of(known[n], score) if n in known else None for n, score in both]
        if one.views is not None and column is not None:
            hits = [
                hit and hit.grouped(column, *facts)
                for hit, facts in zip(hits, _facts(one.views, known, variant), strict=True)
            ]
        return [hit for hit in hits if hit is not None]

    bounded = ((one, _bounded(one.scores.tolist())) for one in found)
    return [Ranked(scores, partial(read, one, scores)) for one, scores in bounded]


def _facts(
    views: Views, known: Mapping[int, ItemValues], variant: str | None
) -> Iterable[tuple[int, tuple[View, ...], int]]:
    """Return the number of views of each hit, the first of them whose facts are known, and its variants."""
    variants = [0] * len(views.counts) if views.variants is None else views.variants.tolist()
    if views.rows.shape[1] == 1:
        return [(count, (), number) for count, number in zip(views.counts.tolist(), variants, strict=True)]
    alike = np.zeros_like(views.rows) if views.alike is None else views.alike
    shown = zip(views.rows.tolist(), views.scores.tolist(), alike.tolist(), strict=True)
    found = [
        tuple(
            _view(known[n], score, variant, count) for n, score, count in zip(*one, strict=True) if n in known
        )
        for one in shown
    ]
    return zip(views.counts.tolist(), found, variants, strict=True)


def _view(item: ItemValues, score: float, variant: str | None, count: int) -> View:
    id, path, _, _, key, _, _, content = item
    value = None if variant is None else item_value(Hit.of(item, score), variant)
    return View(id, path, key, bounded_cosine(score), content, value, count)


def _bounded(scores: list[float]) -> list[float]:
    """Return scores, best first, from -1 to 1: rounding may carry the ends beyond."""
    if scores and (scores[0] > 1 or scores[-1] < -1):
        return [*map(bounded_cosine, scores)]
    return scores


class Once(Generic[T]):
    """The result of a function, which is called when it is asked for first.

    Another thread that asks meanwhile may call it again.
    """

    __slots__ = ("_call", "_found")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call: Callable[[], T] | None = call

    def __call__(self) -> T:
        call = self._call
        if call is not None:
            self._found = call()
            self._call = None
        return self._found


class Hits(Displayed):
    """The hits of a query, best first: a sequence that compares as a list does.

    It is also a table by `__arrow_c_stream__`, with a row for each hit: `pandas.DataFrame.from_arrow(hits)`,
    `polars.DataFrame(hits)`, `duckdb.sql("from hits")`, `pyarrow.table(hits)`. The columns are id, key,
    path, label, width, height, score, probability and those of the metadata; their types are the gallery's.
    It is no `list` and no `Sequence`, since polars and pyarrow would look at the elements instead.

    Args:
        hits: Hits; or a function that returns them, which is called when they are looked at first. It may be
            called again by another thread.
        kinds: Function that returns the kind of each metadata column of the gallery; `None` to tell them by
            the values.

    Raises:
        InputError: By `__arrow_c_stream__`: pyarrow is not installed.
    """

    __hash__ = None  # type: ignore[assignment]
    __slots__ = ("_found", "_kinds")

    def __init__(
        self, hits: list[Hit] | Callable[[], list[Hit]], kinds: Callable[[], dict[str, str]] | None = None
    ) -> None:
        self._found, self._kinds = hits, kinds

    @property
    def _hits(self) -> list[Hit]:
        if not isinstance(self._found, list):
            self._found = self._found()
        return self._found

    def __len__(self) -> int:
        return len(self._hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self._hits)

    def __reversed__(self) -> Iterator[Hit]:
        return reversed(self._hits)

    @overload
    def __getitem__(self, place: SupportsIndex) -> Hit: ...

    @overload
    def __getitem__(self, place: slice) -> Hits: ...

    def __getitem__(self, place: SupportsIndex | slice) -> Hit | Hits:
        found = self._hits[place]
        return Hits(found, self._kinds) if isinstance(found, list) else found

    def __eq__(self, other: object) -> bool:
        return self._hits == (other._hits if isinstance(other, Hits) else other)

    def __reduce__(self) -> tuple[Any, ...]:
        return Hits, (self._hits,)  # without the gallery, which is open in this process

    def __repr__(self) -> str:
        here = os.path.join(os.getcwd(), "")
        rows = [
            [f"{hit.score:.4f}", hit.label or "-", hit.path.removeprefix(here) or hit.key]
            for hit in self._hits[:_PRINTED]
        ]
        lines = align_columns([["score", "label", "path"], *rows], right={0}) if rows else []
        if more := len(self._hits) - len(rows):
            lines.append(f"... {more:,} more")
        return "\n".join([pluralize(len(self._hits), "hit"), *lines])

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the hits as a capsule of an Arrow stream."""
        kinds = _kinds_of_values(self._hits) if self._kinds is None else self._kinds()
        parts = (self._hits[some] for some in arrow.slices(len(self._hits)))
        return table_stream(parts, HIT_KINDS, kinds, requested_schema)


def table_stream(
    pages: Iterable[Sequence[Item]],
    own: Mapping[str, str],
    metadata: Mapping[str, str],
    requested_schema: object | None = None,
) -> object:
    """Return items as a capsule of an Arrow stream, a batch for each page.

    A metadata column with the name of another column is called `metadata.NAME`; databases do not tell upper
    from lower case.

    Args:
        pages: Items or hits, page by page.
        own: Kinds of the columns of the items themselves: `ITEM_KINDS` or `HIT_KINDS`.
        metadata: Kind of each metadata column.
        requested_schema: Capsule of the schema that the consumer asks for.

    Raises:
        InputError: pyarrow is not installed.
    """
    names = {name: f"metadata.{name}" if name.lower() in own else name for name in metadata}
    schema = arrow.table_schema({**own, **{names[name]: kind for name, kind in metadata.items()}})

    def columns(items: Sequence[Item]) -> dict[str, list[Any]]:
        found = {name: [getattr(item, name) for item in items] for name in own}
        return found | {shown: [item.metadata.get(name) for item in items] for name, shown in names.items()}

    batches = (arrow.record_batch(schema, columns(page)) for page in pages)
    return arrow.stream(schema, batches, requested_schema)


def _kinds_of_values(items: Sequence[Item]) -> dict[str, str]:
    """Return the kind of each metadata column, by the values of some items."""
    types: dict[str, set[type]] = {}
    for item in items:
        for name, value in item.metadata.items():
            types.setdefault(name, set()).add(type(value))
    kinds = ((str, "text"), (float, "number"), (object, "integer"))
    return {
        name: next(kind for type_, kind in kinds if any(issubclass(one, type_) for one in found))
        for name, found in types.items()
    }
