"""Similarity heatmaps: the contribution of each location of an image to its similarity with another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from retrieval.embedder import Embedder
from retrieval.images.load import ImageSource
from retrieval.reports.figures import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ALIKE, _UNLIKE = COLOURS[1], COLOURS[0]
_STRONGEST = 0.85  # opacity of the colour at the limit of the scale


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
    """

    cosine: float
    contributions_a: np.ndarray
    contributions_b: np.ndarray
    pixels_a: np.ndarray
    pixels_b: np.ndarray

    @property
    def limit(self) -> float:
        """Largest absolute contribution of both images, for a common scale."""
        return float(max(np.abs(self.contributions_a).max(), np.abs(self.contributions_b).max()))


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
    pixels = np.stack([embedder.pixels(a), embedder.pixels(b)])
    vectors, maps = embedder.embed_maps(pixels)  # [2, D], [2, h, w, D]
    sums = np.linalg.norm(maps.sum((1, 2)), axis=1)  # |m| h w, [2]
    of_a, of_b = maps[0] @ vectors[1] / sums[0], maps[1] @ vectors[0] / sums[1]
    return Heatmaps(float(vectors[0] @ vectors[1]), of_a, of_b, *pixels)


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


def draw_heatmaps(found: Heatmaps, names: tuple[str, str], figure: Figure) -> None:
    """Draw four panels: the two preprocessed images, and below each its contributions."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    figure.suptitle(f"Cosine similarity {found.cosine:.3f} by location", fontsize=13)
    show = partial(overlay, limit=found.limit)
    sides = zip(
        names, (found.pixels_a, found.pixels_b), (found.contributions_a, found.contributions_b), strict=True
    )
    panels = figure.subplots(2, 2, gridspec_kw={"hspace": 0.03})
    for column, (name, pixels, contributions) in enumerate(sides):
        panels[0, column].imshow(pixels)
        panels[0, column].set_title(name, fontsize=10)
        panels[1, column].imshow(show(pixels, contributions))
        other = ("the result", "the query")[column]
        panels[1, column].set_title(f"similarity to {other}", fontsize=11)
    for axes in panels.flat:
        axes.set_xticks([])
        axes.set_yticks([])
    scale = np.linspace(-1, 1, 255)[:, None]
    shades = ListedColormap(_coloured(np.full_like(scale, 200), scale) / 255)  # over light grey
    mappable = ScalarMappable(Normalize(-100 * found.limit, 100 * found.limit), shades)
    h, w = found.contributions_a.shape
    bar = figure.colorbar(mappable, ax=panels[1, :], location="bottom", shrink=0.8, aspect=30)
    bar.set_label(f"contribution of each of {h} x {w} locations to the cosine (in hundredths)")
