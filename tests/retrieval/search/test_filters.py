"""Filters and groupings that are kept across commits against plain Python; selections against brute force."""

from __future__ import annotations

import gc
import random
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval import Gallery
from retrieval.search import filters, selection, vectors
from retrieval.search.options import SearchOptions
from retrieval.search.selection import Selection
from retrieval.search.snapshot import Snapshot
from retrieval.search.vectors import Vectors
from retrieval.storage import lookups, queries
from retrieval.storage.merging import merge_small
from retrieval.storage.records import Change, FileStamp, IndexSpec, NewItem
from retrieval.upkeep.compact import compact
from retrieval.upkeep.verify import verify
from tests.retrieval.filling import DIM, bare_gallery, commit, unit_vectors
from tests.retrieval.vectors import brute_force, clustered

CONDITIONS = {
    "price < 5": lambda f: f["price"] is not None and f["price"] < 5,
    "price is null": lambda f: f["price"] is None,
    "not (price >= 5 or brand = 'a')": lambda f: (
        None not in f.values() and f["price"] < 5 and f["brand"] != "a"
    ),
    "brand in ('a', 'b') and key like 'k%'": lambda f: f["brand"] in ("a", "b"),
    "brand not like 'A%'": lambda f: f["brand"] not in (None, "a"),
    "price > 3": lambda f: f["price"] is not None and f["price"] > 3,
}
Facts = dict[str, Any]


class Model:
    """Gallery with what it should contain, changed at random."""

    def __init__(self, folder: Path) -> None:
        self.gallery, self.random = bare_gallery(folder), random.Random(0)
        self.facts: dict[str, Facts] = {}
        self.vectors: dict[str, np.ndarray] = {}

    def draw(self) -> Facts:
        price = self.random.choice([None, *range(10), 4.5])
        return {"price": price, "brand": self.random.choice([None, "a", "b", "c"])}

    def some(self, count: int) -> list[str]:
        return self.random.sample(sorted(self.facts), min(count, len(self.facts)))

    def add(self, keys: list[str]) -> None:
        self.facts |= {key: self.draw() for key in keys}
        stamp = FileStamp("", "", 0, 0)
        items = [NewItem(stamp, "", 1, 1, self.facts[key], key) for key in keys]
        vectors = unit_vectors(len(keys), self.random.randrange(1000))
        self.vectors |= zip(keys, vectors, strict=True)
        self.gallery.store.commit(vectors, items)

    def change(self, what: str) -> None:
        """Commit a change; the gallery is refreshed at random, so that several may come together."""
        with self.gallery.store.writing():
            if what == "add":
                self.add([f"k{self.random.randrange(10**6)}" for _ in range(20)])
            elif what == "replace":
                self.add(self.some(10))
            elif what == "remove":
                gone = self.some(10)
                fresh = Gallery(self.gallery.folder)
                self.gallery.store.remove(fresh.ids_of(gone))
                for key in gone:
                    del self.facts[key]
            elif what == "amend":
                fresh = Gallery(self.gallery.folder)
                changes = []
                for key in self.some(10):
                    self.facts[key] = self.draw()
                    changes.append(Change(fresh.ids_of([key])[0], metadata=self.facts[key]))
                self.gallery.store.amend(changes)
            elif what == "merge":
                assert merge_small(self.gallery.store) > 1
        if what == "compact":
            compact(Gallery(self.gallery.folder))
        if self.random.random() < 0.7:
            self.check()

    def check(self) -> None:
        """Compare the hits of all conditions and groupings with the facts."""
        self.gallery.refresh()
        query = unit_vectors(1, 7)
        for where, holds in CONDITIONS.items():
            hits = self.gallery.search_vectors(query, 10_000, where=where)[0]
            allowed = [key for key, facts in self.facts.items() if holds(facts)]
            assert {hit.key for hit in hits} == {*allowed}
            self.check_nearest(where, allowed)
        self.check_nearest(None, [*self.facts])
        everything = self.gallery.search_vectors(query, 10_000)[0]
        best: dict[Any, str] = {}
        for hit in everything:
            best.setdefault(self.facts[hit.key]["brand"] or hit.key, hit.key)
        grouped = self.gallery.search_vectors(query, 10_000, group_by="brand")[0]
        assert {hit.key for hit in grouped} == set(best.values())

    def check_nearest(self, where: str | None, allowed: list[str]) -> None:
        """Compare the best hits of one query and of many with brute force over the vectors."""
        matrix = np.array([self.vectors[key] for key in allowed], np.float32).reshape(-1, DIM)
        for count in (1, 20):
            asked = unit_vectors(count, self.random.randrange(1000))
            expected = brute_force(matrix, asked, 5)[0]
            for hits, scores in zip(
                self.gallery.search_vectors(asked, 5, where=where), expected, strict=True
            ):
                best = [score for score in scores.tolist() if score > -2]
                assert [hit.score for hit in hits] == pytest.approx(best, abs=1e-6)
                assert {hit.key for hit in hits} <= {*allowed}
                shown = {hit.key: hit.metadata.get("price") for hit in hits}
                assert shown == {key: self.facts[key]["price"] for key in shown}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("copied", [0, 1 << 26])
