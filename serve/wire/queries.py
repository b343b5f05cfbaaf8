"""Requests with images, texts and vectors: searches, embeddings, pictures to show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    create_model,
)
from pydantic import model_validator as validator

from retrieval.errors import InputError
from retrieval.search.options import SearchOption, SearchOptions, search_options
from serve.core.queries import (
    MIN_SIDE,
    AnyQuery,
    ComposedQuery,
    Region,
    RegionQuery,
    SingleQuery,
    TextQuery,
)
from serve.core.url_fetcher import MAX_BYTES, MAX_URL_LENGTH, TIMEOUT_SECONDS
from serve.limits import MAX_BATCH, MAX_CONDITION, MAX_GALLERIES, MAX_K, MAX_TEXTS, MAX_TOGETHER, MAX_VIEWS
from serve.wire.fields import Fingerprint, ImageBytes, ItemName, QueryId, Text, Texts, parse_json

_MAX_DIM = 65536

_VECTOR = "Vector of the gallery's model, of any norm but zero."

_URL = (
    "http or https URL of an image for the server to fetch: public, with the default port, "
    f"within {TIMEOUT_SECONDS:g} s and of at most {MAX_BYTES // 2**20} MB. Refused if the server was "
    "started without --allow-urls."
)

Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

Component = Annotated[float, Field(allow_inf_nan=False)]


def _split_region(value: Any) -> Any:
    """Split numbers with commas between them, as text or as the only part of a list, as of a query string."""
    (only,) = value if isinstance(value, list) and len(value) == 1 else (value,)
    return only.split(",") if isinstance(only, str) else value


def _with_text(schema: dict[str, Any]) -> None:
    """Add numbers with commas between them to the schema of a region."""
    listed = {key: schema.pop(key) for key in ("type", "items", "minItems", "maxItems")}
    schema["anyOf"] = [listed, {"type": "string", "examples": ["0.25,0.1,0.75,0.6"]}]


def _check_region(values: list[float]) -> list[float]:
    try:
        Region.of(values)
    except InputError as error:
        raise ValueError(str(error)) from None
    return values


RegionValues = Annotated[
    list[Fraction],
    Field(
        min_length=4,
        max_length=4,
        description="Region of the image to search with: left, top, right and bottom as fractions of the "
        "upright image's width and height, as a list or with commas between them. Cut out before the image "
        f"is scaled; at least {MIN_SIDE} x {MIN_SIDE} pixels. Not for a vector.",
        examples=[[0.25, 0.1, 0.75, 0.6]],
        json_schema_extra=_with_text,
    ),
    BeforeValidator(_split_region),
    AfterValidator(_check_region),
]

_HasUrl = TypeVar("_HasUrl", "View", "SearchRequest")


_LIMITS: dict[str, dict[str, Any]] = {
    "k": {"le": MAX_K},
    "where": {"max_length": MAX_CONDITION},
    "exclude": {"max_length": MAX_K},
    "group_size": {"le": MAX_VIEWS},
}
_MAX_TEXT_OPTION = 100


def described(option: SearchOption) -> Any:
    """Return the annotation of an option of a search in a request, with its description and limits."""
    limits: dict[str, Any] = _LIMITS.get(option.name, {})
    kind: Any = option.annotation
    if option.choices:
        kind = Literal[option.choices]
    elif option.many:
        kind = list[ItemName]
    elif option.kind is float:
        limits = {"allow_inf_nan": False, **limits}
    elif option.kind is str:
        limits = {"max_length": _MAX_TEXT_OPTION, **limits}
    limits = {"ge": option.low, "le": option.high, **limits}
    return Annotated[kind, Field(**limits, description=option.help, examples=option.examples)]


class _SearchFields(BaseModel):
    model_config = ConfigDict(extra="forbid")

    def options(self) -> SearchOptions:
        """Return the options of `Gallery.find`."""
        given = {option.name: getattr(self, option.name) for option in search_options()}
        return SearchOptions(**given | {"exclude": tuple(given["exclude"])})


if TYPE_CHECKING:
    SearchFields = _SearchFields
else:
    SearchFields = create_model(
        "SearchFields",
        __base__=_SearchFields,
        __doc__="Fields of a request with the options of a search.",
        __module__=__name__,
        **{
            option.name: (described(option), [] if option.many else option.default)
            for option in search_options()
        },
    )


class View(BaseModel):
    """One image of a query: its bytes, an image of the gallery, a vector, or a URL."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"id": 17}]})

    image: ImageBytes | None = None
    id: ItemName | None = None
    vector: list[Component] | None = Field(None, max_length=_MAX_DIM, description=_VECTOR)
    url: str | None = Field(None, max_length=MAX_URL_LENGTH, description=_URL)
    region: RegionValues | None = None

    @validator(mode="before")
    @classmethod
    def _of_form(cls, value: Any) -> Any:
        """Accept what a form has: the bytes of a file, or JSON."""
        return {"image": value} if isinstance(value, bytes) else parse_json(value)

    @validator(mode="after")
    def _check_kind(self) -> View:
        if sum(one is not None for one in (self.image, self.id, self.vector, self.url)) != 1:
            raise ValueError("give exactly one of image, id, vector and url")
        if self.region is not None and self.vector is not None:
            raise ValueError("a vector has no region")
        return self

    @property
    def kind(self) -> str:
        """Name of the field that is given."""
        return next(name for name in ("url", "image", "id", "vector") if getattr(self, name) is not None)

    def query(self) -> SingleQuery:
        """Return the query; `url` must have been fetched."""
        if self.vector is not None:
            return np.array(self.vector, np.float64)
        image = self.id if self.image is None else self.image
        assert image is not None
        return _with_region(image, self.region)


