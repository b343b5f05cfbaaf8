"""The API reference at /v1/docs: complete, safe and without other files."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from serve.app import create_app
from serve.config import Settings
from serve.core.service import SearchService
from serve.http.access_log import HEADERS
from serve.http.stack import protect
from tests.serve.asgi_server import get


@pytest.fixture(scope="module")
def app(shop_gallery: Path) -> Any:
    services = [SearchService(shop_gallery, name=name) for name in ("shop", "other")]
    settings = Settings(galleries={"shop": shop_gallery}, page=False)
    return protect(create_app(*services, page=False), settings, services[0].telemetry)


@pytest.mark.parametrize("root", ["/v1", "/v1/galleries/other"])
def test_every_route_field_and_code_is_in_the_reference(app: Any, root: str) -> None:
    answer = get(app, f"{root}/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"] == HEADERS["Content-Security-Policy"]
    page = answer.text
    document = get(app, f"{root}/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            address = path if "servers" in operation else root + path
            heading = f'<h2 id="{operation["operationId"]}"><span class="method">{method.upper()}</span>'
            assert f"{heading} <code>{address}</code></h2>" in page
            assert operation["summary"] in html.unescape(page)
            for parameter in operation.get("parameters", []):
                assert f"<code>{parameter['name']}</code>" in page
    for name in ("SearchRequest", "EmbeddingsRequest", "ProblemDetails", "Hit"):
        assert f'<h3 id="{name}">{name}</h3>' in page
        for field in document["components"]["schemas"][name]["properties"]:
            assert f"<code>{field}</code>" in page
    codes = set(re.findall(r"urn:lookalike:problem:([a-z-]+)", str(document["paths"])))
    assert codes
    for code in codes:
        assert f"<code>{code}</code>" in page


def test_root_of_a_server_without_the_page_leads_to_the_reference(app: Any) -> None:
    answer = get(app, "/")
    assert (answer.status_code, answer.headers["location"]) == (307, "/v1/docs")


def test_reference_needs_no_other_file_and_all_its_links_work(app: Any) -> None:
    page = get(app, "/v1/docs").text
    assert not re.search(r"<script|\bsrc=|url\(|@import|\bon\w+=", page)
    assert set(re.findall(r'<link [^>]*href="([^"]*)"', page)) == {"data:,"}
    links = set(re.findall(r'<a href="([^"]*)"', page))
    assert links - {"openapi.json"} == {link for link in links if link.startswith("#")}
    identifiers = re.findall(r'id="([^"]*)"', page)
    assert len(identifiers) == len({*identifiers})
    assert {link[1:] for link in links - {"openapi.json"}} <= {*identifiers}
