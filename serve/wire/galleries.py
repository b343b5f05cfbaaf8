"""Descriptions of galleries, and the state of the server."""

from __future__ import annotations

from typing import Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
)

from serve.wire.fields import Fingerprint
from serve.wire.problems import ProblemDetails


class Indexing(BaseModel):
    """Images of a folder that are being indexed."""

    model_config = ConfigDict(from_attributes=True)

    done: int = Field(description="Images embedded so far; a search may find them a little later.")
    total: int | None = Field(description="Images to embed; null until the files are counted.")


class GalleryCalibration(BaseModel):
    """What is known of the probabilities of hits."""

    model_config = ConfigDict(from_attributes=True)

    created: str = Field(description="Time of the calibration, ISO 8601, UTC.")
    images: int = Field(description="Number of images of the gallery when it was calibrated.")
    error: float | None = Field(
        description="Calibration error on held-out classes: mean distance of probability and share right.",
        examples=[0.012],
    )
    reliable: bool | None = Field(description="Whether it is low enough to rely on the probabilities.")


class GalleryAnswer(BaseModel):
    """Full description of a gallery."""

    name: str
    uuid: str
    images: int
    dim: int = Field(description="Length of a vector.")
    fingerprint: Fingerprint
    embeds: bool = Field(
        description="Whether there is a model, so that the gallery can be searched by image."
    )
    columns: list[str] = Field(description="Metadata columns for conditions.")
    product: str | None = Field(
        description="Column of the products, of which searches find one hit each; null if there are none.",
        examples=["sku"],
    )
    variant: str | None = Field(
        description="Column of the variants of a product; null if there are none.", examples=["colour"]
    )
    objects: bool = Field(description="Whether parts of its pictures are images of the gallery, too.")
    show: list[str] = Field(
        description="Those that the page shows with each image, unless its visitor chooses others.",
        examples=[["price"]],
    )
    index: str = Field(description="Index kind; flat compares all vectors.", examples=["flat", "hnsw"])
    unindexed: int = Field(description="Vectors that the index does not cover; they are compared one by one.")
    calibrated: bool = Field(description="Whether hits have probabilities.")
    calibration: GalleryCalibration | None = Field(description="Facts of these; null if there are none.")
    license: str | None = Field(
        description="Licence of the weights that the model was trained from, if it is known.",
        examples=["apache-2.0"],
    )
    texts: bool = Field(description="Whether the gallery can be searched by text.")
    changes: bool = Field(description="Whether images can be added, described and removed.")
    urls: bool = Field(description="Whether the server fetches query images by URL.")
    sharing: int = Field(
        description="Hours for which the server keeps pictures that visitors share; 0 if they cannot."
    )
    recorded: bool = Field(
        description="Whether searches are recorded: vectors, filters, hits and what is opened; no pictures."
    )
    interleaved: bool = Field(
        description="Whether hits of a second gallery are mixed into those of recorded searches."
    )
    indexing: Indexing | None = Field(
        description="How far the server is in indexing a folder that it follows; null if it is not indexing."
    )


class GalleryEvent(BaseModel):
    """What a gallery holds now."""

    uuid: str = Field(
        description="UUID of the gallery. That of a rebuilt one is another, and its ids are of other images."
    )
    generation: str = Field(description="Differs after every change of the images or their facts.")
    images: int
    indexing: Indexing | None = Field(
        description="How far the server is in indexing a folder that it follows; null if it is not indexing."
    )


class ServedGallery(BaseModel):
    """One of the galleries of a server."""

    name: str = Field(examples=["birds"])
    images: int | None = Field(None, description="Missing if it cannot be read at the moment.")
    fingerprint: Fingerprint | None = None
    problem: ProblemDetails | None = Field(None, description="Why it cannot be read; the others can.")
    address: str = Field(description="URL path of the gallery's API.", examples=["/v1/galleries/birds"])


class GalleriesAnswer(BaseModel):
    """The galleries of a server; the first is the default."""

    galleries: list[ServedGallery]


class HealthAnswer(BaseModel):
    """State of the process."""

    status: str = Field(examples=["ok"])


class ReadyGallery(BaseModel):
    """State of a gallery: what is in it, or why it cannot be read."""

    images: int | None = None
    fingerprint: Fingerprint | None = None
    problem: ProblemDetails | None = None


class ReadyAnswer(BaseModel):
    """State of the galleries."""

    status: Literal["ready", "degraded"] = Field(description="degraded: some galleries cannot be read.")
    galleries: dict[str, ReadyGallery] = Field(description="Galleries by name.")
