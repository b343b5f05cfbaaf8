"""Requests generated from the OpenAPI description: all responses conform to it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from serve.app import create_app
from serve.core.permissions import Permissions
from serve.core.service import SearchService

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
OPERATIONS = [
    ("POST", "/search"),
    ("POST", "/search/by-id"),
    ("POST", "/search:batch"),
    ("POST", "/outcomes"),
    ("POST", "/embed"),
    ("POST", "/embeddings"),
    ("GET", "/gallery"),
    ("GET", "/galleries"),
    ("GET", "/evaluation"),
    ("GET", "/items/by-key"),
    ("GET", "/items/{id}"),
    ("GET", "/items/{id}/thumbnail"),
    ("POST", "/items"),
    ("DELETE", "/items/{id}"),
    ("GET", "/items"),
    ("GET", "/facets"),
    ("GET", "/examples"),
    ("GET", "/items/{id}/picture"),
    ("PATCH", "/items/{id}"),
    ("POST", "/items:label"),
    ("POST", "/items:remove"),
    ("POST", "/heatmap"),
    ("POST", "/objects"),
    ("GET", "/evaluation/classes"),
    ("GET", "/evaluation/reports"),
    ("GET", "/evaluation/queries"),
    ("POST", "/preview"),
    ("POST", "/pictures"),
    ("GET", "/pictures/{id}"),
    ("POST", "/jobs"),
    ("GET", "/jobs"),
    ("GET", "/jobs/{id}"),
    ("DELETE", "/jobs/{id}"),
    ("GET", "/decisions"),
    ("POST", "/decisions"),
    ("GET", "/decisions/{n}"),
    ("DELETE", "/decisions/{n}"),
    ("POST", "/decisions:undo"),
    ("GET", "/views"),
    ("POST", "/views"),
    ("GET", "/models"),
    ("GET", "/models/{id}"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
]
# A second job is refused with 503 while the first one runs, which is no error of the server.
RIGHT = [
    (method, path, GenerationMode.POSITIVE)
    for method, path in OPERATIONS
    if (method, path) != ("POST", "/jobs")
]
# A request without parameters cannot be invalid.
PLAIN = {
    ("GET", f"/{name}")
    for name in (
        *("gallery", "galleries", "evaluation", "evaluation/reports"),
        *("jobs", "models", "views", "healthz", "readyz", "metrics"),
    )
}
WRONG = [
    (method, path, GenerationMode.NEGATIVE) for method, path in OPERATIONS if (method, path) not in PLAIN
]


@pytest.fixture(scope="module")
def described(shop_gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = shutil.copytree(shop_gallery, tmp_path_factory.mktemp("fuzzed") / "shop.gallery")
    app = create_app(SearchService(folder, permissions=Permissions(changes=True, sharing=1)), page=False)
    return schemathesis.openapi.from_asgi("/v1/openapi.json", app)


def test_all_operations_are_fuzzed(described: Any) -> None:
    found = [operation.ok() for operation in described.get_all_operations()]
    all_of_them = {(operation.method.upper(), operation.path) for operation in found}
    old = {(method, path) for method, path in all_of_them if path.startswith("/images")}  # the same routes
    assert all_of_them - old - {("GET", "/events")} == set(OPERATIONS)  # whose answer does not end


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path", "mode"), [*RIGHT, *WRONG])
def test_no_request_causes_a_server_error(
    described: Any, method: str, path: str, mode: GenerationMode
) -> None:
    strategy = described[path][method].as_strategy(generation_mode=mode)

    @settings(max_examples=15, suppress_health_check=list(HealthCheck))
    @given(case=strategy)
    def attempt(case: schemathesis.Case) -> None:
        case.validate_response(case.call(), checks=CHECKS)

    attempt()
