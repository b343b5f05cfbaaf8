"""Thumbnails: small copies of images, re-encoded from pixels so that no metadata leaves the server."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from functools import cached_property

from PIL import Image

MAX_SIDE = 512
PICTURE_SIDE = 2048
QUERY_SIDE = 1024  # of a query picture: models look at fewer pixels
_TINY = 64
_QUALITY = 82
_QUERY_QUALITY = 92
_ENLARGED = 256


@dataclass(frozen=True)
class Thumbnail:
    """An encoded image and its media type."""

    data: bytes
    media_type: str

    @cached_property
    def etag(self) -> str:
        """Entity tag of HTTP: differs for other bytes."""
        return f'"{hashlib.sha256(self.data).hexdigest()[:16]}"'


def shrink(image: Image.Image, side: int = MAX_SIDE) -> Image.Image:
    """Scale an image to at most `side` pixels; enlarge up to 64 pixels by a whole factor, kept crisp."""
    longest = max(image.size)
    if longest <= _TINY:
        factor = _ENLARGED // longest
        return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)
    scale = min(1.0, side / longest)
    width, height = (max(1, round(length * scale)) for length in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def encode(image: Image.Image, side: int = MAX_SIDE) -> Thumbnail:
    """Shrink and encode an RGB image, without EXIF, profiles and comments."""
    data = encode_bare(shrink(image, side), _QUALITY, lossless=max(image.size) <= _TINY)
    return Thumbnail(data, "image/webp")


def encode_bare(image: Image.Image, quality: int, *, lossless: bool = False) -> bytes:
    """Encode an RGB image as WebP, without EXIF, profiles and comments."""
    # A copy of the pixels alone: Pillow would write the EXIF block of the original.
    bare = Image.frombytes("RGB", image.size, image.tobytes())
    buffer = io.BytesIO()
    bare.save(buffer, "WEBP", quality=quality, method=2, lossless=lossless)
    return buffer.getvalue()


def query_picture(image: Image.Image) -> Thumbnail:
    """Encode an RGB image to search with, at up to 1,024 pixels a side; small ones keep their pixels."""
    small = image.copy()
    small.thumbnail((QUERY_SIDE, QUERY_SIDE), Image.Resampling.LANCZOS)
    return Thumbnail(encode_bare(small, _QUERY_QUALITY, lossless=max(small.size) <= _TINY), "image/webp")


GREY = "#8a8f98"
# Placeholder for a missing or unreadable file: a grey tile that fits light and dark pages.
MISSING = Thumbnail(
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 256 256" width="256" height="256">'
    f'<rect width="256" height="256" fill="{GREY}" fill-opacity=".22"/>'
    f'<g fill="none" stroke="{GREY}" stroke-width="6" stroke-linejoin="round" stroke-linecap="round">'
    '<rect x="76" y="84" width="104" height="88" rx="8"/>'
    '<path d="m76 156 30-30 26 26 16-16 32 32"/><path d="m64 64 128 128"/></g></svg>'.encode(),
    "image/svg+xml",
)
