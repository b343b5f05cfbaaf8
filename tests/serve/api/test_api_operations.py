"""Health, metrics and the OpenAPI description."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from retrieval import Gallery
from serve.app import create_app
from serve.core.service import SearchService
from serve.core.telemetry import STAGES
from tests.serve.asgi_server import answering

BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture
def api(shop_gallery: Path) -> Iterator[httpx.Client]:
    """Server without previous requests."""
    app = create_app(SearchService(shop_gallery), page=False)
    with answering(app) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def _figures(api: httpx.Client) -> dict[tuple[str, ...], float]:
    """Return the metrics by name and label values."""
    answer = api.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return {(s.name, *sorted(s.labels.values())): s.value for family in families for s in family.samples}


def test_healthz_and_readyz(api: httpx.Client, shop_gallery: Path) -> None:
    assert api.get("/healthz").json() == {"status": "ok"}
    fingerprint = Gallery(shop_gallery).fingerprint
    galleries = {"shop.gallery": {"images": 24, "fingerprint": fingerprint}}
    assert api.get("/readyz").json() == {"status": "ready", "galleries": galleries}
    assert api.get("/readyz").headers["cache-control"] == "no-store"


def test_requests_are_counted_and_measured(api: httpx.Client, shop: Path) -> None:
    image = (shop / "red" / "1.png").read_bytes()
    for _ in range(3):
        api.post("/v1/search", content=image, headers=BYTES)
    files = [("images", ("a", image)), ("images", ("b", image))]
    api.post("/v1/search:batch", files=files)
    api.post("/v1/search", content=b"not an image", headers=BYTES)
    api.post("/v1/search", json={"id": 1})
    for _ in range(3):
        api.get("/v1/items/7/thumbnail")
    for path in ("/v1/items/99", "/v1/items/98", "/v1/nowhere", "/v1/elsewhere"):
        api.get(path)
    for path in ("/v1/search", "/v1/nowhere", "/nowhere", "/v1/gallery/"):  # 405, 404, 404, 307
        for method in ("ODD", "ODDER"):
            api.request(method, path)
    api.get("/v1/search")
    api.head("/v1/items/7/thumbnail")
    figures = _figures(api)
    counted = {name[1:]: value for name, value in figures.items() if name[0] == "lookalike_requests_total"}
    assert counted == {
        ("/v1/search", "200", "POST"): 4,
        ("/v1/search", "422", "POST"): 1,
        ("/v1/search:batch", "200", "POST"): 1,
        ("/v1/items/{id}/thumbnail", "200", "GET"): 3,
        ("/v1/items/{id}/thumbnail", "200", "HEAD"): 1,
        ("/v1/items/{id}", "404", "GET"): 2,
        ("/v1/*", "404", "GET"): 2,
        ("/v1/search", "405", "GET"): 1,
        ("/v1/search", "405", "other"): 2,
        ("/v1/*", "404", "other"): 2,
        ("404", "other", "page"): 2,
        ("/v1/*", "307", "other"): 2,
    }
    stages = {stage: figures["lookalike_stage_seconds_count", stage] for stage in STAGES}
    assert stages == {"decode": 5, "embed": 4, "search": 6, "encode": 5}  # what is no image is not decoded
    assert figures["lookalike_batch_images_count",] == 4
    assert figures["lookalike_batch_images_sum",] == 5
    assert figures["lookalike_problems_total", "unusable-image"] == 1
    assert figures["lookalike_problems_total", "no-such-image"] == 2
    assert figures["lookalike_thumbnails_total",] == 4
    assert figures["lookalike_thumbnails_made_total",] == 1
    assert figures["lookalike_gallery_images", "shop.gallery"] == 24
    assert figures["lookalike_queue_depth",] == 0
    assert figures["lookalike_request_seconds_count", "/v1/search"] == 8
    assert figures["process_resident_memory_bytes",] > 1e7


def test_two_servers_in_a_process_have_separate_metrics(api: httpx.Client, shop_gallery: Path) -> None:
    api.post("/v1/search", json={"id": 1})
    other = SearchService(shop_gallery)
    assert other.telemetry.registry.get_sample_value("lookalike_batch_images_count") == 0


@pytest.fixture
def described(api: httpx.Client) -> dict[str, Any]:
    return api.get("/v1/openapi.json").json()


def test_openapi_description_is_complete(described: dict[str, Any]) -> None:
    assert described["openapi"].startswith("3.1")
    assert described["servers"] == [{"url": "/v1"}]
    schemas = described["components"]["schemas"]
    for name in _references(described):
        assert name in schemas
    operations = [o for path in described["paths"].values() for o in path.values()]
    names = [operation["operationId"] for operation in operations]
    old = {operation["operationId"] for operation in operations if operation.get("deprecated")}
    assert len(names) == len({*names})
    assert {*names} - old == {
        "search",
        "search_batch",
        "record_outcome",
        "embed",
        "embeddings",
        "list_models",
        "model",
        "heatmap",
        "objects",
        "preview",
        "share_picture",
        "shared_picture",
        "start_job",
        "list_jobs",
        "job",
        "remove_job",
        "gallery",
        "galleries",
        "item",
        "picture",
        "list_examples",
        "item_by_key",
        "thumbnail",
        "add_items",
        "remove_item",
        "list_items",
        "facets",
        "update_item",
        "label_items",
        "remove_items",
        "list_decisions",
        "decision",
        "keep_image",
        "undo_decision",
        "undo_decisions",
        "list_views",
        "save_view",
        "evaluation",
        "evaluation_classes",
        "evaluation_reports",
        "evaluation_queries",
        "events",
        "healthz",
        "readyz",
        "metrics",
    }
    assert old == {
        "search_by_id",
        "image",
        "image_by_key",
        "image_thumbnail",
        "image_picture",
        "add_images",
        "list_images",
        "update_image",
        "remove_image",
    }
    for operation in operations:
        assert operation["summary"].endswith(".")
        assert operation["description"]
        answers = operation["responses"]
        if "servers" not in operation:  # otherwise it is a route at the root
            assert {"401", "429", "500", "503"} <= set(answers)
        assert any(status.startswith("2") for status in answers)
        for status, answer in answers.items():
            assert answer["description"]
            if status[0] in "45":
                assert set(answer["content"]) == {"application/problem+json"}
    assert "HTTPValidationError" not in schemas
    body = described["paths"]["/search"]["post"]["requestBody"]
    assert set(body["content"]) == {
        "application/json",
        "multipart/form-data",
        "application/octet-stream",
        "image/*",
    }


def _references(node: Any) -> Iterator[str]:
    """Yield the names of all referenced schemas."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                assert value.startswith("#/components/schemas/")
                yield value.rpartition("/")[2]
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


def test_request_examples_are_valid(described: dict[str, Any], api: httpx.Client) -> None:
    schemas = described["components"]["schemas"]
    for path, name in (("search", "SearchRequest"), ("search/by-id", "ByIdRequest")):
        for example in schemas[name]["examples"]:
            if "image" not in example:
                expected = 409 if "text" in example else 200  # the model embeds images only
                assert api.post(f"/v1/{path}", json=example).status_code == expected
