"""Fixtures: a gallery of the shop's images and a server over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from retrieval import Gallery
from tests.serve.model import write_model
from tests.serve.serving import SERVE, Server, serving


@pytest.fixture(scope="package", autouse=True)
def no_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let clients of HTTPS trust nobody: each would read the certificates of the system for 20 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSL_CERT_FILE", raising=False)
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("authorities")))
        yield


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file written without torch."""
    return write_model(tmp_path_factory.mktemp("model") / "model.onnx")


@pytest.fixture(scope="session")
def shop_gallery(tmp_path_factory: pytest.TempPathFactory, shop: Path, model_file: Path) -> Path:
    """Gallery of the shop; must not be modified."""
    folder = tmp_path_factory.mktemp("galleries") / "shop.gallery"
    Gallery.create(folder, model_file).add([shop])
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path) -> Iterator[Server]:
    """`lookalike serve` over the shop."""
    with serving([*SERVE, str(shop_gallery)], tmp_path_factory.mktemp("scratch"), forked=True) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    """HTTP client of the server."""
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client
