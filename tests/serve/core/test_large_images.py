"""Limits on the pixels that requests make the server decode."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from retrieval.galleries.items import Hits
from retrieval.search.options import SearchOptions
from serve.core import queries
from serve.core.errors import BusyError, TooLargeError
from serve.core.queries import AnyQuery, Region, RegionQuery
from serve.core.service import SearchService


def encoded(side: int, file_format: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (side, side), 200).save(buffer, file_format)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def service(shop_gallery: Path) -> SearchService:
    return SearchService(shop_gallery, max_pixels=10_000_000)


def found(service: SearchService, *images: AnyQuery) -> int:
    """Return the number of hits of all queries."""
    return sum(len(hits) for hits in service.find(images, SearchOptions(1)).found if isinstance(hits, Hits))


def test_pixels_of_a_request_are_limited_together(service: SearchService) -> None:
    png, jpeg = encoded(2500, "PNG"), encoded(2500, "JPEG")
    assert found(service, png, b"not an image") == 1
    for images in ((png, png), (png, RegionQuery(png, Region(0, 0, 0.5, 0.5)))):
        with pytest.raises(TooLargeError, match="12 megapixels to decode together, at most 10 are"):
            found(service, *images)
    with pytest.raises(TooLargeError):
        service.embed([png, png])
    assert found(service, *5 * [jpeg]) == 5  # decoded at an eighth of its size


def test_a_large_image_waits_for_another_one_and_delays_no_small_one(
    service: SearchService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_LARGE_SECONDS", 0.01)
    large, small = encoded(2900, "PNG"), encoded(100, "PNG")  # 8.4 megapixels
    taken = 0
    while service._resolver._large.acquire(blocking=False):
        taken += 1
    with pytest.raises(BusyError, match="send a JPEG"):
        found(service, large)
    assert found(service, small, encoded(2900, "JPEG")) == 2
    for _ in range(taken):
        service._resolver._large.release()
    assert found(service, large) == 1
    with pytest.raises(TooLargeError):
        found(service, large, large)
    assert found(service, large) == 1  # what was refused holds nothing


_PEAKS = """
import io, resource, sys
from pathlib import Path
from PIL import Image
from retrieval.search.options import SearchOptions
from serve.core.service import SearchService

buffer = io.BytesIO()
Image.new("RGB", (2500, 2500), "red").save(buffer, "PNG")  # 19 MB decoded
service = SearchService(Path(sys.argv[1]))
for count in (1, 8):
    service.find(count * [buffer.getvalue()], SearchOptions(1))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_images_of_a_request_are_in_memory_one_after_the_other(shop_gallery: Path) -> None:
    command = [sys.executable, "-c", _PEAKS, shop_gallery]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    one, eight = map(int, done.stdout.split())  # kB
    assert eight - one < 50_000
