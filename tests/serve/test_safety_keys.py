"""Image keys of arbitrary text."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import Gallery
from serve.app import create_app
from serve.client import ApiError, Client
from serve.core.service import SearchService
from tests.serve.asgi_server import answering

KEYS = [
    "red/1.png",
    "../../etc/passwd",
    "a b&c=d#e?f%2Fg",
    "ä/日本.png",
    "<img src=x>",
    "2",
    "'; DROP TABLE items",
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Client of a server over vectors with these keys and the ids 1 to 7."""
    folder = tmp_path_factory.mktemp("keys")
    np.save(folder / "v.npy", np.eye(len(KEYS), dtype=np.float32))
    with (folder / "v.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "id"], *([f"{n}.png", key] for n, key in enumerate(KEYS))])
    Gallery.import_vectors(folder / "g", folder / "v.npy", name="somebody's")
    with answering(create_app(SearchService(folder / "g"), page=False)) as url, Client(url) as client:
        yield client


def test_every_key_finds_its_image_and_no_other(client: Client) -> None:
    for number, key in enumerate(KEYS, 1):
        found = client.image(key)
        assert (found.id, found.key) == (number, key)
        assert client.image(number) == found


@settings(max_examples=60)
@given(key=st.text(min_size=1, max_size=30) | st.integers(0, 10**30).map(str) | st.sampled_from(KEYS))
def test_unknown_key_finds_nothing(client: Client, key: str) -> None:
    if key in KEYS:
        assert client.image(key).key == key
        return
    with pytest.raises(ApiError) as caught:
        client.image(key)
    assert caught.value.code == "no-such-image"


@pytest.mark.parametrize("key", ["", "x" * 4097])
def test_key_length_is_limited(client: Client, key: str) -> None:
    with pytest.raises(ApiError) as caught:
        client.image(key)
    assert caught.value.code == "invalid-request"
