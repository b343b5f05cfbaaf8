"""The HTTP API over a real gallery, compared with brute force."""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from retrieval import Embedder, Gallery, load_image
from retrieval.search.calibration import NAME, Calibration, write_calibration
from retrieval.search.options import SearchOptions
from retrieval.storage.records import IndexSpec
from serve.app import create_app
from serve.client import Client
from serve.core.service import SearchService
from tests.conftest import draw
from tests.serve.asgi_server import answering

BYTES = {"Content-Type": "application/octet-stream"}
_FORMS = (("search", "image"), ("search:batch", "images"), ("embed", "images"))


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, shop: Path, model_file: Path) -> Gallery:
    """Gallery of the shop, with prices for two thirds of it."""
    folder = tmp_path_factory.mktemp("api")
    files = sorted(shop.rglob("*.png"))
    prices = [f"{file},{10 * number}" for number, file in enumerate(files) if number % 3]
    (folder / "prices.csv").write_text("\n".join(["path,price", *prices]))
    gallery = Gallery.create(folder / "priced.gallery", model_file)
    gallery.add([shop], metadata=folder / "prices.csv")
    return gallery


@pytest.fixture(scope="module")
def api(gallery: Gallery) -> Iterator[httpx.Client]:
    app = create_app(SearchService(gallery.folder), page=False)
    with answering(app) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def query() -> bytes:
    """An image that is not in the gallery."""
    buffer = io.BytesIO()
    draw(77, (90, 70), hue=1).save(buffer, "PNG")
    return buffer.getvalue()


def _found(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return answer.json()


def _as_told(gallery: Gallery, hits: list[Any]) -> list[dict[str, Any]]:
    """Return hits of `Gallery.find` as the API does."""
    return [
        {"id": hit.id, "key": hit.key, "label": hit.label, "metadata": hit.metadata, "score": hit.score}
        | {"width": 48, "height": 40, "thumbnail": _thumbnail(gallery, hit.id)}
        | {"probability": hit.probability}
        | ({"group": hit.group, "view_count": hit.view_count} if hit.view_count else {})
        for hit in hits
    ]


def _thumbnail(gallery: Gallery, item: int) -> str:
    """Return the URL of a thumbnail, which depends on the bytes of the file."""
    version = hashlib.sha256(Path(gallery.item(item).path).read_bytes()).hexdigest()[:8]
    return f"/v1/items/{item}/thumbnail?v={version}"


def test_every_body_type_matches_brute_force(api: httpx.Client, gallery: Gallery, query: bytes) -> None:
    stored = gallery.embeddings()
    vectors, labels, ids = stored.vectors, stored.labels, stored.ids.tolist()
    scores = vectors @ Embedder(gallery.folder / "model" / "model.onnx").embed(query)[0]
    best = np.argsort(-scores, kind="stable")[:5]
    text = base64.b64encode(query).decode()
    answers = [
        api.post("/v1/search?k=5", content=query, headers=BYTES),
        api.post("/v1/search", params={"k": 5}, content=query, headers={"Content-Type": "image/png"}),
        api.post("/v1/search", data={"k": "5"}, files={"image": ("q.png", query)}),
        api.post("/v1/search", json={"k": 5, "image": text}),
    ]
    for answer in map(_found, answers):
        assert [hit["id"] for hit in answer["hits"]] == [ids[i] for i in best]
        assert [hit["label"] for hit in answer["hits"]] == [labels[i] for i in best]
        np.testing.assert_allclose([hit["score"] for hit in answer["hits"]], scores[best], atol=1e-5)
        assert answer["fingerprint"] == gallery.fingerprint


@pytest.mark.parametrize("kind", [None, *BYTES.values(), "image/jpg", "application/x-www-form-urlencoded"])
def test_the_bytes_decide_what_a_body_is(api: httpx.Client, query: bytes, kind: str | None) -> None:
    """Without a type, or with one that says nothing, such as that of curl; an image type may be wrong."""
    headers = {} if kind is None else {"Content-Type": kind}
    right = _found(api.post("/v1/search", json={"image": base64.b64encode(query).decode()}))
    assert _found(api.post("/v1/search", content=query, headers=headers)) == right
    vector = _found(api.post("/v1/embed", content=query, headers=headers))["vectors"]
    assert _found(api.post("/v1/embed", files={"images": query}))["vectors"] == vector
    if kind != "image/jpg":
        by_id = _found(api.post("/v1/search/by-id", json={"id": 3}))
        assert _found(api.post("/v1/search/by-id", content=b' {"id": 3}', headers=headers)) == by_id
        assert api.post("/v1/search/by-id", content=query, headers=headers).status_code == 415


def test_files_of_a_form_may_have_any_usual_name(api: httpx.Client, query: bytes) -> None:
    right = [_found(api.post(f"/v1/{path}", files={name: query})) for path, name in _FORMS]
    for other in ("image", "images", "file", "files"):
        assert [_found(api.post(f"/v1/{path}", files={other: query})) for path, _ in _FORMS] == right
    mixed = [("file", query), ("images", query)]
    assert _found(api.post("/v1/embed", files=mixed))["vectors"] == right[2]["vectors"] * 2
    refused = api.post("/v1/search", files=mixed)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "#/image")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 1000},
        {"k": 4, "where": "price >= 50 and label != 'red'"},
        {"min_score": 0.9},
        {"group_by": "label"},
        {"order": "price desc", "k": 9},
        {"exclude": [1, "red/2.png", "3"]},
        {"rerank": "k-reciprocal", "k": 7},
        {"rerank": "query-expansion", "where": "label = 'green'"},
    ],
)
def test_options_equal_those_of_the_gallery(
    api: httpx.Client, gallery: Gallery, query: bytes, options: dict[str, Any]
) -> None:
    vector = gallery.embedder.embed(query)
    expected = _as_told(gallery, gallery.find(vector, SearchOptions(**options))[0])
    by_query_string = _found(api.post("/v1/search", params=options, content=query, headers=BYTES))
    by_json = _found(api.post("/v1/search", json={"vector": vector[0].tolist(), **options}))
    form = {name: str(value) if name != "exclude" else value for name, value in options.items()}
    by_form = _found(api.post("/v1/search", data=form, files={"image": query}))
    for answer in (by_query_string, by_json, by_form):
        assert [hit.pop("score") for hit in answer["hits"]] == pytest.approx(
            [hit["score"] for hit in expected], abs=1e-5
        )
        assert answer["hits"] == [{n: v for n, v in hit.items() if n != "score"} for hit in expected]


