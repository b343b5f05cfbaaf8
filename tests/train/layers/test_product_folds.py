"""Folds that keep products whole."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from train.layers.folds import Folds
from train.layers.measuring import beside, query_values


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
