"""Searches for groups of images, such as products, against a comparison with every vector."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import Gallery
from retrieval.errors import InputError
from retrieval.search.options import GROUP_SCORES, SearchOptions
from retrieval.storage.records import FileStamp, IndexSpec, NewItem
from retrieval.storage.store import Store
from tests.retrieval.search.test_search import MANIFEST, clustered

COUNT = 240


def variant(i: int) -> str | None:
    """Return the variant of an image: of some products several, and of some images none."""
    return None if i % 5 == 0 else f"colour {i * i % 13 % 4}"


def product(i: int) -> str | None:
    """Return the product of an image: some have many views, some one, and some images have none."""
    return None if i % 11 == 0 else f"p{i % 7}" if i % 3 == 0 else f"p{7 + i // 4}"


def facts(i: int) -> dict[str, object]:
    return {"Sku": product(i), "Colour": variant(i), "n": i}


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Vectors of the images, of which some are equal."""
    found = clustered(5, COUNT)
    found[40:44] = found[40]
    return found


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory, vectors: np.ndarray) -> Gallery:
    return make(tmp_path_factory.mktemp("groups") / "g", vectors, "sku")


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory, vectors: np.ndarray) -> Gallery:
    """The same with variants."""
    return make(tmp_path_factory.mktemp("colours") / "g", vectors, "sku, colour")


def make(folder: Path, vectors: np.ndarray, products: str) -> Gallery:
    """Return a gallery of products in several segments, with removed images."""
    store = Store.create(folder, MANIFEST)
    with store.writing():
        for start in range(0, COUNT, 90):
            numbers = range(start, min(start + 90, COUNT))
            items = [NewItem(FileStamp("", "", 0, 0, None), "", 1, 1, facts(i), f"k{i}") for i in numbers]
            store.commit(vectors[numbers.start : numbers.stop], items)
        store.remove([3, 60, 100])
    made = Gallery.open(folder)
    made.use_products(products)
    return made


@dataclass(frozen=True)
class Group:
    """A group as it should be found."""

    score: float
    members: list[tuple[float, int]]


def expected(
    vectors: np.ndarray, query: np.ndarray, options: SearchOptions, lowest: int, own: int | None
) -> list[Group]:
    """Return all groups by comparison with every vector, one Python number at a time.

    Args:
        vectors: Vectors of the images.
        query: Views of the query, [m, D].
        options: Score of groups, exclusions and lowest score.
        lowest: First image that fulfils the condition.
        own: Image that the query is, whose product is left out.
    """
    out = {int(str(key).removeprefix("k")) for key in options.exclude} | {2, 59, 99}
    members: dict[str | int, list[int]] = {}
    for i in range(lowest, COUNT):
        if i not in out and i != own and (own is None or product(own) is None or product(i) != product(own)):
            members.setdefault(product(i) or i, []).append(i)
    found = []
    for numbers in members.values():
        cosines = vectors[numbers].astype(float) @ query.T.astype(float)
        if options.group_score == "best":
            of_views = cosines.max(0)
        elif options.group_score == "mean":
            of_views = cosines.mean(0)
        else:
            of_views = 0.05 * np.log(np.mean(np.exp(cosines / 0.05), 0))
        ranked = sorted(zip((-cosines.mean(1)).round(6).tolist(), numbers, strict=True))
        found.append(Group(float(of_views.mean()), [(-score, i) for score, i in ranked]))
    return sorted(found, key=lambda group: -group.score)


@settings(max_examples=150, deadline=None)
@given(
    score=st.sampled_from([*GROUP_SCORES]),
    k=st.sampled_from([1, 2, 5, 30, 500]),
    size=st.sampled_from([1, 2, 4, 100]),
    lowest=st.sampled_from([0, 37, 200]),
    with_variants=st.booleans(),
    views=st.integers(1, 3),
    seed=st.integers(0, 30),
    exclude=st.lists(st.sampled_from([1, 12, 15, 41, 77, 201]), max_size=3, unique=True),
    own=st.none() | st.sampled_from([5, 11, 21, 205]),
)
def test_products_are_those_of_all_vectors(
    gallery: Gallery,
    colours: Gallery,
    vectors: np.ndarray,
    score: str,
    k: int,
    size: int,
    lowest: int,
    with_variants: bool,
    views: int,
    seed: int,
    exclude: list[int],
    own: int | None,
) -> None:
    options = SearchOptions(
        k,
        f"n >= {lowest}" if lowest else None,
        [f"k{i}" for i in exclude],
        group_size=size,
        group_score=score,
    )
    query = clustered(100 + seed, views)
    searched = colours if with_variants else gallery
    (hits,) = searched.find([query], options, None if own is None else [(own + 1,)])
    groups = expected(vectors, query, options, lowest, own)
    np.testing.assert_allclose(
        [hit.score for hit in hits], [one.score for one in groups[:k]], atol=2e-6, err_msg=str(options)
    )
    by_product = {product(i) or f"k{i}": one for one in groups for _, i in one.members}
    assert len({hit.group or hit.key for hit in hits}) == len(hits)
    for hit in hits:
        whole = by_product[hit.group or hit.key]
        best = whole.members[0][0]
        assert hit.score == pytest.approx(whole.score, abs=2e-6)
        assert int(hit.key.removeprefix("k")) in {i for s, i in whole.members if s >= best - 3e-6}
        assert hit.view_count == len(whole.members)
        variants: dict[str | None, list[tuple[float, int]]] = {}
        for member in whole.members:
            variants.setdefault(variant(member[1]), []).append(member)
        assert hit.variant_count == (len(variants) if with_variants else 0)
        if size == 1:
            assert hit.views == ()
            continue
        assert hit.views[0].id == hit.id
        if with_variants:
            shown = sorted((max(one)[0] for one in variants.values()), reverse=True)[:size]
            np.testing.assert_allclose([one.score for one in hit.views], shown, atol=3e-6)
            assert len({one.variant for one in hit.views}) == len(hit.views)
            for one in hit.views:
                mine = variants[one.variant]
                assert one.view_count == len(mine)
                assert one.id - 1 in {i for s, i in mine if s >= max(mine)[0] - 3e-6}
            continue
        assert {(one.variant, one.view_count) for one in hit.views} == {(None, 0)}
        assert len(hit.views) == min(size, hit.view_count)
        assert {one.id - 1 for one in hit.views} <= {i for _, i in whole.members}
        np.testing.assert_allclose(
            [one.score for one in hit.views], [s for s, _ in whole.members[:size]], atol=3e-6
        )