def test_probabilities_of_a_calibrated_gallery(api: httpx.Client, gallery: Gallery) -> None:
    curve = Calibration(gallery.fingerprint, 24, (9.0, -2.0, 0.5, 1.0, -1.0, 0.2), -6.0, 0.9, 0.5, "", {})
    write_calibration(gallery.folder, curve)
    try:
        expected = gallery.search_id(5, 8)
        lowest = {"min_probability": expected[2].probability}
        described = _found(api.get("/v1/gallery"))
        assert described["calibrated"]
        assert described["calibration"] == {"created": "", "images": 24, "error": None, "reliable": None}
        found = _found(api.post("/v1/search", json={"id": 5, "k": 8}))
        assert found["hits"] == _as_told(gallery, expected)
        assert found["hits"][0]["probability"] == expected[0].probability is not None
        assert not found["nothing_like_it"]
        some = _found(api.post("/v1/search", json={"id": 5, "k": 8} | lowest))
        assert some["hits"] == found["hits"][:3]
        own = _found(api.post("/v1/search", json={"vector": gallery.vector(5).tolist(), "k": 2}))
        assert (own["hits"][0]["id"], own["hits"][0]["probability"]) == (5, 1)
        assert own["hits"][1]["probability"] < 0.9
        nothing = {"min_probability": 1}
        answer = _found(api.post("/v1/search", json={"id": 5} | nothing))
        assert (answer["hits"], answer["nothing_like_it"]) == ([], True)
        with Client(str(api.base_url)) as client:
            assert [hit.probability for hit in client.search(id=5, k=8)] == [h.probability for h in expected]
            assert client.search(id=5, min_probability=1) == []
        batch = _found(api.post("/v1/search:batch", json={"queries": [{"id": 5}]} | nothing))
        assert batch["results"] == [{"hits": [], "nothing_like_it": True}]
    finally:
        (gallery.folder / NAME).unlink()


