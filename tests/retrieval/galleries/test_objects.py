"""Tests of the search for objects: pictures pasted into a larger one are found where they were pasted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval import Embedder, Gallery, InputError
from retrieval.galleries.objects import DEPTH, as_box, load_tiles, search_objects
from retrieval.search.options import SearchOptions
from retrieval.search.regions import windows
from retrieval.search.whitening import ridge_whitening
from tests.conftest import draw_classes
from tests.serve.model import write_model

SIZE, SIDE = (900, 600), 240  # of the room, and of its tiles
# Key of an image -> upper left corner of its copy in the room, which fills a tile.
PASTED = {"00/0.png": (0, 0), "01/1.png": (330, 360), "02/2.png": (660, 0)}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 images in three colours, enough for a whitened space."""
    return draw_classes(tmp_path_factory.mktemp("objects") / "images", 3, 40)


@pytest.fixture(scope="module", params=[True, False], ids=["map", "no map"])
def gallery(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, images: Path
) -> Gallery:
    folder = tmp_path_factory.mktemp("galleries")
    model = write_model(folder / "model.onnx", maps=request.param)
    gallery = Gallery.create(folder / "objects.gallery", Embedder(model))
    gallery.add([images])
    return gallery


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory, images: Path) -> Path:
    picture = Image.new("RGB", SIZE, "white")
    for key, corner in PASTED.items():
        seen = Image.open(images / key).convert("RGB").crop((4, 0, 44, 40))  # the square that the model sees
        picture.paste(seen.resize((SIDE, SIDE)), corner)
    file = tmp_path_factory.mktemp("room") / "room.png"
    picture.save(file)
    return file


def test_each_pasted_image_is_found_where_it_stands(gallery: Gallery, room: Path) -> None:
    parts = load_tiles(room, gallery.embedder.preprocess)
    found = search_objects(gallery, parts, SearchOptions(3))
    assert {hit.key for hit in found.hits} == {*PASTED}
    for hit in found.hits:
        x, y = PASTED[hit.key]
        left, top, right, bottom = np.multiply(hit.box, [*SIZE, *SIZE])
        assert x - 1 <= left < right <= x + SIDE + 1
        assert y - 1 <= top < bottom <= y + SIDE + 1
    grouped = search_objects(gallery, parts, SearchOptions(10, group_by="label"))
    assert sorted(hit.label or "" for hit in grouped.hits) == ["00", "01", "02"]
    assert [hit.id for hit in grouped.hits] == [hit.id for hit in found.hits]


def test_scores_are_those_of_every_tile_and_window_one_by_one(gallery: Gallery, room: Path) -> None:
    embedder = gallery.embedder
    parts = load_tiles(room, embedder.preprocess)
    found = search_objects(gallery, parts, SearchOptions(DEPTH))
    stored = gallery.embeddings()
    space = ridge_whitening(stored.vectors)
    items = space(stored.vectors)
    best: dict[int, tuple[float, tuple[float, ...]]] = {}
    for box, pixels in zip(parts.boxes, parts.pixels, strict=True):
        vector = embedder.embed_pixels(pixels[None])
        near = np.argsort(-(stored.vectors @ vector[0]), kind="stable")[:DEPTH]
        maps = embedder.embed_maps(pixels[None])[1] if embedder.has_map else vector[:, None, None]
        boxes, seen = windows(box[None], maps)
        for row in near:
            cosines = space(seen[0]) @ items[row]
            score = float((space(vector)[0] @ items[row] + cosines.max()) / 2)
            number = int(stored.ids[row])
            if number not in best or score > best[number][0]:
                best[number] = score, as_box(boxes[0, cosines.argmax()])
    wanted = sorted(best.values(), key=lambda one: -one[0])[:DEPTH]
    np.testing.assert_allclose([hit.score for hit in found.hits], [score for score, _ in wanted], atol=1e-4)
    for hit in found.hits:
        assert hit.score == pytest.approx(best[hit.id][0], abs=1e-4)
    assert [hit.score for hit in found.boxes] == sorted((hit.score for hit in found.boxes), reverse=True)
    assert 1 <= len(found.boxes) <= 12


def test_options_of_a_search_hold_for_objects(gallery: Gallery, room: Path) -> None:
    parts = load_tiles(room, gallery.embedder.preprocess)
    plain = search_objects(gallery, parts, SearchOptions(20))
    assert len({hit.id for hit in plain.hits}) == 20
    limit = plain.hits[5].score
    strong = search_objects(gallery, parts, SearchOptions(20, min_score=limit))
    assert [hit.id for hit in strong.hits] == [hit.id for hit in plain.hits if hit.score >= limit]
    some = search_objects(gallery, parts, SearchOptions(20, where="label = '01'"), own=(plain.hits[0].id,))
    assert {hit.label for hit in some.hits} == {"01"}
    assert plain.hits[0].id not in {hit.id for hit in some.hits}
    nothing = search_objects(gallery, parts, SearchOptions(20, where="label = 'none'"))
    assert (nothing.hits, nothing.boxes) == ([], [])
    for refused in (
        {"rerank": "k-reciprocal"},
        {"order": "width"},
        {"diversity": 0.5},
        {"min_probability": 0.5},
    ):
        with pytest.raises(InputError, match="not with a search for objects"):
            search_objects(gallery, parts, SearchOptions(20, **refused))  # type: ignore[arg-type]
