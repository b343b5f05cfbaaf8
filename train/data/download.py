"""Downloads with resume and checksum."""

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
    """File to download.

    Attributes:
        url: Address.
        file: Local file name.
        sha256: Checksum.
        size: Size in bytes.
    """

    url: str
    file: str
    sha256: str
    size: int


def download(archive: Archive, folder: Path, *, show_progress: bool = False) -> Path:
    """Download an archive into a folder, resuming an interrupted download.

    The file gets its name once it is complete and its SHA-256 matches.

    Raises:
        LookalikeError: The server cannot be reached or sends another file, or the transfer was interrupted.
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
    """Check that a file is this archive.

    Raises:
        LookalikeError: The SHA-256 differs.
    """
    if sha256_of(file) != archive.sha256:
        raise LookalikeError(
            f"{file}: wrong content (SHA-256 is not {archive.sha256}); "
            f"try again, or check whether {archive.url} has changed"
        )


def _receive(archive: Archive, part: Path, show_progress: bool) -> None:
    """Append the missing bytes to a partial file."""
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
                begun = 0  # the server ignores ranges and sends the whole file
            announced = answer.headers.get("Content-Length")
            if announced is not None and begun + int(announced) != archive.size:
                raise LookalikeError(
                    f"{archive.url}: has {begun + int(announced):,} bytes, not {archive.size:,}: the file "
                    f"has changed; get {archive.file} elsewhere and put it under --root"
                )
            file.truncate(begun)
            progress.update(begun // _MEBIBYTE)
            while block := answer.read(_MEBIBYTE):
                file.write(block)
                progress.update(1)
    except (OSError, HTTPException) as error:
        detail = error.reason if type(error) is URLError else error
        raise LookalikeError(
            f"{archive.url}: cannot be downloaded ({detail}); run the same command again to resume, "
            f"or put {archive.file} under --root"
        ) from error
    received = part.stat().st_size
    if received < archive.size:
        raise LookalikeError(
            f"{archive.url}: interrupted after {received:,} of {archive.size:,} bytes; "
            "run the same command again to resume"
        )
