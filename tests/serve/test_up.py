"""The table of labels that `lookalike up` takes, and what it says of those that it cannot take."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve.up import _find_table


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "1.jpg").touch()
    return folder


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("path;label\n1.jpg;red\n", "no column 'path'; its fields are separated by ';'; save it with commas"),
        ("File,Label\n1.jpg,red\n", "no column 'path'; columns: 'File', 'Label'"),
        ("path,label\nred/1.jpg,red\n", "none of its paths is a file in {}"),
    ],
)
def test_table_that_is_not_used_is_named_with_the_reason(
    photos: Path, capfd: pytest.CaptureFixture[str], text: str, reason: str
) -> None:
    table = photos / "labels.csv"
    table.write_text(text)
    assert _find_table(photos) is None
    assert capfd.readouterr().err == f"table not used: {table}: {reason.format(photos)}\n"


def test_unreadable_table_is_named_with_the_reason(photos: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (photos / "labels.csv").write_text("path,label\n1.jpg,rot\n", encoding="utf-16")
    assert _find_table(photos) is None
    assert f"{photos / 'labels.csv'}: cannot be read as a CSV file in UTF-8" in capfd.readouterr().err


def test_other_tables_are_not_mentioned_beside_one_that_is_used(
    photos: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (photos / "labels.csv").write_text("File,Label\n1.jpg,red\n")
    (photos / "shop.csv").write_text("path,label\n1.jpg,red\n")
    assert _find_table(photos) == (photos / "shop.csv", photos)
    assert capfd.readouterr().err == f"table: {photos / 'shop.csv'}, path, label\n"