def _or_one(schema: dict[str, Any]) -> None:
    """Add a single text to the schema of a list of texts."""
    listed = {key: schema.pop(key) for key in ("type", "items", "maxItems")}
    schema["anyOf"] = [listed, listed["items"]]


class TextFields(BaseModel):
    """Texts of a query, for a gallery whose model has a text encoder."""

    text: Texts = Field(
        default_factory=list,
        max_length=MAX_TEXTS,
        json_schema_extra=_or_one,
        description="Texts that the hits should show, together with the image if there is one: the query is "
        "twice the mean of all vectors wanted, minus the mean of those of `without`.",
        examples=[["red kettle"]],
    )
    without: Texts = Field(
        default_factory=list,
        max_length=MAX_TEXTS,
        json_schema_extra=_or_one,
        description="Texts to move away from.",
        examples=[["handle"]],
    )

    @property
    def place(self) -> str:
        """Place of the image in the request, as a JSON pointer; of the texts without one."""
        given = (name for name in ("image", "id", "vector") if getattr(self, name, None) is not None)
        return f"#/{next(given, 'text')}"

    def with_texts(self, image: SingleQuery | None) -> AnyQuery:
        """Return an image with the texts as one query."""
        if image is not None and not (self.text or self.without):
            return image
        views = [*([] if image is None else [image]), *map(TextQuery, self.text)]
        pointers = [*([] if image is None else [self.place])]
        for name in ("text", "without"):
            pointers += [f"#/{name}/{number}" for number in range(len(getattr(self, name)))]
        return ComposedQuery(views, [*map(TextQuery, self.without)], pointers)


class GalleriesField(BaseModel):
    """Galleries to search together."""

    galleries: list[Annotated[str, StringConstraints(min_length=1, max_length=1000)]] = Field(
        default_factory=list,
        max_length=MAX_GALLERIES,
        description="Names of galleries to search together, at /v1 only; they have to be of one model. Ids "
        "in the query are of the first. Not with exclude, group_by, order, rerank, diversity and "
        "min_probability.",
        examples=[["birds", "cars"]],
    )


class SearchParameters(SearchFields, TextFields, GalleriesField):
    """Query string of a search."""

    region: RegionValues | None = None


class BatchParameters(SearchFields):
    """Query string of a batch."""

    together: bool = False


