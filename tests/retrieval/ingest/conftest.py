"""Fixtures: an empty gallery and a folder of images."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval import Gallery
from tests.conftest import draw_classes
from tests.retrieval.filling import small_gallery


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    return small_gallery(tmp_path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of three images."""
    return draw_classes(tmp_path / "photos", ("red", "green"), 3)
