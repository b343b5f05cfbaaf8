"""Tests of tiles, windows and suppression against pixels, plain means and torchvision; of ridge whitening."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision.ops import nms

from retrieval.search.regions import MOST_TILES, suppressed, tiles, windows
from retrieval.search.whitening import FEWEST, ridge_whitening


@pytest.mark.parametrize(
    "size", [(900, 675), (675, 900), (500, 500), (900, 300), (300, 100), (640, 360), (9, 7)]
)
def test_tiles_are_squares_that_cover_the_picture(size: tuple[int, int]) -> None:
    found = tiles(*size)
    assert 1 <= len(found) <= MOST_TILES
    pixels = found * [*size, *size]
    np.testing.assert_allclose(pixels[:, 2] - pixels[:, 0], pixels[:, 3] - pixels[:, 1])
    covered = np.zeros(size[::-1], bool)
    for left, top, right, bottom in np.rint(pixels).astype(int):
        covered[top:bottom, left:right] = True
    assert covered.all()
    assert found.min() >= 0
    assert found.max() <= 1


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (3000, 2)])
def test_tiny_pictures_and_strips_have_a_few_tiles(size: tuple[int, int]) -> None:
    found = tiles(*size)
    assert 1 <= len(found) <= MOST_TILES
    assert (found[:, 2:] > found[:, :2]).all()


@pytest.mark.parametrize("shape", [(7, 7), (8, 8), (14, 14), (4, 6), (1, 1)])
def test_windows_have_the_mean_of_their_locations(shape: tuple[int, int]) -> None:
    random = np.random.default_rng(0)
    maps = random.normal(size=(2, *shape, 5)).astype(np.float32)
    of_tiles = np.array([[0, 0, 0.5, 0.4], [0.5, 0.2, 1, 0.6]])
    boxes, vectors = windows(of_tiles, maps)
    assert boxes.shape[:2] == vectors.shape[:2]
    for tile, each, found in zip(range(2), boxes, vectors, strict=True):
        left, top, right, bottom = of_tiles[tile]
        assert len({tuple(box) for box in each.round(9).tolist()}) == len(each)
        for box, vector in zip(each, found, strict=True):
            x = (box[[0, 2]] - left) / (right - left) * shape[1]
            y = (box[[1, 3]] - top) / (bottom - top) * shape[0]
            columns, rows = (slice(*np.rint(ends).astype(int)) for ends in (x, y))
            mean = maps[tile, rows, columns].reshape(-1, 5).mean(0)
            np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-4)


def test_suppression_keeps_what_torchvision_keeps() -> None:
    random = np.random.default_rng(1)
    corner = random.random((300, 2)) * 0.8
    boxes = np.concatenate([corner, corner + random.random((300, 2)) * 0.2 + 0.02], 1)
    scores = random.random(300)
    for overlap in (0.0, 0.15, 0.5):
        wanted = nms(torch.from_numpy(boxes), torch.from_numpy(scores), overlap).numpy()
        np.testing.assert_array_equal(suppressed(boxes, scores, 300, overlap), wanted)
        np.testing.assert_array_equal(suppressed(boxes, scores, 7, overlap), wanted[:7])
    assert suppressed(np.empty((0, 4)), np.empty(0), 5, 0.1).tolist() == []


def test_whitening_makes_the_covariance_with_its_ridge_the_identity() -> None:
    random = np.random.default_rng(2)
    vectors = random.normal(size=(500, 12)) * np.geomspace(1, 0.01, 12) + 1
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    layer = ridge_whitening(vectors, ridge=0.5)
    covariance = np.cov(vectors.T, bias=True)
    ridged = covariance / np.trace(covariance) * 12 + 0.5 * np.eye(12)
    np.testing.assert_allclose(layer.weight @ ridged @ layer.weight.T, np.eye(12), atol=1e-4)
    np.testing.assert_allclose(layer.mean, vectors.mean(0), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(layer(vectors), axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    "vectors", [np.eye(FEWEST, 8, dtype=np.float32)[:5], np.ones((FEWEST, 8), np.float32)]
)
def test_few_or_equal_vectors_are_not_whitened(vectors: np.ndarray) -> None:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(ridge_whitening(unit)(unit), unit, atol=1e-6)