@pytest.mark.parametrize("name", [5, "5", "blue/4.png"])
def test_item_is_not_among_its_own_hits(api: httpx.Client, gallery: Gallery, name: int | str) -> None:
    expected = _as_told(gallery, gallery.search_id(name, 23))
    assert {hit["id"] for hit in expected} == set(range(1, 25)) - {5}
    assert _found(api.post("/v1/search", json={"id": name, "k": 100}))["hits"] == expected
    assert _found(api.post("/v1/search/by-id", json={"id": name, "k": 100}))["hits"] == expected


def test_body_overrides_the_query_string(api: httpx.Client) -> None:
    assert len(_found(api.post("/v1/search?k=2", json={"id": 1}))["hits"]) == 2
    assert len(_found(api.post("/v1/search?k=2", json={"id": 1, "k": 3}))["hits"]) == 3


def test_vector_may_have_any_norm(api: httpx.Client, gallery: Gallery) -> None:
    vector = gallery.vector(7).astype(np.float64)
    found = [
        _found(api.post("/v1/search", json={"vector": (vector * length).tolist(), "k": 5}))["hits"]
        for length in (1, 1e-200, 1e200)
    ]
    assert found[0][0]["id"] == 7
    assert (
        [hit["id"] for hit in found[0]] == [hit["id"] for hit in found[1]] == [hit["id"] for hit in found[2]]
    )
    assert found[1][0]["score"] == pytest.approx(1, abs=1e-6)


def test_batch_results_equal_single_results(api: httpx.Client, query: bytes) -> None:
    text = base64.b64encode(query).decode()
    vector = _found(api.post("/v1/embed", content=query, headers=BYTES))["vectors"][0]
    queries: list[dict[str, Any]] = [{"image": text}, {"id": 3}, {"vector": vector}, {"id": "red/0.png"}]
    options = {"k": 3, "where": "label != 'blue'"}
    results = _found(api.post("/v1/search:batch", json={"queries": queries, **options}))["results"]
    for one, result in zip(queries, results, strict=True):
        alone = _found(api.post("/v1/search", json={**one, **options}))["hits"]
        assert [hit["id"] for hit in result["hits"]] == [hit["id"] for hit in alone]
        assert [h["score"] for h in result["hits"]] == pytest.approx([h["score"] for h in alone], abs=1e-6)


def test_problem_in_a_batch_does_not_affect_the_others(api: httpx.Client, query: bytes) -> None:
    files = [("images", (str(n), data)) for n, data in enumerate((query, b"not an image", query))]
    first, second, third = _found(api.post("/v1/search:batch?k=2", files=files))["results"]
    assert len(first["hits"]) == 2
    assert first == third
    assert "hits" not in second
    assert (second["problem"]["code"], second["problem"]["reason"]) == ("unusable-image", "not-an-image")
    queries = [{"id": 1}, {"id": "nowhere"}, {"vector": [1.0]}]
    results = _found(api.post("/v1/search:batch", json={"queries": queries}))["results"]
    assert [r.get("problem", {}).get("code") for r in results] == [None, "no-such-image", "invalid-request"]


def test_vectors_equal_those_of_the_model_exactly(
    api: httpx.Client, gallery: Gallery, query: bytes, shop: Path
) -> None:
    other = (shop / "red" / "1.png").read_bytes()
    expected = gallery.embedder.embed([query, other])
    files = [("images", ("a", query)), ("images", ("b", other))]
    text = [base64.b64encode(data).decode() for data in (query, other)]
    for answer in (api.post("/v1/embed", files=files), api.post("/v1/embed", json={"images": text})):
        assert np.array_equal(np.array(_found(answer)["vectors"], np.float32), expected)
        assert _found(answer)["fingerprint"] == gallery.fingerprint


