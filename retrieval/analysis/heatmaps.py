"""Similarity heatmaps: the contribution of each location of an image to its similarity with another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from retrieval.images.load import ImageSource
from retrieval.model.embedder import Embedder
from retrieval.reports.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ALIKE, _UNLIKE = COLOURS[1], COLOURS[0]
_STRONGEST = 0.85  # opacity of the colour at the limit of the scale
_FULL_STRENGTH = 98  # percentile of the deviations from the mean


@dataclass(frozen=True, eq=False)
class Heatmaps:
    """Contributions of the locations of two images to the cosine of their embeddings.

    Attributes:
        cosine: Cosine of the two embeddings.
        contributions_a: Contribution of each location of A to its cosine with B, float32 [h, w]; they sum to
            the cosine, up to rounding. Locations below 0 look unlike B.
        contributions_b: The same of B with A.
        pixels_a: Preprocessed image A, uint8 [S, S, 3].
        pixels_b: Preprocessed image B, uint8 [S, S, 3].
        similarities: Cosine of each location of A with each of B, row by row, float32 [h w, h w].
    """

    cosine: float
    contributions_a: np.ndarray
    contributions_b: np.ndarray
    pixels_a: np.ndarray
    pixels_b: np.ndarray
    similarities: np.ndarray

    @property
    def strengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Contrast of the contributions to A and to B, on one scale: float32 [h, w] each, from -1 to 1.

        In many networks every location raises the cosine. What tells them apart is the deviation from the
        mean contribution, which is the same for A and B; the largest 2% of the deviations are clipped.
        """
        deviations = [part - part.mean() for part in (self.contributions_a, self.contributions_b)]
        full = np.percentile(np.abs(deviations), _FULL_STRENGTH)
        a, b = (np.clip(part / (full or 1.0), -1, 1).astype(np.float32) for part in deviations)
        return a, b

    @property
    def limit(self) -> float:
        """Largest absolute contribution of both images, for a common scale."""
        return float(max(np.abs(self.contributions_a).max(), np.abs(self.contributions_b).max()))

    @property
    def spread(self) -> tuple[float, float]:
        """Effective number of locations of A and of B that raise the cosine: 1 if it is a single one.

        The exponential of the entropy of the positive contributions' shares.
        """
        return _effective_number(self.contributions_a), _effective_number(self.contributions_b)


def heatmaps(embedder: Embedder, a: ImageSource, b: ImageSource) -> Heatmaps:
    """Decompose the cosine of two images over their locations (Stylianou et al. 2019; SCT, figure 8).

    The embedding is the mean over locations, scaled to unit length: e_A = m_A / |m_A|, m_A = mean_p map_A[p].
    So location p of A contributes map_A[p] . e_B / (|m_A| h w) to e_A . e_B.

    Args:
        embedder: The model.
        a: Image A.
        b: Image B.

    Raises:
        ImageError: An image cannot be read.
        InputError: The model has no embedding map.
    """
    return heatmaps_of_pixels(embedder, np.stack([embedder.pixels(a), embedder.pixels(b)]))


def heatmaps_of_pixels(embedder: Embedder, pixels: np.ndarray) -> Heatmaps:
    """Return the heatmaps of two preprocessed images, uint8 [2, S, S, 3]; see `heatmaps`."""
    vectors, maps = embedder.embed_maps(pixels)  # [2, D], [2, h, w, D]
    sums = np.linalg.norm(maps.sum((1, 2)), axis=1)  # |m| h w, [2]
    of_a, of_b = maps[0] @ vectors[1] / sums[0], maps[1] @ vectors[0] / sums[1]
    lengths = np.linalg.norm(maps, axis=-1, keepdims=True)
    unit = (maps / np.maximum(lengths, np.finfo(np.float32).tiny)).reshape(2, -1, maps.shape[-1])
    similarities = np.clip(unit[0] @ unit[1].T, -1, 1)
    return Heatmaps(float(vectors[0] @ vectors[1]), of_a, of_b, pixels[0], pixels[1], similarities)


def overlay(pixels: np.ndarray, contributions: np.ndarray, limit: float) -> Image.Image:
    """Return an image in grey, with orange where it looks like the other image and blue where it does not.

    Args:
        pixels: Preprocessed image, uint8 [S, S, 3].
        contributions: Contributions of its locations, float [h, w], scaled up bilinearly.
        limit: Contribution at full colour; common to both images, so that they are comparable.

    Returns:
        RGB image, S x S.
    """
    size = (pixels.shape[1], pixels.shape[0])
    field = Image.fromarray(contributions.astype(np.float32)).resize(size, Image.Resampling.BILINEAR)
    strength = np.clip(np.asarray(field) / (limit or 1.0), -1, 1)[..., None]  # [S, S, 1]
    grey = np.asarray(Image.fromarray(pixels).convert("L"), np.float32)[..., None]
    return Image.fromarray(np.rint(_coloured(grey, strength)).astype(np.uint8))


def _coloured(grey: np.ndarray, strength: np.ndarray) -> np.ndarray:
    """Blend grey 0..255 [..., 1] with colour of a strength -1..1 [..., 1] -> [..., 3]."""
    colour = np.where(strength >= 0, _rgb(_ALIKE), _rgb(_UNLIKE))
    cover = _STRONGEST * np.abs(strength)
    blended: np.ndarray = grey * (1 - cover) + colour * cover
    return blended


def _rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], np.float32)


def _effective_number(contributions: np.ndarray) -> float:
    positive = contributions[contributions > 0].astype(np.float64)
    shares = positive / positive.sum()
    return float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else 0.0


def heatmaps_size(results: int) -> tuple[float, float]:
    """Return width and height of `draw_heatmaps` in inches."""
    return 2.5 * (1 + results) + 0.5, 10.0


def draw_heatmaps(found: Sequence[Heatmaps], query: str, results: Sequence[str], figure: Figure) -> None:
    """Draw the query with each of its results, and below them their contributions, on one scale.

    Args:
        found: Heatmaps of the query, image A, with each result, image B.
        query: Name of the query.
        results: Names of the results.
        figure: Figure to draw on.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    limit = max(pair.limit for pair in found)
    figure.suptitle("Cosine similarity by location", fontsize=13)
    grid = figure.subplots(3, 1 + len(found), squeeze=False)
    for axes in grid[:, 0]:
        axes.axis("off")
    grid[1, 0].imshow(found[0].pixels_a)
    grid[1, 0].set_title(query, fontsize=10)
    for panels, pair, name in zip(grid[:, 1:].T, found, results, strict=True):
        panels[0].imshow(pair.pixels_b)
        panels[0].set_title(f"{name}\ncosine {pair.cosine:.3f}", fontsize=10)
        sides = zip(
            panels[1:],
            ("query", "result"),
            (pair.pixels_a, pair.pixels_b),
            (pair.contributions_a, pair.contributions_b),
            pair.spread,
            strict=True,
        )
        for axes, role, pixels, contributions, spread in sides:
            axes.imshow(overlay(pixels, contributions, limit))
            axes.set_title(f"{role}: {spread:.1f} of {contributions.size} locations", fontsize=10)
        for axes in panels:
            axes.set(xticks=[], yticks=[])
    scale = np.linspace(-1, 1, 255)[:, None]
    shades = ListedColormap(_coloured(np.full_like(scale, 200), scale) / 255)  # over light grey
    mappable = ScalarMappable(Normalize(-100 * limit, 100 * limit), shades)
    bar = figure.colorbar(mappable, ax=grid, location="bottom", shrink=0.8, aspect=30)
    bar.set_label("contribution of a location to the cosine (in hundredths)")
