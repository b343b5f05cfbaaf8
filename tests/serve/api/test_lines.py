"""Listings as lines of JSON, in one answer."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.api import items
from serve.app import create_app
from serve.core.service import SearchService
from tests.serve.asgi_server import answering

LINES = {"Accept": "application/x-ndjson"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path) -> SearchService:
    return SearchService(shutil.copytree(shop_gallery, tmp_path_factory.mktemp("lines") / "g"))


@pytest.fixture(scope="module")
def http(service: SearchService) -> Iterator[httpx.Client]:
    with answering(create_app(service, page=False)) as url, httpx.Client(base_url=url) as http:
        yield http


@pytest.fixture(autouse=True)
def short_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "_PAGE_OF_LINES", 5)


@pytest.mark.parametrize("query", [{}, {"where": "label = 'red'"}, {"order": "label desc", "limit": "2"}])
def test_lines_are_the_items_of_all_pages(http: httpx.Client, query: dict[str, str]) -> None:
    paged = http.get("/v1/items", params={**query, "limit": "1000"}).json()["items"]
    answer = http.get("/v1/items", params=query, headers=LINES)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["vary"].split(", ")[0] == "Accept"
    assert [json.loads(line) for line in answer.text.splitlines()] == paged
    assert answer.text.endswith("\n")


def test_lines_begin_behind_a_cursor(http: httpx.Client) -> None:
    first = http.get("/v1/items", params={"limit": 10}).json()
    rest = http.get("/v1/items", params={"cursor": first["next_cursor"]}, headers=LINES).text.splitlines()
    assert [json.loads(line)["id"] for line in rest] == [*range(11, 25)]


def test_lines_of_nothing_are_none(http: httpx.Client) -> None:
    assert http.get("/v1/items", params={"where": "id = 99"}, headers=LINES).text == ""


def test_lines_are_compressed_as_they_come(http: httpx.Client) -> None:
    with http.stream("GET", "/v1/items", headers={**LINES, "Accept-Encoding": "gzip"}) as answer:
        assert answer.headers["content-encoding"] == "gzip"
        found = gzip.decompress(b"".join(answer.iter_raw()))
    assert len(found.splitlines()) == 24


def test_wrong_parameters_are_a_problem(http: httpx.Client) -> None:
    for query in ({"where": "x ="}, {"cursor": "x"}, {"order": "x"}):
        answer = http.get("/v1/items", params=query, headers=LINES)
        assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


def test_failure_on_the_way_breaks_the_connection(
    http: httpx.Client, service: SearchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that ends too early must not look complete."""
    read, calls = service.read, iter(range(10))

    def failing(work: Any) -> Any:
        if next(calls) == 2:
            raise OSError("the disk is gone")
        return read(work)

    monkeypatch.setattr(service, "read", failing)
    with pytest.raises(httpx.RemoteProtocolError):
        http.get("/v1/items", headers=LINES)
