"""Region queries and mean queries, compared with images cropped and vectors averaged beforehand."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ExifTags, Image

from retrieval import Embedder, Gallery, InputError
from retrieval.galleries.files import FilesView
from retrieval.search.options import SearchOptions
from serve.app import create_app
from serve.client import ApiError, Client
from serve.core.errors import NoModelError
from serve.core.queries import MIN_SIDE, ComposedQuery, Region, RegionQuery, load_region, open_region
from serve.core.service import SearchService
from tests.serve.asgi_server import answering

MIDDLE = Region(0.25, 0.1, 0.75, 0.6)
VALUES = [0.25, 0.1, 0.75, 0.6]


@pytest.fixture(scope="module")
def service(shop_gallery: Path) -> SearchService:
    return SearchService(shop_gallery)


@pytest.fixture(scope="module")
def api(service: SearchService) -> Iterator[httpx.Client]:
    app = create_app(service, page=False)
    with answering(app) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


def _embedder(service: SearchService) -> Embedder:
    return Embedder(service.folder / "model" / "model.onnx")


def _cut(image: Image.Image, values: list[float]) -> Image.Image:
    """Crop a region with Pillow."""
    width, height = image.size
    left, top, right, bottom = values
    return image.crop(
        (round(left * width), round(top * height), round(right * width), round(bottom * height))
    )


def _ids(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["hits"]]


# ---- regions


def test_region_query_equals_query_of_the_cropped_image(
    service: SearchService, api: httpx.Client, shop: Path
) -> None:
    path = shop / "green" / "3.png"
    vector = _embedder(service).embed(_cut(Image.open(path), VALUES))
    (expected,) = service.gallery.find(vector, SearchOptions(k=6))
    data = path.read_bytes()
    (found,) = service.find([RegionQuery(data, MIDDLE)], SearchOptions(k=6)).found
    assert found == expected
    text = base64.b64encode(data).decode()
    parameters, commas = {"k": 6, "region": VALUES}, ",".join(map(str, VALUES))
    bytes_ = {"Content-Type": "application/octet-stream"}
    for answer in (
        api.post("/v1/search", json={"image": text, **parameters}),
        api.post("/v1/search", params=parameters, content=data, headers=bytes_),
        api.post("/v1/search", params=parameters, files={"image": ("q.png", data)}),
        api.post("/v1/search", data={"k": "6", "region": [str(v) for v in VALUES]}, files={"image": data}),
        api.post("/v1/search", json={"image": text, "k": 6, "region": commas}),
        api.post("/v1/search", params={"k": 6, "region": commas}, content=data, headers=bytes_),
        api.post("/v1/search", data={"k": "6", "region": commas}, files={"image": data}),
    ):
        assert _ids(answer) == [hit.id for hit in expected]
    with Client(str(api.base_url)) as client:
        assert [hit.id for hit in client.search(path, k=6, region=VALUES)] == [hit.id for hit in expected]


@pytest.mark.parametrize("address", ["/v1/search", "/v1/search/by-id"])
def test_region_of_an_item_is_embedded_and_leaves_the_item_out(
    service: SearchService, api: httpx.Client, address: str
) -> None:
    item = service.item(5)
    vector = _embedder(service).embed(_cut(Image.open(item.path), VALUES))
    (expected,) = service.gallery.find(vector, SearchOptions(k=24, exclude=[5]))
    for name, parameters in ((5, {}), (item.key, {"region": "0.25, 0.1,0.75,0.6"})):
        given = {} if parameters else {"region": VALUES}
        found = _ids(api.post(address, params=parameters, json={"id": name, "k": 24, **given}))
        assert found == [hit.id for hit in expected]
        assert 5 not in found


_edges = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted)


@given(_edges, _edges, st.tuples(st.integers(1, 90), st.integers(1, 90)))
def test_region_is_cropped_to_the_nearest_pixel_or_refused(
    across: list[float], down: list[float], size: tuple[int, int]
) -> None:
    pixels = np.arange(size[0] * size[1] * 3, dtype=np.uint32).astype(np.uint8)
    image = pixels.reshape(size[1], size[0], 3)
    try:
        cut = Region(across[0], down[0], across[1], down[1]).crop(image)
    except InputError:
        # Only if the region is empty or has too few pixels.
        assert min((across[1] - across[0]) * size[0], (down[1] - down[0]) * size[1]) < MIN_SIDE + 1
        return
    assert min(cut.shape[:2]) >= MIN_SIDE
    for edges, whole, side in zip((across, down), size, cut.shape[1::-1], strict=True):
        assert abs(side - (edges[1] - edges[0]) * whole) <= 1
    left, top = round(across[0] * size[0]), round(down[0] * size[1])
    assert np.array_equal(cut, image[top : top + cut.shape[0], left : left + cut.shape[1]])


@pytest.mark.parametrize(
    "values",
    [
        (0.5, 0, 0.5, 1),
        (0.6, 0, 0.5, 1),
        (-0.1, 0, 1, 1),
        (0, 0, 1, 1.01),
        (0, math.nan, 1, 1),
        (0, 1),
        "abcd",
    ],
)
def test_invalid_regions_are_refused(api: httpx.Client, values: Any) -> None:
    with pytest.raises(InputError, match="region"):
        Region.of(values)
    sent = [value if isinstance(value, str) or math.isfinite(value) else "nan" for value in values]
    answer = api.post("/v1/search", json={"id": 1, "region": sent})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert answer.json()["errors"][0]["pointer"].startswith("#/region")


def test_tiny_region_and_region_of_a_vector_are_refused(api: httpx.Client) -> None:
    small = api.post("/v1/search", json={"id": 1, "region": [0, 0, 0.05, 1]})
    assert (small.status_code, small.json()["code"]) == (422, "invalid-request")
    assert "2 x 40 pixels of an image of 48 x 40" in small.json()["detail"]
    vector = api.post("/v1/search", json={"vector": [1.0] * 48, "region": VALUES})
    assert "a vector has no region" in vector.json()["detail"]
    elsewhere = api.post("/v1/search:batch", params={"region": VALUES}, json={"queries": [{"id": 1}]})
    assert elsewhere.status_code == 422


def test_small_region_of_a_large_jpeg_is_sharp_and_upright(tmp_path: Path) -> None:
    """Decoded at an eighth of its size, as for the whole image, it would lose the fine stripes."""
    size = 2400
    stripes = np.zeros((size, size, 3), np.uint8)
    stripes[:, np.arange(size) % 8 < 4] = 255
    path = tmp_path / "large.jpg"
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # rotated by 90 degrees clockwise: the left becomes the top
    Image.fromarray(stripes).save(path, quality=95, exif=exif)
    region = Region(0.45, 0.0, 0.55, 0.1)
    part = np.asarray(load_region(open_region(path, region, side=64), region), float)
    beforehand = np.asarray(_cut(Image.fromarray(np.rot90(stripes, -1)), [0.45, 0.0, 0.55, 0.1]), float)
    assert part.shape == beforehand.shape  # decoded in full, for a tenth of it
    assert np.abs(part - beforehand).mean() < 4  # grey levels, the error of JPEG
    assert min(np.asarray(load_region(open_region(path, None, side=64), None)).shape[:2]) < size // 4


def test_regions_and_images_share_a_batch_in_order(
    service: SearchService, api: httpx.Client, shop: Path
) -> None:
    data = (shop / "red" / "2.png").read_bytes()
    text = base64.b64encode(data).decode()
    queries = [
        {"image": text},
        {"id": 4711, "region": VALUES},
        {"id": 7, "region": VALUES},
        {"image": base64.b64encode(b"not an image").decode(), "region": VALUES},
        {"image": text, "region": VALUES},
        {"id": 7},
    ]
    results = api.post("/v1/search:batch", json={"queries": queries, "k": 4}).json()["results"]
    assert [result.get("problem", {}).get("code") for result in results] == [
        *(None, "no-such-image", None, "unusable-image", None, None)
    ]
    for query, result in zip(queries, results, strict=True):
        if "hits" in result:
            alone = api.post("/v1/search", json={**query, "k": 4}).json()
            assert result["hits"] == alone["hits"]


# ---- means of several images


def test_mean_query_leaves_its_items_out(service: SearchService, api: httpx.Client, shop: Path) -> None:
    path = shop / "blue" / "2.png"
    vectors = np.stack(
        [
            _embedder(service).embed(path)[0],
            service.gallery.vector(3),
            _embedder(service).embed(_cut(Image.open(service.item(9).path), VALUES))[0],
        ]
    )
    mean = vectors.astype(np.float64).mean(0)
    scores = service.gallery.state.vectors(np.arange(24)) @ (mean / np.linalg.norm(mean))
    best = [number + 1 for number in np.argsort(-scores, kind="stable") if number + 1 not in (3, 9)]
    image = base64.b64encode(path.read_bytes()).decode()
    queries = [{"image": image}, {"id": 3}, {"id": 9, "region": VALUES}]
    answer = api.post("/v1/search:batch", json={"queries": queries, "together": True, "k": 24})
    assert answer.status_code == 200, answer.text
    (result,) = answer.json()["results"]
    assert [hit["id"] for hit in result["hits"]] == best
    np.testing.assert_allclose(
        [hit["score"] for hit in result["hits"]], [scores[i - 1] for i in best], atol=1e-5
    )


def test_files_together_give_one_result_in_the_client(service: SearchService, api: httpx.Client) -> None:
    paths = [service.item(number).path for number in (2, 11, 20)]
    vectors = _embedder(service).embed(paths).mean(0, keepdims=True)
    (expected,) = service.gallery.find(vectors / np.linalg.norm(vectors), SearchOptions(k=5))
    with Client(str(api.base_url)) as client:
        (found,) = client.search_batch(paths, k=5, together=True)
        assert not isinstance(found, ApiError)
        assert [hit.id for hit in found] == [hit.id for hit in expected]
        (mean,) = client.search_batch(paths[:1], k=5, together=True)
        (alone,) = client.search_batch(paths[:1], k=5)
        assert not isinstance(mean, ApiError)
        assert not isinstance(alone, ApiError)
        assert [hit.id for hit in mean] == [hit.id for hit in alone]
        # The mean is normalized once more: each float32 coordinate may differ in its last digit.
        np.testing.assert_allclose([hit.score for hit in mean], [hit.score for hit in alone], atol=1e-6)


def test_problem_of_one_view_fails_the_mean_query(api: httpx.Client) -> None:
    queries = [{"id": 1}, {"id": 4711}]
    answer = api.post("/v1/search:batch", json={"queries": queries, "together": True})
    assert (answer.status_code, answer.json()["code"]) == (404, "no-such-image")


def test_opposite_vectors_are_refused(service: SearchService, api: httpx.Client) -> None:
    vector = service.gallery.vector(1)
    queries = [{"vector": vector.tolist()}, {"vector": (-vector).tolist()}]
    answer = api.post("/v1/search:batch", json={"queries": queries, "together": True})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert "their sum has no direction" in answer.json()["detail"]


def test_gallery_without_model_refuses_regions(shop_gallery: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gallery of imported vectors."""
    gallery = Gallery(shop_gallery)
    opened = FilesView.__init__

    def without_model(self: FilesView, *args: Any, **options: Any) -> None:
        opened(self, *args, **options)
        self.store.manifest = replace(self.store.manifest, embedding="elsewhere")

    monkeypatch.setattr(FilesView, "__init__", without_model)
    service = SearchService(shop_gallery)
    with pytest.raises(NoModelError, match="whole item"):
        service.find([RegionQuery(5, MIDDLE)], SearchOptions())
    (whole,) = service.find([ComposedQuery([5, 6])], SearchOptions(k=24)).found
    assert not isinstance(whole, InputError)
    assert len(whole) == len(gallery) - 2


def test_regions_and_together_are_in_the_openapi_description(api: httpx.Client) -> None:
    description = api.get("/v1/openapi.json").json()
    schemas = description["components"]["schemas"]
    for name in ("SearchRequest", "ByIdRequest", "Query"):
        assert "fractions" in str(schemas[name]["properties"]["region"])
    assert "mean" in schemas["BatchRequest"]["properties"]["together"]["description"]
    for path, name in (("/search", "region"), ("/search/by-id", "region"), ("/search:batch", "together")):
        parameters = description["paths"][path]["post"]["parameters"]
        assert name in {parameter["name"] for parameter in parameters}
