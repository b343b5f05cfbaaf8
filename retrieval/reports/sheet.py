"""Contact sheets: one self-contained HTML file of pictures with their captions."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retrieval.errors import InputError
from retrieval.files import atomic_write
from retrieval.reports import page
from retrieval.reports.thumbnails import thumbnails

_MOST = 500  # rows, so that a browser can open it


@dataclass(frozen=True)
class Tile:
    """A picture and what is written below it."""

    path: Path
    caption: str


@dataclass(frozen=True)
class Row:
    """Pictures that belong together, under a heading."""

    title: str
    tiles: Sequence[Tile]


def write_sheet(file: Path, title: str, note: str, rows: Sequence[Row]) -> None:
    """Write a sheet of at most 500 rows; pictures that cannot be read any more are grey.

    Raises:
        InputError: a file that is not called .html, or that cannot be written.
    """
    check_name(file)
    shown = rows[:_MOST]
    if len(shown) < len(rows):
        note = f"{note} The first {len(shown)} of {len(rows)} are shown."
    tiles = page.Tiles(thumbnails(tile.path for row in shown for tile in row.tiles))
    sections = [
        page.section(
            row.title,
            f"<ul class='tiles'>{''.join(tiles.tile(t.path, t.caption) for t in row.tiles)}</ul>",
        )
        for row in shown
    ]
    body = page.fragment(f"<h2>{html.escape(title)}</h2>{page.paragraph(note)}{''.join(sections)}")
    try:
        with atomic_write(file) as draft:
            draft.write_text(page.document(title, body), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror}); choose another --sheet") from error


def check_name(file: Path) -> None:
    """Refuse a name that no browser would open; ask before long work."""
    if file.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{file}: a sheet is HTML; call it {file.with_suffix('.html').name}")
    if not file.parent.is_dir():
        raise InputError(f"{file}: there is no folder {file.parent}; make it first")
