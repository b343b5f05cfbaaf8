"""Examples of a gallery."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import httpx

from retrieval import Gallery
from serve.app import create_app
from serve.core.examples import examples
from serve.core.service import SearchService
from tests.serve.asgi_server import answering


def test_examples_are_of_as_many_labels_as_possible(shop_gallery: Path) -> None:
    gallery = Gallery(shop_gallery)
    assert {item.label for item in examples(gallery, 3)} == {"red", "green", "blue"}
    many = examples(gallery, 8)
    counts = Counter(item.label for item in many)
    assert set(counts.values()) <= {2, 3}
    assert len({item.id for item in examples(gallery, 60)}) == 24
    assert examples(gallery, 8) == many


def test_api_lists_them(shop_gallery: Path) -> None:
    with answering(create_app(SearchService(shop_gallery), page=False)) as url:
        found = httpx.get(f"{url}/v1/examples", params={"limit": 5}).json()["items"]
        picture = httpx.get(f"{url}/v1/items/{found[0]['id']}/picture")
        again = httpx.get(picture.url, headers={"If-None-Match": picture.headers["etag"]})
    assert [item["id"] for item in found] == [item.id for item in examples(Gallery(shop_gallery), 5)]
    assert picture.headers["content-type"] == "image/webp"
    assert again.status_code == 304
