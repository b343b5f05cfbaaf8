"""OpenAPI description: the parts that FastAPI cannot derive from the routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from serve.http.old_paths import old_path
from serve.wire import (
    decisions,
    embeddings,
    galleries,
    hits,
    images,
    items,
    job_requests,
    jobs,
    queries,
    saved_views,
)
from serve.wire.problems import ProblemDetails

_REF = "#/components/schemas/{model}"
_TITLE = "Lookalike"
_DESCRIPTION = """Search a gallery by image.

Scores are cosine similarities: 1 for the same image. Every response with scores or vectors has the
fingerprint of their model. Errors are problem details (RFC 9457) with a stable `code`.

Answers to GET have an `ETag`: sent back in `If-None-Match`, it gets 304 without content while nothing has
changed. JSON is compressed for clients that accept gzip.
"""
# Models of requests, which routes read themselves: they accept several media types.
_REQUESTS = (
    queries.SearchRequest,
    queries.ByIdRequest,
    queries.BatchRequest,
    queries.EmbedRequest,
    embeddings.EmbeddingsRequest,
    queries.HeatmapRequest,
    queries.ObjectsRequest,
    hits.OutcomeRequest,
    queries.PreviewRequest,
    queries.ShareRequest,
    images.AddRequest,
    items.UpdateRequest,
    items.LabelRequest,
    items.RemoveRequest,
    decisions.KeepRequest,
    decisions.UndoRequest,
    saved_views.SaveViewRequest,
    job_requests.JobRequest,
    job_requests.DuplicatesRequest,
    job_requests.SuspectsRequest,
    job_requests.MapRequest,
    job_requests.CoverageRequest,
    jobs.DuplicatesAnswer,
    jobs.SuspectsAnswer,
    jobs.MapAnswer,
    jobs.CoverageAnswer,
    galleries.GalleryEvent,
)
_SECURITY = {
    "token": {"type": "http", "scheme": "bearer", "description": "If the server was started with tokens."},
    "password": {
        "type": "http",
        "scheme": "basic",
        "description": "If the server was started with a user and password.",
    },
}


def accepts(
    model: type[BaseModel], image: str | None = None, files: str | None = None, texts: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the description of a body that is JSON, a form, or the bytes of an image.

    Args:
        model: Model of the JSON.
        image: Field that the bytes of an image stand for; None if they are not accepted alone.
        files: Field of a form that takes several files; by default it takes the file `image`.
        texts: Other fields of a form.
    """
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}}
    file = {"type": "string", "format": "binary"}
    if files or image:
        name, value = (files, {"type": "array", "items": file}) if files else (image, file)
        fields: dict[Any, Any] = {name: value, **{text: {"type": "string"} for text in texts}}
        form = {"type": "object", "properties": fields, "required": [name]}
        content["multipart/form-data"] = {"schema": form}
    if image:
        content["application/octet-stream"] = content["image/*"] = {"schema": file}
    return {"requestBody": {"required": True, "content": content}}


def complete_description(app: FastAPI, operations: APIRouter) -> None:
    """Complete the description of the API: request models, problems, sign-in, and the routes at the root.

    Args:
        app: Application of the API, mounted below the root.
        operations: Routes at the root of the server.
    """
    app.title, app.description = _TITLE, _DESCRIPTION
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = generate()
            at_root = get_openapi(title=_TITLE, version=app.version, routes=operations.routes)
            models: list[Any] = [(model, "validation") for model in (*_REQUESTS, ProblemDetails)]
            _, definitions = models_json_schema(models, ref_template=_REF)
            components = description.setdefault("components", {})
            components.setdefault("schemas", {}).update(
                at_root["components"]["schemas"] | definitions["$defs"]
            )
            components["securitySchemes"] = _SECURITY
            paths = description["paths"]
            paths |= {old: _old(methods) for path, methods in paths.items() if (old := old_path(path))}
            paths |= at_root["paths"]
            description["security"] = [{}, *({name: []} for name in _SECURITY)]
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _old(methods: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a path's operations at its old path, where items are named images."""
    return {
        method: {**found, "deprecated": True, "operationId": _old_name(found["operationId"])}
        for method, found in methods.items()
    }


def _old_name(name: str) -> str:
    return name.replace("item", "image") if "item" in name else f"image_{name}"
