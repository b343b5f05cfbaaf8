"""Generated JPEG files with about as much detail as photographs, for benchmarks that decode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (500, 375)  # width and height of a typical product or bird photograph


def write_photographs(folder: Path, classes: int, per_class: int, size: tuple[int, int] = SIZE) -> list[Path]:
    """Write `per_class` files of (width, height) into each of `classes` folders; return them in order."""
    random, paths = np.random.default_rng(0), []
    noise = random.normal(0, 8, (size[1] + 64, size[0] + 64, 1))
    for name in range(classes):
        (folder / f"{name:03d}").mkdir(parents=True)
        for number in range(per_class):
            coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), np.uint8))
            top, left = random.integers(0, 64, 2)
            fine = noise[top : top + size[1], left : left + size[0]]
            pixels = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC)) + fine
            paths.append(folder / f"{name:03d}" / f"{number}.jpg")
            Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(paths[-1], quality=85)
    return paths
