"""Galleries that divide pictures, over HTTP: what is added is divided, in files and in databases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from retrieval import Embedder, Gallery
from retrieval.images.boxes import split
from retrieval.stores.address import PASSWORD
from retrieval.upkeep.rebuild import rebuild
from serve.app import create_app
from serve.client import Added, ApiError, Client
from serve.core.permissions import Permissions
from serve.core.service import SearchService
from tests.conftest import lookalike_here
from tests.retrieval.galleries.test_divided import FIRST, SECOND, SIDE, board, boxes
from tests.retrieval.search.test_detector import write_detector
from tests.retrieval.stores.postgres_server import running
from tests.serve.asgi_server import answering
from tests.serve.model import write_model

Parts = dict[tuple[float, ...] | None, np.ndarray]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a detector, pictures to begin with, and some to add."""
    made = tmp_path_factory.mktemp("files")
    write_model(made / "model.onnx", maps=True)
    write_detector(made / "detector.onnx", "torchvision")
    (made / "first").mkdir()
    board(made / "first" / "a.png", FIRST, 1)
    board(made / "new.png", SECOND, 2)
    board(made / "white.png", ())
    return made


@pytest.fixture(scope="module", params=["files", "postgres", "qdrant-embedded"])
def service(
    request: pytest.FixtureRequest, files: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SearchService]:
    folder = tmp_path_factory.mktemp("service")
    with ExitStack() as stack:
        store = None
        if request.param == "postgres":
            stack.enter_context(pytest.MonkeyPatch.context()).setenv(PASSWORD, "right")
            store = stack.enter_context(running(folder)).address.replace(":right@", "@")
        elif request.param == "qdrant-embedded":
            pytest.importorskip("qdrant_edge", reason="needs qdrant-edge-py")
            store = f"qdrant://{folder}/data"
        words = [
            "index",
            "build",
            str(folder / "g"),
            str(files / "first"),
            "--model",
            str(files / "model.onnx"),
        ]
        words += ["--objects", "--detector", str(files / "detector.onnx")]
        lookalike_here(*words, *([] if store is None else ["--store", store]))
        yield SearchService(folder / "g", permissions=Permissions(changes=True))


@pytest.fixture(scope="module")
def url(service: SearchService) -> Iterator[str]:
    with answering(create_app(service, page=False)) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as made:
        yield made


def parts_of(gallery: Gallery, key: str) -> Parts:
    """Return the vectors of a picture and its parts, by their boxes."""
    every = gallery.items(gallery.select(where="id > 0")).values()
    items = [item for item in every if split(item.key)[0] == key]
    vectors = gallery.vectors([item.id for item in items])
    return {item.part: vectors[item.id] for item in items}


def indexed(files: Path, picture: Path, folder: Path) -> Parts:
    """Return what an indexing run makes of a picture."""
    twin = Gallery.create(folder, files / "model.onnx")
    twin.use_objects(files / "detector.onnx")
    twin.add([picture])
    return parts_of(twin, picture.name)


def uploads_of(service: SearchService) -> list[Path]:
    return sorted((service.folder / "pictures").glob("*"))


