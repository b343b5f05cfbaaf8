"""Answers of searches, and vectors."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
)

from serve.wire.fields import Corners, Fingerprint, Number, QueryId
from serve.wire.images import Image
from serve.wire.problems import ProblemDetails


class HitView(BaseModel):
    """A view of a hit, such as a picture of a product."""

    id: int = Field(description="Number of the image.", examples=[17])
    key: str = Field(description="Name of the image.", examples=["red/1.png"])
    score: float = Field(description="Similarity; of several images of the query, the mean.", examples=[0.9])
    thumbnail: str = Field(
        description="URL path of the thumbnail.", examples=["/v1/items/17/thumbnail?v=1b4e28ba"]
    )
    variant: str | int | float | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Variant of the product that it shows best, if products have variants and it is of one.",
        examples=["red"],
    )
    view_count: int | None = Field(
        None,
        exclude_if=lambda count: count is None,
        description="Number of images of that variant.",
        examples=[2],
    )


class Hit(Image):
    """A found image with its score."""

    score: float = Field(description="Similarity; 1 for the same image.", examples=[0.93])
    probability: float | None = Field(
        description="Probability that it shows the same thing as the query, 1 if it is the same picture; "
        "null in a gallery that is not calibrated, and with re-ranking.",
        examples=[0.87],
    )
    group: str | int | float | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Value of its group, such as its product, if there is one hit for each.",
        examples=["4711"],
    )
    view_count: int | None = Field(
        None,
        exclude_if=lambda count: count is None,
        description="Number of images of its group.",
        examples=[3],
    )
    views: list[HitView] | None = Field(
        None,
        exclude_if=lambda views: views is None,
        description="The first of them, best first and with the hit itself, if `group_size` is above 1; of "
        "products with variants, the best view of each variant.",
    )
    variant_count: int | None = Field(
        None,
        exclude_if=lambda count: count is None,
        description="Number of variants of the product, if products have variants.",
        examples=[2],
    )
    gallery: str | None = Field(
        None,
        exclude_if=lambda name: name is None,
        description="Name of its gallery, if several were searched.",
        examples=["birds"],
    )


_RECORDED: Any = Field(
    None,
    exclude_if=lambda id: id is None,
    description="Id of the search, for `POST /v1/outcomes`, if the server records searches.",
    examples=["0f3a5c1b9d2e4876"],
)


_INTERLEAVED: Any = Field(
    False,
    exclude_if=lambda mixed: not mixed,
    description="Whether hits of a second gallery are mixed in, to compare the two: then scores, which are "
    "those of this gallery, do not fall from hit to hit. Show none, so that visitors judge the images.",
)


class PartHit(Hit):
    """A found image with its score, and the part of the query that it looks like."""

    box: Corners = Field(
        description="Left, top, right and bottom, as fractions of the upright query image: a `region` to "
        "search with.",
        examples=[[0.25, 0.1, 0.75, 0.6]],
    )


class ObjectsAnswer(BaseModel):
    """What the gallery has of the objects in an image."""

    hits: list[PartHit] = Field(description="The most similar images, best first.")
    boxes: list[PartHit] = Field(
        description="The parts that look most like something in the gallery, best first, each with the image "
        "that it looks like. They overlap each other little."
    )
    fingerprint: Fingerprint
    query_id: str | None = _RECORDED


class SearchAnswer(BaseModel):
    """Hits of a search, best first unless ordered by a column."""

    hits: list[Hit]
    nothing_like_it: bool = Field(description="Whether no hit reaches `min_probability`.")
    fingerprint: Fingerprint
    interleaved: bool = _INTERLEAVED
    query_id: str | None = _RECORDED


class BatchResult(BaseModel):
    """Hits of one query, or its problem."""

    hits: list[Hit] | None = None
    nothing_like_it: bool | None = Field(
        default=None, description="Whether no hit reaches `min_probability`."
    )
    problem: ProblemDetails | None = None
    interleaved: bool = _INTERLEAVED
    query_id: str | None = _RECORDED


class BatchAnswer(BaseModel):
    """A result for each query, in their order."""

    results: list[BatchResult]
    fingerprint: Fingerprint


class EmbedAnswer(BaseModel):
    """A vector of unit length for each image or text, in their order."""

    vectors: list[list[float]]
    fingerprint: Fingerprint


class OutcomeRequest(BaseModel):
    """What was done with a hit of a search."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"query_id": "0f3a5c1b9d2e4876", "item": 17, "outcome": "opened"}]},
    )

    query_id: QueryId = Field(description="Id of the search, which its answer has.")
    item: Number = Field(description="Number of the image.")
    outcome: Literal["opened", "right", "wrong"] = Field(
        description="Whether somebody opened it, or said that it is right or wrong."
    )
