"""What goes into the API and what comes out of it."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)
from pydantic import model_validator as validator
from pydantic_core import from_json

from retrieval.errors import InputError
from retrieval.search.query import RERANKS
from retrieval.search.query import SearchOptions as Options
from retrieval.search.where import MAX_LENGTH
from serve.core.fetch_url import LONGEST, MAX_BYTES, SECONDS
from serve.core.queries import Cropped, One
from serve.core.regions import MIN_SIDE, Region

MAX_K = 1000
MAX_BATCH = 64
_MAX_DIM = 65536
_MAX_KEY = 4096


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not Base64") from None


Picture = Annotated[
    bytes,
    BeforeValidator(_decoded),
    WithJsonSchema(
        {"type": "string", "contentEncoding": "base64", "description": "An image file, in Base64."}
    ),
]
Number = Annotated[int, Field(strict=True, ge=1, lt=2**63)]
Key = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_KEY)]
ItemName = Annotated[Number | Key, Field(description="The id of an image of the gallery, or its key.")]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def _checked(values: list[float]) -> list[float]:
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
        description="A part of the image, to search with it alone: left, top, right and bottom as fractions "
        "of the upright image's width and height. Cut out before the image is scaled; at least "
        f"{MIN_SIDE} x {MIN_SIDE} pixels. Not for a vector.",
        examples=[[0.25, 0.1, 0.75, 0.6]],
    ),
    AfterValidator(_checked),
]
Component = Annotated[float, Field(allow_inf_nan=False)]
Fingerprint = Annotated[
    str,
    Field(max_length=1000, description="What made the vectors: the SHA-256 of the model's file, or a name."),
]


class SearchOptions(BaseModel):
    """What to look for beside the query itself."""

    model_config = ConfigDict(extra="forbid")

    k: int = Field(10, ge=1, le=MAX_K, description="How many images to find.")
    where: str | None = Field(
        None,
        max_length=MAX_LENGTH,
        description="A condition that hits fulfil, in a small part of SQL.",
        examples=["label = 'red' and price < 30"],
    )
    min_score: float | None = Field(
        None, ge=-1, le=1, allow_inf_nan=False, description="The least score of a hit."
    )
    group_by: str | None = Field(
        None,
        max_length=100,
        description="A column, of whose values each gives its best hit alone.",
        examples=["label"],
    )
    exclude: list[ItemName] = Field(
        default_factory=list, max_length=MAX_K, description="Images of the gallery that are no hits."
    )
    rerank: Literal[tuple(RERANKS)] = Field(  # type: ignore[valid-type]
        "none",
        description="How to order what was found: "
        + "; ".join(f"{way}: the score is {what}" for way, what in RERANKS.items())
        + ".",
    )

    def options(self) -> Options:
        """The same for `Gallery.find`."""
        return Options(self.k, self.where, tuple(self.exclude), self.min_score, self.group_by, self.rerank)


class SearchParameters(SearchOptions):
    """What the query string may say."""

    region: RegionValues | None = None


class BatchParameters(SearchOptions):
    """What the query string of several queries may say."""

    together: bool = False


class Query(BaseModel):
    """What to look for: exactly one of an image, an image of the gallery, or a vector."""

    model_config = ConfigDict(extra="forbid")
    _ways: ClassVar[tuple[str, ...]] = ("image", "id", "vector")

    image: Picture | None = None
    id: ItemName | None = None
    vector: list[Component] | None = Field(
        None, max_length=_MAX_DIM, description="Of the gallery's model; of any length but zero."
    )
    region: RegionValues | None = None

    @validator(mode="after")
    def _one(self) -> Query:
        if sum(getattr(self, name) is not None for name in self._ways) != 1:
            raise ValueError(f"give exactly one of {', '.join(self._ways[:-1])} and {self._ways[-1]}")
        if self.vector is not None and self.region is not None:
            raise ValueError("a vector has no region: give one of an image, or of an id")
        return self

    def asked(self) -> One:
        """The same for `SearchService.find`."""
        if self.vector is not None:
            return np.array(self.vector, np.float64)
        picture = self.id if self.image is None else self.image
        assert picture is not None
        return _part(picture, self.region)


class SearchRequest(SearchOptions, Query):
    """One query and its options."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"id": 17, "k": 5},
                {"id": 17, "region": [0.25, 0.1, 0.75, 0.6]},
                {"image": "iVBORw0KGgo...", "where": "label = 'red'"},
            ]
        },
    )
    _ways: ClassVar[tuple[str, ...]] = (*Query._ways, "url")

    url: str | None = Field(
        None,
        max_length=LONGEST,
        description="Where on the web an image is, http or https, for the server to fetch: in public, at the "
        f"usual port, within {SECONDS:g} s and at most {MAX_BYTES // 2**20} MB. Refused where the server "
        "was started without --allow-urls.",
        examples=["https://pictures.example/red.jpg"],
    )
    fingerprint: Fingerprint | None = None


def _part(picture: bytes | int | str, region: list[float] | None) -> One:
    return picture if region is None else Cropped(picture, Region.of(region))


