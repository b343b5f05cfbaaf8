"""Requests and responses of the routes of saved views."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MAX_COLLECTION = 10_000  # images
_MAX_NAME, _MAX_ADDRESS = 100, 8000
_Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=_MAX_NAME)]
_Address = Annotated[str, StringConstraints(pattern=r"^\?", max_length=_MAX_ADDRESS)]
_EXAMPLE = "?tab=gallery&filter=label=red"


class SavedView(BaseModel):
    """A view of the page."""

    model_config = ConfigDict(from_attributes=True)

    name: str = Field(examples=["to check"])
    address: str = Field(description="Query string of the page.", examples=[_EXAMPLE])
    time: str = Field(description="When it was saved, ISO 8601, UTC.")
    images: int | None = Field(description="How many images were chosen, if it is a collection.")


class SavedViewsAnswer(BaseModel):
    """The saved views, by name."""

    views: list[SavedView]


class SaveViewRequest(BaseModel):
    """A view to save, to replace or to delete."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "to check", "address": _EXAMPLE, "old": None}]},
    )

    name: _Name
    address: _Address | None = Field(description="Query string of the page; null deletes the view.")
    old: str | None = Field(
        max_length=_MAX_ADDRESS,
        description="The address that was read under this name; null if there was none. If it is another one "
        "now, nothing is saved.",
    )
    items: list[Annotated[int, Field(gt=0, lt=2**63)]] = Field(
        [],
        max_length=MAX_COLLECTION,
        description="Ids of images: the view is a collection of them, and a condition may have "
        "`id in collection 'to check'`, with its name.",
    )
