"""Thumbnails: small, upright, without metadata."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image

from retrieval.reports.thumbnails import thumbnails
from tests.conftest import draw


def decoded(uri: str) -> Image.Image:
    head, _, data = uri.partition(",")
    assert head == "data:image/webp;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_photograph_is_shrunk_upright_and_without_metadata(
    tmp_path: Path,
) -> None:
    photograph = draw(1, size=(600, 400))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    exif[0x010F] = "the maker"
    photograph.save(tmp_path / "a.jpg", exif=exif)
    (uri,) = thumbnails([tmp_path / "a.jpg"]).values()
    small = decoded(uri)
    assert small.size == (75, 112)
    assert not small.getexif()
    assert b"maker" not in base64.b64decode(uri.partition(",")[2])
    upright = photograph.rotate(-90, expand=True).resize(small.size, Image.Resampling.LANCZOS)
    assert np.abs(np.asarray(small, float) - np.asarray(upright, float)).mean() < 8


def test_tiny_image_is_enlarged_by_a_whole_factor(tmp_path: Path) -> None:
    draw(1, size=(28, 20)).save(tmp_path / "a.png")
    (uri,) = thumbnails([tmp_path / "a.png"]).values()
    assert decoded(uri).size == (112, 80)


def test_images_are_encoded_once_and_unreadable_ones_are_grey(tmp_path: Path) -> None:
    good, broken, gone = (tmp_path / name for name in ("good.png", "broken.png", "gone.png"))
    draw(1).save(good)
    broken.write_bytes(b"not an image")
    found = thumbnails([good, broken, good, gone])
    assert list(found) == [good, broken, gone]
    assert found[broken] == found[gone]
    assert found[gone].startswith("data:image/svg+xml;base64,")
