"""Scaling of images, antialiased, with the filters of Pillow.

The arithmetic is that of the crate fast_image_resize (package `cykooz-resizer`): a vertical and a
horizontal pass, each to 8 bits, with weights of 16 bits; AVX2, SSE4.1, NEON and plain code give equal
pixels. Those of photographs differ from Pillow's, whose weights have 22 bits and whose passes are in the
other order, by 0.15 levels on average without a change of brightness, and by more than 2 levels in one value
of 10,000. The package has no wheels for Linux and Windows on ARM: there, NumPy computes the same pixels, in
more time, and so it does everywhere for some parts of small images, see `_suits_simd`. Images of more than
16 megapixels, which JPEG files are not when they are decoded at a reduced size, are scaled by Pillow.

Only buffers are passed to the package. Its functions for Pillow's images read the memory of their C
structures, whose layout may change with each version of Pillow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

try:
    import cykooz_resizer as simd
except ImportError:
    simd = None

Box = tuple[float, float, float, float]  # left, top, right and bottom, in pixels

_IN_PILLOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
INTERPOLATIONS = tuple(_IN_PILLOW)
_REACH = {"bilinear": 1, "bicubic": 2}  # radius of a filter
_LARGE = 1 << 24  # pixels from which Pillow scales: it has no further copies of the image in memory
_BAND = 1 << 20  # pixels that Pillow gets at once then
_DOUBT = 1e-6  # far above the rounding of positions
_WEIGHT_BITS, _MAX_PRECISION = 15, 21  # of the weights without the sign; of their fraction


def resample(pixels: np.ndarray, box: Box, shape: tuple[int, int], interpolation: str) -> np.ndarray:
    """Scale a box of an image to a size, antialiased; pixels beyond its edge contribute, as in Pillow.

    Args:
        pixels: Image, uint8 [H, W, 3].
        box: Box, which must not reach beyond the image.
        shape: (width, height) of the scaled box, in pixels.
        interpolation: "bilinear" or "bicubic".

    Returns:
        Scaled box, uint8 [height, width, 3].
    """
    height, width, _ = pixels.shape
    if height * width > _LARGE:
        return _scale_in_bands(pixels, box, shape, interpolation)
    left, top, right, bottom = box[0], box[1], min(box[2], width), min(box[3], height)  # without rounding
    across = _suits_simd(left, right, width, shape[0], interpolation)
    suits = across and _suits_simd(top, bottom, height, shape[1], interpolation)
    scale = _scale_by_simd if suits else _scale_in_numpy
    return scale(pixels, (left, top, right, bottom), shape, interpolation)


def resample_by_pillow(
    pixels: np.ndarray, box: Box, shape: tuple[int, int], interpolation: str
) -> np.ndarray:
    """Scale as `resample` does, to the pixels of decoding policies 1 and 2."""
    return np.asarray(Image.fromarray(pixels).resize(shape, _IN_PILLOW[interpolation], box=box))


def _scale_in_bands(pixels: np.ndarray, box: Box, shape: tuple[int, int], interpolation: str) -> np.ndarray:
    """Scale to the same pixels, first across in bands of rows: Pillow would copy the whole image."""
    height, width, _ = pixels.shape
    narrow, rows = np.empty((height, shape[0], 3), np.uint8), max(1, _BAND // width)
    for top in range(0, height, rows):
        band = pixels[top : top + rows]
        across = box[0], 0, box[2], len(band)
        narrow[top : top + rows] = resample_by_pillow(band, across, (shape[0], len(band)), interpolation)
    return resample_by_pillow(narrow, (0, box[1], shape[0], box[3]), shape, interpolation)


def _suits_simd(start: float, stop: float, side: int, scaled: int, interpolation: str) -> bool:
    """Return whether the package can scale a part of a side without reading outside its buffers.

    fast_image_resize 6.1 takes the first and the last scaled pixel for those that reach farthest, after it
    has dropped weights of 0 from their ends. If the next one reaches farther, it reads whatever memory is
    there: so it may where a part of an image is enlarged, or little reduced.
    """
    if simd is None or scaled == 1:
        return simd is not None
    scale, reach = (stop - start) / scaled, _REACH[interpolation]
    return all(_reaches_farthest(before, scale, reach) for before in (start, side - stop))


def _reaches_farthest(before: float, scale: float, reach: int) -> bool:
    """Return whether the outermost scaled pixel reaches as far as the next one; in doubt, it does not.

    Args:
        before: Pixels of the side that precede the part.
        scale: Pixels of a scaled pixel.
        reach: Radius of the filter.
    """
    center, widening = before + scale / 2, max(scale, 1.0)
    first = max(math.floor(center - reach * widening + _DOUBT), 0)
    while (away := abs(first + 0.5 - center) / widening) > reach - _DOUBT or abs(away - 1) < _DOUBT:
        first += 1  # a weight of 0
    return first <= max(math.floor(center + scale - reach * widening - _DOUBT), 0)


def _scale_by_simd(pixels: np.ndarray, box: Box, shape: tuple[int, int], interpolation: str) -> np.ndarray:
    filters = {"bilinear": simd.FilterType.bilinear, "bicubic": simd.FilterType.catmull_rom}
    how, (left, top, right, bottom) = simd.ResizeAlg.convolution(filters[interpolation]), box
    height, width, _ = pixels.shape
    crop, kind = simd.CropBox(left, top, right - left, bottom - top), simd.PixelType.U8x3
    source = simd.ImageData(width, height, kind, pixels.tobytes())
    scaled = simd.ImageData(*shape, kind)
    simd.Resizer().resize(source, scaled, simd.ResizeOptions(how, use_alpha=False, crop_box=crop))
    found: np.ndarray = np.frombuffer(scaled.get_buffer(), np.uint8).reshape(*shape[::-1], 3)
    return found


def _scale_in_numpy(pixels: np.ndarray, box: Box, shape: tuple[int, int], interpolation: str) -> np.ndarray:
    height, width, _ = pixels.shape
    rows = _Weights.of(height, box[1], box[3], shape[1], interpolation)
    columns = _Weights.of(width, box[0], box[2], shape[0], interpolation)
    flat = rows.applied(pixels.reshape(height, -1)).reshape(shape[1], width, 3)
    narrow = columns.applied(flat.transpose(1, 0, 2).reshape(width, -1)).reshape(*shape, 3)
    return np.ascontiguousarray(narrow.transpose(1, 0, 2))


@dataclass(frozen=True)
class _Weights:
    """Weights of the pixels that each scaled pixel is the sum of, whole numbers of 2 ** -precision.

    Attributes:
        first: First pixel of each, [scaled].
        end: Pixel after the last of each, [scaled].
        values: Weights from the first pixel on, float64 [scaled, taps].
        precision: Bits of their fraction.
    """

    first: np.ndarray
    end: np.ndarray
    values: np.ndarray
    precision: int

    @classmethod
    def of(cls, length: int, start: float, stop: float, scaled: int, interpolation: str) -> _Weights:
        """Return the weights that scale the part from `start` to `stop` of a side."""
        scale = (stop - start) / scaled
        widening = max(scale, 1.0)
        support = _REACH[interpolation] * widening
        centers = start + (np.arange(scaled) + 0.5) * scale
        first = np.maximum(np.floor(centers - support), 0).astype(np.int64)
        end = np.minimum(np.ceil(centers + support), length).astype(np.int64)
        places = first[:, None] + np.arange((end - first).max())
        distances = np.abs((places - (centers - 0.5)[:, None]) * (1.0 / widening))
        weights = np.where(places < end[:, None], _height(distances, interpolation), 0.0)
        weights /= np.cumsum(weights, 1)[:, -1:]  # added from left to right, as in the crate
        precision, largest = 0, weights.max()
        while precision < _MAX_PRECISION and _round(largest * 2.0 ** (precision + 1)) < 2**_WEIGHT_BITS:
            precision += 1
        return cls(first, end, _round(weights * 2.0**precision), precision)

    def applied(self, lines: np.ndarray) -> np.ndarray:
        """Scale the first axis of uint8 [length, n]; return uint8 [scaled, n]."""
        # BLAS adds floats. These are whole numbers, and sums below 2 ** 24 or 2 ** 53 are exact.
        kind = np.float32 if self.precision <= 15 else np.float64
        lines, values = lines.astype(kind), self.values.astype(kind)
        sums = np.empty((len(values), lines.shape[1]), kind)
        for number, (first, end) in enumerate(zip(self.first.tolist(), self.end.tolist(), strict=True)):
            np.dot(values[number, : end - first], lines[first:end], out=sums[number])
        sums *= 0.5**self.precision
        sums += 0.5
        clipped: np.ndarray = np.clip(np.floor(sums, out=sums), 0, 255, out=sums).astype(np.uint8)
        return clipped


def _height(x: np.ndarray, interpolation: str) -> np.ndarray:
    """Return the height of the filter at a distance x >= 0 from its centre."""
    if interpolation == "bilinear":
        return np.maximum(1.0 - x, 0.0)
    inner = (1.5 * x - 2.5) * x * x + 1.0
    outer = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
    return np.where(x < 1, inner, np.where(x < 2, outer, 0.0))


def _round(x: np.ndarray) -> np.ndarray:
    """Round halves away from zero."""
    rounded: np.ndarray = np.copysign(np.floor(np.abs(x) + 0.5), x)
    return rounded
