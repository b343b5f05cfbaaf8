"""Builders of decompression bombs: small files that would take minutes or gigabytes to decode."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image

from tests.conftest import draw

COUNT = 300_000  # small segments in a file of a few megabytes


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def of_scans(size: tuple[int, int], count: int) -> bytes:
    """Return a progressive JPEG whose last scan is repeated `count` times."""
    jpeg = saved(Image.new("RGB", size, (90, 120, 30)), "JPEG", progressive=True)
    last = jpeg.rindex(b"\xff\xda")
    return jpeg[:-2] + jpeg[last:-2] * count + jpeg[-2:]


def in_jpeg(part: bytes) -> bytes:
    jpeg = saved(draw(0), "JPEG")
    return jpeg[:2] + part + jpeg[2:]


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def in_png(part: bytes) -> bytes:
    png = saved(draw(0), "PNG")
    at = png.index(b"IDAT") - 4
    return png[:at] + part + png[at:]


def _in_gif(part: bytes) -> bytes:
    gif = saved(draw(0), "GIF")
    at = 13 + (3 << ((gif[10] & 7) + 1))
    assert gif[at] in b",!"
    return gif[:at] + part + gif[at:]


def tiff(tags: int, size: int, order: str = "<", *, big: bool = False, group: bool = False) -> bytes:
    """Return a TIFF of `size` bytes in which each of `tags` tags claims almost the whole file."""
    word, number = ("Q", "Q") if big else ("I", "H")
    head = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}H", 43 if big else 42)
    head += struct.pack(f"{order}HHQ", 8, 0, 16) if big else struct.pack(f"{order}I", 8)

    def directory(entries: list[tuple[int, int, int, int]]) -> bytes:
        packed = b"".join(struct.pack(f"{order}HH{word}{word}", *entry) for entry in entries)
        return struct.pack(f"{order}{number}", len(entries)) + packed + struct.pack(f"{order}{word}", 0)

    body = directory([(40_000 + tag, 7, size - 600, 300) for tag in range(tags)])
    if group:
        first = [(0x8825, 4, 1, 0), (0x8769, 4, 1, 0), *[(0xA005, 4, 1, len(head))] * 20]
        first[1] = (0x8769, 4, 1, len(head) + len(directory(first)))
        body = directory(first) + body
    return (head + body).ljust(size, b"\0")


BOMBS = {
    "scans": of_scans((2000, 2000), 1000),
    "scans of a small image": of_scans((20, 20), 1001),
    "scans and tables": of_scans((8, 8), 1)[:-2] + b"\xff\xdb\0\2" * COUNT,
    "segments": in_jpeg(b"\xff\xed\0\2" * COUNT),
    "comments": in_jpeg(b"\xff\xfe\0\2" * COUNT),
    "tables": in_jpeg(b"\xff\xdb\0\2" * COUNT),
    "padding": in_jpeg(b"\xff" * 4 * COUNT),
    "EXIF in pieces": in_jpeg(
        (b"\xff\xe1\xff\xff" + (b"Exif\0\0" + tiff(2000, 65_000)).ljust(65533, b"\0")) * 3
    ),
    "empty chunks": in_png(chunk(b"IDAT") * COUNT),
    "texts": in_png(chunk(b"tEXt", b"a\0b") * COUNT),
    "a comment in pieces": _in_gif(b"!\xfe" + b"\1a" * COUNT + b"\0"),
    "comments of a GIF": _in_gif(b"!\xfe\1a\0" * COUNT),
    "junk before the image": _in_gif(b"\0" * COUNT),
    "digits": b"P3 900 900 255 " + b"9 " * 3 * 900 * 900,
    "bits": b"P1 3000 3000 " + b"1" * 3000 * 3000,
    "tags": tiff(300, 1_000_000),
    "tags the other way round": tiff(300, 1_000_000, ">"),
    "tags of a large TIFF": tiff(300, 1_000_000, big=True),
    "tags of a group": tiff(300, 1_000_000, group=True),
    "many TIFFs": in_png(chunk(b"abCd", b"II*\0" * COUNT)),
    **{
        f"tags in {f}": saved(draw(0), f, exif=b"Exif\0\0" + tiff(300, 1_000_000))
        for f in ("PNG", "WEBP", "AVIF")
    },
}