def test_photo_is_embedded_as_it_was_indexed(tmp_path: Path, model_file: Path) -> None:
    """A large JPEG is decoded at a fraction of its size in both cases, or the score would not be 1."""
    draw(5, (1600, 1200)).resize((1600, 1200), Image.Resampling.BICUBIC).save(tmp_path / "large.jpg")
    gallery = Gallery.create(tmp_path / "gallery", model_file)
    gallery.add([tmp_path / "large.jpg"])
    with answering(create_app(SearchService(gallery.folder), page=False)) as url:
        answer = httpx.post(f"{url}/v1/embed", content=(tmp_path / "large.jpg").read_bytes(), headers=BYTES)
    assert np.array_equal(np.array(answer.json()["vectors"][0], np.float32), gallery.vector(1))


def test_images_are_described_without_their_paths(api: httpx.Client, gallery: Gallery, shop: Path) -> None:
    item = gallery.item(18)
    found = _found(api.get("/v1/items/18"))
    expected = {"id": 18, "key": item.key, "label": item.label, "metadata": item.metadata}
    size = {"width": item.width, "height": item.height}
    assert found == {**expected, **size, "thumbnail": _thumbnail(gallery, 18)}
    assert size == {"width": 48, "height": 40}
    assert found["metadata"] == {"price": 170}
    thumbnail = api.get(found["thumbnail"])
    assert Image.open(io.BytesIO(thumbnail.content)).size == (240, 200)
    assert thumbnail.headers["cache-control"] == "private, max-age=31536000, immutable"
    again = api.get(found["thumbnail"], headers={"If-None-Match": thumbnail.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert load_image(item.path).size == (48, 40)
    assert str(shop) not in api.post("/v1/search", json={"id": 18}).text


def test_gallery_is_described(api: httpx.Client, gallery: Gallery) -> None:
    found = _found(api.get("/v1/gallery"))
    assert found.pop("uuid") == gallery.store.manifest.uuid
    assert found == {
        "name": "priced.gallery",
        "images": 24,
        "dim": 48,
        "fingerprint": gallery.fingerprint,
        "embeds": True,
        "columns": ["price"],
        "product": None,
        "variant": None,
        "objects": False,
        "show": [],
        "index": "flat",
        "unindexed": 0,
        "calibrated": False,
        "calibration": None,
        "license": None,
        "texts": False,
        "changes": False,
        "urls": False,
        "indexing": None,
        "sharing": 0,
        "recorded": False,
        "interleaved": False,
    }


def test_index_and_uncovered_vectors_are_described(tmp_path: Path, gallery: Gallery) -> None:
    own = Gallery(shutil.copytree(gallery.folder, tmp_path / "indexed.gallery"))
    with own.store.writing():
        own.build_index(IndexSpec("sq8"))
    draw(99).save(tmp_path / "new.png")
    own.add([tmp_path / "new.png"])
    with answering(create_app(SearchService(own.folder), page=False)) as url:
        found = _found(httpx.get(f"{url}/v1/gallery"))
    assert (found["index"], found["images"], found["unindexed"]) == ("sq8", 25, 1)


@pytest.mark.parametrize(
    "options", [{}, {"rerank": "k-reciprocal"}, {"rerank": "query-expansion"}, {"group_by": "label"}]
)
def test_empty_gallery_has_no_hits(
    tmp_path: Path, model_file: Path, query: bytes, options: dict[str, Any]
) -> None:
    folder = Gallery.create(tmp_path / "empty.gallery", model_file).folder
    with answering(create_app(SearchService(folder), page=False)) as url:
        answer = httpx.post(f"{url}/v1/search", params=options, content=query, headers=BYTES)
    assert _found(answer)["hits"] == []


def test_api_alone_does_not_load_gradio(gallery: Gallery) -> None:
    code = (
        "import sys; sys.modules['gradio'] = sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from serve.app import create_app; from serve.core.service import SearchService\n"
        "create_app(SearchService(Path(sys.argv[1])), page=False)"
    )
    subprocess.run([sys.executable, "-c", code, str(gallery.folder)], check=True)
