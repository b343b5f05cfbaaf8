"""Response of `/v1/heatmap`."""

from __future__ import annotations

from pydantic import BaseModel, Field

from serve.wire.fields import Fingerprint

SCALE = 32767  # of the similarities, which a browser reads as an Int16Array


class Heatmap(BaseModel):
    """What each location of an image contributes to the score."""

    box: list[float] = Field(
        min_length=4,
        max_length=4,
        description="What the model sees of the upright image, and the grid covers: left, top, right and "
        "bottom, as fractions of width and height. Below 0 or above 1 where the model's input is padded.",
    )
    contributions: list[list[float]] = Field(
        description="Rows of the grid; they sum to the score, up to rounding."
    )
    strengths: list[list[float]] = Field(
        description="The contrast of the contributions, -1 to 1: less their mean, divided by the 98th "
        "percentile of the deviations in both images, and clipped. Above 0, the location raises the score "
        "more than others do."
    )


class HeatmapAnswer(BaseModel):
    """Heatmaps of the query and the image of the gallery."""

    score: float = Field(description="Cosine similarity of the two, embedded from their files.")
    height: int = Field(description="Rows of both grids.")
    width: int = Field(description="Columns of both grids.")
    query: Heatmap
    item: Heatmap
    similarities: str = Field(
        description="Cosine of each location of the query with each of the image, both row by row: int16, "
        f"little-endian, {SCALE} for 1, in Base64. [height x width, height x width]."
    )
    fingerprint: Fingerprint
