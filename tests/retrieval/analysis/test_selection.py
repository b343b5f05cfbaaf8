"""Selection of triplets against a brute-force search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.analysis import selection
from retrieval.analysis.selection import NegativeRule, PositiveRule, select_triplets


def embeddings(seed: int, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    classes = random.permutation(np.repeat(np.arange(len(sizes)) * 3, sizes))  # numbers with gaps
    vectors = random.normal(size=(len(classes), 4))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), classes


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 999),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.sampled_from(["easy", "random"]),
    st.sampled_from(["hard", "semi-hard", "random"]),
    st.sampled_from([1, 40, 1 << 24]),
)
def test_triplets_match_a_brute_force_search(
    seed: int, sizes: list[int], positive: PositiveRule, negative: NegativeRule, cells: int
) -> None:
    vectors, classes = embeddings(seed, sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_CELLS", cells)  # the size of the blocks does not matter
        found = select_triplets(vectors, classes, positive, negative, seed=seed)
    chosen = {a: (p, n) for a, p, n in zip(found.anchor, found.positive, found.negative, strict=True)}
    assert len(chosen) == len(found.anchor)
    cosines = vectors @ vectors.T
    for a in range(len(vectors)):
        same = [i for i in range(len(vectors)) if classes[i] == classes[a] and i != a]
        others = [i for i in range(len(vectors)) if classes[i] != classes[a]]
        if not same or not others:
            assert a not in chosen
            continue
        if negative == "semi-hard":
            limit = cosines[a, chosen[a][0]] if a in chosen else max(cosines[a, same])
            others = [i for i in others if cosines[a, i] < limit]
        if a not in chosen:
            assert not others or positive == "random"
            continue
        p, n = chosen[a]
        assert p == max(same, key=lambda i: cosines[a, i]) if positive == "easy" else p in same
        assert n == max(others, key=lambda i: cosines[a, i]) if negative != "random" else n in others
    s_ap, s_an = found.cosines(vectors)
    np.testing.assert_allclose(s_ap, cosines[found.anchor, found.positive], atol=1e-12)
    np.testing.assert_allclose(s_an, cosines[found.anchor, found.negative], atol=1e-12)


def test_random_images_are_uniform_and_independent_of_the_embeddings() -> None:
    vectors, classes = embeddings(0, [4, 3, 5])
    anchors = np.full(12_000, 2)
    found = select_triplets(vectors, classes, "random", "random", anchors=anchors)
    for rows, same in ((found.positive, True), (found.negative, False)):
        eligible = np.flatnonzero((classes == classes[2]) == same)
        eligible = eligible[eligible != 2]
        counts = np.bincount(rows, minlength=12)
        assert counts[eligible].sum() == 12_000
        expected = 12_000 / len(eligible)
        assert (np.abs(counts[eligible] - expected) < 5 * np.sqrt(expected)).all()
    other = select_triplets(embeddings(1, [4, 3, 5])[0], classes, "random", "hard", anchors=anchors)
    np.testing.assert_array_equal(other.positive, found.positive)


def test_only_the_given_anchors_are_selected() -> None:
    vectors, classes = embeddings(0, [4, 1, 5])
    everything = select_triplets(vectors, classes)
    found = select_triplets(vectors, classes, anchors=everything.anchor[[3, 1]])
    np.testing.assert_array_equal(found.anchor, everything.anchor[[3, 1]])
    np.testing.assert_array_equal(found.negative, everything.negative[[3, 1]])
