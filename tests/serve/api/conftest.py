"""A server that allows changes, for the tests that have a fixture `folder` with its gallery."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from serve.app import create_app
from serve.client import Client
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from tests.serve.asgi_server import answering


@pytest.fixture(scope="module")
def http(folder: Path) -> Iterator[httpx.Client]:
    service = SearchService(folder, permissions=Permissions(changes=True))
    with answering(create_app(service, page=False)) as url, httpx.Client(base_url=url, timeout=30) as http:
        yield http


@pytest.fixture(scope="module")
def client(http: httpx.Client) -> Iterator[Client]:
    with Client(str(http.base_url)) as client:
        yield client
