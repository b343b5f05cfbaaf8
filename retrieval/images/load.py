"""Image loader, shared by training, indexing, searching and serving, which all see the same pixels.

Decoding policy (version `DECODE_POLICY`, recorded in each gallery):

* The EXIF orientation is applied; a broken EXIF block is ignored.
* All Pillow modes are converted to 8-bit RGB. Transparent pixels are blended with white; 16-bit grey is
  divided by 257; 32-bit integers are read as 16-bit values; floats are in 0..1, or in 0..255 if any exceeds
  1.
* Of an animation or a multi-page file, the first frame is used; of a HEIC file, the primary image.
* A JPEG much larger than required (`side`) is decoded at 1/2, 1/4 or 1/8 of its size, so that its shorter
  side has at least twice the required pixels. After the final scaling, photographs differ from those decoded
  in full by up to 1 grey level on average, and their embeddings (MobileNetV2) have a cosine of 0.999; for
  pages of small print it is 2 levels and 0.995. Galleries of version 1, which had no such rule, therefore
  remain searchable.
* Images are scaled by `retrieval.images.resampling.resample`. A gallery of version 1 or 2 keeps its scaling,
  by Pillow, for new images and queries.
* Files above the pixel limit are rejected by their header before decoding, files above the size limit before
  reading, and decompression bombs (`retrieval.images.bombs`) before opening.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import stat
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import simplejpeg
from PIL import ExifTags, Image, ImageCms, ImageOps, UnidentifiedImageError

from retrieval.errors import ImageError
from retrieval.images import boxes, heic, remote, shards
from retrieval.images.bombs import bomb_reason, has_too_many_scans
from retrieval.images.location import Location, locate
from retrieval.images.resampling import Box
from retrieval.system import NO_WAITING

DECODE_POLICY = 3
MAX_PIXELS = 50_000_000
MAX_BYTES = 512 * 2**20  # 50 megapixels of 16-bit RGBA take 400 MB
_SIGNATURE = 16  # bytes by which Pillow recognizes a format
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")
_SUFFIX_OF = {
    **{"PNG": ".png", "WEBP": ".webp", "GIF": ".gif", "BMP": ".bmp"},
    **{"TIFF": ".tif", "AVIF": ".avif", "PPM": ".ppm", heic.FORMAT: ".heic"},
}
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".gif"),
    *(".bmp", ".dib", ".tif", ".tiff", ".avif", ".heic", ".heif", ".hif", ".pbm", ".pgm", ".ppm", ".pnm"),
)

_KINDS = {
    **{stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"},
    **{stat.S_IFCHR: "character device", stat.S_IFBLK: "block device"},
}
_RAW_EXIF, _MAX_RAW_EXIF = "Raw profile type exif", 2**17  # hexadecimal EXIF, in some PNG files
_BAND = 2**20  # pixels per converted band


class ArrayLike(Protocol):
    """An array of any library that has `__array__`; one that has `__dlpack__` instead will do as well."""

    def __array__(self) -> np.ndarray: ...


class Tensor(Protocol):
    """An array or tensor of any library that speaks DLPack."""

    def __dlpack__(self) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


ImageSource = str | os.PathLike[str] | bytes | Image.Image | np.ndarray | ArrayLike | Tensor
# Devices of DLPack whose memory the CPU can read: its own, pinned and managed memory of CUDA, pinned of ROCm.
_READABLE_DEVICES = {1, 3, 11, 13}

# Pillow warns about large images (load_image rejects them earlier) and about broken metadata (irrelevant to
# the pixels); in a run over many files these warnings would hide the important messages.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


@dataclass(frozen=True)
class OpenedImage:
    """An image of which only the header has been read.

    Attributes:
        image: Pillow image, not loaded yet.
        name: Name in error messages.
        size: Stored (width, height) of the full image, in pixels.
        data: Bytes of the file, if there are any.
        box: Part of the upright image that is meant, as fractions; `None` for the whole.
    """

    image: Image.Image
    name: str
    size: tuple[int, int]
    data: bytes = b""
    box: Box | None = None

    @property
    def pixels(self) -> int:
        """Number of pixels that `decode` will decode."""
        return self.image.width * self.image.height

    @property
    def suffix(self) -> str:
        """File suffix of the image format, such as ".jpg"."""
        return _SUFFIX_OF.get(str(self.image.format), ".jpg")

    @property
    def upright_size(self) -> tuple[int, int]:
        """(width, height) of the full image after applying the EXIF orientation, in pixels."""
        return self.size[::-1] if _orientation(self.image) >= 5 else self.size  # rotated by 90 degrees

    def decode(self) -> tuple[np.ndarray, tuple[int, int]]:
        """Decode to RGB, upright; return uint8 [H, W, 3], of the part that is meant, and `upright_size`.

        Raises:
            ImageError: The pixels are damaged.
        """
        pixels, size = self.decode_whole()
        return self.cut(pixels), size

    def cut(self, pixels: np.ndarray) -> np.ndarray:
        """Return the part that is meant of what `decode_whole` returns, uint8 [H, W, 3]."""
        return pixels if self.box is None else _cut(pixels, self.box)

    def decode_whole(self) -> tuple[np.ndarray, tuple[int, int]]:
        """Decode as `decode` does, without cutting; two of the same file and `image.size` are the same."""
        if (found := self._by_turbojpeg()) is not None:
            return found, self.size
        try:
            self.image.load()
            if len(self.image.info.get(_RAW_EXIF, "")) > _MAX_RAW_EXIF:
                del self.image.info[_RAW_EXIF]
            size = self.upright_size
            return _to_array(_to_rgb(_upright(self.image))), size
        except Exception as error:  # decoders raise many kinds of errors
            raise _damaged(self.name, error) from error

    def _by_turbojpeg(self) -> np.ndarray | None:
        """Decode a JPEG by libjpeg-turbo without Pillow, to the same pixels in two thirds of the time.

        Return `None` for whatever is not an intact, upright JPEG in grey or colour at full size: Pillow
        decides about it. At reduced size both take the same time.
        """
        image = self.image
        usual = image.format in ("JPEG", "MPO") and image.mode in ("RGB", "L") and image.size == self.size
        if not usual or _orientation(image) != 1:
            return None
        try:
            height, width, *_ = simplejpeg.decode_jpeg_header(self.data)
            if (width, height) != self.size:  # do not allocate what was not checked
                return None
            pixels: np.ndarray = simplejpeg.decode_jpeg(self.data)
        except ValueError:
            return None
        return pixels


def load_image(source: ImageSource, *, side: int | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Load an image as 8-bit RGB, upright.

    Args:
        source: Path, which may be inside a tar file (`shard.tar/a/x.jpg`), or URL of remote storage; bytes of
            a file; Pillow image; or array or tensor, uint8 [H, W], [H, W, 3] or [H, W, 4], of any library
            whose objects have `__dlpack__` or `__array__`, in memory that the CPU can read.
        side: Length in pixels to which the caller will scale the shorter side, `Preprocess.scaled` for a
            model. A JPEG may then be decoded at a reduced size, of at least twice that. `None` decodes at
            full size.
        max_pixels: Largest accepted width x height, in pixels.

    Raises:
        ImageError: The image cannot be used; see its `reason`.
    """
    return Image.fromarray(load_pixels(source, side=side, max_pixels=max_pixels))


