"""API route of the newest evaluation report that the gallery keeps."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import APIRouter
from pydantic import BaseModel, Field

from retrieval.errors import InputError
from serve.api.context import Service
from serve.api.errors import COMMON, documented
from serve.core.errors import NoEvaluationError

if TYPE_CHECKING:
    from retrieval.evaluation.report import Report

_CACHED_REPORTS = 32  # a report of a large gallery takes a second to read

router = APIRouter()


class EvaluationMetric(BaseModel):
    """A metric of the results."""

    key: str = Field(description="Key of its values.", examples=["recall_at_1"])
    title: str = Field(examples=["Recall@1"])
    meaning: str = Field(examples=["queries with an image of their class in the top 1"])


class EvaluationResult(BaseModel):
    """The values of one model."""

    title: str = Field(examples=["after training"])
    by: str | None = Field(description="Labels that count as classes, if they are not those of the gallery.")
    values: dict[str, float] = Field(
        description="Values in 0..1 by metric key.", examples=[{"recall_at_1": 0.93, "map_at_r": 0.71}]
    )
    intervals: dict[str, tuple[float, float]] = Field(
        description="95% confidence intervals by metric key.", examples=[{"recall_at_1": [0.9, 0.95]}]
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


@router.get(
    "/evaluation",
    summary="The newest evaluation of the gallery.",
    response_model=EvaluationAnswer,
    responses=documented(NoEvaluationError, *COMMON),
)
async def evaluation(service: Service) -> EvaluationAnswer:
    """The numbers of the newest report that the gallery keeps; `lookalike evaluate` writes one."""
    return await asyncio.to_thread(_newest, service.folder)


def _newest(gallery: Path) -> EvaluationAnswer:
    from retrieval.evaluation.report import REPORT_FILE, kept_reports

    for folder in reversed(kept_reports(gallery)):
        try:
            return _read(folder, (folder / REPORT_FILE).stat().st_mtime_ns)
        except (InputError, OSError):  # damaged, of another format, or just deleted
            continue
    raise NoEvaluationError("the gallery keeps no evaluation; `lookalike evaluate` writes one")


@lru_cache(_CACHED_REPORTS)
def _read(folder: Path, modified: int) -> EvaluationAnswer:
    """Read a report; the time of its modification is part of the cache key."""
    from retrieval.evaluation.report import Report

    return answer_of(Report.load(folder))


def answer_of(report: Report) -> EvaluationAnswer:
    """Return the numbers of a report."""
    from retrieval.metrics.table import metric_columns

    keys = {key for result in report.results for key in result.values}
    return EvaluationAnswer(
        created=report.created,
        data=_without_folders(report.data),
        protocol=report.protocol,
        images=report.images,
        classes=report.classes,
        results=[
            EvaluationResult(
                title=result.title, by=result.by, values=result.values, intervals=result.intervals
            )
            for result in report.results
        ],
        metrics=[
            EvaluationMetric(key=column.key, title=column.title, meaning=column.meaning)
            for column in metric_columns(keys)
        ],
    )


def _without_folders(data: str) -> str:
    """Shorten the path of a data set to its last part: "folder:/data/shop" becomes "folder:shop"."""
    name, colon, path = data.partition(":")
    return f"{name}:{Path(path).name}" if colon and "/" not in name else Path(data).name
