"""API routes of jobs: work on a whole gallery that takes longer than a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from fastapi import APIRouter, Path
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from retrieval.curation.duplicate_groups import Group
from retrieval.curation.suspects import Disagreement
from retrieval.errors import InputError, did_you_mean
from retrieval.search.calibration import HIGH_ERROR
from serve.api.bodies import JSON, read_body
from serve.api.context import GalleryJobs, Service
from serve.api.evaluation import answer_of
from serve.api.exception_handlers import BODY, COMMON, documented, validate
from serve.api.openapi import accepts
from serve.api.routes import image_fields
from serve.core import analyses
from serve.core.changes import check_allowed
from serve.core.errors import BusyError, ChangesNotAllowedError, InvalidRequestError, UnknownJobError
from serve.core.jobs import Job, Jobs
from serve.core.service import SearchService
from serve.wire.evaluation import EvaluationAnswer
from serve.wire.images import Image
from serve.wire.job_requests import (
    CalibrationRequest,
    CoverageRequest,
    DuplicatesRequest,
    EvaluationRequest,
    JobRequest,
    MapRequest,
    SuspectsRequest,
    TripletsRequest,
)
from serve.wire.jobs import (
    CalibrationAnswer,
    CoverageAnswer,
    DuplicateGroup,
    DuplicatesAnswer,
    JobAnswer,
    JobProgress,
    JobsAnswer,
    MapAnswer,
    MissingGroup,
    Neighbour,
    SampleDifference,
    SuspectedLabel,
    SuspectsAnswer,
    Threshold,
    TripletsAnswer,
    WantedLabel,
)
from serve.wire.problems import ProblemDetails

JobId = Annotated[str, Path(description="The id of a job.", max_length=100)]
router = APIRouter()


class Kind(NamedTuple):
    """A kind of jobs.

    Attributes:
        request: Model of the request.
        run: Does the work; returns the result.
        changes: Whether it changes what all visitors see, or shows what they searched for, which is for those
            who may change the gallery.
    """

    request: type[BaseModel]
    run: Callable[[SearchService, Any], BaseModel]
    changes: bool = False


def _evaluate(service: SearchService, _: EvaluationRequest) -> EvaluationAnswer:
    return answer_of(analyses.evaluate(service))


def _find_duplicates(service: SearchService, query: DuplicatesRequest) -> DuplicatesAnswer:
    found: list[tuple[Group, list[int] | None]]
    if query.keep is None:
        found = [(group, None) for group in analyses.near_duplicates(service, query.min_score).groups]
    else:
        thinned = analyses.thinned_duplicates(service, query.min_score, query.keep, query.limit)
        found = [(one.group, one.surplus) for one in thinned]
    summary = service.summary()
    return DuplicatesAnswer(
        total=len(found),
        groups=[
            DuplicateGroup(
                images=[Image(**image_fields(item, summary)) for item in group.members],
                lowest=group.lowest,
                identical=group.identical,
                surplus=surplus,
            )
            for group, surplus in found[: query.limit]
        ],
    )


def _suspect(service: SearchService, query: SuspectsRequest) -> SuspectsAnswer:
    found, summary = analyses.suspected_labels(service, query.k, query.limit), service.summary()

    def described(neighbours: Sequence[Disagreement]) -> list[Neighbour]:
        return [
            Neighbour(image=Image(**image_fields(near.item, summary)), score=near.score)
            for near in neighbours
        ]

    suspects = [
        SuspectedLabel(
            image=Image(**image_fields(one.item, summary)),
            suggested=one.suggested,
            lead=one.lead,
            votes=one.votes,
            own_votes=one.own_votes,
            precision=one.precision,
            neighbours=described(one.neighbours),
            own_neighbours=described(one.own_neighbours),
        )
        for one in found.suspects
    ]
    return SuspectsAnswer(
        total=found.total,
        likely=found.likely,
        labelled=found.labelled,
        single=found.single,
        confirmed=found.confirmed,
        suspects=suspects,
    )


def _place(service: SearchService, query: MapRequest) -> MapAnswer:
    placed = analyses.embedding_map(service, query.limit)
    labels = sorted({label for label in placed.labels if label})
    positions = {label: position for position, label in enumerate(labels)}
    points = placed.found.points
    low, high = points.min(0), points.max(0)
    points = np.round(2 * (points - (low + high) / 2) / max((high - low).max(), 1e-9), 4)
    return MapAnswer(
        total=placed.total,
        labels=labels,
        ids=placed.ids.tolist(),
        label=[positions.get(label or "") for label in placed.labels],
        right=placed.right,
        x=points[:, 0].tolist(),
        y=points[:, 1].tolist(),
    )


def _calibrate(service: SearchService, query: CalibrationRequest) -> CalibrationAnswer:
    quality = analyses.calibrate(service, query.absent)
    return CalibrationAnswer(
        queries=quality.queries,
        classes=quality.classes,
        error=quality.ece,
        error_by_chance=quality.ece_by_chance,
        error_of_folds=quality.ece_of_folds,
        error_of_best=quality.ece_of_best,
        reliable=quality.ece <= HIGH_ERROR,
        thresholds=[Threshold(**asdict(one)) for one in quality.thresholds],
    )


def _draw_triplets(service: SearchService, _: TripletsRequest) -> TripletsAnswer:
    found = analyses.triplet_diagram(service)
    return TripletsAnswer(**vars(found))


def _cover(service: SearchService, query: CoverageRequest) -> CoverageAnswer:
    since = query.since if query.since is None or "T" in query.since else f"{query.since}T00:00:00"
    found, summary = analyses.coverage(service, since, query.limit), service.summary()
    items = service.gallery.items(found.shown)
    images = {number: Image(**image_fields(item, summary)) for number, item in items.items()}
    groups = [
        MissingGroup(
            searches=len(group.searches),
            nearest=[
                Neighbour(image=images[item], score=score) for item, score in group.nearest if item in images
            ],
            **{name: getattr(group, name) for name in ("expected", "certain", "first", "last")},
        )
        for group in found.groups
    ]
    wanted = [
        WantedLabel(image=images[one.item], searches=one.searches)
        for one in found.wanted
        if one.item in images
    ]
    differences = {
        name: one and SampleDifference.model_validate(one)
        for name, one in (("drift", found.drift), ("change", found.change))
    }
    plain = {name: value for name, value in vars(found).items() if name in CoverageAnswer.model_fields}
    unseen = [images[item] for item in found.unseen if item in images]
    return CoverageAnswer(**plain | differences | {"groups": groups, "unseen": unseen, "wanted": wanted})


KINDS = {
    "evaluation": Kind(EvaluationRequest, _evaluate),
    "duplicates": Kind(DuplicatesRequest, _find_duplicates),
    "suspects": Kind(SuspectsRequest, _suspect),
    "map": Kind(MapRequest, _place),
    "triplets": Kind(TripletsRequest, _draw_triplets),
    "calibration": Kind(CalibrationRequest, _calibrate, changes=True),
    "coverage": Kind(CoverageRequest, _cover, changes=True),
}


@router.post(
    "/jobs",
    summary="Start a job.",
    status_code=202,
    response_model=JobAnswer,
    responses=documented(*BODY, BusyError, ChangesNotAllowedError, *COMMON),
    response_description="The job, whose address is in the header `Location`.",
    openapi_extra=accepts(JobRequest),
)
async def start_job(request: Request, service: Service, jobs: GalleryJobs) -> Response:
    """The server does one long work at a time in each of its processes, of this API or of the page;
    otherwise it answers 503, `busy`. An evaluation is kept in the gallery as a report; until the
    gallery changes, another one returns the same report."""
    body = await read_body(request, JSON)
    job = await service.run(lambda: start(service, jobs, body.values()))
    headers = {"Location": f"{service.address}/jobs/{job.id}"}
    return Response(_answer(job).model_dump_json(), 202, headers, JSON)


def start(service: SearchService, jobs: Jobs, values: Any) -> Job:
    """Start a job; `values` has its kind and the fields of the kind.

    Raises:
        InvalidRequestError: The values are not those of a kind of jobs.
        ChangesNotAllowedError: The kind changes the gallery, which the server does not allow.
        BusyError: Other long work is running in this process.
    """
    name = validate(JobRequest, values).kind
    if name not in KINDS:
        detail = f"unknown kind {name[:50]!r}; {did_you_mean(name[:50], KINDS, ', '.join(KINDS))}"
        raise InvalidRequestError(f"kind: {detail}", [{"pointer": "#/kind", "detail": detail}])
    kind = KINDS[name]
    if kind.changes:
        check_allowed(service)
    query = validate(kind.request, values)
    return jobs.start(name, lambda: kind.run(service, query).model_dump_json())


@router.get(
    "/jobs", summary="The jobs of the gallery.", response_model=JobsAnswer, responses=documented(*COMMON)
)
async def list_jobs(jobs: GalleryJobs) -> JobsAnswer:
    """The newest 16, without their results. They are forgotten when the server stops."""
    return JobsAnswer(jobs=[_answer(job) for job in await asyncio.to_thread(jobs.all)])


@router.get(
    "/jobs/{id}",
    summary="A job: its state, progress and result.",
    response_model=JobAnswer,
    responses=documented(UnknownJobError, InputError, *COMMON),
)
async def job(id: JobId, jobs: GalleryJobs) -> Response:
    """Ask again until `state` is `done` or `failed`, for example once a second."""
    found = await asyncio.to_thread(_with_result, jobs, id)
    return Response(found.model_dump_json(), media_type=JSON, headers={"Cache-Control": "no-store"})


@router.delete(
    "/jobs/{id}",
    summary="Cancel and forget a job.",
    status_code=204,
    responses=documented(UnknownJobError, InputError, *COMMON),
)
async def remove_job(id: JobId, jobs: GalleryJobs) -> Response:
    """Running work stops when it next reports its progress."""
    await asyncio.to_thread(partial(jobs.remove, id))
    return Response(status_code=204)


def _with_result(jobs: Jobs, id: str) -> JobAnswer:
    found = _answer(jobs.get(id))
    if found.state == "done":
        found.result = json.loads(jobs.result(id))
    return found


def _answer(job: Job) -> JobAnswer:
    problem = None
    if job.failure:
        problem = ProblemDetails(
            type=f"urn:lookalike:problem:{job.failure.code}",
            instance=f"urn:lookalike:job:{job.id}",
            **asdict(job.failure),
        )
    return JobAnswer(
        id=job.id,
        kind=job.kind,
        state=job.state,
        created=job.created,
        ended=job.ended,
        result=None,
        progress=JobProgress(**asdict(job.progress)) if job.progress else None,
        problem=problem,
    )
