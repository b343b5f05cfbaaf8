"""The search service over a real gallery and a real model file."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval import Embedder, Gallery, ImageError, InputError, LookalikeError, load_image
from retrieval.galleries.items import Hit
from retrieval.search.options import SearchOptions
from serve.core.queries import SingleQuery
from serve.core.service import SearchService
from serve.core.thumbnails import MISSING, encode, shrink
from tests.conftest import draw
from tests.serve.model import write_model


def search(service: SearchService, query: SingleQuery, k: int) -> list[Hit]:
    (found,) = service.find([query], SearchOptions(k=k)).found
    if isinstance(found, InputError):
        raise found
    return found


@pytest.fixture(scope="module")
def service(shop_gallery: Path) -> SearchService:
    return SearchService(shop_gallery)


@pytest.fixture
def own(tmp_path: Path, shop: Path, model_file: Path) -> tuple[Path, Path]:
    """A gallery and its images, to be modified."""
    images = shutil.copytree(shop, tmp_path / "pictures")
    Gallery.create(tmp_path / "own.gallery", model_file).add([images])
    return tmp_path / "own.gallery", images


def test_image_query_matches_brute_force(service: SearchService, shop: Path) -> None:
    path = shop / "green" / "3.png"
    hits = search(service, path.read_bytes(), 5)
    stored = service.gallery.embeddings()
    vectors, labels, ids = stored.vectors, stored.labels, stored.ids.tolist()
    scores = vectors @ Embedder(service.folder / "model" / "model.onnx").embed(path)[0]
    best = np.argsort(-scores, kind="stable")[:5]
    assert [hit.id for hit in hits] == [ids[i] for i in best]
    assert [hit.label for hit in hits] == [labels[i] for i in best]
    np.testing.assert_allclose([hit.score for hit in hits], scores[best], atol=1e-5)
    assert hits[0].path == str(path)
    assert hits[0].score == pytest.approx(1, abs=1e-4)


def test_item_query_leaves_the_item_out(service: SearchService) -> None:
    stored = service.gallery.embeddings()
    vectors, ids = stored.vectors, stored.ids.tolist()
    scores = vectors @ vectors[4]
    scores[4] = -np.inf
    hits = search(service, ids[4], 6)
    assert [hit.id for hit in hits] == [ids[i] for i in np.argsort(-scores, kind="stable")[:6]]


def test_large_k_returns_all_items(service: SearchService, shop: Path) -> None:
    assert len(search(service, (shop / "red" / "0.png").read_bytes(), 100)) == 24
    assert len(search(service, 1, 100)) == 23


@pytest.mark.parametrize("number", [0, -1, 10_000, 2**63, 10**30])
def test_unknown_item_ids_are_refused(service: SearchService, number: int) -> None:
    for ask in (service.item, service.thumbnail, service.picture):
        with pytest.raises(InputError, match="no item"):
            ask(number)


def test_unreadable_image_is_refused_with_its_reason(service: SearchService) -> None:
    with pytest.raises(ImageError) as refused:
        search(service, b"not an image", 1)
    assert refused.value.reason == ImageError.NOT_AN_IMAGE


def test_thumbnail_shows_the_item(service: SearchService, shop: Path) -> None:
    item = search(service, (shop / "blue" / "2.png").read_bytes(), 1)[0].id
    assert service.thumbnail(item) == encode(load_image(shop / "blue" / "2.png"))
    assert service.thumbnail(item) is service.thumbnail(item)  # cached


@pytest.mark.parametrize("size", [(3000, 2000), (1600, 1600), (900, 2400)])
def test_thumbnail_of_a_reduced_decode_matches_the_full_one(
    tmp_path: Path, model_file: Path, size: tuple[int, int]
) -> None:
    draw(5, (60, 40)).resize(size, Image.Resampling.BICUBIC).save(tmp_path / "a.jpg", quality=90)
    Gallery.create(tmp_path / "own.gallery", model_file).add([tmp_path / "a.jpg"])
    found = Image.open(io.BytesIO(SearchService(tmp_path / "own.gallery").thumbnail(1).data))
    expected = shrink(load_image(tmp_path / "a.jpg"))
    lossy = Image.open(io.BytesIO(encode(expected).data))  # the error of WebP alone
    assert found.size == expected.size
    off, allowed = (np.abs(np.asarray(one, int) - np.asarray(expected, int)) for one in (found, lossy))
    assert off.max() <= allowed.max() + 5
    assert off.mean() <= allowed.mean() + 0.5


def test_missing_file_gives_the_placeholder_until_it_is_back(own: tuple[Path, Path]) -> None:
    folder, images = own
    service = SearchService(folder)
    path = images / "red" / "0.png"
    item = search(service, (path).read_bytes(), 1)[0].id
    away = path.rename(path.with_suffix(".away"))
    assert service.thumbnail(item) is MISSING
    assert service.picture(item) is MISSING  # the placeholder, which is searched by its vector
    assert len(search(service, item, 3)) == 3
    away.rename(path)
    assert service.thumbnail(item) == encode(load_image(path))


def test_commits_of_other_processes_are_visible(own: tuple[Path, Path]) -> None:
    folder, images = own
    service = SearchService(folder)
    old = search(service, (images / "red" / "0.png").read_bytes(), 1)[0].id
    draw(99, hue=1).save(images / "new.png")
    before = service.thumbnail(old)
    draw(98, hue=2).save(images / "red" / "0.png")  # another image of the same item
    Gallery(folder).add([images])
    assert service.summary().images == 25
    found = search(service, (images / "new.png").read_bytes(), 1)[0]
    assert found.path == str(images / "new.png")
    assert service.thumbnail(old).etag != before.etag


def test_unchanged_gallery_is_not_reloaded(own: tuple[Path, Path]) -> None:
    service = SearchService(own[0])
    assert service.gallery._snapshot is service.gallery._snapshot


def test_requests_use_the_previous_state_during_a_refresh(own: tuple[Path, Path]) -> None:
    folder, images = own
    service = SearchService(folder)
    draw(99, hue=1).save(images / "new.png")
    with service._live._refresh_lock:  # held by another request during its refresh
        Gallery(folder).add([images / "new.png"])
        assert service.summary().images == 24
        assert len(service.find([1], SearchOptions(k=100)).found[0]) == 23  # type: ignore[arg-type]
    assert service.summary().images == 25


def test_rebuilt_gallery_refuses_queries_of_the_previous_model(
    own: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, images = own
    service = SearchService(folder)
    fingerprint, vector = service.summary().fingerprint, service.gallery.vector(1)
    shutil.rmtree(folder)
    with pytest.raises(LookalikeError, match="deleted"):
        service.summary()
    other = write_model(tmp_path / "other.onnx", note="another")
    Gallery.create(folder, other).add([images / "green"])
    assert service.summary().images == 8
    assert service.summary().fingerprint == Embedder(other).fingerprint
    with pytest.raises(InputError, match="embed the image again"):
        service.find([vector], SearchOptions(), fingerprint=fingerprint)
    assert search(service, (images / "green" / "0.png").read_bytes(), 3)


def test_folder_without_gallery_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a gallery"):
        SearchService(tmp_path)
