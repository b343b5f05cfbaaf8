"""Files that are small and yet take minutes, or gigabytes, to decode: they are known before they are opened.

What is counted here is what Pillow and its libraries do as often as a file tells them to. The bounds are far
beyond what cameras and programs write.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

# Pixels that the scans of a JPEG may go over in all: 40 times the largest picture. A scan takes 75 bytes.
_SCANNED, _MOST_SCANS = 2_000_000_000, 1000
_MOST_DIGITS = 4 * 2**20  # bytes of a PPM in digits, which are read one by one
_MOST_PREAMBLE = 2**18  # bytes before the picture of a GIF: its comments are copied once for every part
_MOST_PADDING = 2**16  # bytes before the picture of a JPEG that mean nothing
_MOST_EXIF = 2**16  # bytes of EXIF in a JPEG, as the standard has it
_PARTS, _BYTES_A_PART = 1000, 512  # so many parts, and one more for every so many bytes
_TIMES, _LITTLE = 4, 2**16  # the file's size that all tags of a TIFF may say they hold, and a little more

_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")
_END, _SCAN, _APP1 = 0xD9, 0xDA, 0xE1
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # also inside others, as EXIF
# Tags that lead to further directories, and how many of these there are within two steps.
_GROUPS, _DIRECTORIES = (0x8769, 0x8825, 0xA005), 13
_MOST_TIFFS = 64  # in one file
_SIZES = np.zeros(2**16, np.int64)
_SIZES[:17] = [0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8]  # bytes of a tag's types


def bomb_reason(data: bytes) -> str | None:
    """What of an image file goes beyond all bounds, in a sentence; `None` where nothing does."""
    if data.startswith(b"\xff\xd8"):
        return _excess_of_jpeg(data)
    if data[:2] in (b"II", b"MM"):
        return _excess_of_tags(data, [0])
    if data.startswith(b"GIF8"):
        return "it has too much before its picture: save it anew" if _is_buried(data) else None
    if data.startswith(b"\x89PNG"):
        if _is_in_pieces(data):
            return "it is in too many parts: save it anew"
    elif data[:2] in (b"P1", b"P2", b"P3"):
        large = len(data) > _MOST_DIGITS
        return f"it has more than {_MOST_DIGITS // 2**20} MB of digits: save it as PNG" if large else None
    return _excess_of_tags(data, _directories(data))


def has_too_many_scans(data: bytes, pixels: int) -> bool:
    """Whether a JPEG of so many pixels has more scans than go over them in seconds, or other parts."""
    most, scans = min(_MOST_SCANS, _SCANNED // pixels), 0
    for parts, (kind, _, _) in enumerate(_segments(data), 1):
        scans += kind == _SCAN
        if scans > most or parts > _most_parts(data):
            return True
    return False


def _most_parts(data: bytes) -> int:
    return _PARTS + len(data) // _BYTES_A_PART


# ---- JPEG


def _segments(jpeg: bytes) -> Iterator[tuple[int, int, int]]:
    """The segments of the first picture: kind, where its marker was looked for, and where its body begins."""
    at = 2
    while marker := _MARKER.search(jpeg, at):
        kind = marker[0][1]
        if kind == _END:
            return
        yield kind, at, marker.end()
        at = marker.end() + int.from_bytes(jpeg[marker.end() : marker.end() + 2], "big")


def _excess_of_jpeg(jpeg: bytes) -> str | None:
    padding = exif = 0
    for parts, (kind, looked, begins) in enumerate(_segments(jpeg), 1):
        if kind == _SCAN:
            return _excess_of_tags(jpeg[:begins], _directories(jpeg[:begins]))
        padding += begins - 2 - looked
        if kind == _APP1 and jpeg[begins + 2 : begins + 6] == b"Exif":
            exif += int.from_bytes(jpeg[begins : begins + 2], "big")
        if parts > _most_parts(jpeg) or padding > _MOST_PADDING or exif > _MOST_EXIF:
            return "it has too much before its picture: save it anew"
    return None


# ---- GIF and PNG


def _is_buried(gif: bytes) -> bool:
    """Whether there is very much before the first picture."""
    start = at = 13 + (3 << ((gif[10] & 7) + 1) if len(gif) > 10 and gif[10] & 128 else 0)
    while at < len(gif) and gif[at] not in b",;":
        if gif[at] == ord("!"):
            at += 2
            while at < len(gif) and gif[at] and at - start <= _MOST_PREAMBLE:
                at += 1 + gif[at]
        at += 1
        if at - start > _MOST_PREAMBLE:
            return True
    return False


def _is_in_pieces(png: bytes) -> bool:
    at, parts, most = 8, 0, _most_parts(png)
    while at < len(png) and parts <= most:
        at += 12 + int.from_bytes(png[at : at + 4], "big")
        parts += 1
    return parts > most


# ---- TIFF, and EXIF, which is one


def _excess_of_tags(data: bytes, directories: Iterable[int]) -> str | None:
    found = list(islice(directories, _MOST_TIFFS + 1))
    if len(found) > _MOST_TIFFS or any(_boasts(data, at) for at in found):
        return "its tags say that they hold several times what there is: save it anew"
    return None


def _directories(data: bytes) -> Iterator[int]:
    """Where a TIFF may begin in a file."""
    for start in _TIFF:
        at = data.find(start)
        while at >= 0:
            yield at
            at = data.find(start, at + 1)


def _boasts(data: bytes, start: int) -> bool:
    """Whether the tags of a TIFF say that they hold several times what there is: each of them is read."""
    tiff, order = memoryview(data)[start:], "<" if data[start] == ord("I") else ">"
    big = ord("+") in tiff[2:4]
    word, number = np.dtype(f"{order}u{8 if big else 4}"), np.dtype(f"{order}u{8 if big else 2}")
    entry = np.dtype([("tag", f"{order}u2"), ("type", f"{order}u2"), ("count", word), ("value", word)])
    waiting, held = [_number(tiff, 8 if big else 4, word)], 0
    for at in islice(waiting, _DIRECTORIES):
        tags = min(_number(tiff, at, number), (len(tiff) - at - number.itemsize) // entry.itemsize)
        if tags > 0:
            found = np.frombuffer(tiff, entry, tags, at + number.itemsize)
            counts = np.minimum(found["count"], len(tiff)).astype(np.int64)
            held += int(np.minimum(_SIZES[found["type"]] * counts, len(tiff)).sum())
            groups = found[np.isin(found["tag"], _GROUPS)]
            waiting += dict(zip(groups["tag"].tolist(), groups["value"].tolist(), strict=True)).values()
    return held > _TIMES * len(tiff) + _LITTLE


def _number(tiff: memoryview, at: int, kind: np.dtype) -> int:
    """A number in a file; 0 beyond its end."""
    inside = 0 <= at <= len(tiff) - kind.itemsize
    return int(np.frombuffer(tiff, kind, 1, at)[0]) if inside else 0
