"""Decompression bombs: small files that would take minutes or gigabytes to decode, detected before opening.

The checks count structures that Pillow and its libraries process as often as the file declares them. The
limits are far above the values in files written by cameras and programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

# Total pixels over all scans of a JPEG: 40 times the largest image. A scan can be as short as 75 bytes.
_MAX_SCANNED_PIXELS, _MAX_SCANS = 2_000_000_000, 1000
_MAX_DIGITS = 4 * 2**20  # bytes of a PPM in ASCII digits, which Pillow reads one by one
_MAX_PREAMBLE = 2**18  # bytes before the image of a GIF: Pillow copies its comments once per block
_MAX_PADDING = 2**16  # meaningless bytes before the image data of a JPEG
_MAX_EXIF = 2**16  # bytes of EXIF in a JPEG, the limit of the standard
_SEGMENTS, _BYTES_PER_SEGMENT = 1000, 512  # allowed segments: this many, and one more per 512 bytes
_MAX_RATIO, _SLACK = 4, 2**16  # total size of all TIFF tags: at most 4 times the file size plus 64 kB

_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")
_END, _SCAN, _APP1 = 0xD9, 0xDA, 0xE1
_SEQUENTIAL = (0xC0, 0xC1)  # frames of which one scan may have all components
_FRAMES = (*_SEQUENTIAL, 0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0))
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # also inside other formats, as EXIF
# Tags that point to further directories, and the number of directories within two steps.
_GROUPS, _DIRECTORIES = (0x8769, 0x8825, 0xA005), 13
_MAX_TIFFS = 64  # per file
_SIZES = np.zeros(2**16, np.int64)
_SIZES[:17] = [0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8]  # bytes per value, by tag type


def bomb_reason(data: bytes) -> str | None:
    """Return why an image file looks like a decompression bomb, or `None` if it does not."""
    if data.startswith(b"\xff\xd8"):
        return _check_jpeg(data)
    if data[:2] in (b"II", b"MM"):
        return _check_tags(data, [0])
    if data.startswith(b"GIF8"):
        return "it has too much data before its image: save it again" if _has_long_preamble(data) else None
    if data.startswith(b"\x89PNG"):
        if _has_too_many_chunks(data):
            return "it has too many parts: save it again"
    elif data[:2] in (b"P1", b"P2", b"P3"):
        too_large = len(data) > _MAX_DIGITS
        return f"it has more than {_MAX_DIGITS // 2**20} MB of digits: save it as PNG" if too_large else None
    return _check_tags(data, _directories(data))


def has_too_many_scans(data: bytes, pixels: int) -> bool:
    """Return whether a JPEG has too many scans for its number of pixels, or too many segments."""
    max_scans, scans = min(_MAX_SCANS, _MAX_SCANNED_PIXELS // pixels), 0
    max_segments, components = _max_segments(data), 0
    for segments, (kind, _, body) in enumerate(_segments(data), 1):
        if kind in _FRAMES:
            components = _byte(data, body + 7) if kind in _SEQUENTIAL else 0
        elif kind == _SCAN:
            scans += 1
            if scans == 1 and components and _byte(data, body + 2) == components:
                return False  # libjpeg refuses a second scan: no need to search the rest, most of the file
        if scans > max_scans or segments > max_segments:
            return True
    return False


def _byte(data: bytes, at: int) -> int:
    """Return the byte at an offset; 0 beyond the end of the file."""
    return data[at] if at < len(data) else 0


def _max_segments(data: bytes) -> int:
    return _SEGMENTS + len(data) // _BYTES_PER_SEGMENT


# ---- JPEG


def _segments(jpeg: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the segments of the first image: kind, start of the search for its marker, start of its body."""
    at = 2
    while marker := _MARKER.search(jpeg, at):
        kind = marker[0][1]
        if kind == _END:
            return
        yield kind, at, marker.end()
        at = marker.end() + int.from_bytes(jpeg[marker.end() : marker.end() + 2], "big")


def _check_jpeg(jpeg: bytes) -> str | None:
    padding = exif = 0
    max_segments = _max_segments(jpeg)
    for segments, (kind, searched, body) in enumerate(_segments(jpeg), 1):
        if kind == _SCAN:
            return _check_tags(jpeg[:body], _directories(jpeg[:body]))
        padding += body - 2 - searched
        if kind == _APP1 and jpeg[body + 2 : body + 6] == b"Exif":
            exif += int.from_bytes(jpeg[body : body + 2], "big")
        if segments > max_segments or padding > _MAX_PADDING or exif > _MAX_EXIF:
            return "it has too much data before its image: save it again"
    return None


# ---- GIF and PNG


def _has_long_preamble(gif: bytes) -> bool:
    """Return whether there is too much data before the first image."""
    start = at = 13 + (3 << ((gif[10] & 7) + 1) if len(gif) > 10 and gif[10] & 128 else 0)
    while at < len(gif) and gif[at] not in b",;":
        if gif[at] == ord("!"):
            at += 2
            while at < len(gif) and gif[at] and at - start <= _MAX_PREAMBLE:
                at += 1 + gif[at]
        at += 1
        if at - start > _MAX_PREAMBLE:
            return True
    return False


def _has_too_many_chunks(png: bytes) -> bool:
    at, chunks, max_chunks = 8, 0, _max_segments(png)
    while at < len(png) and chunks <= max_chunks:
        at += 12 + int.from_bytes(png[at : at + 4], "big")
        chunks += 1
    return chunks > max_chunks


# ---- TIFF, which includes EXIF


def _check_tags(data: bytes, directories: Iterable[int]) -> str | None:
    found = list(islice(directories, _MAX_TIFFS + 1))
    if len(found) > _MAX_TIFFS or any(_claims_more_than_file(data, at) for at in found):
        return "its tags claim several times the size of the file: save it again"
    return None


def _directories(data: bytes) -> Iterator[int]:
    """Yield the offsets in a file at which a TIFF may begin."""
    for start in _TIFF:
        at = data.find(start)
        while at >= 0:
            yield at
            at = data.find(start, at + 1)


def _claims_more_than_file(data: bytes, start: int) -> bool:
    """Return whether the tags of a TIFF claim several times its size; Pillow reads every one of them."""
    tiff, order = memoryview(data)[start:], "<" if data[start] == ord("I") else ">"
    big = ord("+") in tiff[2:4]
    word, number = np.dtype(f"{order}u{8 if big else 4}"), np.dtype(f"{order}u{8 if big else 2}")
    entry = np.dtype([("tag", f"{order}u2"), ("type", f"{order}u2"), ("count", word), ("value", word)])
    queue, claimed = [_number(tiff, 8 if big else 4, word)], 0
    for at in islice(queue, _DIRECTORIES):
        tags = min(_number(tiff, at, number), (len(tiff) - at - number.itemsize) // entry.itemsize)
        if tags > 0:
            found = np.frombuffer(tiff, entry, tags, at + number.itemsize)
            counts = np.minimum(found["count"], len(tiff)).astype(np.int64)
            claimed += int(np.minimum(_SIZES[found["type"]] * counts, len(tiff)).sum())
            groups = found[np.isin(found["tag"], _GROUPS)]
            queue += dict(zip(groups["tag"].tolist(), groups["value"].tolist(), strict=True)).values()
    return claimed > _MAX_RATIO * len(tiff) + _SLACK


def _number(tiff: memoryview, at: int, kind: np.dtype) -> int:
    """Return the number at an offset; 0 beyond the end of the file."""
    inside = 0 <= at <= len(tiff) - kind.itemsize
    return int(np.frombuffer(tiff, kind, 1, at)[0]) if inside else 0
