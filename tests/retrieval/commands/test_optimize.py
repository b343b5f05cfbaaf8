"""`lookalike index optimize`, and the index that other commands leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval import Gallery
from retrieval.search import index as indexes
from retrieval.search import kinds
from retrieval.upkeep.compact import compact
from tests.conftest import lookalike_here
from tests.retrieval.vectors import clustered

DIM = 16


def imported(folder: Path, count: int, seed: int, *words: str) -> dict[str, Any]:
    file = folder / f"v{seed}.npy"
    np.save(file, clustered(count, DIM, seed))
    return run("import", str(folder / "g"), str(file), "--embedding", "clip", *words)


def run(command: str, *words: str) -> dict[str, Any]:
    return json.loads(lookalike_here("index", command, *words, "--json").stdout)


def optimize(folder: Path, *words: str) -> dict[str, Any]:
    return run("optimize", str(folder / "g"), *words)


def test_index_is_built_extended_and_removed_as_asked_for(tmp_path: Path) -> None:
    imported(tmp_path, 300, 1)
    assert optimize(tmp_path)["done"] == "nothing", "exact search is best for so few"
    built = optimize(tmp_path, "--kind", "hnsw")
    assert (built["done"], built["reason"], built["kind"]) == ("built", "there is no index", "hnsw")
    assert optimize(tmp_path, "--kind", "hnsw", "--recall", "0.99")["done"] == "nothing"
    gallery = Gallery(tmp_path / "g")
    assert gallery.index is not None
    assert gallery.index.card["vectors"] == 300

    imported(tmp_path, 400, 2, "--prefix", "more")
    extended = optimize(tmp_path)
    assert (extended["done"], extended["kind"]) in {("extended", "hnsw"), ("nothing", "hnsw")}
    gallery = Gallery(tmp_path / "g")
    assert gallery.index is not None
    assert (gallery.index.card["vectors"], gallery.outside_index) == (700, 0)

    text = lookalike_here("index", "optimize", str(tmp_path / "g"), "--kind", "ivf-sq8").stdout
    assert "index built, since its kind is hnsw; ivf-sq8, recall " in text
    assert optimize(tmp_path, "--recall", "0.9")["reason"] == "it was built for another recall"
    removed = optimize(tmp_path, "--kind", "flat")
    assert (removed["done"], removed["kind"]) == ("removed", "flat")
    assert Gallery(tmp_path / "g").index is None
    assert "nothing to do; exact search" in lookalike_here("index", "optimize", str(tmp_path / "g")).stdout


def test_many_removed_vectors_are_left_out(tmp_path: Path) -> None:
    imported(tmp_path, 300, 1, "--kind", "ivf-sq8")
    gallery = Gallery(tmp_path / "g")
    gallery.remove(gallery.state.item_ids(np.arange(60)).tolist())
    assert optimize(tmp_path)["done"] == "nothing", "a fifth"
    gallery.refresh()
    gallery.remove(gallery.state.item_ids(np.arange(60, 120)).tolist())
    again = optimize(tmp_path)
    assert (again["done"], again["reason"]) == ("built", "120 of its 300 vectors are dead")
    assert Gallery(tmp_path / "g").index.card["vectors"] == 180  # type: ignore[union-attr]


def test_compaction_drops_what_was_removed_and_keeps_the_index_whole(tmp_path: Path) -> None:
    imported(tmp_path, 300, 1, "--kind", "ivf-sq8")
    imported(tmp_path, 30, 2, "--prefix", "more")
    gallery = Gallery(tmp_path / "g")
    gallery.remove(gallery.state.item_ids(np.arange(40)).tolist())
    found = optimize(tmp_path, "--compact")
    assert (found["compaction"]["dropped"], found["images"]) == (40, 290)
    facts = run("info", str(tmp_path / "g"))
    assert (facts["images"], facts["removed"], facts["outside_index"]) == (290, 0, 0)
    assert "compaction" not in optimize(tmp_path)


def test_info_counts_the_vectors_outside_after_compaction(tmp_path: Path) -> None:
    imported(tmp_path, 300, 1, "--kind", "ivf-sq8")
    imported(tmp_path, 30, 2, "--prefix", "more")
    gallery = Gallery(tmp_path / "g")
    gallery.remove(gallery.state.item_ids(np.arange(40)).tolist())
    compact(gallery)
    assert run("info", str(tmp_path / "g"))["outside_index"] == 30, "the index still holds 40 dropped ones"


def test_memory_limit_is_kept_when_the_gallery_grows(tmp_path: Path) -> None:
    limit = kinds.memory_needed("sq8", DIM, 1000)
    assert imported(tmp_path, 900, 1, "--kind", "sq8", "--memory", str(limit))["index"] == "sq8"
    grown = imported(tmp_path, 900, 2, "--prefix", "more", "--kind", "auto", "--recall", "0.5")
    assert grown["index"] not in ("flat", "sq8", "hnsw")
    card = Gallery(tmp_path / "g").index.card  # type: ignore[union-attr]
    assert (card["kind"], card["vectors"], card["memory_wanted"]) == (grown["index"], 1800, limit)
    assert kinds.memory_needed(card["kind"], DIM, 1800) <= limit
    refused = lookalike_here("index", "optimize", str(tmp_path / "g"), "--kind", "hnsw", code=2)
    assert "allow more memory" in refused.stderr


def test_damaged_index_is_built_again(tmp_path: Path) -> None:
    imported(tmp_path, 300, 1, "--kind", "pq", "--recall", "0.5")
    (file,) = (tmp_path / "g" / "indexes").glob("*/index.faiss")
    file.write_bytes(b"nothing")
    assert optimize(tmp_path)["reason"] == "it is damaged"
    assert optimize(tmp_path)["done"] == "nothing"


@pytest.mark.parametrize("flipped", [False, True])
def test_large_index_is_checked_in_the_background(
    flipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    imported(tmp_path, 20_000, 1, "--kind", "sq8", "--recall", "0.5")
    monkeypatch.setattr(indexes, "CHECKED_AT_ONCE", 1000)
    (file,) = (tmp_path / "g" / "indexes").glob("*/index.faiss")
    content = bytearray(file.read_bytes())
    content[-5000] ^= flipped
    file.write_bytes(content)
    index = Gallery(tmp_path / "g").index
    assert index is not None
    assert index.usable or flipped  # the check may have ended already
    assert index.checking is not None
    index.checking.join()
    assert index.usable is not flipped
    assert ("index.faiss: damaged" in caplog.text) is flipped
    file.write_bytes(bytes(content[:-1]))
    shorter = Gallery(tmp_path / "g").index
    assert shorter is not None
    assert not shorter.usable, "its size is checked at once"
