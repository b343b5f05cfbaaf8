"""Tests of `lookalike index remove`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retrieval import Gallery
from tests.conftest import lookalike_here
from tests.retrieval.filling import commit, small_gallery

NAMES = [f"n{i:02}" for i in range(12)]


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    """Twelve items, of which four cost 3 and the others 7."""
    made = small_gallery(tmp_path)
    commit(made, NAMES[:4], price=3)
    commit(made, NAMES[4:], price=7)
    return made


def remove(gallery: Gallery, *words: str) -> dict[str, Any]:
    return json.loads(lookalike_here("index", "remove", str(gallery.folder), *words, "--json").stdout)


def test_dry_run_shows_figures_and_examples_and_changes_nothing(gallery: Gallery) -> None:
    words = ["index", "remove", str(gallery.folder), "--where", "price > 3", "--dry-run"]
    lines = lookalike_here(*words).stdout.splitlines()
    assert lines[0].endswith("8 images would be removed; 4 would stay")
    assert lines[1].split()[-1] == "/pictures/n04.jpg"
    assert lines[-1] == "  and 3 more"
    facts = remove(gallery, "--where", "price > 3", "--dry-run")
    assert (facts["removed"], facts["images"], facts["dry_run"]) == (8, 4, True)
    assert [item["key"] for item in facts["examples"]] == [f"{name}.jpg" for name in NAMES[4:9]]
    assert facts["examples"][0]["metadata"] == {"price": 7}
    assert len(Gallery(gallery.folder)) == 12


def test_removes_by_condition_and_by_id(gallery: Gallery) -> None:
    facts = remove(gallery, "n00.jpg", "n11.jpg", "--where", "price = 3")
    assert facts == {"gallery": str(gallery.folder), "dry_run": False, "removed": 5, "images": 7}
    gallery.refresh()
    assert sorted(item.key for item in gallery.items(list(range(1, 13))).values()) == [
        f"{name}.jpg" for name in NAMES[4:11]
    ]
    assert remove(gallery, "--where", "price = 3")["removed"] == 0
    listed = gallery.folder / "keys.txt"
    keys = [f"x{n}.jpg" for n in range(50_000)]
    listed.write_text(f"key in {(*keys, 'n05.jpg')}\n")
    assert remove(gallery, "--where", f"@{listed}")["removed"] == 1
    assert remove(gallery, "--where", "price is not null")["images"] == 0


def test_condition_also_removes_what_waits_to_be_embedded(gallery: Gallery) -> None:
    with gallery.store.writing(), gallery.store.transaction() as db:
        db.execute("UPDATE items SET vector = NULL WHERE key = 'n05.jpg'")
    assert remove(gallery, "--where", "key like 'N05%'")["removed"] == 1
    assert lookalike_here("index", "info", str(gallery.folder), "--json").returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument '[ID]...' or option '--where'"),
        (["--dry-run"], "Missing argument"),
        (["--where", "prize = 3"], "did you mean 'price'"),
        (["--where", "price = '3'"], "holds numbers, not text"),
        (["--where", "@nowhere.txt"], "nowhere.txt: the condition cannot be read"),
        (["--where", ""], "expected the name of a column"),
        (["nothing.jpg", "--where", "price = 3"], "no item 'nothing.jpg'"),
    ],
)
def test_refuses_and_removes_nothing(gallery: Gallery, words: list[str], message: str) -> None:
    done = lookalike_here("index", "remove", str(gallery.folder), *words, code=2)
    assert message in done.stderr
    assert len(Gallery(gallery.folder)) == 12
