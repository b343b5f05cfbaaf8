"""The OpenAPI description, where the framework cannot read it off the functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from retrieval.errors import LookalikeError
from serve.api import schemas
from serve.api.errors import documented
from serve.core.errors import RateLimitError, SignInError, SignInRateLimitError, UnavailableError

_REF = "#/components/schemas/{model}"
_TITLE = "Lookalike"
_ABOUT = """Find the images of a gallery that look like yours.

Scores are cosine similarities: 1 for the same picture. Every answer that has to do with vectors names the
model they come from by its fingerprint. Errors are problem details (RFC 9457) with a `code` that stays the
same.
"""
_REQUESTS = (
    *(schemas.SearchRequest, schemas.ByIdRequest, schemas.BatchRequest, schemas.EmbedRequest),
    schemas.AddRequest,
)
_SECURITY = {
    "token": {"type": "http", "scheme": "bearer", "description": "Where the server was given a token."},
    "password": {"type": "http", "scheme": "basic", "description": "Where it was given a name and password."},
}

_TEXT = {"type": "string"}


def accepts(
    model: type[BaseModel], image: str | None = None, files: str | None = None, texts: Sequence[str] = ()
) -> dict[str, Any]:
    """The description of a body that is JSON of a model, and may be sent otherwise.

    Args:
        image: the field that the bytes of an image stand for, if they may be sent alone.
        files: the field of a form that takes several files; without it, it takes the one of `image`.
        texts: the other fields of a form that are worth telling.
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


def describe(app: FastAPI) -> None:
    """Complete the description of the API: bodies, problems, sign-in, and what operators ask the server."""
    app.title, app.description = _TITLE, _ABOUT
    generated = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = generated()
            wanted: list[Any] = [(model, "validation") for model in (*_REQUESTS, schemas.ProblemDetails)]
            _, definitions = models_json_schema(wanted, ref_template=_REF)
            components = description.setdefault("components", {})
            components.setdefault("schemas", {}).update(definitions["$defs"])
            components["securitySchemes"] = _SECURITY
            description["paths"].update(_operations())
            description["security"] = [{}, *({name: []} for name in _SECURITY)]
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _operations() -> dict[str, Any]:
    """What is at the server's root, beside the API: it is there once, whatever the galleries."""
    closed = (SignInError, RateLimitError, SignInRateLimitError, LookalikeError)
    gallery = _object(images={"type": "integer"}, fingerprint=_TEXT)
    galleries = {"type": "object", "additionalProperties": gallery, "description": "By name."}
    return {
        "/healthz": _operation(
            "healthz",
            "Whether the process answers.",
            "Restart it where it does not. Anybody may ask, as often as they like.",
            {"application/json": {"schema": _object(status=_TEXT), "example": {"status": "ok"}}},
            documented(LookalikeError),
            security=[],
        ),
        "/readyz": _operation(
            "readyz",
            "Whether galleries and models are there.",
            "Send the server no requests where they are not.",
            {"application/json": {"schema": _object(status=_TEXT, galleries=galleries)}},
            documented(*closed, UnavailableError),
        ),
        "/metrics": _operation(
            "metrics",
            "Figures for Prometheus.",
            "Of all processes of the server, and of all its galleries.",
            {"text/plain": {"schema": _TEXT}},
            documented(*closed),
        ),
    }


def _operation(
    name: str,
    summary: str,
    about: str,
    content: dict[str, Any],
    problems: dict[int | str, dict[str, Any]],
    **more: Any,
) -> dict[str, Any]:
    """A GET of the server's root; the other addresses are below that of the API."""
    answers = {"200": {"description": summary, "content": content}}
    operation = {
        **{"operationId": name, "summary": summary, "description": about},
        "servers": [{"url": "/"}],
        "responses": answers | {str(status): answer for status, answer in problems.items()},
        **more,
    }
    return {"get": operation}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}
