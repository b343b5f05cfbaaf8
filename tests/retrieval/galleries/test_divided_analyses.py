"""What checks and coverage say of a gallery that divides pictures: what they say of the pictures alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval import Embedder, Gallery
from retrieval.curation.leakage import find_leakage
from retrieval.curation.quality import inspect_gallery
from retrieval.curation.suspects import find_suspects
from retrieval.evaluation.coverage import DEPTH, measure_coverage
from retrieval.galleries.items import Item
from retrieval.images.boxes import split
from retrieval.storage.query_log import LoggedSearch, QueryLog, new_id
from tests.conftest import draw
from tests.retrieval.galleries.conftest import Kind

PER_CLASS = 8


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, with a wrong label, a copy, a near-duplicate, and pictures whose parts are all alike."""
    folder = tmp_path_factory.mktemp("pictures")
    for hue, name in enumerate(("red", "green", "blue")):
        (folder / name).mkdir()
        for seed in range(PER_CLASS):
            draw(seed, (80, 60), hue).save(folder / name / f"{seed}.png")
    draw(100, (80, 60), 0).save(folder / "green" / "wrong.png")
    draw(0, (80, 60), 1).save(folder / "green" / "copy.png")
    nearly = np.asarray(draw(1, (80, 60), 1)) ^ 1
    Image.fromarray(nearly).save(folder / "green" / "nearly.png")
    for name, grey in (("red", 40), ("blue", 200)):
        Image.new("RGB", (80, 60), (grey, grey, grey + 9)).save(folder / name / "plain.png")
    return folder


@pytest.fixture
def both(kind: Kind, model: Embedder, pictures: Path, tmp_path: Path) -> tuple[Gallery, Gallery]:
    """The pictures, and the pictures with their parts."""
    made = kind.create(tmp_path / "pictures.gallery", model), kind.create(tmp_path / "parts.gallery", model)
    made[1].use_objects()
    for gallery in made:
        gallery.add([pictures])
    count = len(made[0])
    assert len(made[1]) == 13 * count
    return made


def keys(items: Sequence[Item]) -> list[str]:
    return sorted(item.key for item in items)


def test_duplicates_are_those_of_the_pictures(both: tuple[Gallery, Gallery]) -> None:
    plain, divided = ([keys(group.members) for group in one.duplicates().groups] for one in both)
    assert sorted(plain) == sorted(divided)
    assert ["green/0.png", "green/copy.png"] in [sorted(group) for group in divided]


def test_suspects_are_those_of_the_pictures(both: tuple[Gallery, Gallery]) -> None:
    plain, divided = (find_suspects(one, limit=100) for one in both)
    assert keys([one.item for one in plain.suspects]) == keys([one.item for one in divided.suspects])
    assert (plain.labelled, plain.total, plain.single) == (divided.labelled, divided.total, divided.single)
    assert "green/wrong.png" in keys([one.item for one in divided.suspects])


def test_poor_pictures_are_those_of_the_pictures(both: tuple[Gallery, Gallery]) -> None:
    plain, divided = (inspect_gallery(one) for one in both)
    assert plain.images == divided.images
    for one, other in zip(plain.findings, divided.findings, strict=True):
        assert keys([item for item, _ in one.images]) == keys([item for item, _ in other.images])
    for name, values in plain.quantiles.items():
        assert divided.quantiles[name] == pytest.approx(values, abs=1e-4)


def test_leaks_are_those_of_the_pictures(both: tuple[Gallery, Gallery]) -> None:
    plain, divided = (find_leakage(one, both[0]) for one in both)
    assert (plain.train_images, plain.test_images) == (divided.train_images, divided.test_images)
    assert keys([leak.item for leak in plain.leaks]) == keys([leak.item for leak in divided.leaks])


def test_embeddings_may_be_those_of_the_pictures(both: tuple[Gallery, Gallery]) -> None:
    plain, divided = both
    for labelled in (False, True):
        one = plain.embeddings(labelled=labelled)
        other = divided.embeddings(labelled=labelled, pictures=True)
        assert (one.total, sorted(one.contents)) == (other.total, sorted(other.contents))
        some = divided.embeddings(labelled=labelled, pictures=True, limit=5)
        assert (some.total, len(some.ids)) == (one.total, 5)
        assert {*some.contents} <= {*one.contents}


def test_coverage_counts_pictures(both: tuple[Gallery, Gallery], tmp_path: Path) -> None:
    """Against brute force: a search finds the pictures that have the best parts."""
    divided = both[1]
    items = [*divided.items(divided.select(where="id > 0")).values()]
    wholes = {item.key: item.id for item in items if item.part is None}
    stored = divided.vectors([item.id for item in items])
    queries = np.stack([stored[item.id] for item in items if item.part and item.key.startswith("red/0")])
    queries = queries.astype(np.float16).astype(np.float32)  # as the log keeps them
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    log = QueryLog(tmp_path / "log")
    searches = [LoggedSearch(new_id(), "image", query, (), None, []) for query in queries]
    log.append("parts.gallery", divided.fingerprint, searches)
    found = set[int]()
    for query in queries:
        best: dict[int, float] = {}
        for item in items:
            whole = wholes[split(item.key)[0]]
            best[whole] = max(best.get(whole, -1), float(stored[item.id] @ query))
        found |= {*sorted(best, key=lambda one: -best[one])[:DEPTH]}
    coverage = measure_coverage(divided, tmp_path / "log")
    assert (coverage.images, coverage.never) == (len(wholes), len(wholes) - len(found))
    assert {*coverage.unseen} == {*wholes.values()} - found
    assert 0 < coverage.never < len(wholes) - DEPTH
