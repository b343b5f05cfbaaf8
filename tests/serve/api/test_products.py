"""Products over HTTP, against the searches of the gallery, and by the client."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from retrieval import Gallery
from retrieval.galleries.items import Hit
from retrieval.search.options import SearchOptions
from serve.app import create_app
from serve.client import Client
from serve.core.service import SearchService
from tests.serve.asgi_server import answering


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, shop: Path, model_file: Path) -> Gallery:
    """The shop, in products of three images; the last two are of none."""
    made = Gallery.create(tmp_path_factory.mktemp("products") / "products.gallery", model_file)
    paths = sorted(shop.rglob("*.png"))
    made.add(paths, metadata=[{"sku": n // 3 if n < len(paths) - 2 else None} for n in range(len(paths))])
    made.use_products("sku")
    return made


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory, shop: Path, model_file: Path) -> Gallery:
    """The shop, in products of six images in the colours of their folders; some images name none."""
    made = Gallery.create(tmp_path_factory.mktemp("colours") / "colours.gallery", model_file)
    paths = sorted(shop.rglob("*.png"), key=lambda path: (path.name, path.parent.name))
    rows = [{"sku": n // 6, "colour": path.parent.name} for n, path in enumerate(paths)]
    made.add(paths, metadata=[{**row, "colour": None} if n % 4 == 0 else row for n, row in enumerate(rows)])
    made.use_products("sku,colour")
    return made


@pytest.fixture(scope="module")
def address(gallery: Gallery) -> Iterator[str]:
    with answering(create_app(SearchService(gallery.folder), page=False)) as url:
        yield url


def answered(hit: Any) -> tuple[Any, ...]:
    """What a hit of an answer says of its product."""
    return hit["id"], hit["group"], hit["view_count"], [view["id"] for view in hit.get("views", [])]


def expected_of(hits: list[Hit]) -> list[tuple[Any, ...]]:
    """What the answer has to say of hits of the gallery."""
    return [(hit.id, hit.group, hit.view_count, [view.id for view in hit.views]) for hit in hits]


@pytest.mark.parametrize(
    "options", [{}, {"group_size": 3, "group_score": "soft"}, {"k": 2, "group_size": 2, "where": "sku < 5"}]
)
def test_hits_are_those_of_the_gallery(address: str, gallery: Gallery, options: dict[str, Any]) -> None:
    answer = httpx.post(f"{address}/v1/search", json={"id": 4, **options}).json()["hits"]
    (expected,) = gallery.find(gallery.vector(4)[None], SearchOptions(**options), [(4,)])
    answer = [{"group": None, **hit} for hit in answer]
    assert [answered(hit) for hit in answer] == expected_of([*expected])
    for hit, own in zip(answer, expected, strict=True):
        assert hit["score"] == pytest.approx(own.score, abs=1e-6)
        for view, mine in zip(hit.get("views", []), own.views, strict=True):
            assert view["score"] == pytest.approx(mine.score, abs=1e-6)
            assert (view["key"], mine.key) == (gallery.item(view["id"]).key,) * 2
            picture = httpx.get(address + view["thumbnail"])
            assert picture.headers["Content-Type"].startswith("image/")


def test_several_images_of_one_query_stay_apart(address: str, gallery: Gallery) -> None:
    stored = gallery.vectors([4, 9])
    views, options = np.stack([stored[4], stored[9]]), {"k": 30, "group_size": 9}
    (expected,) = gallery.find([views], SearchOptions(**options), [(4, 9)])  # type: ignore[arg-type]
    (mean,) = gallery.find([views.mean(0)[None]], SearchOptions(**options), [(4, 9)])  # type: ignore[arg-type]
    assert [hit.score for hit in expected] != pytest.approx([hit.score for hit in mean], abs=1e-3)
    like = [{"id": 4}, {"id": 9}]
    alone = httpx.post(f"{address}/v1/search", json={"like": like, **options}).json()["hits"]
    batch = {"queries": like, "together": True, **options}
    together = httpx.post(f"{address}/v1/search:batch", json=batch).json()["results"][0]["hits"]
    for answer in (alone, together):
        assert [answered({"group": None, **hit}) for hit in answer] == expected_of([*expected])
    away = httpx.post(f"{address}/v1/search", json={"like": like, "unlike": [{"id": 1}], **options})
    assert away.status_code == 200


def test_client_and_description(address: str, gallery: Gallery) -> None:
    with Client(address) as client:
        assert client.gallery().product == "sku"
        hits = client.search(Path(gallery.item(4).path), k=3, group_size=2)
        (expected,) = gallery.find(gallery.vector(4)[None], SearchOptions(3, group_size=2))
        assert [(hit.id, hit.group, hit.view_count) for hit in hits] == [
            facts[:3] for facts in expected_of([*expected])
        ]
        assert [len(hit.views or ()) for hit in hits] == [len(hit.views) for hit in expected]
        single = client.search(id=4, k=3, group_by="id")
        assert [(hit.group, hit.view_count, hit.views) for hit in single] == [(None, None, None)] * 3


def test_variants_are_a_second_level(colours: Gallery) -> None:
    """Each variant is shown by its best image, best first; one by one over all images of each product."""
    query, asked = colours.vector(5), {"id": 5, "k": 3}
    with answering(create_app(SearchService(colours.folder), page=False)) as url, Client(url) as client:
        assert (client.gallery().product, client.gallery().variant) == ("sku", "colour")
        answer = httpx.post(f"{url}/v1/search", json={**asked, "group_size": 9}).json()["hits"]
        single = httpx.post(f"{url}/v1/search", json=asked).json()["hits"]
        by_client = client.search(id=5, k=3, group_size=9)
    assert len({hit["group"] for hit in answer}) == 3
    for hit, plain, same in zip(answer, single, by_client, strict=True):
        best: dict[str | None, tuple[float, int]] = {}
        counts: dict[str | None, int] = {}
        for item in colours.items(colours.select(where=f"sku = {hit['group']}")).values():
            colour, cosine = item.metadata.get("colour"), float(query @ colours.vector(item.id))
            best[colour] = max(best.get(colour, (-2.0, 0)), (cosine, item.id))
            counts[colour] = counts.get(colour, 0) + 1
        names = sorted(best, key=lambda colour: -best[colour][0])
        ids = [best[name][1] for name in names]
        assert hit["variant_count"] == plain["variant_count"] == same.variant_count == len(names) > 1
        assert (hit["id"], plain["id"], "views" in plain) == (ids[0], ids[0], False)
        assert [view["id"] for view in hit["views"]] == ids
        assert [view.get("variant") for view in hit["views"]] == names
        assert [view.variant for view in same.views or ()] == names
        assert [view["view_count"] for view in hit["views"]] == [counts[name] for name in names]
        scores = [view["score"] for view in hit["views"]]
        assert scores == pytest.approx([best[name][0] for name in names], abs=1e-6)


def test_too_many_views_are_refused(address: str, gallery: Gallery) -> None:
    picture = base64.b64encode(Path(gallery.item(4).path).read_bytes()).decode()
    refused = httpx.post(f"{address}/v1/search", json={"image": picture, "group_size": 101})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "#/group_size"