def load_pixels(source: ImageSource, *, side: int | None = None, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Load an image as `load_image` does; return uint8 [H, W, 3], which may be read-only."""
    if isinstance(source, Image.Image):
        return _opened(source, "image", max_pixels).decode()[0]
    if isinstance(source, bytes):
        return open_bytes(source, "image", side=side, max_pixels=max_pixels).decode()[0]
    if not isinstance(source, (str, os.PathLike)):
        return _opened(_from_array(as_array(source)), "array", max_pixels).decode()[0]
    where = locate(source)
    data = read_bytes(where, regular=False)
    return open_bytes(data, str(where), side=side, max_pixels=max_pixels, box=where.box).decode()[0]


def as_array(source: Any) -> np.ndarray:
    """Return an array or tensor as NumPy's, without copying it where its library allows that.

    Args:
        source: Object with `__dlpack__` or `__array__`.

    Raises:
        ImageError: It is no array, or in memory that the CPU cannot read.
    """
    if isinstance(source, np.ndarray):
        return source
    name = type(source).__name__
    try:
        if hasattr(source, "__dlpack__"):
            if source.__dlpack_device__()[0] not in _READABLE_DEVICES:
                detail = "its pixels are in the memory of another device; copy it to the CPU, as by .cpu()"
                raise ImageError(name, ImageError.NOT_AN_IMAGE, detail)
            made: np.ndarray = np.from_dlpack(source)
            return made
        if hasattr(source, "__array__"):
            return np.asarray(source)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        detail = f"it cannot be read as an array ({_brief(error)})"
        raise ImageError(name, ImageError.NOT_AN_IMAGE, detail) from error
    detail = "it is neither a path, the bytes of a file, an image nor an array"
    if hasattr(source, "read") or isinstance(source, (bytearray, memoryview)):
        detail += "; pass " + ("what its read() returns" if hasattr(source, "read") else "bytes(...) of it")
    raise ImageError(name, ImageError.NOT_AN_IMAGE, detail)


def read_bytes(source: str | os.PathLike[str] | Location, *, regular: bool = True) -> bytes:
    """Read an image file, which may be inside a tar file or in remote storage.

    Args:
        source: Image file.
        regular: Refuse a FIFO, a socket or a device, which could block. Otherwise wait for its end.

    Raises:
        ImageError: It cannot be read.
    """
    where = locate(source).whole
    name = str(where)
    if where.kind == "member":
        return shards.read_image(where.root, where.name)
    try:
        if where.kind == "url":
            return _checked_size(remote.read(name, MAX_BYTES), name)
        if regular:
            _check_regular(name, os.stat(name))
        with open(name, "rb", opener=_open_nonblocking if regular else None) as file:
            status = os.fstat(file.fileno())
            if regular:  # it may have been replaced since
                _check_regular(name, status)
            size = status.st_size
            if size <= MAX_BYTES:
                # A pipe, and a file below /proc, has no size.
                return _checked_size(file.read() if size else file.read(MAX_BYTES + 1), name)
        raise _over_limit(name)
    except (FileNotFoundError, NotADirectoryError):
        raise ImageError(name, ImageError.MISSING, "there is no such file") from None
    except PermissionError:
        raise ImageError(name, ImageError.PERMISSION, "there is no permission to read it") from None
    except IsADirectoryError:
        raise ImageError(name, ImageError.NOT_AN_IMAGE, "it is a folder, not an image file") from None
    except (OSError, ValueError) as error:
        raise ImageError(name, ImageError.MISSING, f"it cannot be read ({error})") from error


def content_sha256(data: bytes, box: str = "") -> str:
    """Return the SHA-256 that stands for an image: of its bytes, and of its box if it is a part.

    Args:
        data: Bytes of the file.
        box: `Location.box`.
    """
    digest = hashlib.sha256(data)
    digest.update(box.encode())
    return digest.hexdigest()


def _checked_size(data: bytes, name: str) -> bytes:
    if len(data) > MAX_BYTES:
        raise _over_limit(name)
    return data


def _over_limit(name: str) -> ImageError:
    return ImageError(name, ImageError.TOO_LARGE, f"the file is over the limit of {MAX_BYTES // 2**20} MB")


def irregular(mode: int) -> str | None:
    """Return the kind of a file that is neither a regular file nor a folder; `None` for those.

    Args:
        mode: `st_mode` of the file.
    """
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else _KINDS.get(stat.S_IFMT(mode), "special file")


def _check_regular(name: str, status: os.stat_result) -> None:
    if kind := irregular(status.st_mode):
        raise ImageError(name, ImageError.NOT_AN_IMAGE, f"it is a {kind}, not an image file")


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | NO_WAITING)


def begins_like_an_image(data: bytes) -> bool:
    """Return whether the first bytes of a file, at least 16, are those of a format that can be read.

    HEIC is one of them also without its decoder, which `open_bytes` asks for.
    """
    Image.init()
    prefix = data[:_SIGNATURE]
    if len(prefix) == _SIGNATURE and heic.is_heic(data):
        return True
    accepts = [Image.OPEN[name][1] for name in FORMATS if name in Image.OPEN]
    return len(prefix) == _SIGNATURE and any(accept is not None and accept(prefix) for accept in accepts)


def open_bytes(
    data: bytes, name: str, *, side: int | None = None, max_pixels: int = MAX_PIXELS, box: str = ""
) -> OpenedImage:
    """Read the header of an image.

    Args:
        data: Bytes of the file.
        name: Name in error messages.
        side: See `load_image`.
        max_pixels: See `load_image`.
        box: `Location.box`: the part of the image that is meant; `side` is that of the part.

    Raises:
        ImageError: It is not an image, is damaged or exceeds a limit, or the box is not in it.
    """
    if not data:
        raise ImageError(name, ImageError.NOT_AN_IMAGE, "the file is empty")
    if problem := bomb_reason(data):
        raise ImageError(name, ImageError.TOO_LARGE, problem)
    formats: tuple[str, ...] = FORMATS
    if heic.is_heic(data):
        if missing := heic.missing_decoder():
            raise ImageError(name, ImageError.NOT_AN_IMAGE, missing)
        formats = (heic.FORMAT,)
    try:
        image = Image.open(io.BytesIO(data), formats=formats)
    except UnidentifiedImageError:
        known = "JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF, HEIC or PPM"
        raise ImageError(name, ImageError.NOT_AN_IMAGE, f"it is not a {known} image") from None
    except Image.DecompressionBombError:
        raise _too_large(name, None, max_pixels) from None
    except Exception as error:  # plugins raise OSError, SyntaxError, struct.error, ValueError and more
        raise _damaged(name, error) from error
    opened = _opened(image, name, max_pixels, side, data, box)
    if image.format in ("JPEG", "MPO") and has_too_many_scans(data, opened.size[0] * opened.size[1]):
        raise ImageError(name, ImageError.TOO_LARGE, "it is a JPEG with too many scans: save it again")
    return opened


def _opened(
    image: Image.Image,
    name: str,
    max_pixels: int,
    side: int | None = None,
    data: bytes = b"",
    fragment: str = "",
) -> OpenedImage:
    width, height = image.size
    if width * height > max_pixels:
        raise _too_large(name, image.size, max_pixels)
    if width * height == 0:
        raise ImageError(name, ImageError.NOT_AN_IMAGE, f"it has no pixels ({width} x {height})")
    opened = OpenedImage(image, name, (width, height), data)
    if (part := boxes.parse(fragment)) is not None:
        try:
            box = part.within(*opened.upright_size)
        except ValueError as error:
            raise ImageError(name, ImageError.BOX, f"its box {error}") from None
        opened = replace(opened, box=box)
        side = side and math.ceil(side / min(box[2] - box[0], box[3] - box[1]))
    if side is not None:
        image.draft(None, (2 * side, 2 * side))  # affects only JPEG, and never goes below this size
    return opened


def _cut(pixels: np.ndarray, box: Box) -> np.ndarray:
    """Cut a box out of an image, uint8 [H, W, 3], to the nearest pixel and at least one."""
    height, width, _ = pixels.shape
    left, top = min(round(box[0] * width), width - 1), min(round(box[1] * height), height - 1)
    right, bottom = max(left + 1, round(box[2] * width)), max(top + 1, round(box[3] * height))
    return pixels[top:bottom, left:right]


def _damaged(name: str, error: Exception) -> ImageError:
    return ImageError(name, ImageError.DAMAGED, f"the image is damaged ({_brief(error)})")


def _too_large(name: str, size: tuple[int, int] | None, max_pixels: int) -> ImageError:
    dimensions = f"{size[0]} x {size[1]} pixels" if size else "it"
    detail = f"{dimensions} is over the limit of {max_pixels / 1e6:g} megapixels: scale it down"
    return ImageError(name, ImageError.TOO_LARGE, detail)


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
        return value if isinstance(value, int) and 1 <= value <= 8 else 1
    except Exception:  # a broken EXIF block is irrelevant to the pixels
        return 1


def _upright(image: Image.Image) -> Image.Image:
    if _orientation(image) == 1:
        return image  # `exif_transpose` would copy it
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # a broken EXIF block is irrelevant to the pixels
        return image


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "F":
        brightest = max(float(_finite(band).max()) for _, band in _bands(image))
        return _by_bands(image, lambda band: _grey(_finite(band) * (255.0 if brightest <= 1.0 else 1.0)))
    if image.mode.startswith("I"):  # `Image.convert` would clip it to white or black
        return _by_bands(image, lambda band: _grey(np.asarray(band) / 257.0))
    if image.mode == "LAB":
        lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")
        assert converted is not None  # only in-place conversion returns nothing
        return converted
    if image.mode == "La":  # Pillow cannot convert it to anything else
        image = image.convert("LA")
    return _by_bands(image, _opaque) if image.has_transparency_data else image.convert("RGB")


def _opaque(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _finite(image: Image.Image) -> np.ndarray:
    values: np.ndarray = np.nan_to_num(np.asarray(image), posinf=0.0, neginf=0.0)
    return values


def _grey(values: np.ndarray) -> Image.Image:
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8)).convert("RGB")


def _bands(image: Image.Image) -> Iterator[tuple[tuple[int, int, int, int], Image.Image]]:
    """Yield the image in bands of a few rows, each with its box."""
    rows = max(1, _BAND // image.width)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        yield box, image.crop(box)


def _by_bands(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Convert to RGB band by band, which avoids several full copies of a large image in memory."""
    result = Image.new("RGB", image.size)
    for box, band in _bands(image):
        result.paste(convert(band), box)
    return result


def _to_array(image: Image.Image) -> np.ndarray:
    """Return an RGB image as uint8 [H, W, 3]; band by band, as Pillow needs two further copies for it."""
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    for (_, top, _, bottom), band in _bands(image):
        pixels[top:bottom] = np.asarray(band)
    return pixels


def _from_array(array: np.ndarray) -> Image.Image:
    shape_ok = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    if array.dtype != np.uint8 or not shape_ok:
        detail = f"expected uint8 [H, W], [H, W, 3] or [H, W, 4], got {array.dtype} {list(array.shape)}"
        if array.dtype != np.uint8:
            detail += "; convert it to grey levels from 0 to 255"
        elif array.ndim == 3 and array.shape[0] in (1, 3, 4):
            detail += "; put the channels last, as by numpy.moveaxis(image, 0, -1)"
        elif array.ndim == 3:
            detail += "; pass grey images as a list of [H, W]"
        raise ImageError("array", ImageError.NOT_AN_IMAGE, detail)
    return Image.fromarray(array)
