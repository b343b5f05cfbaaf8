"""Search options against a brute-force computation in numpy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import Gallery, InputError
from retrieval.search.options import CANDIDATES, MOST_CANDIDATES, SearchOptions
from retrieval.search.rerank import k_reciprocal
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import FileStamp, IndexSpec, NewItem
from retrieval.storage.store import Store

COUNT, DIM = 240, 12
MANIFEST = Manifest("", DIM, embedding="random")
LABELS = ["hat", "shoe", "coat", None]
BRANDS = ["acme", "zenith", None, "o'neil"]


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def clustered(seed: int, count: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(9, DIM))
    return unit(centres[random.integers(0, 9, count)] + 0.5 * random.normal(size=(count, DIM)))


def facts(i: int) -> dict[str, Any]:
    """Return the metadata of the i-th item; prices are integers, fractions or missing."""
    price = [i % 70, i / 10, None][i % 3]
    return {"key": f"k{i}", "label": LABELS[i * 7 % 4], "brand": BRANDS[i * 5 % 11 % 4], "price": price}


def make(folder: Path, pieces: int = 1) -> Gallery:
    """Return a gallery of vectors with metadata, committed in several pieces."""
    store = Store.create(folder, MANIFEST)
    vectors = clustered(1, COUNT)
    with store.writing():
        for some in np.array_split(np.arange(COUNT), pieces):
            items = [
                NewItem(
                    FileStamp("/pictures", f"{i}.jpg", 1, 1, facts(i)["label"]),
                    *(f"{i:064x}", 300 + i, 200),
                    {name: facts(i)[name] for name in ("brand", "price")},
                    f"k{i}",
                )
                for i in some.tolist()
            ]
            store.commit(vectors[some], items)
    return Gallery.open(folder)


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    return make(tmp_path_factory.mktemp("galleries") / "whole")


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """Return the same items in many segments, with removed items among them."""
    made = make(tmp_path_factory.mktemp("galleries") / "pieces", pieces=17)
    extra = [NewItem(FileStamp("/pictures", f"x{i}.jpg", 1, 1), "", 1, 1, {}, f"x{i}") for i in range(40)]
    with made.store.writing():
        made.store.commit(clustered(1, COUNT)[:40], extra)  # copies, which would be hits if not removed
        made.refresh()
        made.store.remove(made.ids_of([f"x{i}" for i in range(40)]))
    made.refresh()
    return made


def brute_force(query: np.ndarray, holds: Callable[[dict[str, Any]], bool] = lambda _: True) -> list[int]:
    """Return all items that fulfil a predicate, nearest first."""
    scores = clustered(1, COUNT).astype(float) @ query.astype(float)
    return [i for i in np.argsort(-scores, kind="stable").tolist() if holds(facts(i))]


def keys(hits: list[Any]) -> list[str]:
    return [hit.key for hit in hits]


def numbered(rows: list[int]) -> list[str]:
    return [f"k{i}" for i in rows]


QUERY = clustered(2, 1)


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("label = 'hat'", lambda f: f["label"] == "hat"),
        ("price < 5", lambda f: f["price"] is not None and f["price"] < 5),
        (
            "price is null and brand != 'acme'",
            lambda f: f["price"] is None and f["brand"] not in ("acme", None),
        ),
        ("brand = 'o''neil' or label is null", lambda f: f["brand"] == "o'neil" or f["label"] is None),
        ("key in ('k3', 'k77')", lambda f: f["key"] in ("k3", "k77")),
        (
            "path like '1_.jpg' and width >= 312",
            lambda f: f["key"][1:].isdigit() and 12 <= int(f["key"][1:]) < 20,
        ),
        ("BRAND like 'A%'", lambda f: f["brand"] == "acme"),
        ("height = 7", lambda f: False),
        (
            f"key in ({', '.join(repr(f'k{i}') for i in range(0, 20_000, 3))})",
            lambda f: int(f["key"][1:]) % 3 == 0,
        ),
    ],
)
def test_where_filters_hits(gallery: Gallery, where: str, holds: Any) -> None:
    hits = gallery.search_vectors(QUERY, 20, where=where)[0]
    assert keys(hits) == numbered(brute_force(QUERY[0], holds)[:20])


def test_hits_carry_the_facts_of_their_items(gallery: Gallery) -> None:
    best = brute_force(QUERY[0])[0]
    (hit,) = gallery.search_vectors(QUERY, 1)[0]
    assert (hit.key, hit.label, hit.path) == (f"k{best}", facts(best)["label"], f"/pictures/{best}.jpg")
    assert {name: hit.metadata.get(name) for name in ("brand", "price")} == {
        name: facts(best)[name] for name in ("brand", "price")
    }
    assert hit.score == pytest.approx(float(clustered(1, COUNT)[best] @ QUERY[0]), abs=1e-6)


def test_excluded_by_id_and_by_key(gallery: Gallery) -> None:
    order = brute_force(QUERY[0])
    (third,) = gallery.ids_of([f"k{order[2]}"])
    hits = gallery.search_vectors(QUERY, 5, exclude=[f"k{order[0]}", third])[0]
    assert keys(hits) == numbered([order[1], *order[3:7]])


def test_search_id_excludes_the_item(gallery: Gallery) -> None:
    order = brute_force(clustered(1, COUNT)[5])
    assert order[0] == 5
    (number,) = gallery.ids_of(["k5"])
    assert keys(gallery.search_id("k5", 6)) == numbered(order[1:7])
    assert keys(gallery.search_id(number, 6, exclude=[f"k{order[1]}"])) == numbered(order[2:8])


def test_min_score(gallery: Gallery) -> None:
    scores = np.sort(clustered(1, COUNT) @ QUERY[0])[::-1]
    lowest = float(scores[7] + scores[8]) / 2
    assert len(gallery.search_vectors(QUERY, 50, min_score=lowest)[0]) == 8
    assert gallery.search_vectors(QUERY, 50, min_score=1.0)[0] == []


@pytest.mark.parametrize("column", ["label", "brand", "price", "key"])
@pytest.mark.parametrize("k", [1, 3, 9, 200])
def test_group_by(gallery: Gallery, column: str, k: int) -> None:
    expected, seen = [], set()
    for i in brute_force(QUERY[0]):
        value = facts(i)[column]
        if value is None or value not in seen:
            expected.append(i)
            seen.add(value)
    assert keys(gallery.search_vectors(QUERY, k, group_by=column)[0]) == numbered(expected[:k])


def test_group_by_with_where(gallery: Gallery) -> None:
    rows = brute_force(QUERY[0], lambda f: f["price"] is not None and f["brand"] is not None)
    brands = [facts(i)["brand"] for i in rows]
    expected = sorted(brands.index(brand) for brand in ("acme", "zenith", "o'neil"))
    hits = gallery.search_vectors(
        QUERY, 9, group_by="brand", where="price is not null and brand is not null"
    )[0]
    assert keys(hits) == numbered([rows[i] for i in expected])


def in_order(rows: list[int], column: str, descending: bool) -> list[int]:
    """Return rows by their values of a column: missing values last, equal ones as they are."""
    there = [i for i in rows if facts(i)[column] is not None]
    there.sort(key=lambda i: facts(i)[column], reverse=descending)
    return there + [i for i in rows if facts(i)[column] is None]


@pytest.mark.parametrize(
    ("order", "column", "descending"),
    [
        ("price", "price", False),
        ("PRICE desc", "price", True),
        ("label desc", "label", True),
        ("brand", "brand", False),
    ],
)
def test_order_by_a_column(gallery: Gallery, order: str, column: str, descending: bool) -> None:
    options = SearchOptions(300, "key != 'k7'", min_score=0.1, order=order)
    (hits,) = gallery.find(QUERY, options)
    scores = clustered(1, COUNT).astype(float) @ QUERY[0].astype(float)
    expected = [i for i in brute_force(QUERY[0]) if scores[i] >= 0.1 and i != 7]
    assert 20 < len(expected) < COUNT - 20
    assert keys(hits) == numbered(in_order(expected, column, descending))
    (first,) = gallery.find(QUERY, replace(options, k=9))
    assert first == hits[:9]
    groups = gallery.find(QUERY, SearchOptions(300, group_by="label", order="price"))[0]
    best = gallery.search_vectors(QUERY, 300, group_by="label")[0]
    assert {hit.key for hit in groups} == {hit.key for hit in best}


def test_order_is_among_the_most_similar_and_more_hits_continue_it(tmp_path: Path) -> None:
    """The cheapest of the whole gallery are not the answer, and a longer answer begins with the shorter."""
    count = MOST_CANDIDATES + 300
    vectors, prices = clustered(3, count), np.random.default_rng(4).permutation(count)
    store = Store.create(tmp_path / "g", MANIFEST)
    items = [
        NewItem(FileStamp("/p", f"{i}.jpg", 1, 1), "", 1, 1, {"price": price}, f"k{i}")
        for i, price in enumerate(prices.tolist())
    ]
    with store.writing():
        store.commit(vectors, items)
    opened = Gallery.open(tmp_path / "g")
    nearest = np.argsort(-(vectors.astype(float) @ QUERY[0].astype(float)))[:MOST_CANDIDATES]
    expected = numbered(nearest[np.argsort(-prices[nearest])].tolist())
    for k in (1, 48, 400, MOST_CANDIDATES):
        (hits,) = opened.find(QUERY, SearchOptions(k, order="price desc"))
        assert keys(hits) == expected[:k]


def test_query_expansion_searches_again(gallery: Gallery) -> None:
    vectors = clustered(1, COUNT)
    hats = brute_force(QUERY[0], lambda f: f["label"] == "hat")
    near = vectors[hats[:10]].astype(float)
    moved = QUERY[0] + (np.maximum(near @ QUERY[0], 0) ** 3) @ near
    moved /= np.linalg.norm(moved)
    hits = gallery.search_vectors(QUERY, 20, where="label = 'hat'", rerank="query-expansion")[0]
    assert keys(hits) == numbered(brute_force(moved, lambda f: f["label"] == "hat")[:20])
    by_key = {f"k{i}": float(vectors[i] @ moved) for i in hats}
    np.testing.assert_allclose([hit.score for hit in hits], [by_key[hit.key] for hit in hits], atol=1e-6)


def test_k_reciprocal_orders_the_candidates(gallery: Gallery) -> None:
    candidates = brute_force(QUERY[0])[:CANDIDATES]
    distances = k_reciprocal(QUERY[0], clustered(1, COUNT)[candidates])
    hits = gallery.search_vectors(QUERY, 30, rerank="k-reciprocal")[0]
    order = np.argsort(distances, kind="stable")[:30]
    assert keys(hits) == numbered([candidates[i] for i in order])
    np.testing.assert_allclose([hit.score for hit in hits], 1 - distances[order], atol=1e-6)
    assert keys(hits) != numbered(candidates[:30])
    grouped = gallery.search_vectors(QUERY, 3, rerank="k-reciprocal", group_by="key", min_score=-1)[0]
    assert keys(grouped) == keys(hits)[:3]


def test_batch_equals_single_queries(gallery: Gallery) -> None:
    queries = clustered(3, 30)
    for options in ({}, {"group_by": "label"}, {"rerank": "query-expansion"}, {"rerank": "k-reciprocal"}):
        together = gallery.search_vectors(queries, 5, **options)
        for query, hits in zip(queries, together, strict=True):
            assert keys(hits) == keys(gallery.search_vectors(query[None], 5, **options)[0])
    assert gallery.search_vectors(queries[:0], 5) == []


conditions = st.none() | st.sampled_from(
    [
        "label = 'hat'",
        "price between 3 and 20",
        "brand is null",
        "not (label = 'shoe' or price > 9)",
        "id < 9",
    ]
)
options = st.builds(
    SearchOptions,
    k=st.sampled_from([1, 4, 30, 1000]),
    where=conditions,
    exclude=st.lists(st.integers(0, COUNT - 1).map(lambda i: f"k{i}"), max_size=5),
    min_score=st.none() | st.floats(-1, 1),
    group_by=st.none() | st.sampled_from(["label", "brand", "Price"]),
    rerank=st.sampled_from(["none", "query-expansion", "k-reciprocal"]),
)


@settings(max_examples=60)
@given(options=options, seed=st.integers(0, 50))
def test_search_is_independent_of_segments_and_removals(
    gallery: Gallery, pieces: Gallery, options: SearchOptions, seed: int
) -> None:
    query = clustered(seed, 1)
    (whole,), (parts,) = gallery.find(query, options), pieces.find(query, options)
    assert keys(whole) == keys(parts)
    np.testing.assert_array_equal([hit.score for hit in whole], [hit.score for hit in parts])
    assert [hit.score for hit in whole] == sorted((hit.score for hit in whole), reverse=True)
    assert len(whole) <= options.k
    assert not set(keys(whole)) & set(options.exclude)
    assert all(hit.score >= (options.min_score or -9) for hit in whole)


def test_every_allowed_item_is_found_when_k_is_large(gallery: Gallery) -> None:
    everything = brute_force(QUERY[0], lambda f: f["label"] == "coat")
    assert keys(gallery.search_vectors(QUERY, 10_000, where="label = 'coat'")[0]) == numbered(everything)


def test_options_with_an_approximate_index(tmp_path: Path) -> None:
    """With an approximate index, options still hold and scores are exact."""
    count = 13_000  # fewer would be searched exactly
    vectors, store = clustered(4, count), Store.create(tmp_path / "g", MANIFEST)
    with store.writing():
        items = [
            NewItem(FileStamp("", "", 0, 0, LABELS[i % 4]), "", 1, 1, {"price": i}, f"k{i}")
            for i in range(count)
        ]
        store.commit(vectors, items)
        store.remove([7, 8])
    made = Gallery.open(tmp_path / "g")
    with made.store.writing():
        made.build_index(IndexSpec("ivf-sq8", recall=0.9))
    assert made.index is not None
    scores = {f"k{i}": float(score) for i, score in enumerate(vectors.astype(float) @ QUERY[0])}
    for asked in (
        SearchOptions(20, where="price > 500"),
        SearchOptions(20, exclude=made.ids_of(["k100", "k101"])),
        SearchOptions(20, group_by="label", where="price != 3"),
        SearchOptions(20, rerank="k-reciprocal"),
        SearchOptions(20, rerank="query-expansion", min_score=-1),
    ):
        (hits,) = made.find(QUERY, asked)
        assert len(hits) == 20
        assert not {"k6", "k7"} & set(keys(hits)), "they were removed"
        if asked.rerank == "none":
            np.testing.assert_allclose(
                [hit.score for hit in hits], [scores[hit.key] for hit in hits], atol=1e-6
            )
        if asked.where == "price > 500":
            assert all(hit.metadata["price"] > 500 for hit in hits)
        if asked.exclude:
            assert not {"k100", "k101"} & set(keys(hits))
        if asked.group_by:
            labels = [hit.label for hit in hits if hit.label]
            assert sorted(labels) == ["coat", "hat", "shoe"]


def test_conditions_see_new_commits(tmp_path: Path) -> None:
    made = make(tmp_path / "g")
    assert made.search_vectors(QUERY, 5, where="brand = 'new'") == [[]]
    item = NewItem(FileStamp("/pictures", "new.jpg", 1, 1), "", 1, 1, {"brand": "new"}, "new")
    with made.store.writing():
        made.store.commit(QUERY, [item])
    assert made.search_vectors(QUERY, 5, where="brand = 'new'") == [[]], "until it is refreshed"
    made.refresh()
    assert keys(made.search_vectors(QUERY, 5, where="brand = 'new'")[0]) == ["new"]
    with made.store.writing():
        made.store.remove(made.ids_of(["new"]))
    made.refresh()
    assert made.search_vectors(QUERY, 5, where="brand = 'new'") == [[]]


def test_empty_gallery(tmp_path: Path) -> None:
    Store.create(tmp_path / "g", MANIFEST)
    empty = Gallery.open(tmp_path / "g")
    for rerank in ("none", "query-expansion", "k-reciprocal"):
        assert empty.search_vectors(QUERY, 5, rerank=rerank) == [[]]
    assert empty.search_vectors(QUERY, 5, where="label = 'hat'", group_by="label") == [[]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must be at least 1"),
        ({"min_score": 1.5}, "minimum score 1.5: must be from -1 to 1"),
        ({"min_score": float("nan")}, "from -1 to 1"),
        ({"rerank": "k-reciprocl"}, "did you mean 'k-reciprocal'"),
        (
            {"where": "brnd = 'acme'"},
            r"no column 'brnd' at character 1; did you mean 'brand'",
        ),
        ({"where": "deleted_at is null"}, "no column 'deleted_at'"),
        ({"where": "brand ="}, "at character 8, expected a value"),
        ({"where": "price < 'abc'"}, "column 'price' at character 1: it holds numbers, not text"),
        ({"where": "brand = 42"}, "column 'brand' at character 1: it holds text, not numbers"),
        ({"where": "brand > date '2024-05-01'"}, "column 'brand' at character 1: it holds no dates"),
        ({"group_by": "lable"}, "no column 'lable'; did you mean 'label'"),
        ({"exclude": ["k1", "nobody"]}, "no item 'nobody'"),
        ({"exclude": [10_000]}, "no item 10000"),
        ({"exclude": [2**70]}, "no item"),
        ({"k": 2.5}, "k must be a whole number, got 2.5"),
        ({"k": None}, "k must be a whole number, got None"),
        ({"group_by": "label", "group_size": 1.5}, "group_size must be a whole number, got 1.5"),
        ({"min_score": "0.5"}, "min_score must be a number, got '0.5'"),
        ({"diversity": "much"}, "diversity must be a number"),
        ({"where": 3}, "where must be text, got 3"),
        ({"rerank": None}, "rerank must be text, got None"),
        ({"exclude": [1.5]}, "item 1.5: an item is given by its id"),
    ],
)
def test_invalid_options(gallery: Gallery, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        gallery.search_vectors(QUERY, **options)


def test_options_may_be_numbers_of_numpy(gallery: Gallery) -> None:
    lowest = np.float32(0.1)
    expected = gallery.search_vectors(
        QUERY, 7, min_score=float(lowest), exclude=[3, 4], group_by="label", group_size=2
    )
    given: dict[str, Any] = {"min_score": lowest, "exclude": np.array([3, 4]), "group_size": np.int16(2)}
    assert gallery.search_vectors(QUERY, np.int64(7), group_by="label", **given) == expected
    assert gallery.search_vectors(QUERY, 7, exclude=(id for id in (3, 4)), order="score desc") == (
        gallery.search_vectors(QUERY, 7, exclude=[3, 4])
    )


def test_vectors_of_any_norm_are_searched_as_those_of_unit_length(gallery: Gallery) -> None:
    """Scores are cosines to the queries, computed here in float64."""
    random = np.random.default_rng(3)
    queries = random.normal(size=(5, DIM)) * np.array([[1e-30], [0.2], [1], [7], [1e30]])
    cosines = unit(queries).astype(np.float64) @ clustered(1, COUNT).T
    best = [*np.sort(cosines)[:, ::-1][:, :6].tolist()]
    for asked in (queries, queries.astype(np.float32), queries.tolist(), [*queries], torch.tensor(queries)):
        found = gallery.search_vectors(asked, 6)
        assert [[hit.score for hit in hits] for hits in found] == [
            pytest.approx(one, abs=1e-5) for one in best
        ]
    assert len(gallery.search_vectors(queries[3:4], 50, min_score=best[3][2])[0]) == 3
    assert gallery.search_vectors([]) == gallery.search_vectors(queries[:0]) == []


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        (np.ones(DIM), r"got float64 \[12\]; pass one vector as vector\[None\]"),
        (np.vstack([QUERY, 0 * QUERY]), "query 1: the vector is zero or not finite"),
        (np.ones((1, DIM), np.complex64), "got complex64"),
        ([["a"] * DIM], "finite"),
        ([[1.0], [1.0, 2.0]], "are no array"),
        (torch.ones(1, DIM, requires_grad=True), "detach"),
        (None, "got object"),
    ],
)
def test_vectors_that_cannot_be_searched(gallery: Gallery, queries: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gallery.search_vectors(queries)


def test_unknown_order(gallery: Gallery) -> None:
    with pytest.raises(InputError, match="order: no column 'pric'; did you mean 'price'") as failed:
        gallery.find(QUERY, SearchOptions(order="pric desc"))
    assert failed.value.pointer == "#/order"


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("score + brnd desc", "order: no column 'brnd'; did you mean 'brand'"),
        ("score + brand", "order: column 'brand' is text; an expression takes numbers"),
        ("score + desc", "order: at character 8, expected a number, a column or a function; got the end"),
        ("log2(price)", "order: no function 'log2' at character 1; did you mean"),
    ],
)
def test_invalid_expressions(gallery: Gallery, order: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as failed:
        gallery.find(QUERY, SearchOptions(order=order))
    assert failed.value.pointer == "#/order"


def test_unknown_items_and_vectors_of_another_model(gallery: Gallery) -> None:
    for unknown in ("nobody", 10_000, -1, "\ud800"):
        with pytest.raises(InputError, match="no item"):
            gallery.search_id(unknown)
    for wrong in (
        np.full((1, DIM), np.nan, np.float32),
        np.zeros((1, 3), np.float32),
        np.zeros(DIM, np.float32),
    ):
        for rerank in ("none", "query-expansion", "k-reciprocal"):
            with pytest.raises(InputError, match="finite"):
                gallery.search_vectors(wrong, rerank=rerank)


def test_no_score_exceeds_that_of_the_same_image(gallery: Gallery) -> None:
    """Vectors of unit length have inner products with themselves above 1, by rounding."""
    stored = gallery.embeddings()
    products = np.einsum("nd,nd->n", *2 * [stored.vectors.astype(np.float64)]).astype(np.float32)
    above = np.flatnonzero(products > 1)
    assert len(above)
    best = [hits[0] for hits in gallery.find(stored.vectors[above], SearchOptions(k=1))]
    assert [hit.id for hit in best] == stored.ids[above].tolist()
    assert {hit.score for hit in best} == {1.0}
