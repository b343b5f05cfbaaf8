"""Old paths of the API are answered as the new ones."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from serve.app import create_app
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from tests.conftest import draw
from tests.serve.asgi_server import answering


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, shop_gallery: Path) -> Iterator[httpx.Client]:
    folder = shutil.copytree(shop_gallery, tmp_path_factory.mktemp("old") / "g")
    service = SearchService(folder, name="shop", permissions=Permissions(changes=True))
    with answering(create_app(service, page=False)) as url, httpx.Client(base_url=url, timeout=30) as client:
        yield client


@pytest.mark.parametrize("root", ["/v1", "/v1/galleries/shop"])
@pytest.mark.parametrize(
    "path", ["/1", "/1/thumbnail", "/1/picture", "/by-key?key=red/1.png", "/999", "/abc", "?limit=3"]
)
def test_old_path_has_the_same_answer(api: httpx.Client, root: str, path: str) -> None:
    old, new = (api.get(f"{root}/{noun}{path}") for noun in ("images", "items"))
    assert old.status_code == new.status_code
    if old.is_success:
        assert (old.content, old.headers["etag"]) == (new.content, new.headers["etag"])
    else:
        assert old.json()["code"] == new.json()["code"]


def test_images_are_added_and_removed_at_old_paths(api: httpx.Client) -> None:
    file = io.BytesIO()
    draw(8200).save(file, "PNG")
    added = api.post("/v1/images", files={"images": file.getvalue()})
    assert added.status_code == 201
    number = added.json()["results"][0]["image"]["id"]
    assert api.delete(f"/v1/images/{number}").status_code == 204
    assert api.get(f"/v1/items/{number}").status_code == 404


def test_similar_paths_are_not_old_ones(api: httpx.Client) -> None:
    for path in ("/v1/images:remove", "/v1/imagesx", "/images/1", "/v1/galleries/images/1"):
        assert api.get(path).status_code == 404


def test_description_marks_old_paths(api: httpx.Client) -> None:
    paths = api.get("/v1/openapi.json").json()["paths"]
    for path, methods in paths.items():
        is_old = path.startswith("/images") or path == "/search/by-id"
        assert {one.get("deprecated", False) for one in methods.values()} == {is_old}
    for path in [path for path in paths if path.startswith("/items") and ":" not in path]:
        assert {*paths[path.replace("/items", "/images")]} == {*paths[path]}
    assert "Deprecated: an old name." in api.get("/v1/docs").text
