"""Augmented copies of images: queries with a known answer, for images without labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from retrieval.errors import ImageError
from retrieval.images.load import load_image
from retrieval.model.embedder import Embedder
from retrieval.progress import Progress

_AREA = (0.2, 0.7)  # share of the image that is kept
_ASPECT = (3 / 4, 4 / 3)
_STRENGTH = (0.6, 1.4)  # of brightness, contrast and saturation


def embed_copies(
    embedder: Embedder, paths: Sequence[Path], count: int, seed: int = 0, *, show_progress: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Embed one augmented copy of each of some images; unreadable images are left out.

    A copy is a random part of the image, flipped or not, with another brightness, contrast and saturation.

    Args:
        embedder: Model.
        paths: Image files.
        count: Largest number of copies.
        seed: Seed of the choice and the augmentation.
        show_progress: Report progress on stderr.

    Returns:
        Unit vectors, float32 [q, D], and the position of the original of each in `paths`, int64 [q].
    """
    random = np.random.default_rng([seed, 4])
    chosen = np.sort(random.permutation(len(paths))[:count])
    vectors, rows, pixels = [np.empty((0, embedder.dim), np.float32)], list[int](), list[np.ndarray]()
    with Progress("augmented copies", len(chosen), "images", show=show_progress) as progress:
        for row in chosen.tolist():
            try:
                image = load_image(paths[row])
            except ImageError:
                progress.update(1)
                continue
            pixels.append(embedder.preprocess(augment(image, np.random.default_rng([seed, row]))))
            rows.append(row)
            if len(pixels) == embedder.batch_size:
                vectors.append(embedder.embed_pixels(np.stack(pixels)))
                pixels = []
            progress.update(1)
    if pixels:
        vectors.append(embedder.embed_pixels(np.stack(pixels)))
    return np.concatenate(vectors), np.array(rows, np.int64)


def augment(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Return a random part of an image with other colours."""
    area, aspect = random.uniform(*_AREA), np.exp(random.uniform(*np.log(_ASPECT)))
    width = min(image.width, max(1, round((image.width * image.height * area * aspect) ** 0.5)))
    height = min(image.height, max(1, round((image.width * image.height * area / aspect) ** 0.5)))
    left, top = random.integers(image.width - width + 1), random.integers(image.height - height + 1)
    image = image.crop((left, top, left + width, top + height))
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    for kind in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = kind(image).enhance(random.uniform(*_STRENGTH))
    return image
