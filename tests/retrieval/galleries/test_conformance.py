"""Conformance of every kind of gallery: what all of them do, against brute force over the catalogue.

A new operation is a test with the fixture `filled`, a gallery that is only read, or `gallery`, one of the
test's own, and `kind` for what a kind refuses; all three are in `conftest.py`.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from retrieval import Embedder, Gallery, InputError, LookalikeError
from retrieval.galleries.items import Hit
from retrieval.galleries.searchable import SearchableGallery
from retrieval.gallery import DatabaseGallery
from retrieval.model.layer import Layer
from retrieval.search.calibration import DEPTH, NAME, Calibration, summary, write_calibration
from retrieval.search.diversity import diversified
from retrieval.search.options import CANDIDATES, GROUP_SCORES, SearchOptions
from retrieval.search.rerank import EXPANSION, expand, k_reciprocal
from retrieval.storage.facets import Facet
from retrieval.storage.listing import Order
from retrieval.stores.opening import open_engine, parse_address
from tests.conftest import draw
from tests.retrieval.galleries.conftest import COUNT, METADATA, Catalogue, Kind, Row, close
from tests.retrieval.search.test_where import (
    Date,
    Truth,
    any_of,
    both,
    compare,
    either,
    like,
    literal,
    moment,
    negate,
)
from tests.serve.model import write_model
from train.layers.folding import append_layer

Filled = tuple[SearchableGallery, Catalogue]


# ---- brute force


def nearest(
    rows: Sequence[Row],
    query: np.ndarray,
    k: int = 10,
    *,
    holds: Callable[[Row], Truth] = lambda row: True,
    exclude: Collection[str] = (),
    group_by: str | None = None,
    min_score: float = -1,
) -> list[tuple[Row, float]]:
    """Return the best rows with their scores."""
    scored = [(row, float(row.vector @ query)) for row in rows if holds(row) and row.key not in exclude]
    found, seen = [], set()
    for row, score in sorted(scored, key=lambda pair: -pair[1]):
        value = None if group_by is None else row.values[group_by]
        if score >= min_score and (value is None or value not in seen):
            found.append((row, score))
            seen.add(value)
    return found[:k]


def check_hits(found: Sequence[Hit], expected: Sequence[tuple[Row, float]], atol: float = 1e-5) -> None:
    """Check that hits have the scores, and the images except where scores are equal."""
    np.testing.assert_allclose([hit.score for hit in found], [score for _, score in expected], atol=atol)
    for hit, (row, score) in zip(found, expected, strict=True):
        equals = {other.key for other, near in expected if abs(near - score) < 2 * atol}
        if len(equals) == 1 and score > expected[-1][1] + 2 * atol:
            values = row.values
            assert (hit.key, hit.label, hit.metadata) == (row.key, values["label"], row.metadata)
            assert (hit.width, hit.height) == (values["width"], values["height"])
            assert hit.path.endswith(values["path"])


def keys_of(gallery: SearchableGallery, where: str) -> set[str]:
    return {item.key for item in gallery.items(gallery.select(where=where)).values()}


def contents(gallery: SearchableGallery) -> dict[str, tuple[Any, ...]]:
    """Return label, metadata and rounded vector of all items by key."""
    items = gallery.items(gallery.select(where="id > 0"))
    vectors = gallery.vectors([*items])
    return {
        item.key: (item.label, item.metadata, vectors[number].round(4).tolist())
        for number, item in items.items()
    }


# ---- conditions as text with their truth


class Meaning(NamedTuple):
    """A condition: its text, its truth for a row, and what a database may refuse of it."""

    text: str
    truth: Callable[[Row], Truth]
    needs: frozenset[str] = frozenset()


numbers = st.integers(-12, 30) | st.sampled_from([0.5, -4.5, 1e300])
texts = st.sampled_from(["acme", "ÄCME", "b'b", "", "r", "m", "r/12.png", "item 8"])
dates = st.sampled_from(["2024-05-10", "2024-05-07T05:00:00+02:00", "1999-01-01"]).map(Date)
patterns = st.sampled_from(["ÄC%", "_/1%", "%!_%", "%B'b", "item%", "%", ""])
COLUMNS = {"price": numbers, "width": numbers, "PRICE": numbers, "added": dates}
COLUMNS |= dict.fromkeys(["Brand", "label", "key", "path"], texts)
NAMES = {"PRICE": "price"}


@st.composite
def leaves(
    draw: st.DrawFn,
    operators: Sequence[str] = ("=", "!=", "<", "<=", ">", ">=", "in", "like", "between", "null"),
) -> Meaning:
    """Draw a test of one column."""
    column, operator = draw(st.sampled_from([*COLUMNS])), draw(st.sampled_from(operators))
    name, values = NAMES.get(column, column), COLUMNS[column]
    word, flip = draw(st.sampled_from([("", lambda truth: truth), ("not ", negate)]))
    if operator == "null":
        return Meaning(f"{column} is {word}null", lambda row: flip(row.values[name] is None))
    if operator == "like" and values is texts:
        pattern = draw(patterns)
        escape = "!" if "!" in pattern else ""
        text = f"{column} {word}like {literal(pattern)}" + (" escape '!'" if escape else "")
        return Meaning(text, lambda row: flip(like(row.values[name], pattern, escape)), frozenset({"like"}))
    if operator in ("in", "like"):
        several = draw(st.lists(values, min_size=1, max_size=3))
        text = f"{column} {word}in ({', '.join(map(literal, several))})"
        return Meaning(
            text, lambda row: flip(any_of([compare("=", row.values[name], one) for one in several]))
        )
    needs = frozenset({"text order"} if values is texts and operator not in ("=", "!=") else ())
    low, high = draw(values), draw(values)
    if operator == "between":
        text = f"{column} {word}between {literal(low)} and {literal(high)}"
        return Meaning(
            text,
            lambda row: flip(
                both(compare(">=", row.values[name], low), compare("<=", row.values[name], high))
            ),
            needs,
        )
    return Meaning(
        f"{column} {operator} {literal(low)}", lambda row: compare(operator, row.values[name], low), needs
    )


conditions = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.builds(lambda a: Meaning(f"not ({a.text})", lambda row: negate(a.truth(row)), a.needs), inner),
        st.builds(
            lambda a, b: Meaning(
                f"({a.text}) and ({b.text})", lambda row: both(a.truth(row), b.truth(row)), a.needs | b.needs
            ),
            *(inner, inner),
        ),
        st.builds(
            lambda a, b: Meaning(
                f"({a.text}) or ({b.text})", lambda row: either(a.truth(row), b.truth(row)), a.needs | b.needs
            ),
            *(inner, inner),
        ),
    ),
    max_leaves=4,
)
few = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
    ],
)


@few
@given(st.data())
def test_conditions(filled: Filled, kind: Kind, data: st.DataObject) -> None:
    """Searches and selections; what a database lacks it refuses, it does not answer something else."""
    gallery, catalogue = filled
    meaning = data.draw(conditions)
    if meaning.needs & kind.refuses:
        with pytest.raises(InputError):
            gallery.select(where=meaning.text)
        return
    query = catalogue.rows[data.draw(st.integers(0, COUNT - 1))].vector
    k = data.draw(st.sampled_from([1, 5, 100]))
    found = gallery.search_vectors(query[None], k, where=meaning.text)[0]
    check_hits(found, nearest(catalogue.rows, query, k, holds=meaning.truth))
    assert keys_of(gallery, meaning.text) == {row.key for row in catalogue.rows if meaning.truth(row) is True}


@pytest.mark.parametrize("operator", ["=", "!=", "<", "<=", ">", ">=", "in", "like", "between", "null"])
def test_every_operator(filled: Filled, kind: Kind, operator: str) -> None:
    gallery, catalogue = filled

    @settings(few, max_examples=6)
    @given(leaves([operator]))
    def check(meaning: Meaning) -> None:
        if meaning.needs & kind.refuses:
            with pytest.raises(InputError, match=r"column '.*': "):
                gallery.select(where=meaning.text)
        else:
            expected = {row.key for row in catalogue.rows if meaning.truth(row) is True}
            assert keys_of(gallery, meaning.text) == expected, meaning.text

    check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "pric > 3"}, "where: no column 'pric' at character 1; did you mean 'price'"),
        ({"group_by": "colour"}, "no column 'colour'; columns: "),
        ({"where": "price = 'a'"}, "where: column 'price' at character 1: it holds numbers, not text; "),
        ({"where": "Brand > date '2024-05-01'"}, "where: column 'Brand' at character 1: it holds no dates; "),
        ({"exclude": ["absent"]}, "no item 'absent'"),
        ({"k": 0}, "k must be"),
        ({"min_probability": 0.5}, "the gallery is not calibrated, so its hits have no probabilities"),
    ],
    ids=str,
)
def test_refusals(filled: Filled, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        filled[0].search_id("item 4", **options)
    assert message in str(error.value)


# ---- searches


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"k": 3, "group_by": "label"},
        {"k": 30, "group_by": "brand"},
        {"k": 4, "group_by": "price", "where": "price > 0"},
        {"k": 100, "exclude": ("item 4", "item 8", "r/9.png")},
        {"min_score": 0.9, "k": 40},
    ],
    ids=str,
)
def test_search_options(filled: Filled, options: dict[str, Any]) -> None:
    gallery, catalogue = filled
    expected = dict(options)
    if "where" in options:
        expected["holds"] = lambda row: (row.values["price"] or 0) > 0
        del expected["where"]
    if group := expected.get("group_by"):
        expected["group_by"] = {"brand": "Brand"}.get(group, group)
    left_out = expected.pop("exclude", ())
    by_key = {row.key: row for row in catalogue.rows}
    for key in ("item 12", "r/3.png"):
        found = gallery.search_id(key, **options)
        check_hits(found, nearest(catalogue.rows, by_key[key].vector, exclude={key, *left_out}, **expected))
    picture = by_key["g/1.png"]
    found = gallery.search(catalogue.folder / "g" / "1.png", **options)
    check_hits(found, nearest(catalogue.rows, picture.vector, exclude=left_out, **expected))


@pytest.mark.parametrize("score", GROUP_SCORES)
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("variant", [None, "label"])
def test_products(filled: Filled, score: str, views: int, variant: str | None) -> None:
    """Products, their scores, views and variants are those of a comparison with every vector."""
    gallery, catalogue = filled
    gallery.use_products(f"BRAND,{variant}" if variant else "BRAND")
    try:
        known = Gallery.open(gallery.folder).manifest
        assert (known.product, known.variant) == ("Brand", variant)
        (own,) = gallery.ids_of(["item 12"])
        query = np.stack([catalogue.rows[n].vector for n in (12, 17)[:views]])
        members: dict[Any, list[Row]] = {}
        brand = catalogue.rows[12].values["Brand"]
        for row in catalogue.rows:
            is_own = row.key == "item 12" or (brand is not None and row.values["Brand"] == brand)
            if not is_own and (row.values["price"] or 0) > 0:
                members.setdefault(row.values["Brand"] or (row.key,), []).append(row)
        expected = {}
        for value, rows in members.items():
            cosines = np.stack([row.vector for row in rows]).astype(float) @ query.T
            soft = 0.05 * np.log(np.exp(cosines / 0.05).mean(0))
            of_views = {"best": cosines.max(0), "mean": cosines.mean(0), "soft": soft}[score]
            found: dict[Any, list[float]] = {}
            for position, row in enumerate(rows):
                kind = row.values["label"] if variant else position
                found.setdefault(kind, []).append(float(cosines[position].mean()))
            expected[value] = of_views.mean(), len(rows), found
        for k, size in ((2, 1), (50, 3)):
            options = SearchOptions(k, "price > 0", group_size=size, group_score=score)
            (hits,) = gallery.find([query], options, [(own,)])
            best = sorted((value for value, _, _ in expected.values()), reverse=True)[:k]
            np.testing.assert_allclose([hit.score for hit in hits], best, atol=1e-5)
            for hit in hits:
                value, count, found = expected[hit.group or (hit.key,)]
                assert hit.score == pytest.approx(value, abs=1e-5)
                assert (hit.view_count, hit.variant_count) == (count, len(found) if variant else 0)
                shown = sorted(map(max, found.values()), reverse=True)[:size] if size > 1 else []
                np.testing.assert_allclose([view.score for view in hit.views], shown, atol=1e-5)
                for view in hit.views if variant else ():
                    assert view.score == pytest.approx(max(found[view.variant]), abs=1e-5)
                    assert view.view_count == len(found[view.variant])
    finally:
        gallery.use_products(None)


def test_excluded_by_id(filled: Filled) -> None:
    gallery, _ = filled
    first = gallery.search_id("item 4", 3)
    found = gallery.search_id("item 4", 3, exclude=[first[0].id, str(first[1].id)])
    assert [hit.id for hit in found][:1] == [first[2].id]


def test_query_expansion(filled: Filled) -> None:
    gallery, catalogue = filled
    query = catalogue.rows[12].vector
    near = nearest(catalogue.rows, query, EXPANSION)
    moved = expand(
        query[None], np.stack([row.vector for row, _ in near])[None], np.array([[s for _, s in near]])
    )
    found = gallery.search_vectors(query[None], 5, rerank="query-expansion")[0]
    check_hits(found, nearest(catalogue.rows, moved[0], 5), 1e-4)


@pytest.mark.parametrize("group_by", [None, "label"])
def test_k_reciprocal(filled: Filled, group_by: str | None) -> None:
    gallery, catalogue = filled
    query = catalogue.rows[12].vector
    near = [row for row, _ in nearest(catalogue.rows, query, CANDIDATES)]
    scores = 1 - k_reciprocal(query, np.stack([row.vector for row in near]))
    order = np.argsort(-scores, kind="stable")
    expected = [(near[n], float(scores[n])) for n in order]
    if group_by:
        seen = Counter[str]()
        expected = [
            pair
            for pair in expected
            if not seen[pair[0].values["label"]] and not seen.update([pair[0].values["label"]])
        ]
    found = gallery.search_vectors(query[None], 3, rerank="k-reciprocal", group_by=group_by)[0]
    check_hits(found, expected[:3], 1e-4)


@pytest.mark.parametrize("order", ["price desc", "Brand"])
def test_order_of_hits(filled: Filled, order: str) -> None:
    gallery, catalogue = filled
    column, descending = order.split()[0], order.endswith("desc")
    (found,) = gallery.find(catalogue.rows[0].vector[None], SearchOptions(30, order=order))
    values = [row.values[column] for row in catalogue.rows if row.values[column] is not None]
    expected = [*sorted(values, reverse=descending), *[None] * COUNT][:30]
    assert [hit.metadata.get(column) for hit in found] == expected


def test_order_by_an_expression(filled: Filled) -> None:
    gallery, catalogue = filled
    query = catalogue.rows[0].vector
    order = "score + 0.01 * coalesce(price, 7) desc"
    (found,) = gallery.find(query[None], SearchOptions(COUNT, order=order))
    (plain,) = gallery.find(query[None], SearchOptions(COUNT))

    def value(hit: Hit) -> float:
        price = hit.metadata.get("price")
        return hit.score + 0.01 * float(7 if price is None else price)

    assert [hit.key for hit in found] == [hit.key for hit in sorted(plain, key=value, reverse=True)]
    assert [hit.key for hit in found] != [hit.key for hit in plain]


def test_diversity(filled: Filled) -> None:
    """The hits are the same ones, in another order."""
    gallery, catalogue = filled
    query = catalogue.rows[0].vector
    (found,) = gallery.find(query[None], SearchOptions(COUNT, diversity=0.6))
    (plain,) = gallery.find(query[None], SearchOptions(COUNT))
    assert [hit.key for hit in found] != [hit.key for hit in plain]
    assert sorted((hit.key, hit.score) for hit in found) == sorted((hit.key, hit.score) for hit in plain)
    (first,) = gallery.find(query[None], SearchOptions(7, diversity=0.6))
    assert [hit.key for hit in first] == [hit.key for hit in found[:7]]
    vectors = gallery.vectors([hit.id for hit in plain])
    order = diversified(
        np.array([hit.score for hit in plain]), np.stack([vectors[hit.id] for hit in plain]), 0.6, COUNT
    )
    assert [hit.key for hit in found] == [plain[n].key for n in order.tolist()]
    with pytest.raises(InputError, match="diversity: the hits have an order"):
        gallery.find(query[None], SearchOptions(order="price", diversity=0.5))


def test_probabilities(filled: Filled) -> None:
    """Of any calibration: they follow from the scores of the nearest in the whole gallery."""
    gallery, catalogue = filled
    vectors = np.stack([row.vector for row in catalogue.rows[:3]])
    vectors[2] = -vectors[2]  # its picture is not in the gallery
    curve = Calibration(gallery.fingerprint, COUNT, (4.0, -1.0, -0.5, 1.0, -1.0, 0.3), -1.0, 0.9, 0.5, "", {})
    write_calibration(gallery.folder, curve)
    try:
        for options in (
            SearchOptions(5),
            SearchOptions(3, where="price > 2"),
            SearchOptions(3, group_by="Brand"),
        ):
            for query, hits in zip(vectors, gallery.find(vectors, options), strict=True):
                near = [score for _, score in nearest(catalogue.rows, query, DEPTH + 10)]
                facts = np.tile(summary(near), (len(hits), 1))
                expected = curve.probabilities(np.array([hit.score for hit in hits]), facts)
                np.testing.assert_allclose([hit.probability for hit in hits], expected, atol=1e-4)
    finally:
        (gallery.folder / NAME).unlink()


# ---- contents


def test_items_and_vectors(filled: Filled) -> None:
    gallery, catalogue = filled
    expected = {row.key: row for row in catalogue.rows}
    assert len(gallery) == COUNT
    found = contents(gallery)
    assert found.keys() == expected.keys()
    for key, (label, metadata, vector) in found.items():
        assert (label, metadata) == (expected[key].values["label"], expected[key].metadata)
        np.testing.assert_allclose(vector, expected[key].vector, atol=1e-4)
    assert set(gallery.contents.columns()) == {*METADATA}
    ids = gallery.ids_of(["item 4", "r/3.png"])
    assert [gallery.item(number).key for number in ids] == ["item 4", "r/3.png"]
    assert gallery.ids_of([str(ids[0]), ids[1]]) == ids
    assert gallery.present([*ids, 10**15]).tolist() == [True, True, False]
    assert gallery.items([10**15]) == {}
    assert [one.key for one in gallery.stored_items(ids[:1])] == ["item 4"]
    assert gallery.select(["item 4"], where="key = 'r/3.png'") == sorted(ids)


def test_item_at(filled: Filled) -> None:
    gallery, catalogue = filled
    number = gallery.item_at(catalogue.folder / "r" / "3.png")
    assert number is not None
    assert gallery.item(number).key == "r/3.png"
    assert gallery.item_at(catalogue.folder / "r" / "nothing.png") is None


def test_sample(filled: Filled) -> None:
    gallery, _ = filled
    some = gallery.sample(7)
    assert some == sorted({*some}) == gallery.sample(7)
    assert len(some) == 7
    assert len(gallery.sample(1000)) == COUNT
    assert all(gallery.present(some))


def test_counts(filled: Filled) -> None:
    gallery, catalogue = filled
    assert Counter(dict(gallery.contents.label_counts())) == Counter(
        row.values["label"] for row in catalogue.rows
    )
    for column in METADATA:
        values = Counter(row.values[column] for row in catalogue.rows if row.values[column] is not None)
        assert (
            Counter({value: n for value, n in gallery.contents.value_counts(column) if value is not None})
            == values
        )
    sizes = sorted(map(tuple, gallery.contents.image_sizes().tolist()))
    assert sizes == sorted((row.values["width"], row.values["height"]) for row in catalogue.rows)


def histogram(values: list[float]) -> list[int] | None:
    """The values in 24 equal parts of their range, by NumPy."""
    return [*np.histogram(values, 24)[0].tolist()] if len(set(values)) > 1 else None


@pytest.mark.parametrize("where", [None, "price > 0"])
def test_facets(filled: Filled, where: str | None) -> None:
    gallery, catalogue = filled
    rows = [row for row in catalogue.rows if where is None or (row.values["price"] or 0) > 0]
    expected = []
    for column in ("label", "price", "Brand", "added", "width"):
        values = [row.values[column] for row in rows if row.values[column] is not None]
        counts = sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))
        number = not isinstance(values[0], str)
        days = sorted(moment(value) for value in values) if column == "added" else []  # type: ignore[type-var]
        ends = (days[0], days[-1]) if days else None
        shown = None if ends is None else tuple(f"{day:%Y-%m-%dT%H:%M:%S}Z" for day in ends if day)
        expected.append(
            Facet(
                column,
                counts[:3],
                len(counts),
                len(rows) - len(values),
                (min(values), max(values)) if number else None,
                shown,  # type: ignore[arg-type]
                histogram(values if number else [day.timestamp() for day in days if day]),  # type: ignore[arg-type]
            )
        )
    found = gallery.contents.facets([facet.column for facet in expected], where, 3)
    assert (found.items, found.counted) == (len(rows), len(rows))
    for one, other in zip(found.facets, expected, strict=True):
        if other.dates and other.dates[0].endswith("T00:00:00Z"):
            other = dataclasses.replace(other, dates=(other.dates[0][:10], other.dates[1]))
        assert one == other
    with pytest.raises(InputError, match="every image has its own key"):
        gallery.contents.facets(["key"], None, 3)


@pytest.mark.parametrize("where", [None, "price > 0"])
def test_listing(filled: Filled, kind: Kind, where: str | None) -> None:
    """Pages by ascending id; a database refuses another order."""
    gallery, catalogue = filled
    found, place = gallery.contents.listing(where, Order(), None, 7)
    while place is not None:
        page, place = gallery.contents.listing(where, Order(), place, 7)
        found += page
    assert [item.id for item in found] == sorted(item.id for item in found)
    keys = [row.key for row in catalogue.rows if where is None or (row.values["price"] or 0) > 0]
    assert sorted(item.key for item in found) == sorted(keys)
    if kind.database is not None:
        with pytest.raises(InputError, match="lists its images by ascending id only; leave the order out"):
            gallery.contents.listing(where, Order("price"), None, 7)
    else:
        prices = [
            item.metadata.get("price") for item in gallery.contents.listing(where, Order("price"), None, 7)[0]
        ]
        assert (
            prices
            == sorted(
                row.values["price"]
                for row in catalogue.rows
                if row.key in keys and row.metadata.get("price") is not None
            )[:7]
        )


def test_table(filled: Filled) -> None:
    gallery, catalogue = filled
    table = pyarrow.table(gallery)
    assert table["id"].type == pyarrow.int64()
    assert {*map(str, gallery.contents.columns())} <= {*table.column_names}
    prices = dict(zip(table["key"].to_pylist(), table["price"].to_pylist(), strict=True))
    assert prices == {row.key: row.metadata.get("price") for row in catalogue.rows}
    hits = gallery.search_vectors(gallery.embeddings().vectors[:1], k=5)[0]
    assert pyarrow.table(hits)["key"].to_pylist() == [hit.key for hit in hits]
    assert pyarrow.table(hits).schema.field("price") == table.schema.field("price")


def test_embeddings(filled: Filled) -> None:
    gallery, catalogue = filled
    found = gallery.embeddings()
    expected = {row.key: row for row in catalogue.rows}
    assert found.ids.tolist() == sorted(found.ids.tolist())
    assert len({*found.contents}) == COUNT - 1, "two images are the same"
    for number, vector, label in zip(found.ids.tolist(), found.vectors, found.labels, strict=True):
        row = expected[gallery.item(number).key]
        assert label == row.values["label"]
        np.testing.assert_allclose(vector, row.vector, atol=1e-5)
    assert len(gallery.embeddings(limit=7).ids) == 7
    assert len(gallery.embeddings(labelled=True).ids) == COUNT


@pytest.mark.parametrize("min_score", [0.9999, 0.5])
def test_duplicates(filled: Filled, min_score: float) -> None:
    gallery, catalogue = filled
    vectors = np.stack([row.vector for row in catalogue.rows])
    near = vectors @ vectors.T >= min_score
    groups = {
        frozenset(np.flatnonzero(np.linalg.matrix_power(near.astype(float), COUNT)[n] > 0))
        for n in range(COUNT)
    }
    expected = {frozenset(catalogue.rows[n].key for n in group) for group in groups if len(group) > 1}
    assert any({"item 0", "r/3.png"} <= group for group in expected)
    found = gallery.duplicates(min_score)
    assert {frozenset(item.key for item in group.members) for group in found.groups} == expected


def verification(gallery: SearchableGallery) -> tuple[int, int, list[Any]]:
    done = gallery.verify()
    return done.items, done.vectors, done.problems


def test_verification(filled: Filled) -> None:
    assert verification(filled[0]) == (COUNT, COUNT, [])


# ---- changes


def test_adding_again(gallery: Gallery, catalogue: Catalogue) -> None:
    again = catalogue.add_to(gallery)
    assert (again.added, again.unchanged, again.bad) == (0, COUNT, [])


def test_removal(gallery: Gallery, catalogue: Catalogue) -> None:
    before, named = gallery.state_digest(), {"item 4", "r/9.png"}
    left = [row for row in catalogue.rows if row.key not in named and row.values["Brand"] != "zoo"]
    assert gallery.remove(sorted(named), where="Brand = 'zoo'") == COUNT - len(left)
    gallery.refresh()
    assert len(gallery) == len(left)
    assert contents(gallery).keys() == {row.key for row in left}
    query = left[0].vector
    check_hits(gallery.search_vectors(query[None], 100)[0], nearest(left, query, 100))
    assert gallery.state_digest() != before
    with pytest.raises(InputError, match="no item 'item 4'"):
        gallery.remove(["item 0", "item 4"])
    assert gallery.ids_of(["item 0"])
    assert verification(gallery)[::2] == (len(left), [])


def test_one_item_may_be_named_alone(gallery: Gallery) -> None:
    """A key or the digits of an id are one name, whose characters are ids of other items."""
    ids = gallery.select(where="id > 0")
    number = ids[-1]
    assert number > 9
    assert [gallery.select(one) for one in (str(number), number, np.int64(number), "item 4")] == [
        *3 * [[number]],
        gallery.ids_of(["item 4"]),
    ]
    assert str(number) not in [str(hit.id) for hit in gallery.search_id("item 4", COUNT, exclude=str(number))]
    assert len(gallery.search_id("item 4", COUNT, exclude=str(number))) == COUNT - 2
    assert gallery.remove(str(number)) == 1
    gallery.refresh()
    assert gallery.select(where="id > 0") == ids[:-1]


@pytest.mark.parametrize(
    "items", [[1.9], [True, True], np.array([True]), None, [None], b"12", [Path("1.png")]]
)
def test_what_names_no_item_removes_none(gallery: Gallery, items: Any) -> None:
    with pytest.raises(InputError, match="an item is given by its id, a whole number, or by its key, text"):
        gallery.remove(items)
    gallery.refresh()
    assert len(gallery) == COUNT


def test_amendment(gallery: Gallery, catalogue: Catalogue) -> None:
    (number,) = gallery.ids_of(["item 12"])
    (item,) = gallery.stored_items([number])
    editor = gallery.editor()
    with editor.writing():
        editor.amend(item, "new", {"price": 99.5, "added": None, "colour": "red"})
    gallery.refresh()
    changed = gallery.item(number)
    assert changed.label == "new"
    assert changed.metadata == {"Brand": catalogue.rows[12].values["Brand"], "price": 99.5, "colour": "red"}
    assert [hit.id for hit in gallery.search_id("item 16", 50, where="price = 99.5")] == [number]
    assert gallery.select(where="added > date '1990-01-01' and price = 99.5") == []
    with editor.writing(), pytest.raises(InputError, match="price"):
        editor.amend(item, "new", {"price": "cheap"})


def test_changed_file_keeps_its_id(gallery: Gallery, catalogue: Catalogue, model: Embedder) -> None:
    path = catalogue.folder / "r" / "0.png"
    number = gallery.ids_of(["item 0"])[0]
    vector = gallery.vector(number)
    gallery.remove(["item 4"])
    draw(77, hue=1).save(path)
    os.utime(path, ns=(1, 1))
    catalogue.add_to(gallery)
    gallery.refresh()
    assert gallery.ids_of(["item 0"]) == [number]
    np.testing.assert_allclose(gallery.vector(number), model.embed([path])[0], atol=1e-5)
    assert not np.allclose(gallery.vector(number), vector, atol=1e-3)
    assert gallery.item(number).metadata == catalogue.rows[0].metadata


def facts(gallery: SearchableGallery) -> dict[str, Any]:
    """Label and metadata of each item by key."""
    return {key: (label, metadata) for key, (label, metadata, _) in contents(gallery).items()}


@pytest.fixture
def layered(model: Embedder, tmp_path: Path) -> tuple[Layer, Embedder]:
    """A layer that leaves out dimensions, and the model with it."""
    random = np.random.default_rng(0)
    weight = np.linalg.qr(random.normal(size=(model.dim, model.dim)))[0][: model.dim // 2]
    layer = Layer(weight.astype(np.float32), random.normal(0, 0.05, model.dim).astype(np.float32))
    append_layer(model.path, layer, tmp_path / "layered.onnx", {"command": "test"})
    return layer, Embedder(tmp_path / "layered.onnx")


def test_layer_and_back(gallery: Gallery, catalogue: Catalogue, layered: tuple[Layer, Embedder]) -> None:
    layer, model = layered
    before = facts(gallery)
    done = gallery.reproject(layer, model, command="teach")
    assert (done.vectors, done.old) == (COUNT, gallery.folder.with_name("gallery.old"))
    close(done.gallery)
    close(gallery)
    taught = Gallery.open(gallery.folder)
    assert facts(taught) == before
    rows = [Row(row.values, layer(row.vector[None])[0]) for row in catalogue.rows]
    for row in rows[::7]:
        np.testing.assert_allclose(taught.vector(taught.ids_of([row.key])[0]), row.vector, atol=2e-3)
    check_hits(taught.search_vectors(rows[5].vector[None], 9)[0], nearest(rows, rows[5].vector, 9))
    assert taught.search(catalogue.folder / "g" / "1.png", 1)[0].key == "g/1.png"
    with pytest.raises(InputError, match=r"gallery\.old: already exists"):
        taught.reproject(layer, model, command="teach")
    taught.remove(["item 4"])
    (number,) = taught.ids_of(["item 12"])
    with (editor := taught.editor()).writing():
        editor.amend(taught.stored_items([number])[0], "new", {"colour": "red"})
    changed = facts(taught)
    address = taught.location if isinstance(taught, DatabaseGallery) else None
    restored = taught.undo_reprojection()
    assert facts(restored) == changed
    assert len(restored) == COUNT - 1
    for row in catalogue.rows[::7]:
        if row.key != "item 4":
            np.testing.assert_allclose(restored.vector(restored.ids_of([row.key])[0]), row.vector, atol=2e-3)
    assert not done.old.exists()
    if address is not None:
        assert open_engine(address).manifest() is None, "the collection with the layer is deleted"
    close(restored)


def test_undo_needs_the_vectors_of_all_images(
    gallery: Gallery, catalogue: Catalogue, layered: tuple[Layer, Embedder]
) -> None:
    close(gallery.reproject(*layered, command="teach").gallery)
    close(gallery)
    taught = Gallery.open(gallery.folder)
    draw(88).save(catalogue.folder / "r" / "another.png")
    catalogue.add_to(taught)
    taught.refresh()
    before = contents(taught)
    with pytest.raises(InputError, match="1 images were added since"):
        taught.undo_reprojection()
    assert contents(taught) == before
    close(taught)


def test_rebuild(gallery: Gallery, catalogue: Catalogue, tmp_path: Path) -> None:
    """The same ids, keys, labels and metadata with the vectors of another model; a lost file is reported."""
    model = Embedder(write_model(tmp_path / "other.onnx", "another"))
    (catalogue.folder / "g" / "1.png").unlink()
    before, ids = facts(gallery), {key: gallery.ids_of([key])[0] for key in facts(gallery)}
    done = gallery.rebuild(model)
    assert [one.stamp.path for one in done.result.bad] == ["g/1.png"]
    assert (done.result.added, done.old) == (COUNT - 1, gallery.folder.with_name("gallery.old"))
    close(gallery)
    close(done.gallery)
    rebuilt = Gallery.open(gallery.folder)
    del before["g/1.png"]
    assert facts(rebuilt) == before
    assert {key: rebuilt.ids_of([key])[0] for key in before} == {key: ids[key] for key in before}
    for row in [row for row in catalogue.rows if row.key in before][::7]:
        vector = model.embed([catalogue.folder / row.values["path"]])[0]
        np.testing.assert_allclose(rebuilt.vector(ids[row.key]), vector, atol=2e-3)
    with pytest.raises(InputError, match=r"gallery\.old: already exists"):
        rebuilt.rebuild(model)
    old = Gallery.open(done.old)
    assert len(old) == COUNT
    close(old)
    close(rebuilt)


def test_open_galleries_follow_a_rebuild(gallery: Gallery, catalogue: Catalogue, tmp_path: Path) -> None:
    """By `refresh`, or when they load the model, which is another one now."""
    model = Embedder(write_model(tmp_path / "other.onnx", "another"))
    embedding, refreshed = Gallery.open(gallery.folder), Gallery.open(gallery.folder)
    assert not refreshed.changed()
    close(gallery.rebuild(model).gallery)
    assert refreshed.changed()
    assert refreshed.replaced()
    refreshed.refresh()
    assert not refreshed.changed()
    picture = catalogue.folder / catalogue.rows[0].values["path"]
    for one in (embedding, refreshed):
        best = one.search(picture, 1)[0]
        assert best.score == pytest.approx(1, abs=2e-3)
        assert (one.fingerprint, len(one)) == (model.fingerprint, COUNT)
        np.testing.assert_allclose(one.vector(best.id), model.embed([picture])[0], atol=2e-3)
        close(one)


def test_what_is_written_during_a_rebuild_is_not_lost_in_silence(
    kind: Kind, gallery: Gallery, tmp_path: Path
) -> None:
    """Files are locked; without a lock, the run that has written to the collection before says so."""
    model = Embedder(write_model(tmp_path / "other.onnx", "another"))
    other = Gallery.open(gallery.folder)
    message = "being written by" if kind.database is None else "it was rebuilt meanwhile"
    with pytest.raises(LookalikeError, match=message), gallery.writer.running():
        close(other.rebuild(model).gallery)
    close(other)


def test_refused_rebuild_changes_nothing_and_goes_on(
    gallery: Gallery, catalogue: Catalogue, tmp_path: Path
) -> None:
    model = Embedder(write_model(tmp_path / "other.onnx", "another"))
    before = contents(gallery)

    def refuse(new: SearchableGallery) -> None:
        assert len(new) == COUNT
        raise LookalikeError("worse")

    with pytest.raises(LookalikeError, match="worse"):
        gallery.rebuild(model, accept=refuse)
    assert contents(gallery) == before
    done = gallery.rebuild(model, keep_old=False)
    assert (done.resumed, done.old) == (COUNT, None)
    assert not gallery.folder.with_name("gallery.old").exists()
    close(done.gallery)


def test_reopened(gallery: Gallery, catalogue: Catalogue) -> None:
    """What another process sees; one process at a time has an embedded database open."""
    before = contents(gallery)
    close(gallery)
    again = Gallery.open(gallery.folder)
    assert contents(again) == before
    assert again.search(catalogue.folder / "g" / "1.png", 1)[0].key == "g/1.png"
    close(again)


def test_second_folder_sees_what_the_first_changes(
    gallery: Gallery, kind: Kind, model: Embedder, tmp_path: Path
) -> None:
    if not isinstance(gallery, DatabaseGallery) or kind.database is None or kind.database.server.embedded:
        pytest.skip("only of servers")
    second = DatabaseGallery.connect(tmp_path / "second", model, parse_address(gallery.address))
    gallery.remove(["item 4"])
    assert contents(second) == contents(gallery)
    close(second)


def test_another_model_is_refused(filled: Filled, tmp_path: Path, model: Embedder) -> None:
    gallery, _ = filled
    other = Embedder(write_model(tmp_path / "other.onnx", "another"))
    with pytest.raises(InputError):
        gallery.check_model(other)
    if isinstance(gallery, DatabaseGallery):
        address = parse_address(gallery.address)
        with pytest.raises(InputError, match="pass the model file that it was built with"):
            DatabaseGallery.connect(tmp_path / "g", other, address)
        with pytest.raises(InputError, match="the collection exists"):
            Gallery.create(tmp_path / "h", model, store=address)
        assert not (tmp_path / "g").exists()
        assert not (tmp_path / "h").exists()