class Query(TextFields):
    """A query: an image, an image of the gallery, or a vector; or texts, alone or with one of these."""

    model_config = ConfigDict(extra="forbid")
    _kinds: ClassVar[tuple[str, ...]] = ("image", "id", "vector")

    image: ImageBytes | None = None
    id: ItemName | None = None
    vector: list[Component] | None = Field(None, max_length=_MAX_DIM, description=_VECTOR)
    region: RegionValues | None = None

    @validator(mode="after")
    def _check_kind(self) -> Query:
        given = sum(getattr(self, name) is not None for name in self._kinds)
        if given > 1 or (not given and not self.text and not getattr(self, "like", ())):
            kinds = f"{', '.join(self._kinds[:-1])} and {self._kinds[-1]}"
            raise ValueError(f"give exactly one of {kinds}, or text, alone or with one of them")
        if self.region is not None and (self.vector is not None or not given):
            raise ValueError("a vector has no region, nor has a text: give one of an image, or of an id")
        return self

    def query(self) -> AnyQuery:
        """Return the query of `SearchService.find`."""
        if self.vector is not None:
            return self.with_texts(np.array(self.vector, np.float64))
        image = self.id if self.image is None else self.image
        return self.with_texts(None if image is None else _with_region(image, self.region))


class SearchRequest(SearchFields, Query, GalleriesField):
    """One query and its options."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"id": 17, "k": 5},
                {"id": 17, "region": [0.25, 0.1, 0.75, 0.6]},
                {"image": "iVBORw0KGgo...", "where": "label = 'red'"},
                {"text": ["red kettle"], "without": ["handle"]},
                {"like": [{"id": 17}, {"id": 23}], "unlike": [{"id": 5}]},
            ]
        },
    )
    _kinds: ClassVar[tuple[str, ...]] = (*Query._kinds, "url")

    url: str | None = Field(
        None,
        max_length=MAX_URL_LENGTH,
        description=_URL,
        examples=["https://pictures.example/red.jpg"],
    )
    like: list[View] = Field(
        default_factory=list,
        max_length=MAX_TOGETHER,
        description="Images that the hits should look like, in place of `image`, `id`, `vector` and `url`.",
    )
    unlike: list[View] = Field(
        default_factory=list,
        max_length=MAX_TOGETHER,
        description="Images to move away from, as `without` for texts. Neither are among the hits.",
    )
    fingerprint: Fingerprint | None = None
    query_id: QueryId | None = Field(
        None,
        description="Id of an earlier answer of which this search asks for more: it is not recorded again.",
    )

    @validator(mode="after")
    def _check_views(self) -> SearchRequest:
        if len(self.like) + len(self.unlike) > MAX_TOGETHER:
            raise ValueError(f"`like` and `unlike` have at most {MAX_TOGETHER} images together")
        if self.like and any(getattr(self, name) is not None for name in self._kinds):
            raise ValueError("give either `like`, or one of image, id, vector and url")
        return self

    @validator(mode="after")
    def _check_galleries(self) -> SearchRequest:
        alone = ("exclude", "group_by", "order", "rerank", "diversity", "min_probability")
        unset: tuple[object, ...] = ([], None, "none", SearchOptions.diversity)
        others = [name for name in alone if getattr(self, name) not in unset]
        if self.galleries and others:
            raise ValueError(f"not possible in several galleries at once: {', '.join(others)}")
        if len({*self.galleries}) < len(self.galleries):
            raise ValueError("`galleries` names a gallery twice")
        return self

    def urls(self) -> dict[str, str]:
        """Return the URLs of images to fetch, each with its place as a JSON pointer."""
        return {
            view.url: pointer
            for pointer, view in (*self._views("like"), *self._views("unlike"))
            if view.url is not None
        }

    def with_images(self, images: Mapping[str, bytes]) -> SearchRequest:
        """Return the request with the images of its URLs."""
        sides = {
            name: [_with_image(view, images) for view in getattr(self, name)] for name in ("like", "unlike")
        }
        return _with_image(self, images).model_copy(update=sides)

    def query(self) -> AnyQuery:
        """Return the query of `SearchService.find`; URLs must have been fetched."""
        if not (self.like or self.unlike):
            return super().query()
        wanted = {pointer: view.query() for pointer, view in self._views("like")}
        unwanted = {pointer: view.query() for pointer, view in self._views("unlike")}
        for name, side in (("text", wanted), ("without", unwanted)):
            texts = getattr(self, name)
            side |= {f"#/{name}/{number}": TextQuery(text) for number, text in enumerate(texts)}
        return ComposedQuery([*wanted.values()], [*unwanted.values()], [*wanted, *unwanted])

    def _views(self, name: Literal["like", "unlike"]) -> list[tuple[str, View]]:
        """Return the images of `like`, with the one that it abbreviates, or `unlike`, and their places."""
        views: list[View] = getattr(self, name)
        found = [(f"#/{name}/{number}/{view.kind}", view) for number, view in enumerate(views)]
        fields = {field: getattr(self, field) for field in (*self._kinds, "region")}
        if name == "like" and not views and any(fields[kind] is not None for kind in self._kinds):
            one = View.model_construct(**fields)
            found.append((f"#/{one.kind}", one))
        return found


def _with_image(view: _HasUrl, images: Mapping[str, bytes]) -> _HasUrl:
    return view if view.url is None else view.model_copy(update={"image": images[view.url]})


def _with_region(image: bytes | int | str, region: list[float] | None) -> SingleQuery:
    return image if region is None else RegionQuery(image, Region.of(region))


class ByIdRequest(SearchFields, TextFields):
    """An image of the gallery, and options."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"id": "red/1.png", "k": 5}]})

    id: ItemName
    region: RegionValues | None = None

    def query(self) -> AnyQuery:
        """Return the query of `SearchService.find`."""
        return self.with_texts(_with_region(self.id, self.region))


