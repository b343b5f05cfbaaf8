"""Tests of run sizes: padded runs embed every image once, in few sizes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.model.run_sizes import MeasuredSize, pad, padded_runs, padded_sizes


def test_sizes() -> None:
    assert padded_sizes(256) == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert padded_sizes(48) == (1, 2, 4, 8, 16, 32, 48)
    assert padded_sizes(1) == (1,)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 600), st.integers(1, 300))
def test_runs_embed_each_image_once_and_less_than_double(count: int, most: int) -> None:
    images = np.arange(count)[:, None]
    found = []
    for part, size in padded_runs(count, most):
        run = pad(images[part], size)
        assert len(run) == size in padded_sizes(most)
        assert size < 2 * (part.stop - part.start)
        found += run[: part.stop - part.start, 0].tolist()
    assert found == list(range(count))


def test_full_runs_are_not_copied() -> None:
    images = np.zeros((8, 2))
    assert pad(images, 8) is images


def test_a_given_size_is_not_measured() -> None:
    size = MeasuredSize(50)
    size.record(50, 50, 1.0)
    assert size.choose(3) == size.choose(200) == 50
