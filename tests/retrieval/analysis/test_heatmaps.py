"""Heatmaps of a real model: the contributions of all locations sum to the cosine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from retrieval import Embedder, InputError
from retrieval.analysis.heatmaps import Heatmaps, draw_heatmaps, heatmaps, heatmaps_size, overlay
from retrieval.reports.figures import render_figure
from tests.conftest import draw
from tests.retrieval.commands.test_model import linear_model


@pytest.fixture(scope="module")
def embedder(model_file: Path) -> Embedder:
    return Embedder(model_file)


@pytest.mark.parametrize("seeds", [(0, 1), (2, 9), (4, 4)])
def test_contributions_sum_to_the_cosine_of_a_search(embedder: Embedder, seeds: tuple[int, int]) -> None:
    a, b = draw(seeds[0]), draw(seeds[1], (90, 40), hue=1)
    found = heatmaps(embedder, a, b)
    vectors = embedder.embed([a, b])
    assert found.cosine == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)
    assert found.contributions_a.sum() == pytest.approx(found.cosine, abs=1e-5)
    assert found.contributions_b.sum() == pytest.approx(found.cosine, abs=1e-5)
    assert found.limit == max(np.abs(found.contributions_a).max(), np.abs(found.contributions_b).max())
    np.testing.assert_array_equal(found.pixels_b, embedder.pixels(b))


def test_each_location_contributes_its_share_of_the_mean(embedder: Embedder) -> None:
    """The sum over the other locations is the embedding less its contribution."""
    a, b = draw(0), draw(5, hue=2)
    found = heatmaps(embedder, a, b)
    vectors, maps = embedder.embed_maps(np.stack([embedder.pixels(a), embedder.pixels(b)]))
    mean = maps[0].reshape(-1, embedder.dim).mean(0)
    np.testing.assert_allclose(mean / np.linalg.norm(mean), vectors[0], atol=1e-5)
    places = np.prod(maps.shape[1:3])
    for row in range(maps.shape[1]):
        for column in range(maps.shape[2]):
            rest = mean - maps[0, row, column] / places
            lost = (mean - rest) @ vectors[1] / np.linalg.norm(mean)
            assert found.contributions_a[row, column] == pytest.approx(float(lost), abs=1e-6)


def test_similarities_and_strengths(embedder: Embedder) -> None:
    found = heatmaps(embedder, draw(0), draw(5, hue=2))
    _, maps = embedder.embed_maps(np.stack([found.pixels_a, found.pixels_b]))
    a, b = (one.reshape(-1, embedder.dim).astype(np.float64) for one in maps)
    for row, column in ((0, 0), (2, len(b) - 1), (len(a) - 1, 1)):
        cosine = a[row] @ b[column] / np.sqrt((a[row] @ a[row]) * (b[column] @ b[column]))
        assert found.similarities[row, column] == pytest.approx(cosine, abs=1e-5)
    both = np.array([found.contributions_a, found.contributions_b])
    strengths = np.array(found.strengths)
    assert np.abs(strengths).max() == 1
    inside = np.abs(strengths) < 1
    assert inside.mean() > 0.8
    ratios = (both - both.mean((1, 2), keepdims=True))[inside] / strengths[inside]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-3)  # one scale for both


def test_strengths_without_contrast_are_0() -> None:
    even, pixels = np.full((2, 2), 0.25), np.zeros((4, 4, 3), np.uint8)
    strengths = Heatmaps(1.0, even, even, pixels, pixels, np.zeros((4, 4))).strengths
    assert not np.any(strengths)


def test_image_has_cosine_1_with_itself(embedder: Embedder) -> None:
    found = heatmaps(embedder, draw(3), draw(3))
    assert found.cosine == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(found.contributions_a, found.contributions_b, atol=1e-6)


def test_model_without_a_map_is_refused(tmp_path: Path) -> None:
    without = Embedder(linear_model(tmp_path / "m.onnx"))
    with pytest.raises(InputError, match=r"m\.onnx: this model has no embedding map"):
        heatmaps(without, draw(0), draw(1))


def test_overlay_is_grey_orange_and_blue() -> None:
    pixels = np.asarray(draw(0, (64, 64)))
    grey = np.asarray(overlay(pixels, np.zeros((2, 2)), 1.0))
    assert (np.ptp(grey, axis=2) == 0).all()
    ends = np.array([[1.0, -1.0]])
    shown = np.asarray(overlay(pixels, ends, 1.0)).astype(int)
    assert shown.shape == (64, 64, 3)
    red, blue = shown[..., 0], shown[..., 2]
    assert (red[:, :16] > blue[:, :16]).all()
    assert (red[:, -16:] < blue[:, -16:]).all()
    middle = np.abs(shown[:, 31:33].mean((1, 2)) - grey[:, 31:33].mean((1, 2)))
    assert middle.max() < 5  # no colour where nothing is contributed


def test_larger_scale_is_fainter() -> None:
    pixels = np.full((8, 8, 3), 128, np.uint8)
    strong, faint = (np.asarray(overlay(pixels, np.ones((1, 1)), limit)).astype(int) for limit in (1, 10))
    assert np.abs(strong - 128).sum() > 5 * np.abs(faint - 128).sum() > 0


def test_spread_counts_locations_of_equal_contributions() -> None:
    pixels = np.zeros((4, 4, 3), np.uint8)
    contributions = np.array([[0.2, 0.2, -0.5], [0.2, 0.0, 0.2]]), np.array([[0.0, 0.1], [-0.3, 0.0]])
    assert Heatmaps(0.3, *contributions, pixels, pixels, np.zeros((6, 4))).spread == pytest.approx((4, 1))
    nowhere = np.full((2, 2), -0.1)
    assert Heatmaps(-0.4, nowhere, nowhere, pixels, pixels, np.zeros((4, 4))).spread == (0, 0)


def test_figure_is_reproducible(embedder: Embedder) -> None:
    found = [heatmaps(embedder, draw(0), draw(other)) for other in (1, 2)]
    first, second = (
        render_figure(lambda figure: draw_heatmaps(found, "a", ("b", "c"), figure), *heatmaps_size(2))
        for _ in range(2)
    )
    assert first == second
    assert first.count(b"<image ") == 1 + 3 * 2 + 1  # with the scale


def test_no_title_covers_the_image_above_it(embedder: Embedder) -> None:
    found = [heatmaps(embedder, draw(0), draw(other)) for other in (1, 2)]
    figure = Figure(figsize=heatmaps_size(2), layout="constrained")
    draw_heatmaps(found, "query: a.jpg\nphotos", ("b.jpg\nred", "c.jpg\nblue"), figure)
    figure.draw_without_rendering()
    panels = [axes for axes in figure.axes if axes.images]
    for axes in panels:
        title = axes.title.get_window_extent()
        assert not any(title.overlaps(other.get_window_extent()) for other in panels)
