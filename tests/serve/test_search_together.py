"""Search in several galleries at once, against scores computed from all their vectors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from retrieval import Gallery
from serve.app import create_app
from serve.client import ApiError, Client
from serve.core.service import SearchService
from tests.conftest import draw
from tests.serve.asgi_server import answering
from tests.serve.model import write_model


@pytest.fixture(scope="module")
def folders(
    tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path, model_file: Path
) -> dict[str, Path]:
    """Two galleries of one model, and one of another."""
    root = tmp_path_factory.mktemp("together")
    (root / "images").mkdir()
    for seed in range(9):
        draw(500 + seed, hue=seed % 3).save(root / "images" / f"{seed}.png")
    Gallery.create(root / "others", model_file).add([root / "images"])
    Gallery.create(root / "foreign", write_model(root / "m.onnx", note="b")).add([root / "images"])
    return {"shop": shop_gallery, "others": root / "others", "foreign": root / "foreign"}


@pytest.fixture(scope="module")
def url(folders: dict[str, Path]) -> Iterator[str]:
    services = [
        SearchService(folder, name=name, address=f"/v1/galleries/{name}") for name, folder in folders.items()
    ]
    with answering(create_app(*services, page=False)) as url:
        yield url


def _all_scores(folders: dict[str, Path], query: np.ndarray) -> list[tuple[float, str, int]]:
    """Return score, gallery and id of every image, best first."""
    found: list[tuple[float, str, int]] = []
    for name in ("others", "shop"):
        gallery = Gallery(folders[name])
        ids = range(1, len(gallery) + 1)
        found += [(float(gallery.vector(item) @ query), name, item) for item in ids]
    return sorted(found, reverse=True)


def _found(hits: list[object]) -> list[tuple[str, int]]:
    return [(hit.gallery, hit.id) for hit in hits]  # type: ignore[attr-defined]


def test_image_is_searched_for_in_all_of_them(url: str, folders: dict[str, Path]) -> None:
    image = draw(3, hue=2)
    vector = Gallery(folders["shop"]).embedder.embed([image])[0]
    expected = _all_scores(folders, vector)
    with Client(url, gallery="others") as client:
        hits = client.search(image, k=12, galleries=["shop", "others"])
        assert _found([*hits]) == [(name, item) for _, name, item in expected[:12]]
        np.testing.assert_allclose([hit.score for hit in hits], [one[0] for one in expected[:12]], atol=1e-5)
        assert {hit.gallery for hit in hits} == {"shop", "others"}
        assert all(hit.thumbnail.startswith(f"/v1/galleries/{hit.gallery}/") for hit in hits)
        everything = client.search(
            image, k=1000, galleries=["others", "shop"], min_score=expected[20][0] - 1e-6
        )
        assert len(everything) == 21
        (alone,) = client.search(image, k=1, galleries=["others"])
        assert alone.gallery == "others"


def test_item_of_the_first_is_left_out_there_alone(url: str, folders: dict[str, Path]) -> None:
    expected = _all_scores(folders, Gallery(folders["others"]).vector(2))
    with Client(url) as client:
        found = _found([*client.search(id=2, k=100, galleries=["others", "shop"])])
    assert ("shop", 2) in found
    assert found == [(name, item) for _, name, item in expected if (name, item) != ("others", 2)]


def test_refusals_say_why(url: str) -> None:
    cases = (
        ("/v1", {"galleries": ["shop", "foreign"]}, 409, "shop of "),
        ("/v1", {"galleries": ["shop", "other"]}, 422, "did you mean"),
        ("/v1", {"galleries": ["shop", "shop"]}, 422, "twice"),
        ("/v1", {"galleries": ["shop"], "group_by": "label", "exclude": [1]}, 422, "exclude, group_by"),
        ("/v1", {"galleries": ["shop"], "order": "label"}, 422, "order"),
        ("/v1", {"galleries": ["others", "shop"], "where": "label = 'red' and nothing = 1"}, 422, "nothing"),
        ("/v1/galleries/others", {"galleries": ["shop"]}, 422, "/v1/search"),
    )
    for root, body, status, part in cases:
        answer = httpx.post(f"{url}{root}/search", json={"id": 1, **body}, timeout=30)
        assert (answer.status_code, part in answer.text) == (status, True), answer.text
    with Client(url) as client, pytest.raises(ApiError) as error:
        client.search(id=99, galleries=["shop", "others"])
    assert error.value.code == "no-such-image"