def test_products_are_searched_unless_another_column_is_named(gallery: Gallery, vectors: np.ndarray) -> None:
    query = vectors[7][None]
    products, images = (
        gallery.search_vectors(query, 500)[0],
        gallery.search_vectors(query, 500, group_by="ID")[0],
    )
    assert len(images) == COUNT - 3
    assert {hit.view_count for hit in images} == {0}
    assert sum(hit.view_count for hit in products) == COUNT - 3
    ordered = gallery.search_vectors(query, 500, order="n desc")[0]
    assert {hit.id for hit in ordered} == {hit.id for hit in products}
    diverse = gallery.search_vectors(query, 20, diversity=0.4, group_size=3)[0]
    assert len({hit.group or hit.key for hit in diverse}) == 20
    assert max(len(hit.views) for hit in diverse) == 3


def test_a_query_by_an_item_leaves_out_its_product(gallery: Gallery) -> None:
    hits = gallery.search_id("k9", 500)
    assert product(9) == "p2"
    assert "p2" not in {hit.group for hit in hits}
    by_image = gallery.search_id("k9", 500, group_by="id")
    assert "p2" in {hit.metadata["Sku"] for hit in by_image if "Sku" in hit.metadata}


def test_an_approximate_index_finds_the_best_products(tmp_path: Path) -> None:
    count = 13_000  # fewer would be searched exactly
    vectors, store = clustered(4, count), Store.create(tmp_path / "g", MANIFEST)
    with store.writing():
        items = [
            NewItem(FileStamp("", "", 0, 0, None), "", 1, 1, {"sku": i // 5}, f"k{i}") for i in range(count)
        ]
        store.commit(vectors, items)
    made = Gallery.open(tmp_path / "g")
    with made.store.writing():
        made.build_index(IndexSpec("ivf-sq8", recall=0.99))
    assert made.index is not None
    query = clustered(6, 2)
    cosines = vectors.reshape(-1, 5, vectors.shape[1]) @ query.T
    for score, of_views in (("best", cosines.max(1)), ("mean", cosines.mean(1))):
        options = SearchOptions(20, group_by="sku", group_score=score, group_size=5)
        (hits,) = made.find([query], options)
        wanted = np.argsort(-of_views.mean(1))[:20].tolist()
        assert len({hit.group for hit in hits} & set(wanted)) >= 18
        for hit in hits:
            assert hit.score == pytest.approx(of_views.mean(1)[hit.group], abs=2e-6)
            assert {view.id for view in hit.views} == {5 * int(hit.group) + n for n in range(1, 6)}


def test_the_product_column_is_known_to_other_processes(gallery: Gallery) -> None:
    other = Gallery.open(gallery.folder)
    assert other.manifest.product == other.info()["product"] == "Sku"
    gallery.use_products(None)
    try:
        assert other.changed()
        other.refresh()
        assert other.manifest.product is None
        assert other.search_vectors(clustered(1, 1), 3)[0][0].view_count == 0
    finally:
        gallery.use_products("SKU")
    with pytest.raises(InputError, match="no column 'sko'"):
        gallery.use_products("sko")
    with pytest.raises(InputError, match="each image has a value of its own"):
        gallery.use_products("sku,key")
    for wrong in ("sku,SKU", "sku,n,colour"):
        with pytest.raises(InputError, match="another one for its variants"):
            gallery.use_products(wrong)
    gallery.use_products("sku,COLOUR")
    other.refresh()
    assert (other.info()["product"], other.info()["variant"]) == ("Sku", "Colour")
    assert other.search_vectors(clustered(1, 1), 3, group_by="n", group_size=2)[0][0].variant_count == 0
    gallery.use_products("sku")
    assert gallery.manifest.variant is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 0}, "group_size must be at least 1"),
        ({"group_score": "soffft"}, "did you mean 'soft'"),
        ({"group_score": "mean", "rerank": "k-reciprocal"}, "leave out group_size and group_score"),
        ({"group_score": "mean", "min_probability": 0.5}, "the score of groups"),
    ],
)
def test_invalid_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SearchOptions(**options)  # type: ignore[arg-type]
