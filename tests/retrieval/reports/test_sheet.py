"""Contact sheets: content, escaping, limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrieval.errors import InputError
from retrieval.reports.sheet import SheetImage, SheetRow, write_sheet
from tests.conftest import draw
from tests.retrieval.reports.html_page import Page


def test_names_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "<img src=x onerror=alert(1)> '\".png"
    draw(1).save(path)
    bad = "<script>alert(1)</script>"
    write_sheet(tmp_path / "s.html", f"a & {bad}", bad, [SheetRow(bad, [SheetImage(path, f"{bad} '\"")])])
    page = Page(tmp_path / "s.html")
    assert not page.all("script")
    (image,) = page.all("img")
    assert "onerror" not in image
    assert image["alt"] == path.name
    assert page.text.count(bad) == 5, "title twice, note, heading and caption"


def test_sheet_is_self_contained(tmp_path: Path) -> None:
    draw(1).save(tmp_path / "a.png")
    (tmp_path / "broken.png").write_bytes(b"no image")
    tiles = [
        SheetImage(tmp_path / "a.png", "1"),
        SheetImage(tmp_path / "broken.png", "2"),
        SheetImage(Path(), "no file"),
    ]
    write_sheet(tmp_path / "new" / "s.html", "t", "n", [SheetRow("r", tiles)])
    page = Page(tmp_path / "new" / "s.html")
    kinds = [source.partition(";")[0] for source in page.image_sources]
    assert kinds == ["data:image/webp", "data:image/svg+xml", "data:image/svg+xml"]
    assert not page.all("link")


def test_sheet_has_at_most_500_rows(tmp_path: Path) -> None:
    write_sheet(
        tmp_path / "s.html",
        "t",
        "Many.",
        [SheetRow(f"row {i}", [SheetImage(Path(), "")]) for i in range(600)],
    )
    text = Page(tmp_path / "s.html").text
    assert "Many. The first 500 of 600 are shown." in text
    assert "row 499" in text
    assert "row 500" not in text


@pytest.mark.parametrize(
    ("name", "message"), [("s.pdf", "call it s.html"), ("/dev/null/s.html", "not a folder")]
)
def test_invalid_sheet_paths_are_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_sheet(tmp_path / name, "t", "n", [])
    assert not list(tmp_path.iterdir())