class BatchRequest(SearchFields):
    """Several queries with the same options."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"queries": [{"id": 17}, {"image": "iVBORw0KGgo..."}], "k": 5}]},
    )

    queries: list[Query] = Field(min_length=1, max_length=MAX_BATCH)
    together: bool = Field(
        False,
        description="Whether all queries are views of one object: one result, without the queries "
        "themselves. Groups are compared with each of them, single images with the mean of their vectors. A "
        "problem with one of them is the problem of all.",
    )
    fingerprint: Fingerprint | None = None


class ShareRequest(BaseModel):
    """A picture to share."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"image": "iVBORw0KGgo..."}]})

    image: ImageBytes


class PreviewRequest(BaseModel):
    """A picture to show: an image, or the URL of one."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"image": "iVBORw0KGgo..."}, {"url": "https://example.org/a.jpg"}]},
    )

    image: ImageBytes | None = None
    url: str | None = Field(None, max_length=MAX_URL_LENGTH, description=_URL)

    @validator(mode="after")
    def _check_kind(self) -> PreviewRequest:
        if (self.image is None) == (self.url is None):
            raise ValueError("give either image or url")
        return self


class EmbedRequest(BaseModel):
    """Images or texts to embed."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"images": ["iVBORw0KGgo..."]}, {"texts": ["red kettle"]}]},
    )

    images: list[ImageBytes] | None = Field(None, min_length=1, max_length=MAX_BATCH)
    texts: list[Text] | None = Field(
        None,
        min_length=1,
        max_length=MAX_BATCH,
        description="For a model with a text encoder, in place of images.",
    )

    @validator(mode="after")
    def _check_kind(self) -> EmbedRequest:
        if (self.images is None) == (self.texts is None):
            raise ValueError("give either images or texts")
        return self

    def contents(self) -> list[bytes] | list[TextQuery]:
        """Return what to embed, for `SearchService.embed`."""
        return [*map(TextQuery, self.texts or ())] if self.images is None else self.images


class _OneImage(BaseModel):
    """One image: its bytes, or the id or key of one of the gallery."""

    image: ImageBytes | None = None
    id: ItemName | None = None

    @validator(mode="after")
    def _check_kind(self) -> Self:
        if (self.image is None) == (self.id is None):
            raise ValueError("give exactly one of image and id")
        return self

    def image_or_item(self) -> bytes | int | str:
        """Return the bytes, or the id or key."""
        image = self.id if self.image is None else self.image
        assert image is not None
        return image


class ObjectsRequest(_OneImage, SearchFields):
    """An image, and options of the search for what stands in it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"id": 17, "k": 20}]})


class HeatmapParameters(BaseModel):
    """Query string of heatmaps."""

    model_config = ConfigDict(extra="forbid")

    item: ItemName | None = Field(None, description="The id of the image to compare with, or its key.")
    region: RegionValues | None = None


class HeatmapRequest(_OneImage, HeatmapParameters):
    """A query, and the image of the gallery to compare it with."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"id": 17, "item": 4}]})

    item: ItemName = Field(description="The id of the image to compare with, or its key.")

    def query(self) -> bytes | int | str | RegionQuery:
        """Return the query of `SearchService.compare`."""
        image = self.image_or_item()
        return image if self.region is None else RegionQuery(image, Region.of(self.region))
