"""Example triplets as images."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from matplotlib.figure import Figure

from retrieval.analysis.embeddings import Embeddings
from retrieval.errors import InputError
from retrieval.reports.figures import render_figure
from train.papers.examples import (
    choose_anchors,
    draw_examples,
    example_triplets,
    examples_size,
    rows_of,
)


@pytest.fixture
def models(shop: Path) -> list[Embeddings]:
    """Embeddings of the shop's images by two random models."""
    files = sorted(shop.glob("*/*.png"))
    labels = np.array([file.parent.name for file in files])
    paths = np.array([str(file.absolute()) for file in files])
    return [
        Embeddings(
            name,
            np.random.default_rng(seed).normal(size=(len(files), 6)) + (labels == "red")[:, None],
            labels,
            paths,
        )
        for seed, name in enumerate(("shn", "sct"))
    ]


def test_hardest_anchors_have_the_largest_differences_of_their_classes(models: list[Embeddings]) -> None:
    images = models[0]
    cosines = images.vectors @ images.vectors.T
    np.fill_diagonal(cosines, np.nan)
    same = images.labels[:, None] == images.labels
    difference = np.nanmax(np.where(same, -np.inf, cosines), 1) - np.nanmax(
        np.where(same, cosines, -np.inf), 1
    )
    best = {label: np.flatnonzero(images.labels == label) for label in ("red", "green", "blue")}
    expected = sorted(
        (rows[difference[rows].argmax()] for rows in best.values()), key=lambda i: -difference[i]
    )
    assert choose_anchors(images, 3, "hardest").tolist() == expected
    assert choose_anchors(images, 2, "hardest").tolist() == expected[:2]
    assert (
        choose_anchors(images, 9, "random", seed=1).tolist()
        == choose_anchors(images, 9, "random", seed=1).tolist()
    )
    drawn = {tuple(choose_anchors(images, 3, "random", seed=seed)) for seed in range(5)}
    assert len(drawn) > 1


def test_each_model_selects_among_all_images(models: list[Embeddings]) -> None:
    anchors = choose_anchors(models[0], 3, "hardest")
    found = example_triplets(models, anchors, "random", ("hard", "semi-hard"), seed=3)
    assert [(c.source, c.role) for c in found.columns] == [
        (name, role)
        for name in ("shn", "sct")
        for role in ("random positive", "hard negative", "semi-hard negative")
    ]
    np.testing.assert_array_equal(found.columns[0].rows, found.columns[3].rows)  # the same random positives
    for model, (positive, hard, semi_hard) in zip(
        models, (found.columns[:3], found.columns[3:]), strict=True
    ):
        for i, anchor in enumerate(anchors):
            cosines = model.vectors @ model.vectors[anchor]
            others = model.labels != model.labels[anchor]
            assert model.labels[positive.rows[i]] == model.labels[anchor]
            assert hard.cosines[i] == pytest.approx(cosines[others].max(), abs=1e-6)
            below = others & (cosines < positive.cosines[i])
            if below.any():
                assert semi_hard.cosines[i] == pytest.approx(cosines[below].max(), abs=1e-6)
            assert hard.hard[i] == (hard.cosines[i] > positive.cosines[i])
        assert not positive.hard.any()
        assert not semi_hard.hard.any()
    facts = found.to_dict()
    assert [one["path"] for one in facts] == models[0].paths[anchors].tolist()  # type: ignore[index]
    assert facts[0]["selected"][1]["cosine"] == found.columns[1].cosines[0]


def test_anchor_without_a_semi_hard_negative_has_none() -> None:
    vectors = np.array([[1, 0], [0, 1], [0.9, 0.1], [0.8, 0.2]])
    images = Embeddings("x", vectors, np.array(list("aabb")), np.array(list("0123")))
    found = example_triplets([images], np.array([0, 2]), "easy", ("semi-hard",))
    positive, negative = found.columns
    assert positive.rows.tolist() == [1, 3]
    assert negative.rows.tolist() == [-1, 1]  # image 0 is nearer than the positive of image 2
    assert len(found.to_dict()[0]["selected"]) == 1
    drawn = render_figure(partial(draw_examples, found), *examples_size(found))
    assert b"<!-- none -->" in drawn


def apart(svg: bytes) -> tuple[str, list[float]]:
    """The SVG without coordinates and the ids that are hashed from them, and the coordinates."""
    text = re.sub(r"(?<=[\"#])p[0-9a-f]{10}(?=[\")])", "clip", svg.decode())
    coordinate = r"(?<=[ (\"])-?\d+(?:\.\d+)?(?=[ )\"\n])"
    return re.sub(coordinate, "N", text), [float(number) for number in re.findall(coordinate, text)]


def test_figure_is_reproducible_and_shows_the_images(models: list[Embeddings]) -> None:
    found = example_triplets(models, choose_anchors(models[0], 2, "hardest"))
    first, second = (render_figure(partial(draw_examples, found), *examples_size(found)) for _ in range(2))
    texts, numbers = zip(*map(apart, (first, second)), strict=True)
    assert texts[0] == texts[1]
    np.testing.assert_allclose(*numbers, atol=3e-6)  # the layout solver is not exact in the last digit
    assert first.count(b"<image ") == 2 * (1 + 4)


@pytest.mark.parametrize("negatives", [["hard"], ["hard", "semi-hard"]])
def test_legend_is_within_the_figure(
    models: list[Embeddings], negatives: list[Literal["hard", "semi-hard"]]
) -> None:
    found = example_triplets(models[:1], choose_anchors(models[0], 1, "hardest"), negatives=negatives)
    figure = Figure(figsize=examples_size(found), layout="constrained")
    draw_examples(found, figure)
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert 0 <= legend.x0 < legend.x1 <= figure.bbox.x1


def test_unusable_anchors_are_refused(models: list[Embeddings], shop: Path) -> None:
    known = next(iter(sorted(shop.glob("red/*.png"))))
    assert models[0].paths is not None
    assert models[0].paths[rows_of(models[0], [known])].tolist() == [str(known.absolute())]
    with pytest.raises(InputError, match="not one of the 24 embedded images"):
        rows_of(models[0], [Path("other.png")])
    with pytest.raises(InputError, match="no triplets"):
        choose_anchors(Embeddings("x", np.eye(3), np.array(list("abc"))), 2, "hardest")
    lonely = Embeddings("x", np.eye(3), np.array(list("aab")), np.array(list("012")))
    with pytest.raises(InputError, match="2: has no positive or no negative"):
        example_triplets([lonely], np.array([0, 2]))
    with pytest.raises(InputError, match="paths of its images are not known"):
        example_triplets([Embeddings("x", np.eye(3), np.array(list("aab")))], np.array([0]))
    with pytest.raises(InputError, match="not of the same images"):
        example_triplets([models[0], lonely], np.array([0]))
