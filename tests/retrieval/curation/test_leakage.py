"""Leakage between galleries against a comparison of every pair."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from retrieval import Gallery, InputError
from retrieval.curation import leakage
from retrieval.curation.leakage import find_leakage
from retrieval.storage.manifest import Manifest
from retrieval.storage.store import Store
from tests.conftest import lookalike_here
from tests.retrieval.curation.test_duplicates import crowd, make


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Gallery, Gallery, np.ndarray]:
    """Two galleries, and all scores between them: float32 [test, train]."""
    folder, vectors = tmp_path_factory.mktemp("leakage"), crowd(3, 300, 9)
    train, test = vectors[:200], vectors[200:].copy()
    test[7] = train[11]
    gallery = make(folder / "train", train, labels=["ab"[i % 2] for i in range(200)])
    contents = ["11" if i == 7 else f"other {i}" for i in range(100)]
    other = make(folder / "test", test, contents=contents, labels=["abc"[i % 3] for i in range(100)])
    return gallery, other, test @ train.T


def test_equals_comparison_of_every_pair(
    both: tuple[Gallery, Gallery, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test, scores = both
    monkeypatch.setattr(leakage, "_CHUNK", 32)
    found = find_leakage(train, test, 0.97)
    expected = {i: int(scores[i].argmax()) for i in range(100) if scores[i].max() >= 0.97}
    assert {int(leak.item.key): int(leak.train.key) for leak in found.leaks} == expected
    assert 5 < len(expected) < 95
    for leak in found.leaks:
        assert leak.score == pytest.approx(scores[int(leak.item.key)].max(), abs=1e-5)
        assert leak.identical == (leak.item.key == "7")
    assert [leak.score for leak in found.leaks] == sorted((leak.score for leak in found.leaks), reverse=True)
    counts = {label: sum("abc"[i % 3] == label for i in expected) for label in "abc"}
    assert dict(found.by_label) == {label: count for label, count in counts.items() if count}
    assert (found.train_images, found.test_images) == (200, 100)


def test_command(both: tuple[Gallery, Gallery, np.ndarray], tmp_path: Path) -> None:
    train, test, scores = both
    words = ["check", "leakage", str(train.folder), str(test.folder), "--min-score", "0.97"]
    count = int((scores.max(1) >= 0.97).sum())
    facts = json.loads(lookalike_here(*words, "--json").stdout)
    assert len(facts["leaks"]) == count
    sheet = tmp_path / "sheet.html"
    lines = lookalike_here(*words, "--sheet", str(sheet)).stdout.splitlines()
    assert f"{count} of 100" in lines[0]
    assert "identical files: 1;" in lines[0]
    assert sheet.read_text().count("<section ") == count


def test_galleries_of_other_models_are_refused(
    both: tuple[Gallery, Gallery, np.ndarray], tmp_path: Path
) -> None:
    train, _, _ = both
    Store.create(tmp_path / "g", Manifest("another", 9, embedding="another"))
    with pytest.raises(InputError, match="another model"):
        find_leakage(train, Gallery(tmp_path / "g"))
    Store.create(tmp_path / "empty", Manifest("", 9, embedding="random"))
    assert find_leakage(Gallery(tmp_path / "empty"), train).leaks == []
