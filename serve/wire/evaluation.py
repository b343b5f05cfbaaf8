"""Requests and responses of `/v1/evaluation`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class EvaluationMetric(BaseModel):
    """A metric of the results."""

    key: str = Field(description="Key of its values.", examples=["recall_at_1"])
    title: str = Field(examples=["Recall@1"])
    meaning: str = Field(examples=["queries with an image of their class in the top 1"])


class EvaluationResult(BaseModel):
    """The values of one model."""

    title: str = Field(examples=["after training"])
    by: str | None = Field(description="Labels that count as classes, if they are not those of the gallery.")
    values: dict[str, float | None] = Field(
        description="Values in 0..1 by metric key; null for one that is not defined on these queries.",
        examples=[{"recall_at_1": 0.93, "map_at_r": 0.71}],
    )
    intervals: dict[str, tuple[float, float]] = Field(
        description="95% confidence intervals for other queries of these classes, by metric key.",
        examples=[{"recall_at_1": [0.9, 0.95]}],
    )
    class_intervals: dict[str, tuple[float, float]] = Field(
        description="95% confidence intervals for other classes like these, by metric key; empty if these "
        "are too few.",
        examples=[{"recall_at_1": [0.88, 0.97]}],
    )
    spreads: dict[str, tuple[float, float]] = Field(
        description="Lowest and highest value over repetitions of k-means, by metric key.",
        examples=[{"nmi": [0.7, 0.73]}],
    )


class EvaluationAnswer(BaseModel):
    """The newest evaluation report of the gallery."""

    created: str = Field(description="Time of the evaluation, ISO 8601, UTC.")
    data: str = Field(description="The query images.", examples=["folder:shop"])
    protocol: str = Field(
        description="The searched set.", examples=["each searched for among all the others"]
    )
    images: int = Field(description="Number of query images.")
    classes: int = Field(description="Number of their classes.")
    results: list[EvaluationResult] = Field(
        description="Published results first, then baselines, the model of the gallery last."
    )
    metrics: list[EvaluationMetric] = Field(description="The metrics of the results.")


class KeptReport(BaseModel):
    """A report that the gallery keeps."""

    name: str = Field(examples=["2026-03-01T10-00-00"])
    title: str = Field(
        description="Its time (UTC), Recall@1 and data.",
        examples=["2026-03-01 10:00 · Recall@1 93.0% · shop"],
    )


class ReportsAnswer(BaseModel):
    """The reports that the gallery keeps."""

    reports: list[KeptReport] = Field(description="The newest first.")
    state: str = Field(description="Digest of the gallery's present state.")
    current: str | None = Field(
        description="Name of the report of the present state; null if the gallery has to be evaluated."
    )
    obstacle: str | None = Field(description="Why the gallery cannot be evaluated; null if it can.")


ReportName = Annotated[
    str | None, Field(description="Name of a report; by default the newest.", max_length=200)
]


class ClassesParameters(BaseModel):
    """Query string of the classes."""

    model_config = ConfigDict(extra="forbid")

    report: ReportName = None
    find: str = Field("", description="Part of their names.", max_length=200)
    limit: int = Field(100, ge=1, le=1000)
    offset: int = Field(0, ge=0, description="Number of classes to leave out at the beginning.")


class ClassNumbers(BaseModel):
    """The result of one class."""

    name: str
    queries: int = Field(description="Queries that have another image of their class to find.")
    right: int = Field(description="Those of them that find one first.")
    recall_at_1: float = Field(description="Share of these, 0..1.")
    interval: tuple[float, float] = Field(description="Its 95% confidence interval.")
    mistaken_for: str | None = Field(description="Class that the others find most often.")


class ClassesAnswer(BaseModel):
    """Classes of a report, the lowest Recall@1 first."""

    report: str = Field(description="Name of the report.")
    classes: list[ClassNumbers]
    total: int = Field(description="Number of classes that match.")


class QueriesParameters(BaseModel):
    """Query string of the queries of a class."""

    model_config = ConfigDict(extra="forbid")

    label: str = Field(description="Name of the class.", max_length=1000)
    report: ReportName = None
    limit: int = Field(60, ge=1, le=200)


class EvaluatedImage(BaseModel):
    """An image of an evaluation."""

    id: int | None = Field(description="Its id in the gallery; null if it is not in it.")
    file: str = Field(description="Name of its file.")
    label: str | None
    thumbnail: str | None = Field(description="Path of its thumbnail; null if it is not in the gallery.")


class AnsweredQuery(BaseModel):
    """A query, and the image that it found first."""

    query: EvaluatedImage
    answer: EvaluatedImage
    score: float = Field(description="Cosine similarity of the two.")
    right: bool = Field(description="Whether both are of one class.")
    first_right: int | None = Field(
        description="Rank of the nearest image of the query's class, from 1; null if it was not ranked."
    )


class QueriesAnswer(BaseModel):
    """Queries of a class, the wrong ones first."""

    report: str = Field(description="Name of the report.")
    queries: list[AnsweredQuery]
    total: int = Field(description="Number of its queries.")
