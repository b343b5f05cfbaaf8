"""The OpenAPI document, and the reference made from it: one HTML page without scripts or further files."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from serve.http.problem import MEDIA_TYPE

_HERE = Path(__file__).parent
_JSON = "application/json"
_REF = re.compile(r'"#/components/schemas/(\w+)"')
router = APIRouter()


@router.get("/openapi.json", include_in_schema=False)
async def description(request: Request) -> Response:
    """The OpenAPI document of the routes of this application."""
    document = await asyncio.to_thread(_kept, request, "description", _document)
    return Response(document, media_type=_JSON)


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """The reference of the routes of this application, in HTML."""
    return HTMLResponse(await asyncio.to_thread(_kept, request, "reference", _render))


def _kept(request: Request, name: str, make: Callable[[FastAPI, str], bytes]) -> bytes:
    """Return what is made once for each application, since it takes milliseconds."""
    app: FastAPI = request.app
    if not hasattr(app.state, name):
        setattr(app.state, name, make(app, request.scope["root_path"]))
    kept: bytes = getattr(app.state, name)
    return kept


def _document(app: FastAPI, root: str) -> bytes:
    found = {**app.openapi(), "servers": [{"url": root}]}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class _Operation:
    """A route of the OpenAPI document.

    Attributes:
        bodies: Media type of a body -> its schema.
        example: JSON body of an example, quoted for a shell, if it has one.
        answers: Answers that are not problems, in the document's order.
        problems: Status -> codes of problems.
        deprecated: Whether it is an old name.
    """

    name: str
    method: str
    path: str
    summary: str
    description: str
    parameters: list[Mapping[str, Any]]
    bodies: Mapping[str, Any]
    example: str | None
    answers: list[_Answer]
    problems: Mapping[str, list[str]]
    deprecated: bool


@dataclass(frozen=True)
class _Answer:
    """A successful answer: its status, meaning, media types and schema, if any."""

    status: str
    description: str
    types: list[str]
    schema: Mapping[str, Any] | None


def _operations(document: Mapping[str, Any], root: str) -> Iterator[_Operation]:
    """Yield the operations of an OpenAPI document, of which most are below a path, the root."""
    schemas = document["components"]["schemas"]
    for path, methods in document["paths"].items():
        for method, found in methods.items():
            base = next((server["url"] for server in found.get("servers", [])), root).rstrip("/")
            bodies = {
                kind: content["schema"]
                for kind, content in found.get("requestBody", {}).get("content", {}).items()
            }
            model = schemas.get(_model(bodies.get(_JSON, {})), {})
            examples = model.get("examples", [])
            yield _Operation(
                name=found["operationId"],
                method=method.upper(),
                path=base + path,
                summary=found["summary"],
                description=found["description"],
                parameters=found.get("parameters", []),
                bodies=bodies,
                example=shlex.quote(_as_json(examples[0])) if examples else None,
                answers=[
                    _Answer(status, answer["description"], [*_content(answer)], _schema(answer))
                    for status, answer in found["responses"].items()
                    if MEDIA_TYPE not in _content(answer)
                ],
                problems={
                    status: [*_content(answer)[MEDIA_TYPE].get("examples", {})]
                    for status, answer in sorted(found["responses"].items())
                    if MEDIA_TYPE in _content(answer)
                },
                deprecated=found.get("deprecated", False),
            )


def _render(app: FastAPI, root: str) -> bytes:
    """Return the page of an application whose routes are below a path."""
    from retrieval.reports.pages import environment  # takes half a second

    found = app.openapi()
    schemas = found["components"]["schemas"]
    used = {*_REF.findall(json.dumps(found))}
    templates = environment(_HERE)
    templates.filters["as_json"] = _as_json
    page: str = templates.get_template("reference.html").render(
        title=found["info"]["title"],
        description=found["info"]["description"],
        operations=[*_operations(found, root)],
        schemas={name: schema for name, schema in sorted(schemas.items()) if name in used},
        security=found["components"].get("securitySchemes", {}),
    )
    return page.encode()


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _content(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    content: Mapping[str, Any] = answer.get("content", {})
    return content


def _schema(answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    schema: Mapping[str, Any] | None = _content(answer).get(_JSON, {}).get("schema")
    return schema


def _model(schema: Mapping[str, Any]) -> str:
    """Return the name of the model that a schema refers to; empty if it is none."""
    return str(schema.get("$ref", "")).rpartition("/")[2]
