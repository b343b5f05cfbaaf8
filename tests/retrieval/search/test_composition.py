"""Composed queries against their formula, one number at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval import InputError
from retrieval.search.composition import compose


def unit_rows(seed: int, count: int, dim: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(0, 4), st.integers(2, 6))
def test_formula(seed: int, wanted: int, unwanted: int, dim: int) -> None:
    """Twice the mean of the wanted minus the mean of the unwanted, at unit length."""
    positive, negative = unit_rows(seed, wanted, dim), unit_rows(seed + 1, unwanted, dim)
    expected = []
    for column in range(dim):
        value = 2 * sum(float(row[column]) for row in positive) / wanted
        if unwanted:
            value -= sum(float(row[column]) for row in negative) / unwanted
        expected.append(value)
    length = math.sqrt(sum(value**2 for value in expected))
    if length > 1e-2:
        found = compose(positive, negative)
        np.testing.assert_allclose(found, np.array(expected) / length, atol=1e-4)
        assert found.dtype == np.float32


def test_weight_of_negatives() -> None:
    first, second = np.eye(2, dtype=np.float32)
    np.testing.assert_allclose(compose(first[None], second[None], 0.75), [0.8, -0.6], rtol=1e-6)


def test_one_vector_is_itself_and_several_are_their_mean() -> None:
    corners = np.eye(3, dtype=np.float32)
    np.testing.assert_array_equal(compose(corners[:1]), corners[0])
    np.testing.assert_allclose(compose(corners), np.full(3, 3**-0.5), rtol=1e-6)


def test_vectors_that_cancel_out_are_refused() -> None:
    corner = np.eye(1, 4, dtype=np.float32)
    with pytest.raises(InputError, match="cancel out"):
        compose(np.concatenate([corner, -corner]))
