"""Problem documents of the API, which reveal no internals."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from retrieval import Gallery
from serve.app import create_app
from serve.core.service import SearchService
from tests.conftest import unzip_shared
from tests.serve.asgi_server import answering
from tests.serve.core.test_errors import PROBLEMS

BYTES = {"Content-Type": "application/octet-stream"}
JSON = {"Content-Type": "application/json"}
WRONG_MODEL = "0" * 64


@pytest.fixture(scope="module")
def api(shop_gallery: Path) -> Iterator[httpx.Client]:
    app = create_app(SearchService(shop_gallery), page=False)
    with answering(app) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def described(api: httpx.Client) -> dict[str, Any]:
    return api.get("/v1/openapi.json").json()


def _problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Return the problem of a response, checked against RFC 9457."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["code"] == code
    assert problem["type"] == f"urn:lookalike:problem:{code}"
    assert (status, problem["title"]) == PROBLEMS[code]
    assert problem["detail"]
    assert re.fullmatch("urn:uuid:[0-9a-f-]{36}", problem["instance"])
    return problem


def _is_described(described: dict[str, Any], method: str, path: str, status: int, code: str) -> bool:
    operation = described["paths"][path][method.lower()]
    return code in operation["responses"][str(status)]["content"]["application/problem+json"]["examples"]


VECTOR = [1.0] * 48
REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("/search", {"content": b"x"}, 415, "unsupported-media-type"),
    ("/search", {"content": b"x", "headers": {"Content-Type": "text/plain"}}, 415, "unsupported-media-type"),
    ("/search/by-id", {"content": b"x", "headers": BYTES}, 415, "unsupported-media-type"),
    ("/search:batch", {"content": b"x", "headers": BYTES}, 415, "unsupported-media-type"),
    ("/search", {"content": b"{", "headers": JSON}, 400, "malformed-body"),
    ("/search", {"content": b'{"vector": [NaN]}', "headers": JSON}, 400, "malformed-body"),
    ("/search", {"content": b"[" * 100_000, "headers": JSON}, 400, "malformed-body"),
    ("/search", {"content": b"\xff", "headers": JSON}, 400, "malformed-body"),
    (
        "/search",
        {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}},
        400,
        "malformed-body",
    ),
    ("/search", {"json": []}, 422, "invalid-request"),
    ("/search", {"json": {}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "vector": VECTOR}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "k": 0}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "k": 1001}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "colour": "red"}}, 422, "invalid-request"),
    ("/search?k=many", {"json": {"id": 1}}, 422, "invalid-request"),
    ("/search?colour=red", {"json": {"id": 1}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "min_score": 2}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "min_probability": 2}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "min_probability": 0.5}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "where": "colour ="}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "where": "colour = 'red'"}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "where": "label = '\0'"}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "where": "label like 5" + " " * 4096}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "where": "label = 7"}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "group_by": "colour"}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "order": "colour"}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "rerank": "magic"}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "exclude": ["nowhere"]}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 1, "exclude": [2**63]}}, 422, "invalid-request"),
    ("/search", {"json": {"id": True}}, 422, "invalid-request"),
    ("/search", {"json": {"vector": [0.0] * 48}}, 422, "invalid-request"),
    ("/search", {"json": {"vector": VECTOR[1:]}}, 422, "invalid-request"),
    ("/search", {"json": {"vector": [*VECTOR, 1]}}, 422, "invalid-request"),
    ("/search", {"json": {"vector": []}}, 422, "invalid-request"),
    ("/search", {"content": b'{"vector": [1e999]}', "headers": JSON}, 422, "invalid-request"),
    ("/search", {"json": {"vector": ["a"]}}, 422, "invalid-request"),
    ("/search", {"json": {"image": "not Base64!"}}, 422, "invalid-request"),
    ("/search", {"json": {"id": 999}}, 404, "no-such-image"),
    ("/search", {"json": {"id": 2**63 - 1}}, 404, "no-such-image"),
    ("/search", {"json": {"id": "nowhere"}}, 404, "no-such-image"),
    ("/search/by-id", {"json": {"id": 999}}, 404, "no-such-image"),
    ("/search", {"json": {"vector": VECTOR, "fingerprint": WRONG_MODEL}}, 409, "model-mismatch"),
    (
        "/search:batch",
        {"json": {"queries": [{"vector": VECTOR}], "fingerprint": WRONG_MODEL}},
        409,
        "model-mismatch",
    ),
    ("/search:batch", {"json": {"queries": []}}, 422, "invalid-request"),
    ("/search:batch", {"json": {"queries": [{"id": 1}] * 65}}, 422, "invalid-request"),
    ("/search:batch", {"json": {"queries": [{"id": 1}, {}]}}, 422, "invalid-request"),
    ("/search", {"content": b"", "headers": BYTES}, 422, "unusable-image"),
    ("/search", {"content": b"not an image", "headers": BYTES}, 422, "unusable-image"),
    ("/search", {"files": {"image": b"not an image"}}, 422, "unusable-image"),
    ("/search", {"json": {"image": "AAAA"}}, 422, "unusable-image"),
    ("/embed", {"files": [("images", b"not an image")]}, 422, "unusable-image"),
    ("/embed", {"json": {"images": []}}, 422, "invalid-request"),
]


@pytest.mark.parametrize(("path", "body", "status", "code"), REFUSED)
def test_invalid_requests_get_documented_problems(
    api: httpx.Client,
    described: dict[str, Any],
    shop_gallery: Path,
    path: str,
    body: dict[str, Any],
    status: int,
    code: str,
) -> None:
    answer = api.post(f"/v1{path}", **body)
    problem = _problem(answer, status, code)
    assert _is_described(described, "POST", path.partition("?")[0], status, code)
    assert str(shop_gallery.parent) not in answer.text
    assert "Traceback" not in answer.text
    if code == "unusable-image":
        assert problem["reason"] == "not-an-image"


WRONG_METHODS = [
    *(("POST", path) for path in ("/healthz", "/readyz", "/metrics", "/v1/gallery", "/v1/models")),
    *(("ODD", path) for path in ("/healthz", "/v1/items/1", "/v1/galleries")),
]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nowhere", 404, "not-found"),
        ("GET", "/v1/items/abc", 404, "not-found"),
        ("GET", "/v1/items/999", 404, "no-such-image"),
        ("GET", f"/v1/items/{10**30}/thumbnail", 404, "no-such-image"),
        ("GET", "/v1/search", 405, "method-not-allowed"),
        ("PUT", "/v1/items/1", 405, "method-not-allowed"),
        *((method, path, 405, "method-not-allowed") for method, path in WRONG_METHODS),
        *((method, path, 404, "not-found") for method in ("GET", "POST", "ODD") for path in ("/v1", "/v1/")),
        ("GET", "/v1/galleries/shop.gallery", 404, "not-found"),
        ("GET", "/v1/galleries/nowhere/items", 404, "not-found"),
        ("GET", "/nowhere", 404, "not-found"),
    ],
)
def test_unknown_routes_and_methods(
    api: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = api.request(method, path)
    _problem(answer, status, code)
    assert (status == 405) == ("allow" in answer.headers)


def test_all_methods_of_a_path_are_allowed(api: httpx.Client) -> None:
    for path, allowed in (
        ("/v1/items/1", "DELETE, GET, HEAD, PATCH"),
        ("/v1/items", "GET, HEAD, POST"),
        ("/v1/search", "POST"),
    ):
        assert api.put(path).headers["allow"] == allowed


def test_all_faults_are_listed_with_json_pointers(api: httpx.Client) -> None:
    answer = api.post("/v1/search:batch", json={"queries": [{"id": 1}, {"id": 2, "vector": [1]}], "k": 0})
    problem = _problem(answer, 422, "invalid-request")
    assert {fault["pointer"] for fault in problem["errors"]} == {"#/queries/1", "#/k"}
    many = _problem(api.post("/v1/search", json={"vector": ["a"] * 1000}), 422, "invalid-request")
    assert len(many["errors"]) == 20
    assert "(and 999 more)" in many["detail"]
    by_query = _problem(api.post("/v1/search?k=0", json={"id": 1}), 422, "invalid-request")
    assert [fault["pointer"] for fault in by_query["errors"]] == ["#/query/k"]


@pytest.mark.parametrize("where", ["label =", "colour = 'red'", "label = 7", "label = '\0'", "x" * 5000])
def test_wrong_condition_has_a_pointer(api: httpx.Client, where: str) -> None:
    searched = _problem(api.post("/v1/search", json={"id": 1, "where": where}), 422, "invalid-request")
    assert [fault["pointer"] for fault in searched["errors"]] == ["#/where"]
    listed = _problem(api.get("/v1/items", params={"where": where}), 422, "invalid-request")
    assert [fault["pointer"] for fault in listed["errors"]] == ["#/query/where"]


POINTERS: list[tuple[str, str, dict[str, Any], list[str]]] = [
    ("POST", "/search", {"json": {"id": 999}}, ["#/id"]),
    ("POST", "/search", {"json": {"id": "nowhere"}}, ["#/id"]),
    ("POST", "/search", {"json": {"id": 1, "region": [0, 0, 1e-5, 1e-5]}}, ["#/region"]),
    ("POST", "/search", {"json": {"vector": [0.0] * 48}}, ["#/vector"]),
    ("POST", "/search", {"json": {"vector": VECTOR[1:]}}, ["#/vector"]),
    ("POST", "/search", {"json": {"vector": VECTOR, "fingerprint": "x"}}, ["#/fingerprint"]),
    ("POST", "/search", {"json": {"image": "AAAA"}}, ["#/image"]),
    ("POST", "/search", {"content": b"x", "headers": BYTES}, ["#/image"]),
    ("POST", "/search", {"json": {"text": ["red"]}}, ["#/text"]),
    ("POST", "/search", {"json": {"id": 1, "text": ["red"]}}, ["#/text"]),
    ("POST", "/search", {"json": {"id": 99, "without": ["red"]}}, ["#/text"]),
    ("POST", "/search", {"json": {"id": 1, "unlike": [{"id": 2}, {"id": 99}]}}, ["#/unlike/1/id"]),
    ("POST", "/search", {"json": {"id": 1, "group_by": "colour"}}, ["#/group_by"]),
    ("POST", "/search", {"json": {"id": 1, "order": "colour"}}, ["#/order"]),
    ("POST", "/search", {"json": {"id": 1, "exclude": ["nowhere"]}}, ["#/exclude"]),
    ("POST", "/search", {"json": {"id": 1, "min_probability": 0.5}}, ["#/min_probability"]),
    ("POST", "/search", {"json": {"id": 1, "galleries": ["shop.gallery", "no"]}}, ["#/galleries/1"]),
    ("POST", "/search", {"json": {"id": 99, "galleries": ["shop.gallery"]}}, ["#/id"]),
    ("POST", "/search:batch", {"json": {"queries": [{"id": 1}], "order": "colour"}}, ["#/order"]),
    (
        "POST",
        "/search:batch",
        {"json": {"queries": [{"id": 1}, {"id": 99}], "together": True}},
        ["#/queries"],
    ),
    ("POST", "/search", {"json": {"id": 1.5}}, ["#/id", "#/id"]),  # neither a number nor a key
    ("POST", "/search", {"json": {"id": 1, "exclude": [2, None]}}, ["#/exclude/1", "#/exclude/1"]),
    ("POST", "/search", {"json": {"like": [{"id": 1}, {"id": 1, "k": 2}]}}, ["#/like/1/k"]),
    ("POST", "/search/by-id", {"json": {}}, ["#/id"]),
    ("POST", "/embed", {"json": {"texts": ["red"]}}, ["#/texts"]),
    ("POST", "/embed", {"json": {"images": ["AAAA"]}}, ["#/images/0"]),
    ("POST", "/embeddings", {"json": {"input": ["red"]}}, ["#/input"]),
    ("POST", "/embeddings", {"json": {"input": ["data:image/png;base64,AAAA"]}}, ["#/input/0"]),
    ("POST", "/embeddings", {"json": {"model": "0" * 64, "input": ["red"]}}, ["#/model"]),
    ("POST", "/preview", {"json": {"image": "AAAA"}}, ["#/image"]),
    ("GET", "/items", {"params": {"order": "colour"}}, ["#/query/order"]),
    ("GET", "/items", {"params": {"order": "label down"}}, ["#/query/order"]),
    ("GET", "/items", {"params": {"cursor": "x", "order": "colour"}}, ["#/query/cursor"]),
    ("GET", "/facets", {"params": {"columns": "label,colour"}}, ["#/query/columns"]),
    ("GET", "/facets", {"params": {"columns": ",".join(["label"] * 51)}}, ["#/query/columns"]),
    ("GET", "/items/by-key", {"params": {"key": "nowhere"}}, ["#/query/key"]),
    ("GET", "/items/by-key", {}, ["#/query/key"]),
]


@pytest.mark.parametrize(("method", "path", "request_", "pointers"), POINTERS)
def test_every_wrong_field_has_a_pointer(
    api: httpx.Client, method: str, path: str, request_: dict[str, Any], pointers: list[str]
) -> None:
    problem = api.request(method, f"/v1{path}", **request_).json()
    assert [fault["pointer"] for fault in problem["errors"]] == pointers
    assert problem["errors"][0]["detail"]


def test_problem_of_a_query_among_several_has_its_place(api: httpx.Client) -> None:
    queries = [{"id": 99}, {"id": 1}, {"vector": [1.0]}, {"id": 1, "region": [0, 0, 1e-5, 1]}]
    results = api.post("/v1/search:batch", json={"queries": queries}).json()["results"]
    places = [[fault["pointer"] for fault in one.get("problem", {}).get("errors", [])] for one in results]
    assert places == [["#/queries/0/id"], [], ["#/queries/2/vector"], ["#/queries/3/region"]]


@pytest.mark.parametrize(
    ("path", "body", "pointer", "message"),
    [
        ("/search", {"id": 1, "threshold": 0.5}, "#/threshold", "did you mean 'min_score'?"),
        ("/search?threshold=0.5", {"id": 1}, "#/query/threshold", "did you mean 'min_score'?"),
        ("/search", {"id": 1, "wher": "x"}, "#/wher", "did you mean 'where'?"),
        ("/search/by-id", {"id": 1, "x" * 10**6: 1}, f"#/{'x' * 10**6}", "there are "),
        ("/search:batch", {"queries": [{"id": 1, "regoin": []}]}, "#/queries/0/regoin", "'region'?"),
        ("/search:batch", {"queries": [{"id": 1, "k": 1}]}, "#/queries/0/k", "image, id, vector, region"),
        ("/search:batch?fingerprnt=x", {"queries": [{"id": 1}]}, "#/query/fingerprnt", "there are k, where"),
        ("/embed", {"images": ["AAAA"], "threshold": 1}, "#/threshold", "there are images"),
    ],
)
def test_unknown_field_gets_a_hint(
    api: httpx.Client, path: str, body: dict[str, Any], pointer: str, message: str
) -> None:
    problem = _problem(api.post(f"/v1{path}", json=body), 422, "invalid-request")
    (fault,) = problem["errors"]
    assert fault["pointer"] == pointer
    assert fault["detail"].startswith("there is no such field; ")
    assert message in fault["detail"]


def test_internal_failure_reveals_no_details(
    tmp_path: Path, shop_gallery: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = shutil.copytree(shop_gallery, tmp_path / "damaged.gallery")
    service = SearchService(folder)
    (segment,) = (path for path in (folder / "segments").iterdir() if path.suffixes == [".npy"])
    data = bytearray(segment.read_bytes())
    data[-1000] ^= 255
    segment.write_bytes(data)
    with answering(create_app(service, page=False)) as url:
        answer = httpx.post(f"{url}/v1/search?k=24", json={"id": 1})
    problem = _problem(answer, 500, "internal-error")
    assert str(tmp_path) not in answer.text
    assert "damaged" not in problem["detail"]
    assert "a stored vector is damaged" in caplog.text  # the operator reads it


def test_unexpected_exception_reveals_no_details(
    shop_gallery: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("in /home/somebody")

    service = SearchService(shop_gallery)
    for name in ("find", "item", "summary"):
        monkeypatch.setattr(service, name, fail)
    with answering(create_app(service, page=False)) as url:
        answers = [
            httpx.post(f"{url}/v1/search", json={"id": 1}),
            httpx.get(f"{url}/v1/items/1"),
            httpx.get(f"{url}/readyz"),
        ]
    for answer in answers:
        _problem(answer, 500, "internal-error")
        assert "somebody" not in answer.text
    assert "in /home/somebody" in caplog.text  # the operator reads it


def test_missing_gallery_is_unavailable_until_it_is_back(tmp_path: Path, shop_gallery: Path) -> None:
    folder = shutil.copytree(shop_gallery, tmp_path / "own.gallery")
    with answering(create_app(SearchService(folder), page=False)) as url:
        assert httpx.get(f"{url}/readyz").json()["status"] == "ready"
        folder.rename(tmp_path / "away")
        for answer in (httpx.get(f"{url}/readyz"), httpx.post(f"{url}/v1/search", json={"id": 1})):
            _problem(answer, 503, "gallery-unavailable")
            assert int(answer.headers["retry-after"]) > 0
            assert str(tmp_path) not in answer.text
        assert httpx.get(f"{url}/healthz").json() == {"status": "ok"}
        (tmp_path / "away").rename(folder)
        assert httpx.post(f"{url}/v1/search", json={"id": 1}).status_code == 200


def test_imported_vectors_are_searched_by_vector_and_item(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.array([[1, 0, 0], [3, 4, 0], [0, 0, 1]], np.float32))
    Gallery.import_vectors(tmp_path / "g", tmp_path / "v.npy", name="somebody's")
    with answering(create_app(SearchService(tmp_path / "g"), page=False)) as url:
        assert httpx.get(f"{url}/readyz").status_code == 200
        found = httpx.get(f"{url}/v1/gallery").json()
        assert (found["embeds"], found["fingerprint"], found["dim"]) == (False, "embedding:somebody's", 3)
        by_vector = httpx.post(f"{url}/v1/search", json={"vector": [5, 0, 0]}).json()["hits"]
        by_item = httpx.post(f"{url}/v1/search", json={"id": 1}).json()["hits"]
        assert [(hit["id"], hit["score"]) for hit in by_vector] == [(1, 1), (2, pytest.approx(0.6)), (3, 0)]
        assert [hit["id"] for hit in by_item] == [2, 3]
        assert httpx.get(f"{url}/v1/items/1/thumbnail").headers["content-type"] == "image/svg+xml"
        for path in ("search", "embed"):
            _problem(httpx.post(f"{url}/v1/{path}", content=b"x", headers=BYTES), 409, "no-model")


@pytest.mark.slow
def test_no_bad_image_causes_a_server_error(api: httpx.Client, tmp_path: Path) -> None:
    folder = unzip_shared("bad_inputs.zip", tmp_path)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(files) > 200
    statuses = []
    for file in files:
        answer = api.post("/v1/search?k=1", content=file.read_bytes(), headers=BYTES)
        statuses.append(answer.status_code)
        if answer.status_code != 200:
            problem = _problem(answer, 422, "unusable-image")
            assert problem["reason"] in ("not-an-image", "damaged", "too-large")
            assert str(tmp_path) not in answer.text
    assert {200, 422} == set(statuses)
