"""API routes of the evaluation reports that the gallery keeps."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query

from retrieval.errors import InputError
from serve.api.context import Service
from serve.api.exception_handlers import COMMON, documented
from serve.core.errors import NoEvaluationError
from serve.core.service import SearchService
from serve.wire.evaluation import (
    AnsweredQuery,
    ClassesAnswer,
    ClassesParameters,
    ClassNumbers,
    EvaluatedImage,
    EvaluationAnswer,
    EvaluationMetric,
    EvaluationResult,
    KeptReport,
    QueriesAnswer,
    QueriesParameters,
    ReportsAnswer,
)

if TYPE_CHECKING:
    from retrieval.evaluation.findings import Findings
    from retrieval.evaluation.report import Report

_CACHED_REPORTS = 8  # a report of a large gallery takes a second to read

router = APIRouter()


@router.get(
    "/evaluation",
    summary="The newest evaluation of the gallery.",
    response_model=EvaluationAnswer,
    responses=documented(NoEvaluationError, *COMMON),
)
async def evaluation(service: Service) -> EvaluationAnswer:
    """The numbers of the newest report that the gallery keeps; `lookalike evaluate` writes one."""
    return await asyncio.to_thread(_newest, service.folder)


@router.get(
    "/evaluation/reports",
    summary="The evaluation reports that the gallery keeps.",
    response_model=ReportsAnswer,
    responses=documented(*COMMON),
)
async def evaluation_reports(service: Service) -> ReportsAnswer:
    """Their names and titles, and whether the gallery has been evaluated since it changed."""
    return await service.run(lambda: _reports(service))


@router.get(
    "/evaluation/classes",
    summary="The classes of an evaluation, the worst first.",
    response_model=ClassesAnswer,
    responses=documented(NoEvaluationError, InputError, *COMMON),
)
async def evaluation_classes(service: Service, asked: Annotated[ClassesParameters, Query()]) -> ClassesAnswer:
    """Recall@1 of each class with its confidence interval, and the class that its queries find instead."""
    return await asyncio.to_thread(_classes, service.folder, asked)


@router.get(
    "/evaluation/queries",
    summary="The queries of a class, and what each found first.",
    response_model=QueriesAnswer,
    responses=documented(NoEvaluationError, InputError, *COMMON),
)
async def evaluation_queries(service: Service, asked: Annotated[QueriesParameters, Query()]) -> QueriesAnswer:
    """The wrong ones first."""
    return await service.run(lambda: _queries(service, asked))


def _reports(service: SearchService) -> ReportsAnswer:
    from retrieval.evaluation.gallery import check_labels
    from serve.core.analyses import hide_paths
    from serve.core.reports import report_summaries

    gallery, obstacle = service.gallery, None
    state, found = gallery.state_digest(), report_summaries(service.folder)
    try:
        with hide_paths(service):
            check_labels(gallery)
    except InputError as error:
        obstacle = str(error)
    return ReportsAnswer(
        reports=[KeptReport(name=one.folder.name, title=one.title) for one in found],
        state=state,
        current=next((one.folder.name for one in found if one.state == state), None),
        obstacle=obstacle,
    )


def _newest(gallery: Path) -> EvaluationAnswer:
    return answer_of(_find(gallery, None)[1])


def _find(gallery: Path, name: str | None) -> tuple[str, Report]:
    """Return the name and content of a report; of the newest that can be read without a name."""
    from retrieval.evaluation.report import REPORT_FILE, kept_reports

    for folder in reversed(kept_reports(gallery)):
        if name in (None, folder.name):
            try:
                return folder.name, _read(folder, (folder / REPORT_FILE).stat().st_mtime_ns)
            except (InputError, OSError):  # damaged, of another format, or just deleted
                continue
    missing = "it is gone, or cannot be read" if name else "`lookalike evaluate` writes one"
    raise NoEvaluationError(f"the gallery keeps no {'such ' if name else ''}evaluation; {missing}")


@lru_cache(_CACHED_REPORTS)
def _read(folder: Path, modified: int) -> Report:
    """Read a report; the time of its modification is part of the cache key."""
    from retrieval.evaluation.report import Report

    return Report.load(folder)


def _findings(gallery: Path, name: str | None) -> tuple[str, Findings]:
    found, report = _find(gallery, name)
    if report.findings is None:
        raise NoEvaluationError("this report has no mistakes by class: evaluate again")
    return found, report.findings


def _classes(gallery: Path, asked: ClassesParameters) -> ClassesAnswer:
    name, findings = _findings(gallery, asked.report)
    classes = findings.class_results()
    found = [one for one in classes if asked.find.casefold() in one.name.casefold()]
    page = found[asked.offset : asked.offset + asked.limit]
    fields = ("name", "queries", "right", "recall_at_1", "interval", "mistaken_for")
    rows = [ClassNumbers(**{field: getattr(one, field) for field in fields}) for one in page]
    return ClassesAnswer(report=name, classes=rows, total=len(found))


def _queries(service: SearchService, asked: QueriesParameters) -> QueriesAnswer:
    name, findings = _findings(service.folder, asked.report)
    gallery, queries = service.gallery, findings.queries

    def image(path: str, label: str | None) -> EvaluatedImage:
        item = gallery.item_at(findings.absolute(path))
        thumbnail = None if item is None else f"{service.address}/items/{item}/thumbnail"
        return EvaluatedImage(id=item, file=Path(path).name, label=label, thumbnail=thumbnail)

    def answered(query: int) -> AnsweredQuery:
        answer = findings.nearest(query)
        assert answer is not None  # of `answered_queries`
        return AnsweredQuery(
            query=image(queries.path[query], asked.label),
            answer=image(answer.path, answer.label),
            score=min(1.0, answer.score),
            right=answer.right,
            first_right=queries.first_right[query],
        )

    found = findings.answered_queries(asked.label)
    shown = [answered(query) for query in found[: asked.limit]]
    return QueriesAnswer(report=name, queries=shown, total=len(found))


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
                title=result.title,
                by=result.by,
                values=result.values,
                intervals=result.intervals,
                class_intervals=result.class_intervals,
                spreads=result.spreads,
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