def test_what_is_added_is_divided_as_what_is_indexed(
    service: SearchService, client: Client, files: Path, tmp_path: Path
) -> None:
    before = client.gallery().images
    pictures = [files / "new.png", files / "white.png"]
    added = client.add(pictures, label="hall", metadata={"price": 3})
    assert [isinstance(one, Added) and (one.is_new, one.part) for one in added] == [(True, None)] * 2
    new, white = (one.key for one in added if isinstance(one, Added))
    assert client.gallery().images == before + len(SECOND) + 1 + 9 + 1
    for picture, key in zip(pictures, (new, white), strict=True):
        found = parts_of(service.gallery, key)
        expected = indexed(files, picture, tmp_path / picture.stem)
        assert found.keys() == expected.keys()
        for box, vector in found.items():
            np.testing.assert_allclose(vector, expected[box], atol=1e-6)
    assert sorted(filter(None, parts_of(service.gallery, new))) == boxes(SECOND)
    # A part finds its picture, once, with its box, label and price.
    size = SIDE // 4
    with Image.open(files / "new.png") as picture:
        crop = picture.convert("RGB").crop((2 * size, 2 * size, 3 * size, 3 * size))
    hit, other, *_ = client.search(crop, k=5)
    assert (hit.part, hit.group, hit.view_count) == ((0.5, 0.5, 0.75, 0.75), new, len(SECOND) + 1)
    assert (hit.label, hit.metadata["price"], other.group) == ("hall", 3, "a.png")
    # The same bytes are added once; a picture like them is refused, with its parts.
    (again,) = client.add([files / "new.png"])
    assert isinstance(again, Added)
    assert not again.is_new
    with Image.open(files / "new.png") as picture:
        Image.fromarray(np.asarray(picture) ^ 1).save(tmp_path / "like.png")
    (like,) = client.add([tmp_path / "like.png"], duplicates="refuse")
    assert isinstance(like, Added)
    assert (like.is_new, like.key) == (False, new)
    assert client.gallery().images == before + len(SECOND) + 1 + 9 + 1
    # A part may go alone; with the picture go all, and its file.
    part = next(item for item in client.items() if item.key.startswith(f"{new}#"))
    client.remove(part.id)
    assert len(uploads_of(service)) == 2
    assert client.gallery().images == before + len(SECOND) + 1 + 9
    whole = next(item for item in client.items() if item.key == new)
    client.update(whole.id, label="attic")
    assert {item.label for item in client.items() if item.key.startswith(new)} == {"attic"}
    client.remove(whole.id)
    assert client.gallery().images == before + 9 + 1
    assert len(uploads_of(service)) == 1
    assert client.remove_where(f"key = '{white}'", expected=1)
    assert client.gallery().images == before
    assert uploads_of(service) == []


def test_the_column_of_the_pictures_is_refused(url: str, client: Client, files: Path) -> None:
    before = client.gallery().images
    body = {"metadata": json.dumps({"Picture": "mine"})}
    data = (files / "new.png").read_bytes()
    answer = httpx.post(f"{url}/v1/items", files={"images": data}, data=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert "give the column another name" in answer.text
    with pytest.raises(ApiError, match="another name"):
        client.update(next(client.items()).id, metadata={"picture": "mine"})
    assert client.gallery().images == before


def test_objects_are_what_its_own_detector_finds(client: Client, files: Path) -> None:
    found = client.objects(files / "first" / "a.png", k=3)
    assert sorted(tuple(one.box) for one in found.boxes) == boxes(FIRST)
    assert found.hits[0].score == pytest.approx(1, abs=1e-3)


def test_without_its_detector_nothing_is_added(service: SearchService, client: Client, files: Path) -> None:
    file, before = service.folder / "detector.onnx", client.gallery().images
    file.rename(file.with_suffix(".away"))
    service.gallery._detector = None  # as in a process that starts now
    try:
        for call in (lambda: client.add([files / "new.png"]), lambda: client.objects(files / "new.png")):
            with pytest.raises(ApiError, match=r"g/detector.onnx: missing") as caught:
                call()
            assert (caught.value.status, caught.value.code) == (503, "gallery-unavailable")
            assert str(service.folder) not in str(caught.value)
        assert client.search(files / "first" / "a.png", k=1)[0].group == "a.png"
        assert client.gallery().images == before
    finally:
        file.with_suffix(".away").rename(file)


def test_uploads_keep_their_parts_in_a_rebuild(files: Path, tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", files / "model.onnx")
    gallery.use_objects(files / "detector.onnx")
    service = SearchService(tmp_path / "g", permissions=Permissions(changes=True))
    with answering(create_app(service, page=False)) as url, Client(url) as client:
        client.add([files / "new.png"])
    other = write_model(tmp_path / "other.onnx", "another", maps=True)
    gallery.refresh()
    done = rebuild(gallery, Embedder(other))
    assert (done.result.added, done.result.bad) == (len(SECOND) + 1, [])
    copy = gallery.snapshot(tmp_path / "copy")
    assert copy
    for folder in (tmp_path / "g", tmp_path / "copy"):
        opened = Gallery.open(folder)
        assert sorted(filter(None, parts_of(opened, "new.png"))) == boxes(SECOND)
        assert not opened.verify().problems
        assert opened.update().gone == []
