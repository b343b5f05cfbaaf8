"""Generated JPEG files with about as much detail as photographs, for benchmarks that decode."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from retrieval.machine.resources import cores

SIZE = (500, 375)  # width and height of a typical product or bird photograph


def write_photographs(folder: Path, classes: int, per_class: int, size: tuple[int, int] = SIZE) -> list[Path]:
    """Write `per_class` files of (width, height) into each of `classes` folders; return them in order."""
    random = np.random.default_rng(0)
    noise = random.normal(0, 8, (size[1] + 64, size[0] + 64, 1))

    def write(path: Path, coarse: np.ndarray, top: int, left: int) -> Path:
        fine = noise[top : top + size[1], left : left + size[0]]
        pixels = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)) + fine
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=85)
        return path

    written = []
    with ThreadPoolExecutor(cores()) as pool:
        for name in range(classes):
            (folder / f"{name:03d}").mkdir(parents=True)
            for number in range(per_class):
                coarse = random.integers(0, 256, (12, 16, 3), np.uint8)
                top, left = random.integers(0, 64, 2)
                written.append(
                    pool.submit(write, folder / f"{name:03d}" / f"{number}.jpg", coarse, top, left)
                )
        return [future.result() for future in written]
