"""Requests of jobs."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from retrieval.curation.suspects import MAX_NEIGHBOURS, NEIGHBOURS
from retrieval.evaluation.calibration_fit import ABSENT
from serve.core.analyses import LOWEST, MAPPED, MAX_MAPPED

_MAX_GROUPS = 10_000
_MAX_SUSPECTS = 10_000


class JobRequest(BaseModel):
    """A job to start; the further fields are those of its kind."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [{"kind": "evaluation"}]})

    kind: str = Field(
        description="evaluation, duplicates (fields of DuplicatesRequest), suspects (SuspectsRequest), map "
        "(MapRequest), triplets, calibration (CalibrationRequest) or coverage (CoverageRequest).",
        examples=["duplicates"],
    )


class EvaluationRequest(BaseModel):
    """Evaluate the gallery on its own labels."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["evaluation"]


class DuplicatesRequest(BaseModel):
    """Find near-duplicates."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["duplicates"]
    min_score: float = Field(
        0.95, ge=LOWEST, le=1, allow_inf_nan=False, description="Lowest similarity of two near-duplicates."
    )
    limit: int = Field(1000, ge=1, le=_MAX_GROUPS, description="Largest number of groups in the result.")
    keep: Literal["largest", "oldest", "sharpest", "first"] | None = Field(
        None,
        description="Also choose which image of each group stays: the largest in pixels, the one with the "
        "oldest file, the sharpest, or the first in the gallery.",
    )


class SuspectsRequest(BaseModel):
    """Find images whose label is probably wrong."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["suspects"]
    k: int = Field(
        NEIGHBOURS, ge=1, le=MAX_NEIGHBOURS, description="Neighbours that vote on the label of an image."
    )
    limit: int | None = Field(
        None,
        ge=1,
        le=_MAX_SUSPECTS,
        description="Largest number of images in the result; by default those that are likely wrong.",
    )


class MapRequest(BaseModel):
    """Place the images on a plane with t-SNE."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["map"]
    limit: int = Field(
        MAPPED, ge=4, le=MAX_MAPPED, description="Number of images beyond which a random sample is placed."
    )


class TripletsRequest(BaseModel):
    """Draw the similarity of each labelled image to the nearest of its own and of another class."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["triplets"]


class CalibrationRequest(BaseModel):
    """Learn from the labels how probable it is that a hit shows the same thing."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["calibration"]
    absent: float = Field(
        ABSENT,
        ge=0,
        lt=1,
        allow_inf_nan=False,
        description="Share of the queries that you expect to show something that is not in the gallery.",
    )


class CoverageRequest(BaseModel):
    """Compare the recorded searches with the gallery."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["coverage"]
    since: str | None = Field(
        None,
        pattern=r"^\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d)?$",
        description="Date or time, UTC, from which searches count, and are compared with older ones. By "
        "default all count, and the newer half is compared with the older one.",
    )
    limit: int = Field(
        50, ge=1, le=1000, description="Largest number of images that are listed, of each kind."
    )
