"""Images of the gallery: what they are and how they are added."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)
from pydantic import model_validator as validator

from retrieval.search.options import NEAR_DUPLICATE, Duplicates
from serve.limits import MAX_BATCH, MAX_KEY
from serve.wire.fields import Corners, ImageBytes, Label, parse_json
from serve.wire.problems import ProblemDetails


class Image(BaseModel):
    """An image of the gallery."""

    id: int = Field(description="Number of the image, which is never reused.", examples=[17])
    key: str = Field(
        description="Name of the image, or its path in the indexed folder.", examples=["red/1.png"]
    )
    label: str | None = Field(examples=["red"])
    metadata: dict[str, Any] = Field(examples=[{"price": 12.5}])
    width: int | None = Field(description="Width in pixels; null if unknown.", examples=[640])
    height: int | None = Field(description="Height in pixels; null if unknown.", examples=[480])
    part: Corners | None = Field(
        None,
        exclude_if=lambda part: part is None,
        description="If the image is a part of a picture: left, top, right and bottom, as fractions of the "
        "upright picture. Width and height are those of the part.",
        examples=[[0.25, 0.1, 0.75, 0.6]],
    )
    thumbnail: str = Field(
        description="URL path of the thumbnail.", examples=["/v1/items/17/thumbnail?v=1b4e28ba"]
    )


class AddParameters(BaseModel):
    """Query string for adding images."""

    model_config = ConfigDict(extra="forbid")

    label: Label | None = Field(None, description="Label of all images.", examples=["red"])
    duplicates: Duplicates = Field(
        "keep",
        description="What becomes of an image that looks like another one, of the gallery or sent before it "
        f"(similarity {NEAR_DUPLICATE} or more): `keep` adds it, `refuse` does not.",
    )


class AddRequest(AddParameters):
    """Images to add to the gallery, and the metadata of all of them."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"images": ["iVBORw0KGgo..."], "names": ["1.png"], "label": "red"}]},
    )

    images: list[ImageBytes] = Field(min_length=1, max_length=MAX_BATCH)
    names: list[Annotated[str, StringConstraints(max_length=MAX_KEY)]] | None = Field(
        None, description="File name of each image; becomes its key, unless another image has that key."
    )
    metadata: Annotated[dict[str, str | int | float | None] | None, BeforeValidator(parse_json)] = Field(
        None, max_length=100, description="Metadata of all images, by column.", examples=[{"price": 12.5}]
    )

    @validator(mode="after")
    def _check_names(self) -> AddRequest:
        if self.names is not None and len(self.names) != len(self.images):
            counts = f"{len(self.names)} names for {len(self.images)} images"
            raise ValueError(f"{counts}: give one for each, or none")
        return self


class AddConflict(BaseModel):
    """What was asked for an image that the gallery had, or one like it, with another label or metadata."""

    label: str | None = Field(
        description="The label asked for, which was not stored; null if it is the same.", examples=["blue"]
    )
    metadata: dict[str, str | int | float | None] | None = Field(
        description="The values asked for, which were not stored; null if they are the same.",
        examples=[{"price": 9.5}],
    )
    detail: str = Field(description="Which image has these bytes or looks like it, and what to do.")


class AddResult(BaseModel):
    """Result of adding one image: the image, or its problem."""

    image: Image | None = None
    added: bool | None = Field(
        default=None,
        description="Whether it is new; otherwise `image` has the same bytes, or a `similarity` to it.",
    )
    similarity: float | None = Field(
        default=None,
        description="Cosine similarity to `image`, if it was refused as a near-duplicate of it.",
        examples=[0.971],
    )
    conflict: AddConflict | None = Field(
        default=None, description="If it is not new, and was sent with another label or other metadata."
    )
    problem: ProblemDetails | None = None


class AddAnswer(BaseModel):
    """A result for each image, in their order."""

    results: list[AddResult]
