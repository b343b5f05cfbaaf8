"""API route of heatmaps: where a query and an image of the gallery look alike."""

from __future__ import annotations

import base64
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from retrieval.errors import ImageError, pointing
from retrieval.images.resampling import Box
from serve.api.bodies import BYTES, FORM, JSON, read_body
from serve.api.context import RequestWorkers, Service
from serve.api.exception_handlers import BODY, LOAD, documented, validate
from serve.api.openapi import accepts
from serve.api.routes import encode
from serve.core.errors import NoEmbeddingMapError, NoModelError, UnknownItemError
from serve.core.service import Comparison
from serve.wire.heatmaps import SCALE, Heatmap, HeatmapAnswer
from serve.wire.queries import HeatmapParameters, HeatmapRequest

_DIGITS = 6
router = APIRouter()


@router.post(
    "/heatmap",
    summary="Show where a query and an image of the gallery look alike.",
    responses={
        200: {"model": HeatmapAnswer, "description": "The heatmaps."},
        **documented(*BODY, UnknownItemError, NoModelError, NoEmbeddingMapError, ImageError, *LOAD),
    },
    openapi_extra=accepts(HeatmapRequest, image="image"),
)
async def heatmap(
    request: Request,
    parameters: Annotated[HeatmapParameters, Query()],
    service: Service,
    workers: RequestWorkers,
) -> Response:
    """Send the bytes of an image, a form with the file `image`, or JSON with `image` or `id`; `item` and
    `region` go into the query string, or into the JSON or the form. The model must have an embedding map."""
    body = await read_body(request, JSON, FORM, BYTES)

    def work() -> Response:
        values = {**parameters.model_dump(exclude_unset=True), **body.values("image")}
        query = validate(HeatmapRequest, values)
        with pointing("#/image" if query.id is None else "#/id"):
            return encode(_answer(service.compare(query.query(), query.item)), service.telemetry)

    return await workers.run(work, request.receive)


def _answer(compared: Comparison) -> HeatmapAnswer:
    found = compared.found
    height, width = found.contributions_a.shape
    both = zip(compared.boxes, (found.contributions_a, found.contributions_b), found.strengths, strict=True)
    query, item = (_heatmap(*one) for one in both)
    similarities = np.rint(found.similarities * SCALE).astype("<i2")
    return HeatmapAnswer(
        score=round(found.cosine, _DIGITS),
        height=height,
        width=width,
        query=query,
        item=item,
        similarities=base64.b64encode(similarities.tobytes()).decode(),
        fingerprint=compared.fingerprint,
    )


def _heatmap(box: Box, contributions: np.ndarray, strengths: np.ndarray) -> Heatmap:
    return Heatmap(box=list(box), contributions=_rounded(contributions), strengths=_rounded(strengths))


def _rounded(values: np.ndarray) -> list[list[float]]:
    rows: list[list[float]] = values.astype(np.float64).round(_DIGITS).tolist()
    return rows
