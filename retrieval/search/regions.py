"""Regions of a picture in which single objects may stand, and the choice among them, by arrays alone.

A picture of many objects is seen in overlapping square tiles; within a tile, windows of the embedding map
stand for smaller or longer parts, without another run of the model. Boxes are float [n, 4]: left, top, right
and bottom, as fractions of the upright picture's width and height.
"""

from __future__ import annotations

import math

import numpy as np

from retrieval.search.rerank import unit

MOST_TILES = 15
_SIDE = 0.4  # of the picture's shorter side
_OF_LONGER = 0.25  # least side of a tile: a panorama has no more tiles than other pictures
_LEAST = 8  # pixels of a tile's side, in a picture that has them
_STEP = 0.8  # of a tile's side, between the centres of two tiles
# Windows within a tile: height and width in sevenths of its side, the usual side of a map.
_WINDOWS = ((5, 5), (4, 4), (3, 3), (3, 5), (5, 3), (4, 7), (7, 4))
_SEVENTHS = 7


def tiles(width: int, height: int) -> np.ndarray:
    """Return overlapping square tiles that cover a picture, row by row, at most `MOST_TILES`.

    Args:
        width, height: Size of the picture in pixels.

    Returns:
        Boxes, float64 [n, 4].
    """
    shorter, longer = min(width, height), max(width, height)
    side = min(shorter, max(_SIDE * shorter, _OF_LONGER * longer, _LEAST))
    across, down = (_starts(length, side) for length in (width, height))
    left, top = (grid.ravel() for grid in np.meshgrid(across, down))
    pixels = np.stack([left, top, left + side, top + side], 1)
    found: np.ndarray = np.clip(pixels / [width, height, width, height], 0, 1)
    return found


def _starts(length: int, side: float) -> np.ndarray:
    """Return where the tiles along a side of the picture begin, in pixels."""
    count = math.ceil((length - side) / (_STEP * side) - 1e-9) + 1
    return np.linspace(0, length - side, min(count, MOST_TILES))


def windows(boxes: np.ndarray, maps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return windows within tiles, with the vectors that the embedding maps give them.

    Args:
        boxes: Tiles, float [t, 4].
        maps: Embedding map of each, float32 [t, h, w, D].

    Returns:
        Boxes of the windows, float64 [t, m, 4], and their vectors of unit length, float32 [t, m, D].
    """
    cells = _cells(*maps.shape[1:3])
    sums = np.zeros((len(maps), maps.shape[1] + 1, maps.shape[2] + 1, maps.shape[3]), np.float32)
    sums[:, 1:, 1:] = maps.cumsum(1).cumsum(2)
    left, top, right, bottom = cells.T
    inside = sums[:, bottom, right] - sums[:, top, right] - sums[:, bottom, left] + sums[:, top, left]
    corner, side = boxes[:, None, [0, 1, 0, 1]], (boxes[:, 2:] - boxes[:, :2])[:, None, [0, 1, 0, 1]]
    of_map = np.array([maps.shape[2], maps.shape[1]] * 2)
    return corner + cells / of_map * side, unit(inside)


def _cells(height: int, width: int) -> np.ndarray:
    """Return the windows of a map in its cells, int64 [m, 4]."""
    found: dict[tuple[int, int, int, int], None] = {}
    for down, across in _WINDOWS:
        h, w = (max(1, round(n * part / _SEVENTHS)) for n, part in ((height, down), (width, across)))
        for top in range(0, height - h + 1, max(1, height // _SEVENTHS)):
            for left in range(0, width - w + 1, max(1, width // _SEVENTHS)):
                found[left, top, left + w, top + h] = None
    return np.array([*found], np.int64)


def squares_around(boxes: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return the least square around each box of a picture, moved into it and no larger than it.

    Args:
        boxes: Boxes, float [n, 4].
        width, height: Size of the picture in pixels.

    Returns:
        Boxes, float64 [n, 4].
    """
    size = np.array([width, height])
    corners = boxes.reshape(-1, 2, 2) * size
    side = np.minimum((corners[:, 1] - corners[:, 0]).max(1), min(width, height))[:, None]
    start = np.clip(corners.mean(1) - side / 2, 0, size - side)
    found: np.ndarray = np.hstack([start / size, np.clip((start + side) / size, 0, 1)])
    return found


def suppressed(boxes: np.ndarray, scores: np.ndarray, count: int, overlap: float) -> np.ndarray:
    """Return the best boxes that overlap each other little: non-maximum suppression.

    Args:
        boxes: Boxes, float [n, 4].
        scores: Score of each, float [n]; of equal ones the first counts.
        count: Largest number of boxes.
        overlap: Largest intersection over union of two boxes that are kept.

    Returns:
        Their positions, int64, best first.
    """
    order = np.argsort(-scores, kind="stable")
    areas = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    kept: list[int] = []
    while len(order) and len(kept) < count:
        first, order = order[0], order[1:]
        kept.append(int(first))
        corners = np.minimum(boxes[order, 2:], boxes[first, 2:]) - np.maximum(
            boxes[order, :2], boxes[first, :2]
        )
        common = np.prod(np.maximum(corners, 0), axis=1)
        order = order[common <= overlap * (areas[order] + areas[first] - common)]
    return np.array(kept, np.int64)
