"""Requests and results of jobs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from serve.api.schemas import Image, ProblemDetails
from serve.core.analyses import LOWEST, MAPPED

_MAX_GROUPS = 10_000
State = Literal["running", "done", "failed"]


class JobRequest(BaseModel):
    """A job to start; the further fields are those of its kind."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [{"kind": "evaluation"}]})

    kind: str = Field(
        description="evaluation, duplicates (fields of DuplicatesRequest) or map (fields of MapRequest).",
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


class MapRequest(BaseModel):
    """Place the images on a plane with t-SNE."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["map"]
    limit: int = Field(
        MAPPED, ge=4, le=MAPPED, description="Number of images beyond which a random sample is placed."
    )


class DuplicateGroup(BaseModel):
    """Images that are near-duplicates of each other."""

    images: list[Image]
    lowest: float = Field(
        description="Lowest similarity of two of them; below `min_score` if the group is a chain."
    )
    identical: bool = Field(description="Whether the files of all have the same bytes.")


class DuplicatesAnswer(BaseModel):
    """Groups of near-duplicates: those whose labels disagree first, then by falling similarity."""

    total: int = Field(description="Number of groups, of which the first `limit` are listed.")
    groups: list[DuplicateGroup]


class MapPoint(BaseModel):
    """The place of an image on the map."""

    id: int
    label: str | None
    x: float
    y: float


class MapAnswer(BaseModel):
    """A map of the gallery: only neighbourhoods have a meaning, not axes and distances."""

    total: int = Field(description="Number of images that those on the map are a sample of.")
    points: list[MapPoint]


class JobProgress(BaseModel):
    """How far a job is."""

    what: str = Field(examples=["comparing"])
    done: int
    total: int | None
    unit: str = Field(examples=["images"])


class JobAnswer(BaseModel):
    """A job."""

    id: str
    kind: str
    state: State
    created: str = Field(description="Time of its start, ISO 8601, UTC.")
    ended: str | None = Field(description="Time of its end; null while it is running.")
    progress: JobProgress | None = Field(
        description="How far it is; null if it has not begun, has ended, or reports nothing."
    )
    problem: ProblemDetails | None = Field(description="Why it failed.")
    result: Any = Field(
        None,
        description="Its result, once it is done: EvaluationAnswer, DuplicatesAnswer or MapAnswer. Not in "
        "the list of jobs.",
    )


class JobsAnswer(BaseModel):
    """The jobs of the gallery that are kept, the newest first."""

    jobs: list[JobAnswer]