def test_filters_within_an_index_follow_commits(
    tmp_path: Path, seed: int, copied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that visits all cells finds the true neighbours, whatever was committed since it was built."""
    monkeypatch.setattr(selection, "COPIED", copied)
    monkeypatch.setattr(Snapshot, "_is_exact", lambda _, k, count, selected: count <= k)
    model = Model(tmp_path / "g")
    model.random.seed(seed)
    with model.gallery.store.writing():
        model.add([f"k{n}" for n in range(1000)])
        model.gallery.build_index(IndexSpec("ivf-flat", recall=1))
    model.check()
    for what in model.random.choices(["add", "replace", "remove", "amend"], k=6):
        model.change(what)
    with model.gallery.store.writing():
        model.gallery.build_index()
    model.change("amend")
    model.check()
    assert model.gallery.index is not None


@pytest.mark.parametrize("seed", range(3))
def test_filters_follow_commits(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scans: list[bool] = []
    asked = filters.ids_matching

    def counting(*args: Any, **options: Any) -> np.ndarray:
        scans.append(options.get("among") is None)
        return asked(*args, **options)

    monkeypatch.setattr(filters, "ids_matching", counting)
    monkeypatch.setattr(queries, "_SORTED", 1 if seed else 10_000)
    monkeypatch.setattr(queries, "_AT_ONCE", 64 if seed else 1 << 20)
    model = Model(tmp_path / "g")
    model.random.seed(seed)
    with model.gallery.store.writing():
        model.add([f"k{n}" for n in range(200)])
    model.check()
    assert scans == [True] * len(CONDITIONS)
    model.check()
    assert len(scans) == len(CONDITIONS), "nothing has changed"
    for what in [*model.random.choices(["add", "replace", "remove", "amend"], k=12), "add", "add", "merge"]:
        model.change(what)
    model.check()
    assert scans.count(True) == len(CONDITIONS), "only what changed is asked for"
    model.change("compact")
    model.change("amend")
    model.check()


def test_amended_before_a_compaction_that_keeps_the_segments(tmp_path: Path) -> None:
    model = Model(tmp_path / "g")
    with model.gallery.store.writing():
        model.add([f"k{n}" for n in range(50)])
    model.check()
    with model.gallery.store.writing():
        (number,) = model.gallery.ids_of(["k7"])
        model.facts["k7"] = {"price": 99, "brand": "z"}
        model.gallery.store.amend([Change(number, metadata=model.facts["k7"])])
    compact(Gallery(model.gallery.folder))
    model.check()


def test_readers_of_different_states_share_the_cache(tmp_path: Path) -> None:
    model = Model(tmp_path / "g")
    with model.gallery.store.writing():
        model.add([f"k{n}" for n in range(60)])
    model.gallery.refresh()
    older, where = model.gallery._searcher, "price is null or price >= 0"
    options = SearchOptions(1000, where)
    with model.gallery.store.writing():
        model.add(["new"])
    model.gallery.refresh()
    newer = model.gallery._searcher
    for _ in range(2):
        assert len(newer.find(unit_vectors(1), options)[0].rows) == 61
        assert len(older.find(unit_vectors(1), options)[0].rows) == 60


def test_kept_filters_hold_no_earlier_state(tmp_path: Path) -> None:
    """The files of a state are closed when it is left, which is what weak references to snapshots show."""
    gallery, states = bare_gallery(tmp_path / "g"), []
    for number in range(4):
        commit(gallery, [f"k{number}"], price=number)
        for options in ({"where": f"price <= {number}"}, {"group_by": "price"}):
            assert gallery.search_vectors(unit_vectors(1), 5, **options)[0]
        states.append(weakref.ref(gallery.state))
    gc.collect()
    assert [state() is None for state in states] == [True, True, True, False]


def test_lookup_indexes_change_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "WORTHWHILE", 10)
    model = Model(tmp_path / "g")
    with model.gallery.store.writing():
        model.add([f"k{n}" for n in range(200)])
        lookups.create_lookups(model.gallery.store)
        lookups.create_lookups(model.gallery.store)
    plan = "EXPLAIN QUERY PLAN SELECT group_concat(id) FROM metadata WHERE metadata.price < 5 AND +id < 9"
    assert "COVERING INDEX" in str(model.gallery.store.select(plan))
    for what in ("add", "remove", "amend", "replace"):
        model.change(what)
    model.check()
    compact(Gallery(model.gallery.folder))
    model.check()
    assert not verify(model.gallery.folder).problems


@given(
    share=st.sampled_from([0, 0.001, 0.05, 0.2, 0.6, 1]),
    queries=st.sampled_from([1, 3, 20]),
    k=st.sampled_from([1, 10, 300]),
    start=st.sampled_from([0, 13, 500]),
    kept=st.booleans(),
    lasting=st.booleans(),
    half=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_way_to_search_selected_rows_finds_the_nearest(
    share: float, queries: int, k: int, start: int, kept: bool, lasting: bool, half: bool, seed: int
) -> None:
    rows = clustered(900, 8, seed).astype(np.float16 if half else np.float32)
    allowed = np.random.default_rng(seed).random(900) < share
    asked = clustered(queries, 8, seed + 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(selection, "COPIED", (1 << 20) if kept else 0)
        patched.setattr(selection, "_COPIED_FOR_ONE", 1000)
        patched.setattr(vectors, "_WIDE_BLOCK", 128)
        patched.setattr(vectors, "_BLOCK", 100)
        selected = Selection(allowed, lasting=lasting)
        stored = Vectors(np.split(rows, [100, 101, 700]), 8)
        found = [stored.nearest(asked, k, selected, start) for _ in range(2)]
    possible = allowed & (np.arange(900) >= start)
    scores, numbers = brute_force(rows.astype(np.float32), asked, k, possible)
    for ours, ours_rows in found:
        np.testing.assert_allclose(ours, scores, atol=1e-6)
        np.testing.assert_array_equal(ours_rows < 0, numbers < 0)
        assert possible[ours_rows[ours_rows >= 0]].all()


def test_copy_is_made_when_a_condition_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_COPIED_FOR_ONE", 0)
    copies: list[int] = []
    vectors_of = Selection.vectors

    def counting(self: Selection, take: Any) -> Any:
        copies.append(self.count)
        return vectors_of(self, take)

    monkeypatch.setattr(Selection, "vectors", counting)
    model = Model(tmp_path / "g")
    with model.gallery.store.writing():
        model.add([f"k{n}" for n in range(200)])
    model.gallery.refresh()
    found = []
    for _ in range(3):
        found.append(model.gallery.search_vectors(unit_vectors(1), 5, where="price < 5")[0])
        assert len(copies) == len(found) - 1
    assert found[0] == found[1] == found[2]
    model.gallery.search_vectors(unit_vectors(2), 5, where="price < 6")
    assert len(copies) == 3, "many queries are worth a copy at once"


@pytest.fixture
def rated(tmp_path: Path) -> Gallery:
    """1,000 items with the prices 0 to 999."""
    gallery, facts = bare_gallery(tmp_path / "g"), FileStamp("", "", 0, 0)
    with gallery.store.writing():
        items = [NewItem(facts, "", 1, 1, {"price": n}, f"k{n}") for n in range(1000)]
        gallery.store.commit(unit_vectors(1000), items)
    gallery.refresh()
    gallery.search_vectors(unit_vectors(1), 5, where="price < 900")
    return gallery


def test_filters_take_little_memory_in_a_small_gallery(
    rated: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies of all would take 10 MB, the vectors of the gallery take 0.2 MB."""
    monkeypatch.setattr(filters, "_LEAST", 0, raising=False)
    scans, asked = list[Any](), filters.ids_matching
    monkeypatch.setattr(filters, "ids_matching", lambda *args, **kw: scans.append(1) or asked(*args, **kw))
    tracemalloc.start()
    try:
        for number in [n for n in range(300, 375) for _ in range(2)] * 4:
            where = f"price >= {number}"
            assert len(rated.search_vectors(unit_vectors(1), 1000, where=where)[0]) == 1000 - number
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 1.5e6
    assert len(scans) == 75, "conditions stay when copies of vectors have to go"


def test_copies_that_do_not_fit_seldom_replace_each_other(
    rated: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "_LEAST", 0, raising=False)
    monkeypatch.setattr(selection, "_COPIED_FOR_ONE", 0)
    copies, take = list[int](), Vectors.take

    def counting(self: Vectors, rows: np.ndarray) -> np.ndarray:
        copies.extend([len(rows)] * (len(rows) > 500))
        return take(self, rows)

    monkeypatch.setattr(Vectors, "take", counting)
    for number in [*range(300, 340)] * 5:
        found = rated.search_vectors(unit_vectors(1), 3, where=f"price >= {number}")[0]
        assert [hit.metadata["price"] >= number for hit in found] == [True] * 3
    assert 5 < len(copies) < 40, "of 160 repeated searches"
    copies.clear()
    for _ in range(9):
        rated.search_vectors(unit_vectors(1), 3, where="price >= 200")
    assert copies == [800], "what is asked for again and again gets its copy"
    copies.clear()
    for number in range(201, 205):
        rated.search_vectors(unit_vectors(2), 3, where=f"price >= {number}")
    assert copies == [799, 798, 797, 796], "many queries are worth a copy, although it is not kept"


def test_selector_replaces_surplus_where_selected_rows_are_far_away() -> None:
    rows, query = clustered(2000, 8, 1), clustered(1, 8, 2)
    far = np.argsort(rows @ query[0])[:1000]
    selected = Selection(np.isin(np.arange(2000), far))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(selection, "COPIED", 0)
        stored = Vectors([rows], 8)
        assert selected.surplus(10)
        for _ in range(4):
            _, found = stored.nearest(query, 10, selected)
            np.testing.assert_array_equal(found, brute_force(rows, query, 10, selected.allowed)[1])
        assert not selected.surplus(10), "the nearest rows are not selected ones"


def test_one_selection_serves_many_threads() -> None:
    rows = clustered(3000, 8, 1)
    selected = Selection(np.arange(3000) % 3 == 0)
    stored = Vectors([rows], 8)
    asked = clustered(40, 8, 2)
    expected = [stored.nearest(query[None], 5, Selection(selected.allowed))[1].tolist() for query in asked]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda query: stored.nearest(query[None], 5, selected)[1].tolist(), asked))
    assert found == expected
