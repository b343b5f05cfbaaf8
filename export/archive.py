"""Writing of model archives: two ONNX models and a tokenizer as one file; see `retrieval.model.archive`."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

from retrieval.files import atomic_write
from retrieval.model.archive import MEMBERS

_TIME = (1980, 1, 1, 0, 0, 0)  # equal contents give equal bytes


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
