"""Triplet diagram against a brute-force search."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from xml.etree import ElementTree

import numpy as np
import pytest

from retrieval import InputError, metrics
from retrieval.analysis.embeddings import Embeddings
from retrieval.analysis.triplets import (
    Panel,
    Triplets,
    diagram_size,
    draw_strategies,
    draw_triplet_diagram,
    same_images,
    strategy_triplets,
    triplets,
)
from retrieval.reports.figures import RASTERIZE_ABOVE, render_figure


def random_embeddings(seed: int, labels: str = "aaabbbbccd") -> Embeddings:
    random = np.random.default_rng(seed)
    marks = np.arange(len(labels)) == 4
    return Embeddings("some", random.normal(size=(len(labels), 3)), np.array(list(labels)), None, marks)


@pytest.mark.parametrize("seed", range(5))
def test_points_are_the_nearest_positive_and_negative(seed: int) -> None:
    embeddings = random_embeddings(seed)
    expected = []
    for i in range(len(embeddings)):
        alike: dict[bool, list[float]] = {True: [], False: []}
        for j in range(len(embeddings)):
            if i != j and not embeddings.synthetic[[i, j]].any():
                same = bool(embeddings.labels[i] == embeddings.labels[j])
                alike[same].append(float(embeddings.vectors[i] @ embeddings.vectors[j]))
        if not embeddings.synthetic[i] and alike[True]:
            expected.append((max(alike[True]), max(alike[False])))
    found = triplets(embeddings)
    np.testing.assert_allclose(np.stack([found.positive, found.negative], 1), expected, atol=1e-6)
    assert found.left_out == 1  # d is alone
    assert found.hard_share == pytest.approx(np.mean([n > p for p, n in expected]))


def test_share_of_hard_triplets_is_1_minus_recall_at_1() -> None:
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 5)
    vectors = random.normal(size=(30, 8))[labels] + random.normal(size=(150, 8))
    found = triplets(Embeddings("x", vectors, labels))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    recall = metrics.recall_at_k(unit.astype(np.float32), labels, ks=(1,))[1]
    assert found.hard_share == pytest.approx(1 - recall)
    assert 0.1 < found.hard_share < 0.9


def test_strategies_are_where_the_paper_says() -> None:
    """SCT, section 3: hard negatives are on top, semi-hard ones below the diagonal, easy positives right."""
    random = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 5)
    images = Embeddings("x", random.normal(size=(40, 8))[labels] + random.normal(size=(200, 8)), labels)
    anywhere, hard, semi_hard, easy, both = strategy_triplets(images)
    assert len(hard.positive) == 150
    np.testing.assert_array_equal(anywhere.positive, hard.positive)
    np.testing.assert_array_equal(anywhere.negative, easy.negative)
    assert (hard.negative >= anywhere.negative).all()
    assert semi_hard.hard_share == 0
    assert len(semi_hard.negative) + semi_hard.left_out == 150
    assert (easy.positive >= anywhere.positive).all()
    everything = set(zip(*_points(triplets(images)), strict=True))
    assert set(zip(*_points(both), strict=True)) <= everything
    rows = [[Panel("some", strategy_triplets(images))]]
    drawings = [render_figure(partial(draw_strategies, rows), *diagram_size(rows)) for _ in range(2)]
    assert drawings[0] == drawings[1]


def _points(found: Triplets) -> tuple[list[float], list[float]]:
    return found.positive.round(5).tolist(), found.negative.round(5).tolist()


def test_labels_without_positives_or_negatives_are_refused() -> None:
    with pytest.raises(InputError, match="some: all images are of one class"):
        triplets(random_embeddings(0, "aaaaaaa"))
    with pytest.raises(InputError, match="some: no class has two images"):
        triplets(random_embeddings(0, "abcdefg"))


def test_same_images_have_the_same_labels_and_paths() -> None:
    one, other = random_embeddings(0), random_embeddings(1)
    assert same_images(one, other)
    assert not same_images(one, random_embeddings(1, "aaabbbbcce"))
    paths = np.array(list("0123456789"))
    named = Embeddings("x", one.vectors, one.labels, paths)
    assert same_images(named, other)
    assert not same_images(named, Embeddings("y", one.vectors, one.labels, paths[::-1]))


def svg_of(*states: Embeddings) -> str:
    rows = [[Panel("all images", [triplets(state) for state in states])]]
    return render_figure(partial(draw_triplet_diagram, rows), *diagram_size(rows)).decode()


def test_figure_is_reproducible() -> None:
    assert svg_of(random_embeddings(0), random_embeddings(1)) == svg_of(
        random_embeddings(0), random_embeddings(1)
    )


def test_few_images_have_arrows_and_many_are_rasterized() -> None:
    def of(count: int, seed: int) -> Embeddings:
        random = np.random.default_rng(seed)
        return Embeddings("x", random.normal(size=(count, 4)), np.arange(count) % 5)

    few, some, many = (svg_of(of(count, 0), of(count, 1)) for count in (20, 500, RASTERIZE_ABOVE + 10))
    assert "Quiver" in few
    assert "Quiver" not in some
    assert "image/png" not in some
    assert "image/png" in many
    assert len(many) < 2 * len(some)  # and not seven times


def test_special_characters_in_names_are_text() -> None:
    odd = "$\\frac{$ <b>&amp; \n\x07 \u732b" + "x" * 99
    ElementTree.fromstring(svg_of(replace(random_embeddings(0), name=odd)))
