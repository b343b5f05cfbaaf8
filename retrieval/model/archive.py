"""Model archive: image encoder, text encoder and tokenizer of one embedding space in one file.

An uncompressed zip file (docs/text.md) with

    image.onnx       model file as `lookalike export` writes it for images alone
    text.onnx        token ids to unit embeddings of the same length, with the metadata `lookalike.text`
    tokenizer.json   tokenizer in the format of the library tokenizers
"""

from __future__ import annotations

import hashlib
import mmap
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from retrieval.errors import InputError
from retrieval.files import atomic_write
from retrieval.model.external_data import refuse_external_data

IMAGE, TEXT, TOKENIZER = "image.onnx", "text.onnx", "tokenizer.json"
MEMBERS = (IMAGE, TEXT, TOKENIZER)
_HEADER = 30  # bytes before the name of a member
_SIGNATURE = b"PK\x03\x04"  # of a zip file that is not empty
_TIME = (1980, 1, 1, 0, 0, 0)  # equal contents give equal bytes


def is_archive(path: Path) -> bool:
    """Return whether a file is a zip file, by its first bytes; raise an `OSError` if it cannot be read."""
    with path.open("rb") as file:
        return is_archive_file(file)


def is_archive_file(file: BinaryIO) -> bool:
    """Return whether an open file is a zip file, by its first bytes; the position is its start afterwards."""
    file.seek(0)
    start = file.read(len(_SIGNATURE))
    file.seek(0)
    return start == _SIGNATURE


def write_archive(out: Path, members: Mapping[str, bytes]) -> None:
    """Write a model archive, in place of any earlier one.

    Args:
        out: File to write.
        members: Contents of each of `MEMBERS`.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(out) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED) as file:
        for name in MEMBERS:
            file.writestr(zipfile.ZipInfo(name, _TIME), members[name])


class ModelArchive:
    """Model archive on disk, whose members are read on request into memory.

    Args:
        path: Path of the file.

    Attributes:
        path: Path of the file.
        fingerprint: SHA-256 of the file.

    Raises:
        InputError: It is not a complete model archive, or its text encoder takes weights from other files.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            self.fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
        self._entries = {name: _facts(entry) for name, entry in self._directory().items()}
        self._check_text()  # now: it is loaded late, or never

    def read(self, name: str) -> bytes:
        """Return the contents of a member, one of `MEMBERS`.

        Raises:
            InputError: The file is damaged, was deleted, or has other contents than when it was opened.
        """
        try:
            with zipfile.ZipFile(self.path) as file:
                entry = file.getinfo(name)
                if _facts(entry) == self._entries[name]:
                    return file.read(entry)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            raise _damaged(self.path, error) from error
        raise InputError(f"{self.path}: has changed since it was opened; open it again")

    def _check_text(self) -> None:
        start, size, _ = self._entries[TEXT]
        with self.path.open("rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        header = bytes(view[start : start + _HEADER])
        start += _HEADER + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:], "little")
        refuse_external_data(f"{self.path}: {TEXT}", view[start : start + size])

    def _directory(self) -> dict[str, zipfile.ZipInfo]:
        """Return the entries by name, after a check of names, compression and sizes."""
        try:
            with zipfile.ZipFile(self.path) as file:
                entries = file.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise _damaged(self.path, error) from error
        names = sorted(entry.filename for entry in entries)
        if names != sorted(MEMBERS):
            some = ", ".join(names[:4]) or "nothing"
            raise InputError(
                f"{self.path}: not a model archive, which has {', '.join(MEMBERS)}; it has {some}; create "
                "one with `lookalike export`"
            )
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries):
            raise InputError(
                f"{self.path}: its members are compressed or encrypted; pack them as they are (zip -0)"
            )
        if sum(entry.file_size for entry in entries) > self.path.stat().st_size:
            raise InputError(f"{self.path}: damaged, its members are larger than the file; export it again")
        return {entry.filename: entry for entry in entries}


def _facts(entry: zipfile.ZipInfo) -> tuple[int, int, int]:
    return entry.header_offset, entry.file_size, entry.CRC


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: not a complete model archive ({error}); export it again")
