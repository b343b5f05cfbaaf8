"""Contact sheet: a self-contained HTML file of images with captions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import InputError
from retrieval.files import atomic_write, check_folder
from retrieval.reports.pages import TileSet, document, render_template

_MAX_ROWS = 500  # so that a browser can open it


@dataclass(frozen=True)
class SheetImage:
    """An image with its caption."""

    path: Path
    caption: str


@dataclass(frozen=True)
class SheetRow:
    """Images that belong together, under a heading."""

    title: str
    images: Sequence[SheetImage]


def write_sheet(file: Path, title: str, note: str, rows: Sequence[SheetRow]) -> None:
    """Write a sheet of at most 500 rows, creating its folder; unreadable images show as grey tiles.

    Raises:
        InputError: The file is not called .html, or cannot be written.
    """
    check_sheet_path(file)
    shown = rows[:_MAX_ROWS]
    if len(shown) < len(rows):
        note = f"{note} The first {len(shown)} of {len(rows)} are shown."
    tiles = TileSet(image.path for row in shown for image in row.images)
    sections = [
        {"title": row.title, "tiles": [tiles.tile(image.path, image.caption) for image in row.images]}
        for row in shown
    ]
    page = document(title, render_template("sheet.html", title=title, note=note, rows=sections))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as draft:
            draft.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror}); choose another --sheet") from error


def check_sheet_path(file: Path) -> None:
    """Check before long work that a browser can open the file, and that it can be written."""
    if file.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{file}: a sheet is HTML; call it {file.with_suffix('.html').name}")
    check_folder(file.parent)
