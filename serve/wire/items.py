"""Requests and responses of the routes that list, count, describe and remove images."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic import model_validator as validator

from serve.limits import MAX_CONDITION, MAX_CURSOR
from serve.wire.fields import Label
from serve.wire.images import Image

MAX_LISTED = 1000
MAX_EXAMPLES = 60
MAX_VALUES = 1000
MAX_FACETS = 50
SHOWN_IDS = 100
_MAX_NAME = 100  # characters of a column name
_Where = Annotated[str, Field(min_length=1, max_length=MAX_CONDITION)]
_WHERE = "Condition on the images, in a subset of SQL."
_WHERE_EXAMPLES = ["label = 'red' and price < 30"]


class ListParameters(BaseModel):
    """Query string of a listing."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(100, ge=1, le=MAX_LISTED, description="Largest number of images on the page.")
    cursor: str | None = Field(
        None,
        max_length=MAX_CURSOR,
        description="`next_cursor` of the page before, with the same `where` and `order`.",
    )
    where: _Where | None = Field(None, description=_WHERE, examples=_WHERE_EXAMPLES)
    order: str = Field(
        "id",
        min_length=1,
        max_length=_MAX_NAME + 5,
        description="Column, and `desc` for high values first: text is compared by its first 100 characters, "
        "missing values are last, equal ones by id. In a database, `id` only.",
        examples=["id", "price desc"],
    )


class ItemsAnswer(BaseModel):
    """One page of the images."""

    items: list[Image]
    next_cursor: str | None = Field(description="For the next page; null if this is the last one.")


class ExampleParameters(BaseModel):
    """Query string of examples."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(12, ge=1, le=MAX_EXAMPLES, description="Largest number of images.")


class ExamplesAnswer(BaseModel):
    """A few images of the gallery."""

    items: list[Image]


class FacetParameters(BaseModel):
    """Query string of counts."""

    model_config = ConfigDict(extra="forbid")

    columns: list[Annotated[str, Field(max_length=MAX_FACETS * (_MAX_NAME + 1))]] = Field(
        default_factory=list,
        max_length=MAX_FACETS,
        description="Columns, separated by commas or repeated; by default the label and all metadata. "
        f"At most {MAX_FACETS}.",
        examples=[["label,brand"]],
    )
    where: _Where | None = Field(None, description=_WHERE, examples=_WHERE_EXAMPLES)
    limit: int = Field(20, ge=1, le=MAX_VALUES, description="Largest number of values of a column.")


class ValueCount(BaseModel):
    """A value, and how many images have it."""

    value: str | int | float = Field(examples=["red"])
    count: int


class NumberRange(BaseModel):
    """Lowest and highest number."""

    min: int | float
    max: int | float


class DateRange(BaseModel):
    """First and last date or time, ISO 8601 in UTC."""

    min: str = Field(examples=["2024-05-01"])
    max: str = Field(examples=["2024-05-31T12:30:00Z"])


class ColumnFacet(BaseModel):
    """The values of one column."""

    column: str = Field(examples=["label"])
    values: list[ValueCount] = Field(description="The most frequent values, at most `limit`.")
    distinct: int = Field(description="Number of different values.")
    missing: int = Field(description="Images without a value; an empty label is none.")
    numbers: NumberRange | None = Field(description="Null if the column has no numbers.")
    dates: DateRange | None = Field(description="Null unless every value is a date.")
    histogram: list[int] | None = Field(
        description="Images in 24 equal parts of the range of numbers or dates; null without a range."
    )


class FacetsAnswer(BaseModel):
    """Counts of the values of columns."""

    images: int = Field(description="Images that fulfil the condition.")
    counted: int = Field(
        description="Images whose values are counted: all of these, or in a database a random sample of many."
    )
    facets: list[ColumnFacet]


class UpdateRequest(BaseModel):
    """New label and metadata of an image; what is not named stays."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"label": "blue", "metadata": {"price": 9.5, "note": None}}]},
    )

    label: Label | None = Field(None, description="The new label; null or empty text for none.")
    metadata: dict[str, str | int | float | None] | None = Field(
        None, max_length=100, description="New values by column; null removes a value."
    )

    @validator(mode="after")
    def _check_given(self) -> UpdateRequest:
        if "label" not in self.model_fields_set and not self.metadata:
            raise ValueError("give a label, or metadata with at least one column")
        return self


class LabelChange(BaseModel):
    """A label that an image is to have."""

    model_config = ConfigDict(extra="forbid")

    id: int = Field(ge=0, lt=2**63, description="The id of the image.", examples=[17])
    old: Label | None = Field(
        description="Its label as it was read; null for none. If it has another one now, it keeps that.",
        examples=["red"],
    )
    label: Label | None = Field(description="The new label; null or empty text for none.", examples=["blue"])


class LabelRequest(BaseModel):
    """New labels of several images."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"images": [{"id": 17, "old": "red", "label": "blue"}]}]},
    )

    images: list[LabelChange] = Field(min_length=1, max_length=MAX_LISTED)

    @validator(mode="after")
    def _check_distinct(self) -> LabelRequest:
        if len({one.id for one in self.images}) < len(self.images):
            raise ValueError("images: an id is given twice")
        return self


class LabelDecision(BaseModel):
    """An image whose label was changed."""

    id: int
    decision: int = Field(description="Number of the decision, which can be undone.")


class LabelAnswer(BaseModel):
    """What became of new labels."""

    labelled: list[LabelDecision] = Field(description="The images whose label was changed.")
    changed: list[Image] = Field(
        description="Images that have another label than was read, as they are now; they were left alone."
    )
    missing: list[int] = Field(description="Ids of images that are no longer in the gallery.")


class RemoveRequest(BaseModel):
    """Images to remove from the gallery."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"where": "label = 'returns'"},
                {"where": "label = 'returns'", "dry_run": False, "expected": 12},
            ]
        },
    )

    where: _Where = Field(description=_WHERE, examples=_WHERE_EXAMPLES)
    dry_run: bool = Field(True, description="Whether to count the images only, and remove nothing.")
    expected: int | None = Field(
        None,
        ge=0,
        description="Number of images to remove, from a dry run; needed without `dry_run`. If it is another "
        "one now, nothing is removed.",
    )

    @validator(mode="after")
    def _check_expected(self) -> RemoveRequest:
        if not self.dry_run and self.expected is None:
            raise ValueError("expected is missing: give the number of images that a dry run counts")
        return self


class RemoveAnswer(BaseModel):
    """Images that a condition selects."""

    dry_run: bool
    selected: int = Field(description="Images that fulfil the condition.")
    removed: int = Field(description="Images that were removed; 0 for a dry run.")
    ids: list[int] = Field(description=f"Ids of the selected images, the lowest {SHOWN_IDS}.")
