"""Journal of finished work: an interrupted command continues from it, and one with more time adds to it."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from retrieval.files import atomic_write

_KEY = re.compile(r"[0-9a-f]{16}")


class Entry(NamedTuple):
    """Result of one piece of work.

    Attributes:
        values: float [...].
        seconds: What it took.
    """

    values: np.ndarray
    seconds: float


class Journal:
    """Results in files, one for each piece of work, written wholly or not at all.

    Args:
        folder: Folder of the journal. Results on other data in it are deleted.
        data: Everything that the results depend on.
    """

    def __init__(self, folder: Path, data: Sequence[bytes]) -> None:
        digest = hashlib.sha256()
        for part in data:
            digest.update(
                part if isinstance(part, bytes) else memoryview(np.ascontiguousarray(part)).cast("B")
            )
        self._folder = folder / digest.hexdigest()[:16]
        self._folder.mkdir(parents=True, exist_ok=True)
        for other in folder.iterdir():
            if _KEY.fullmatch(other.name) and other != self._folder:
                shutil.rmtree(other)

    def read(self, work: str) -> Entry | None:
        """Return the result of a piece of work; `None` if it was not finished."""
        try:
            with np.load(self._file(work), allow_pickle=False) as found:
                return Entry(found["values"], float(found["seconds"]))
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):  # a damaged file is work to do again
            return None

    def write(self, work: str, entry: Entry) -> None:
        """Add the result of a piece of work."""
        data = io.BytesIO()
        np.savez(data, values=entry.values, seconds=entry.seconds)
        with atomic_write(self._file(work)) as draft:
            draft.write_bytes(data.getvalue())

    def delete(self) -> None:
        """Delete the results, and the folder of the journal if nothing else is in it."""
        shutil.rmtree(self._folder)
        if not any(self._folder.parent.iterdir()):
            self._folder.parent.rmdir()

    def _file(self, work: str) -> Path:
        return self._folder / f"{hashlib.sha256(work.encode()).hexdigest()[:16]}.npz"
