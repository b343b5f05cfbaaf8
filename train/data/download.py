"""Downloads that go on where they broke off, and are what they should be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from retrieval.errors import LookalikeError
from retrieval.files import sha256_of
from retrieval.progress import Progress

_MEBIBYTE = 1 << 20
_SECONDS = 60.0


@dataclass(frozen=True)
class Archive:
    """A file to download: where it is, its name here, its SHA-256, its size in bytes."""

    url: str
    file: str
    sha256: str
    size: int


def download(archive: Archive, folder: Path, *, show_progress: bool = False) -> Path:
    """Put an archive into a folder; what an earlier try left there is not asked for again.

    The file gets its name when it is complete and its SHA-256 is right.

    Raises:
        LookalikeError: the server cannot be reached or sends something else, or the transfer broke off.
    """
    target = folder / archive.file
    if target.is_file():
        return target
    part = target.with_name(f"{archive.file}.part")
    if not part.is_file() or part.stat().st_size < archive.size:
        _receive(archive, part, show_progress)
    try:
        check(archive, part)
    except LookalikeError:
        part.unlink()
        raise
    return part.replace(target)


def check(archive: Archive, file: Path) -> None:
    """Insist that a file is this archive.

    Raises:
        LookalikeError: its SHA-256 is another.
    """
    if sha256_of(file) != archive.sha256:
        raise LookalikeError(
            f"{file}: it is not what it should be (its SHA-256 is not {archive.sha256}); "
            f"try again, or see what {archive.url} has become"
        )


def _receive(archive: Archive, part: Path, show_progress: bool) -> None:
    """Append to the file what it lacks."""
    begun = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "lookalike", "Range": f"bytes={begun}-"}
    total = math.ceil(archive.size / _MEBIBYTE)
    try:
        with (
            urlopen(Request(archive.url, headers=headers), timeout=_SECONDS) as answer,
            part.open("ab") as file,
            Progress(f"downloading {archive.file}", total, "MiB", show=show_progress) as progress,
        ):
            if not (answer.headers.get("Content-Range") or "").startswith(f"bytes {begun}-"):
                begun = 0  # the server sends all of it, asked for or not
            announced = answer.headers.get("Content-Length")
            if announced is not None and begun + int(announced) != archive.size:
                raise LookalikeError(
                    f"{archive.url}: it has {begun + int(announced):,} bytes, not {archive.size:,}: "
                    f"something else is there now; get {archive.file} elsewhere and put it under --root"
                )
            file.truncate(begun)
            progress.update(begun // _MEBIBYTE)
            while block := answer.read(_MEBIBYTE):
                file.write(block)
                progress.update(1)
    except (OSError, HTTPException) as error:
        detail = error.reason if type(error) is URLError else error
        raise LookalikeError(
            f"{archive.url}: cannot be downloaded ({detail}); the same command again goes on from there, "
            f"or takes {archive.file} if it lies under --root"
        ) from error
    received = part.stat().st_size
    if received < archive.size:
        raise LookalikeError(
            f"{archive.url}: broke off after {received:,} of {archive.size:,} bytes; "
            "the same command again goes on from there"
        )
