"""HEIC files, the photographs of iPhones, which need a library that is not part of the base install.

It decodes untrusted bytes in C++, and its wheels contain libraries under GPL and LGPL; docs/images.md has the
reasons.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from retrieval.machine.extras import needs

FORMAT = "HEIF"  # Pillow's name
_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs")  # HEVC, ISO/IEC 23008-12
_CONTAINERS = (b"mif1", b"msf1")  # of any codec, named among the compatible brands
_MAX_BRANDS = 64
_PACKAGE, _OLDEST = "pillow-heif", (1, 8, 1)  # older wheels have a libheif with known memory errors


def is_heic(data: bytes) -> bool:
    """Return whether a file is HEIC, by its first box."""
    if data[4:8] != b"ftyp":
        return False
    end = min(int.from_bytes(data[:4], "big"), len(data), 16 + 4 * _MAX_BRANDS)
    compatible = {data[at : at + 4] for at in range(16, end, 4)}
    return data[8:12] in _BRANDS or (data[8:12] in _CONTAINERS and not compatible.isdisjoint(_BRANDS))


@cache
def missing_decoder() -> str | None:
    """Let Pillow open HEIC; return what to install if it cannot.

    Thumbnails within a file are not used in its place, since they are not the pixels that other formats have.
    """
    from importlib import metadata  # slow to import

    try:
        version = metadata.version(_PACKAGE)
        plugin = import_module("pillow_heif")
    except ImportError:  # also `PackageNotFoundError`
        return _to_install()
    if tuple(int(part) for part in version.split(".")[:3] if part.isdecimal()) < _OLDEST:
        return f"{_to_install()}; {_PACKAGE} {version} has known security problems"
    plugin.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)
    return None


def _to_install() -> str:
    return f"HEIC {needs('pillow_heif')}"
