"""Thumbnails of images as data URIs for self-contained pages."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from retrieval.images.decode import decode_ahead
from retrieval.images.picture import Decoded

SIDE = 112  # pixels
_CROSS = (
    b"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8' width='112' height='112'>"
    b"<path d='M0 0h8v8H0z' fill='#8a8f98' fill-opacity='.3'/><path d='M2 2l4 4M6 2L2 6' stroke='#8a8f98' "
    b"stroke-width='.4' stroke-linecap='round'/></svg>"
)


def thumbnails(paths: Iterable[Path]) -> Mapping[Path, str]:
    """Return each image as a data URI, at most 112 pixels a side; unreadable images as a grey tile.

    They are re-encoded from their pixels, without EXIF, colour profile and comments of the file.
    """
    wanted = list(dict.fromkeys(paths))
    found = zip(wanted, decode_ahead(wanted, _shrink, side=SIDE), strict=True)
    return {path: _encoded(file.pixels) if isinstance(file, Decoded) else MISSING for path, file in found}


def _shrink(pixels: np.ndarray) -> np.ndarray:
    """Return uint8 [h, w, 3]; tiny images are enlarged by a whole factor, so that pixels stay crisp."""
    image = Image.fromarray(pixels)
    longest = max(image.size)
    if 2 * longest <= SIDE:
        factor = SIDE // longest
        return np.asarray(
            image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
        )
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return np.asarray(image)


def _encoded(pixels: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "WEBP", quality=78, method=4)
    return _uri("image/webp", buffer.getvalue())


def _uri(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


# Tile of an image that cannot be read; it fits light and dark pages.
MISSING = _uri("image/svg+xml", _CROSS)
