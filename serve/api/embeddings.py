"""The routes `/v1/embeddings` and `/v1/models`, for clients of OpenAI's API."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from retrieval.errors import ImageError, InputError, pointing
from serve.api.bodies import JSON, read_body
from serve.api.context import RequestWorkers, Service
from serve.api.exception_handlers import BODY, COMMON, CONTENT, LOAD, documented, validate
from serve.api.openapi import accepts
from serve.api.routes import encode, vector_values
from serve.core.errors import FetchError, ModelMismatchError, NoTextEncoderError, UnknownModelError
from serve.core.service import SearchService
from serve.core.url_fetcher import MAX_BYTES
from serve.wire.embeddings import (
    Content,
    Embedding,
    EmbeddingsAnswer,
    EmbeddingsRequest,
    ImageUrl,
    Model,
    ModelsAnswer,
    Usage,
)

_FINGERPRINT = re.compile("[0-9a-f]{64}")
router = APIRouter()


@router.post(
    "/embeddings",
    summary="Embed images or texts, for clients of OpenAI's API.",
    responses={
        200: {"model": EmbeddingsAnswer, "description": "Vectors of the gallery's model."},
        **documented(*BODY, *CONTENT, *LOAD),
    },
    openapi_extra=accepts(EmbeddingsRequest),
)
async def embeddings(request: Request, service: Service, workers: RequestWorkers) -> Response:
    """The same vectors and limits as /v1/embed. Errors are problem details with the member `error` of
    OpenAI's API."""
    body = await read_body(request, JSON)

    def work() -> Response | tuple[EmbeddingsRequest, list[Content]]:
        query = validate(EmbeddingsRequest, body.values())
        contents = query.contents()
        if any(isinstance(one, ImageUrl) for one in contents):
            return query, contents
        return _answer(service, query, contents)

    async with workers.deadline():
        answer = await workers.run(work, request.receive)
        if isinstance(answer, Response):
            return answer
        query, contents = answer
        contents = await _fetch_images(contents, service)  # without occupying a thread
        return await workers.run(lambda: _answer(service, query, contents), request.receive)


@router.get(
    "/models",
    summary="The model of the gallery, for clients of OpenAI's API.",
    response_model=ModelsAnswer,
    responses=documented(*COMMON),
)
async def list_models(service: Service) -> ModelsAnswer:
    """What the route for embeddings answers with: one model, or none if the vectors were imported."""
    return ModelsAnswer(data=await service.run(lambda: _models(service)))


@router.get(
    "/models/{id:path}",
    summary="A model, for clients of OpenAI's API.",
    response_model=Model,
    responses=documented(UnknownModelError, InputError, *COMMON),
)
async def model(
    id: Annotated[str, Path(description="The fingerprint of a model.", max_length=1000)], service: Service
) -> Model:
    """The gallery has one at most."""
    for found in await service.run(lambda: _models(service)):
        if found.id == id:
            return found
    raise UnknownModelError("the gallery has another model, or none: the list of models has its id")


def _models(service: SearchService) -> list[Model]:
    gallery = service.gallery
    if not gallery.manifest.has_model:
        return []
    created = int(gallery.embedder.path.stat().st_mtime)
    return [Model(id=gallery.fingerprint, created=created)]


async def _fetch_images(contents: Sequence[Content], service: SearchService) -> list[Content]:
    """Return contents with images in place of URLs, which are fetched one after the other."""
    found: list[Content] = []
    size = 0
    for one in contents:
        data = await service.fetch(one.url) if isinstance(one, ImageUrl) else one
        if isinstance(one, ImageUrl) and isinstance(data, bytes):
            size += len(data)
            if size > MAX_BYTES:
                limit = f"{MAX_BYTES // 2**20} MB"
                raise FetchError(f"the images behind the URLs have more than {limit} together: send fewer")
        found.append(data)
    return found


def _answer(service: SearchService, query: EmbeddingsRequest, contents: Sequence[Content]) -> Response:
    fingerprint = query.model if _FINGERPRINT.fullmatch(query.model) else None
    fetched = [one for one in contents if not isinstance(one, ImageUrl)]
    try:
        found = service.embeddings(fetched, fingerprint=fingerprint, dimensions=query.dimensions)
    except ModelMismatchError as error:
        error.pointer = "#/model"
        raise
    except NoTextEncoderError:
        detail = "the gallery's model embeds images only: send data URLs, or the Base64 of image files"
        with pointing("#/input"):
            raise NoTextEncoderError(detail) from None
    vectors = [_vector(vector, number) for number, vector in enumerate(found.vectors)]
    as_base64 = query.encoding_format == "base64"
    answer = EmbeddingsAnswer(
        data=[
            Embedding(index=number, embedding=_base64(vector) if as_base64 else vector_values(vector))
            for number, vector in enumerate(vectors)
        ],
        model=found.fingerprint,
        usage=Usage(prompt_tokens=found.tokens, total_tokens=found.tokens),
    )
    return encode(answer, service.telemetry)


def _vector(found: np.ndarray | InputError, number: int) -> np.ndarray:
    """Return the vector of an input, or raise the error in it with the number of the input."""
    with pointing(f"#/input/{number}"):
        if isinstance(found, ImageError):
            raise ImageError(found.source, found.reason, f"input {number}: {found.detail}")
        if isinstance(found, InputError):
            raise found
    return found


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
