"""Galleries for the tests of the page: with metadata, duplicates, and wrong labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from retrieval import Gallery
from tests.conftest import draw, lookalike_here
from tests.serve.model import write_model

BRANDS = ("acme", "<b>zeta</b> & co")
ODD = "it's <b>odd</b>"
MORE = 26  # duplicated images, enough for two pages of groups


def create(folder: Path, name: str, license: str = "") -> Gallery:
    """Create an empty gallery whose model has an embedding map."""
    model = write_model(folder / f"{name}.onnx", maps=True, license=license)
    return Gallery.create(folder / f"{name}.gallery", model)


def stock(folder: Path, shop: Path, name: str = "shop") -> Gallery:
    """The shop with a brand and a price for each image, and a file that cannot be read."""
    gallery = create(folder, name)
    paths = sorted(shop.glob("*/*.png"))
    rows = [
        {"label": path.parent.name, "brand": BRANDS[n % 2], "price": n + 0.5} for n, path in enumerate(paths)
    ]
    (folder / "broken.png").write_bytes(b"not a picture")
    gallery.add([*paths, folder / "broken.png"], metadata=[*rows, {"label": "red"}])
    return gallery


def large(folder: Path, shop: Path, more: int) -> Gallery:
    """The shop and more images than fit on a page."""
    gallery = create(folder, "large")
    (folder / "more").mkdir()
    for seed in range(more):
        draw(100 + seed).save(folder / "more" / f"{seed}.png")
    gallery.add([shop, folder / "more"])
    return gallery


def colourful(seed: int) -> Image.Image:
    """An image of sixteen random squares, similar to no other."""
    squares = np.random.default_rng(seed).integers(0, 2, (4, 4, 3), np.uint8) * 255
    return Image.fromarray(squares).resize((60, 50), Image.Resampling.NEAREST)


def twice(folder: Path, shop: Path) -> Gallery:
    """The shop, and images stored twice, with labels of their own."""
    pictures = folder / "twice"
    pictures.mkdir()
    gallery = stock(folder, shop, "twice")
    for name in ("first", "second"):
        (pictures / name).mkdir()
        for seed in range(MORE):
            colourful(seed).save(pictures / name / f"{seed}.png")
    paths = sorted((pictures / "first").iterdir()) + sorted((pictures / "second").iterdir())
    labels = [ODD] * MORE + [ODD] * (MORE - 2) + ["other"] * 2
    gallery.add(paths, metadata=[{"label": label} for label in labels])
    gallery.add([pictures / "second" / "3.png"], metadata=[{"label": ""}])
    return gallery


def confused(folder: Path, name: str) -> Gallery:
    """Images with unrelated labels, so that searches make mistakes."""
    (folder / name).mkdir()
    paths = [folder / name / f"{seed}.png" for seed in range(30)]
    for seed, path in enumerate(paths):
        draw(seed, hue=seed % 3).save(path)
    gallery = create(folder, name)
    gallery.add(paths, metadata=[{"label": f"{seed % 5}.a_long_name_without_a_space"} for seed in range(30)])
    return gallery


def catalogue(folder: Path) -> Gallery:
    """Images of six classes, of which pairs look alike, with many columns; it is calibrated."""
    gallery, pictures, rows = create(folder, "catalogue", "apache-2.0"), folder / "catalogue", []
    pictures.mkdir()
    random = np.random.default_rng(0)
    for seed in range(150):
        draw(seed // 6, (60, 40) if seed % 2 else (40, 60), hue=seed % 6).save(pictures / f"{seed:03d}.png")
        day = f"2024-{seed % 12 + 1:02d}-{seed % 28 + 1:02d}"
        row = {"label": f"kind {seed % 6}", "price": round(float(random.uniform(1, 90)), 2), "date": day}
        row |= {"colour": f"shade {seed % 30}", "seller": f"shop {seed % 4}", "stock": seed % 40}
        rows.append(row | {"organic": "yes" if seed % 3 else "no", "description": f"{seed} long words " * 8})
    gallery.add(sorted(pictures.iterdir()), metadata=rows)
    lookalike_here("calibrate", str(gallery.folder))
    return gallery


def formulas(folder: Path) -> Gallery:
    """Images whose names and labels look like spreadsheet formulas."""
    gallery, pictures, rows = create(folder, "formulas"), folder / "formulas", []
    pictures.mkdir()
    for seed, label in enumerate(("=1+1", "+2", "-3 apples", "@SUM(A1)", 'a "b", c', "plain")):
        draw(seed).save(pictures / f"{seed}.png")
        rows.append({"label": label, "change": -seed - 0.5})
    gallery.add(sorted(pictures.iterdir()), metadata=rows)
    return gallery