class ByIdRequest(SearchOptions):
    """An image of the gallery, and options."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"id": "red/1.png", "k": 5}]})

    id: ItemName
    region: RegionValues | None = None

    def asked(self) -> One:
        """The same for `SearchService.find`."""
        return _part(self.id, self.region)


class BatchRequest(SearchOptions):
    """Several queries with the same options."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"queries": [{"id": 17}, {"image": "iVBORw0KGgo..."}], "k": 5}]},
    )

    queries: list[Query] = Field(min_length=1, max_length=MAX_BATCH)
    together: bool = Field(
        False,
        description="All queries are views of one thing: one result, for the mean of their vectors. None of "
        "the gallery's images among them is a hit, and a problem with one of them is the problem of all.",
    )
    fingerprint: Fingerprint | None = None


class EmbedRequest(BaseModel):
    """Images to embed."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"images": ["iVBORw0KGgo..."]}]}
    )

    images: list[Picture] = Field(min_length=1, max_length=MAX_BATCH)


class Image(BaseModel):
    """An image of the gallery."""

    id: int = Field(description="Its number, which is never used again.", examples=[17])
    key: str = Field(
        description="What its owner calls it, or its path in the folder indexed.", examples=["red/1.png"]
    )
    label: str | None = Field(examples=["red"])
    metadata: dict[str, Any] = Field(examples=[{"price": 12.5}])
    thumbnail: str = Field(
        description="Where a small picture of it is.", examples=["/v1/images/17/thumbnail?v=1b4e28ba"]
    )


class Hit(Image):
    """An image found."""

    score: float = Field(description="How alike it is; 1 for the same picture.", examples=[0.93])


class SearchAnswer(BaseModel):
    """What was found, best first."""

    hits: list[Hit]
    fingerprint: Fingerprint


class BatchResult(BaseModel):
    """What was found for one query, or why there is nothing."""

    hits: list[Hit] | None = None
    problem: ProblemDetails | None = None


class BatchAnswer(BaseModel):
    """A result for each query, in their order."""

    results: list[BatchResult]
    fingerprint: Fingerprint


class EmbedAnswer(BaseModel):
    """A vector for each image, in their order, of unit length."""

    vectors: list[list[float]]
    fingerprint: Fingerprint


class GalleryAnswer(BaseModel):
    """What is searched."""

    name: str
    uuid: str
    images: int
    dim: int = Field(description="Length of a vector.")
    fingerprint: Fingerprint
    embeds: bool = Field(description="Whether there is a model here, so that images can be searched for.")
    columns: list[str] = Field(description="Names that conditions may use beside the images' own facts.")
    index: str = Field(description="Its kind; flat: everything is compared.", examples=["flat", "hnsw"])
    unindexed: int = Field(description="Vectors that the index does not cover; they are all compared.")


class ServedGallery(BaseModel):
    """One of the galleries of a server."""

    name: str = Field(examples=["birds"])
    images: int
    fingerprint: Fingerprint
    address: str = Field(description="Where its part of the API is.", examples=["/v1/galleries/birds"])


class GalleriesAnswer(BaseModel):
    """The galleries of a server; the first is what is meant where none is named."""

    galleries: list[ServedGallery]


class Fault(BaseModel):
    """One thing wrong with a request."""

    pointer: str = Field(description="Where, as a JSON pointer.", examples=["#/k"])
    detail: str = Field(examples=["Input should be greater than or equal to 1"])


class ProblemDetails(BaseModel):
    """What went wrong, as RFC 9457 has it."""

    type: str = Field(description="Names the kind of problem.", examples=["urn:lookalike:problem:busy"])
    title: str
    status: int
    detail: str = Field(description="What happened this time, and what to do.")
    instance: str = Field(description="Names this occurrence.")
    code: str = Field(description="The kind of problem in a word that stays the same.", examples=["busy"])
    reason: str | None = Field(None, description="Of an image: missing, not-an-image, damaged or too-large.")
    errors: list[Fault] | None = Field(None, description="Of a request: what is wrong with it, the first 20.")


Label = Annotated[str, StringConstraints(max_length=1000)]


def _parsed(value: Any) -> Any:
    """A form has text alone."""
    if not isinstance(value, str):
        return value
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError:
        raise ValueError("not JSON") from None


class AddParameters(BaseModel):
    """What is said about images beside their bodies."""

    model_config = ConfigDict(extra="forbid")

    label: Label | None = Field(None, description="What all of them are.", examples=["red"])


class AddRequest(AddParameters):
    """Images to add to the gallery, and what is known about all of them."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"images": ["iVBORw0KGgo..."], "names": ["1.png"], "label": "red"}]},
    )

    images: list[Picture] = Field(min_length=1, max_length=MAX_BATCH)
    names: list[Annotated[str, StringConstraints(max_length=_MAX_KEY)]] | None = Field(
        None, description="What each is called: its key in the gallery, unless another image has it."
    )
    metadata: Annotated[dict[str, str | int | float | None] | None, BeforeValidator(_parsed)] = Field(
        None, max_length=100, description="Values by column.", examples=[{"price": 12.5}]
    )

    @validator(mode="after")
    def _named(self) -> AddRequest:
        if self.names is not None and len(self.names) != len(self.images):
            what = f"{len(self.names)} names for {len(self.images)} images"
            raise ValueError(f"{what}: give one for each, or none")
        return self


class AddResult(BaseModel):
    """What became of one image: it is in the gallery, or there is a problem with it."""

    image: Image | None = None
    added: bool | None = Field(
        default=None, description="Whether it is new; otherwise `image` has the same bytes."
    )
    problem: ProblemDetails | None = None


class AddAnswer(BaseModel):
    """A result for each image, in their order."""

    results: list[AddResult]
