"""Requests and responses of the routes of decisions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

_MAX_LISTED = 1000


class Decision(BaseModel):
    """A decision about an image."""

    n: int = Field(description="Number of the decision.")
    time: str = Field(description="When it was made, ISO 8601, UTC.")
    action: Literal["label", "remove", "keep"] = Field(
        description="label: another label; remove: removed; keep: right as it is."
    )
    key: str = Field(description="Key of the image.")
    old: str | None = Field(description="Label before.")
    new: str | None = Field(description="Label after.")
    undone: bool
    has_source: bool = Field(
        description="Whether the image has a file in a folder that can be indexed again. One that was "
        "uploaded, or has no file, does not come back after it was removed."
    )


class UndoRequest(BaseModel):
    """Decisions to undo."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"decisions": [17, 18]}]})

    decisions: list[Annotated[int, Field(ge=1, lt=2**63)]] = Field(
        min_length=1, max_length=_MAX_LISTED, description="Numbers of the decisions."
    )


class LeftLabel(BaseModel):
    """A label that stays, since it is not the one decided on any more."""

    decision: int
    label: str | None = Field(description="The label as it is now.")


class UndoAnswer(BaseModel):
    """What became of decisions that were to be undone."""

    undone: list[int] = Field(description="Numbers of those that are withdrawn now.")
    already: list[int] = Field(description="Numbers of those that were withdrawn before.")
    left: list[LeftLabel] = Field(description="Those of `undone` whose label somebody has changed since.")


class DecisionsAnswer(BaseModel):
    """Decisions, the newest first."""

    decisions: list[Decision]


class DecisionParameters(BaseModel):
    """Query string of a list of decisions."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(100, ge=1, le=_MAX_LISTED, description="Largest number of decisions.")
    before: int | None = Field(None, ge=1, lt=2**63, description="Only those with a number below this one.")


class KeepRequest(BaseModel):
    """An image that is right as it is."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"action": "keep", "id": 17}]})

    action: Literal["keep"]
    id: int = Field(ge=0, description="The id of the image.")
    etag: str | None = Field(
        None,
        max_length=1000,
        description="`ETag` of the image that was looked at; if it is another one now, nothing is decided.",
    )
