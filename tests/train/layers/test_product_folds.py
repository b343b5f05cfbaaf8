"""Folds that keep products whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from train.layers.folds import Folds
from train.layers.measuring import Candidate, Study, beside, query_values


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), classes=st.integers(2, 14), views=st.integers(1, 5))
def test_no_product_is_torn_apart(seed: int, classes: int, views: int) -> None:
    random = np.random.default_rng(seed)
    products = np.sort(random.integers(0, 40, 40 * views))
    class_of = random.integers(0, classes, 40)
    rows = random.permutation(len(products))
    products = products[rows]
    labels = class_of[products]
    folds = Folds(labels, 4, seed, products=products)
    for fold in range(4):
        split = folds.split(fold)
        held_out = np.setdiff1d(np.arange(len(products)), split.training)
        assert not {*products[held_out]} & {*products[split.training]}
        for queries in split.queries.values():
            for query in queries:
                others = labels[products != products[query]]
                assert labels[query] in others, "something is to be found beside its own views"


def test_views_of_the_own_product_find_nothing() -> None:
    vectors = np.eye(6, dtype=np.float32)[[0, 0, 1, 2, 3]]
    classes, places = np.array([0, 0, 0, 1, -1]), np.arange(4)
    products = beside(np.array([5, 5, 6, 7]), 1)
    assert query_values(vectors, classes, places)[0, 1] == 1
    values = query_values(vectors, classes, places, products)
    assert values[0, 1] == 0, "its product's other view is no hit"
    assert len({*products.tolist()}) == 4


def test_a_layer_is_chosen_on_other_products() -> None:
    """Each product is found by a layer of its own, if at all, and better by its other views: chosen on one
    half of the products, no layer gains on the other half."""
    count, views = 12, 5
    products = np.repeat(np.arange(count), views)
    values = np.full((1 + count, len(products), 2), 0.5)
    for one in range(count):
        values[1 + one] = np.where(products == one, 0.9, 0.4)[:, None]
    study, none = Study([Candidate(0, one) for one in range(count)], 0), np.empty(0, np.int64)
    nothing = np.empty((1 + count, 0, 2))
    study.add_fold(
        {"known": products % 6, "unseen": none},
        {"known": values, "unseen": nothing},
        {"known": products, "unseen": none},
    )
    gain = study.conclude("known").gains["known"]
    assert gain is not None
    assert np.isclose(gain.metrics["map_at_r"].after, 0.4)


def test_other_products_are_the_hits() -> None:
    """Three views of one wrong product before the right one are one hit: the right one is second."""
    angles = np.array([0, 0.1, 0.11, 0.12, 0.3, 1.5])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    classes = np.array([0, 1, 1, 1, 0, 0])
    by_product = query_values(vectors, classes, np.array([0]), np.array([0, 1, 1, 1, 2, 3]))
    assert by_product.tolist() == [[0.25, 0.0]], "of two to find, the second hit is right: 1 / 2 / 2"
    assert query_values(vectors, classes, np.array([0])).tolist() == [[0.0, 0.0]]
