"""Near-duplicates against a comparison of every pair, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from retrieval import Gallery, InputError, LookalikeError
from retrieval.curation import duplicates, near_pairs
from retrieval.progress import Progress
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import FileStamp, NewItem
from retrieval.storage.store import Store
from tests.conftest import lookalike_here, unzip_shared


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def crowd(seed: int, count: int, dim: int) -> np.ndarray:
    """Return random vectors, and others at all distances from some of them."""
    random = np.random.default_rng(seed)
    originals = random.normal(size=(max(1, count // 3), dim))
    noise = random.uniform(0, 0.6, size=(count, 1)) * random.normal(size=(count, dim))
    return unit(originals[random.integers(0, len(originals), count)] + noise)


def make(
    folder: Path,
    vectors: np.ndarray,
    contents: Sequence[str] | None = None,
    labels: Sequence[str | None] | None = None,
    pieces: int = 1,
) -> Gallery:
    """Return a gallery of vectors whose keys are their numbers."""
    store = Store.create(folder, Manifest("", vectors.shape[1], embedding="random"))
    with store.writing():
        for some in np.array_split(np.arange(len(vectors)), pieces):
            items = [
                NewItem(
                    FileStamp("/pictures", f"{i}.jpg", 1, 1, labels[i] if labels else None),
                    *(contents[i] if contents else f"{i}", 1, 1),
                    key=str(i),
                )
                for i in some.tolist()
            ]
            store.commit(vectors[some], items)
    return Gallery.open(folder)


def found(gallery: Gallery, min_score: float) -> set[frozenset[int]]:
    groups = gallery.duplicates(min_score).groups
    assert all(len(group.members) > 1 for group in groups)
    return {frozenset(int(item.key) for item in group.members) for group in groups}


def one_by_one(vectors: np.ndarray, min_score: float) -> set[frozenset[int]]:
    """Return the expected groups, grown pair by pair."""
    group = {i: {i} for i in range(len(vectors))}
    for i, a in enumerate(vectors.astype(float)):
        for j in np.flatnonzero(vectors[:i].astype(float) @ a >= min_score):
            if group[i] is not group[int(j)]:
                group[i] |= group[int(j)]
                for member in group[i]:
                    group[member] = group[i]
    return {frozenset(members) for members in group.values() if len(members) > 1}


@given(st.integers(1, 60), st.lists(st.tuples(st.integers(0, 59), st.integers(0, 59)), max_size=80))
def test_components_equal_scipy(count: int, pairs: list[tuple[int, int]]) -> None:
    """With pairs that are joined at once, and one after the other."""
    ends = np.array(pairs, np.int64).reshape(-1, 2).T % count
    graph = coo_array((np.ones(ends.shape[1]), ends), (count, count))
    of = connected_components(graph, directed=False)[1]
    expected = sorted(group for n in range(count) if len(group := np.flatnonzero(of == n).tolist()) > 1)
    for steps in (1, max(1, ends.shape[1])):
        components = near_pairs.Components(count)
        for a, b in np.array_split(ends, steps, axis=1):
            components.join(a, b)
            components.connected()
        assert sorted(part.tolist() for part in components.connected()) == expected


@settings(max_examples=15)
@given(
    st.integers(0, 2**32),
    st.integers(1, 150),
    st.sampled_from([2, 9, 65, 200]),
    st.sampled_from([0.5, 0.9, 0.97]),
)
def test_every_near_pair_is_found(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, dim: int, min_score: float
) -> None:
    vectors = crowd(seed, count, dim)
    gallery = make(tmp_path_factory.mktemp("crowd") / "g", vectors, pieces=1 + seed % 3)
    assert found(gallery, min_score) == one_by_one(vectors, min_score)


def test_pairs_across_blocks_are_found(tmp_path: Path) -> None:
    vectors = crowd(5, 5000, 100)
    vectors[4900] = vectors[10]  # in the first and in the last block
    gallery = make(tmp_path / "g", vectors, pieces=7)
    with gallery.store.writing():
        gallery.store.remove(gallery.ids_of(["11", "12", "4999"]))
    gallery.refresh()
    alive = np.delete(np.arange(5000), [11, 12, 4999])
    expected = {frozenset(alive[list(group)].tolist()) for group in one_by_one(vectors[alive], 0.93)}
    assert len(expected) > 100
    assert found(gallery, 0.93) == expected
    assert any({10, 4900} <= group for group in expected)


def test_cells_find_the_groups_that_all_pairs_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = crowd(3, 6000, 24)
    gallery = make(tmp_path / "g", vectors)
    with gallery.store.writing():
        gallery.store.remove(gallery.ids_of([str(i) for i in range(0, 3000, 10)]))
    gallery.refresh()
    everything = gallery.duplicates(0.9)
    assert everything.recall is None
    monkeypatch.setattr(duplicates, "EXACT_UP_TO", 1000)
    assert gallery.duplicates(0.9, exact=True) == everything
    compared: list[int] = []
    monkeypatch.setattr(Progress, "update", lambda self, step, note="": compared.append(step))
    found = gallery.duplicates(0.9)
    assert sum(compared) < 5700**2 / 4, "fewer than half of all pairs"
    assert found.recall is not None
    assert found.recall.pairs > 100
    assert found.recall.share is not None
    assert found.recall.share >= 0.99
    true, whole = ({(g.members[0].id, len(g.members)) for g in one.groups} for one in (everything, found))
    assert len(true & whole) >= 0.97 * len(true)


def test_recall_is_that_of_the_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cell a vector misses pairs; the recall is compared with all pairs one by one."""
    monkeypatch.setattr(duplicates, "EXACT_UP_TO", 100)
    monkeypatch.setattr(near_pairs, "_VISITED", (1,))
    vectors = crowd(4, 1500, 6)
    found = make(tmp_path / "g", vectors).duplicates(0.9)
    group_of = {int(item.key): at for at, group in enumerate(found.groups) for item in group.members}
    a, b = np.nonzero(np.triu(vectors.astype(float) @ vectors.T.astype(float) >= 0.9, 1))
    together = [
        i in group_of and group_of[i] == group_of.get(j) for i, j in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert found.recall is not None
    assert found.recall.pairs == 2 * len(a)
    assert found.recall.connected == 2 * sum(together)
    assert 0.5 < sum(together) / len(a) < 1


def test_a_thousand_copies_are_one_group(tmp_path: Path) -> None:
    vectors = np.repeat(crowd(1, 2, 70), 1500, axis=0)
    assert found(make(tmp_path / "g", vectors), 1.0) == {frozenset(range(1500)), frozenset(range(1500, 3000))}


def test_identical_files_are_found_by_their_bytes(tmp_path: Path) -> None:
    vectors = np.eye(6, dtype=np.float32)
    gallery = make(tmp_path / "g", vectors, contents=["a", "b", "a", "", "", "b"])
    groups = gallery.duplicates(0.9).groups
    assert [[item.key for item in group.members] for group in groups] == [["0", "2"], ["1", "5"]]
    assert all(group.identical for group in groups)
    assert [group.lowest for group in groups] == [0.0, 0.0]


def test_chain_reports_its_lowest_score(tmp_path: Path) -> None:
    angles = np.radians([0, 10, 20, 30, 90])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    (group,) = make(tmp_path / "g", vectors, contents=["a", "a", "c", "d", "e"]).duplicates(0.98).groups
    assert [item.key for item in group.members] == ["0", "1", "2", "3"]
    assert group.lowest == pytest.approx(np.cos(np.radians(30)), abs=1e-6)
    assert not group.identical


def test_groups_across_labels_come_first(tmp_path: Path) -> None:
    vectors = np.zeros((8, 8), np.float32)  # four pairs, each in a plane of its own
    for pair, angle in enumerate(np.radians([1, 10, 5, 20])):
        vectors[2 * pair, 2 * pair] = 1
        vectors[2 * pair + 1, 2 * pair : 2 * pair + 2] = np.cos(angle), np.sin(angle)
    labels = ["a", "a", "a", "b", "c", "b", None, "a"]
    groups = make(tmp_path / "g", vectors, labels=labels).duplicates(0.9).groups
    order = [([item.key for item in group.members], group.labels) for group in groups]
    assert order[:2] == [(["4", "5"], ("b", "c")), (["2", "3"], ("a", "b"))]
    assert {tuple(labels) for _, labels in order[2:]} == {("a",)}, "no label disagrees with none"


def test_lowest_threshold_gives_one_group(tmp_path: Path) -> None:
    vectors = crowd(2, 30, 5)
    assert found(make(tmp_path / "g", vectors), -1.0) == {frozenset(range(30))}


@pytest.mark.parametrize("count", [0, 1])
def test_galleries_of_zero_or_one_image(tmp_path: Path, count: int) -> None:
    assert found(make(tmp_path / "g", crowd(0, 3, 4)[:count]), 0.0) == set()


@pytest.mark.parametrize("wrong", [1.01, -2.0, float("nan")])
def test_invalid_thresholds(tmp_path: Path, wrong: float) -> None:
    with pytest.raises(InputError, match="from -1 to 1"):
        make(tmp_path / "g", crowd(0, 3, 4)).duplicates(wrong)


def test_damaged_vector_raises(tmp_path: Path) -> None:
    gallery = make(tmp_path / "g", crowd(0, 50, 8))
    (segment,) = [path for path in (tmp_path / "g" / "segments").iterdir() if path.suffixes == [".npy"]]
    data = bytearray(segment.read_bytes())
    data[-3] ^= 1
    segment.write_bytes(data)
    with pytest.raises(LookalikeError, match=r"damaged.*verify"):
        Gallery.open(gallery.folder).duplicates()


@pytest.mark.slow
def test_known_duplicates_of_cars(tmp_path: Path, model_file: Path) -> None:
    """Two folders of Cars196 hold the same file."""
    cars = unzip_shared("cars196_256.zip", tmp_path / "cars")
    for folder in cars.iterdir():
        if not folder.name.startswith(("041", "042", "043", "044")):
            for path in folder.iterdir():
                path.unlink()
    lookalike_here("index", "build", str(tmp_path / "g"), str(cars), "--model", str(model_file))
    shown = lookalike_here("check", "duplicates", str(tmp_path / "g"), "--min-score", "0.9999").stdout
    assert "identical files, ACROSS LABELS" in shown
    assert "00050.jpg" in shown
    assert "03436.jpg" in shown
