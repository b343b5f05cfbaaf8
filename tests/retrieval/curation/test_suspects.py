"""Suspected labels against votes counted one by one, and labels changed on purpose."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval import Gallery, InputError
from retrieval.curation import suspects
from retrieval.curation.suspects import find_suspects
from retrieval.storage.records import IndexSpec
from tests.conftest import lookalike_here
from tests.retrieval.curation.test_duplicates import crowd, make, unit


def one_by_one(
    vectors: np.ndarray, labels: Sequence[str | None], k: int
) -> dict[int, tuple[str, float, float, float, list[int], list[float]]]:
    """Return label, lead, votes, own votes, agreeing neighbours and similarities to its own label."""
    wide, found = vectors.astype(float), {}
    known = [i for i, label in enumerate(labels) if label]
    for i in known:
        others = [j for j in known if j != i]
        near = sorted(others, key=lambda j, i=i: (-(wide[i] @ wide[j]), j))[:k]  # type: ignore[misc]
        votes: dict[str, float] = defaultdict(float)
        for j in near:
            votes[str(labels[j])] += np.exp(wide[i] @ wide[j] / 0.07)
        own = votes.pop(str(labels[i]), 0.0)
        same = [j for j in others if labels[j] == labels[i]]
        if not votes or not same:
            continue
        best = max(votes, key=lambda label: votes[label])
        if votes[best] <= own:
            continue
        total = own + sum(votes.values())
        means = [wide[[j for j in others if labels[j] == label]].mean(0) for label in (best, labels[i])]
        lead = float(np.subtract(*(wide[i] @ mean / np.linalg.norm(mean) for mean in means)))
        agree = [j for j in near if labels[j] == best]
        alike = sorted((wide[i] @ wide[j] for j in same), reverse=True)[:4]
        found[i] = best, lead, votes[best] / total, own / total, agree, alike
    return found


@settings(max_examples=8)
@given(
    st.integers(0, 2**32),
    st.integers(1, 90),
    st.sampled_from([3, 16]),
    st.sampled_from([1, 4, 30]),
    st.booleans(),
)
def test_equals_votes_counted_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, dim: int, k: int, removed: bool
) -> None:
    vectors, random = crowd(seed, count, dim), np.random.default_rng(seed)
    labels = [["a", "b", "c", None][c] for c in random.choice(4, count, p=[0.4, 0.3, 0.2, 0.1])]
    gallery = make(tmp_path_factory.mktemp("crowd") / "g", vectors, labels=labels, pieces=2)
    if removed:
        gone = random.choice(count, count // 4, replace=False).tolist()
        gallery.remove([str(i) for i in gone])
        labels = [None if i in gone else label for i, label in enumerate(labels)]
    expected = one_by_one(vectors, labels, k)
    found = find_suspects(gallery, k=k, limit=count)
    assert {int(one.item.key): one.suggested for one in found.suspects} == {
        i: label for i, (label, *_) in expected.items()
    }
    for one in found.suspects:
        _, lead, votes, own, near, alike = expected[int(one.item.key)]
        assert (one.lead, one.votes, one.own_votes) == pytest.approx((lead, votes, own), abs=1e-4)
        assert [int(neighbour.item.key) for neighbour in one.neighbours] == near
        assert {neighbour.item.label for neighbour in one.own_neighbours} == {one.item.label}
        assert one.item not in [neighbour.item for neighbour in one.own_neighbours]
        assert [neighbour.score for neighbour in one.own_neighbours] == pytest.approx(alike, abs=1e-4)
    leads = [one.lead for one in found.suspects]
    assert leads == sorted(leads, reverse=True)
    assert found.total == len(leads)
    precisions = [one.precision for one in found.suspects]
    assert precisions == sorted(precisions, reverse=True)
    assert find_suspects(gallery, k=k).suspects == found.suspects[: found.likely]
    assert found.labelled == sum(label is not None for label in labels)
    first = find_suspects(gallery, k=k, limit=2)
    assert first.suspects == found.suspects[:2]
    assert first.total == found.total


def relabelled(folder: Path, spread: float, share: float, seed: int) -> tuple[Gallery, set[str]]:
    """A gallery of 40 classes of 50 overlapping images; a share of the labels is wrong. Their keys."""
    random = np.random.default_rng(seed)
    true = np.repeat(np.arange(40), 50)
    centres = unit(random.normal(size=(40, 32)))
    vectors = unit(centres[true] + spread * random.normal(size=(2000, 32)))
    wrong = random.choice(2000, round(share * 2000), replace=False)
    given = true.copy()
    given[wrong] = (true[wrong] + random.integers(1, 40, len(wrong))) % 40
    return make(folder, vectors, labels=[f"{c:02}" for c in given]), {str(i) for i in wrong}


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Gallery, set[str]]:
    """A gallery of overlapping classes; 5% of the labels are wrong. Their keys."""
    return relabelled(tmp_path_factory.mktemp("noisy") / "g", 0.2, 0.05, 0)


@pytest.mark.parametrize(("spread", "share"), [(0.2, 0.05), (0.3, 0.02), (0.3, 0.1)])
def test_the_stated_precision_is_that_of_the_list(tmp_path: Path, spread: float, share: float) -> None:
    """For lists of several lengths, from the changed labels, which the estimate does not know."""
    stated, right = [], []
    for seed in range(3):
        gallery, wrong = relabelled(tmp_path / str(seed), spread, share, seed)
        found = find_suspects(gallery, limit=2000)
        hits = np.cumsum([one.item.key in wrong for one in found.suspects])
        lengths = [found.likely // 4, found.likely // 2, found.likely]
        stated += [found.suspects[length - 1].precision for length in lengths]
        right += [hits[length - 1] / length for length in lengths]
        assert hits[found.likely - 1] >= 0.6 * len(wrong)
    assert np.mean(stated) == pytest.approx(np.mean(right), abs=0.1)
    assert np.max(np.subtract(stated, right)) < 0.1


def test_what_the_model_confuses_is_not_listed(tmp_path: Path) -> None:
    gallery, _ = relabelled(tmp_path / "g", 0.3, 0, 0)
    found = find_suspects(gallery)
    assert found.total > 500
    assert found.suspects == []
    assert len(find_suspects(gallery, limit=50).suspects) == 50


def test_finds_labels_changed_on_purpose(noisy: tuple[Gallery, set[str]]) -> None:
    gallery, wrong = noisy
    found = find_suspects(gallery, limit=100).suspects
    assert len({one.item.key for one in found} & wrong) >= 95
    right = [one for one in found if one.suggested == f"{int(one.item.key) // 50:02}"]
    assert len(right) >= 95


def test_the_index_of_the_gallery_finds_the_neighbours(
    noisy: tuple[Gallery, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, _ = noisy
    exact = find_suspects(gallery, limit=100).suspects
    with gallery.store.writing():
        gallery.build_index(IndexSpec("hnsw"))
    used = []
    snapshot = type(gallery.state)
    propose = snapshot._propose
    monkeypatch.setattr(snapshot, "_is_exact", lambda *_: False)
    monkeypatch.setattr(snapshot, "_propose", lambda *given, **how: used.append(1) or propose(*given, **how))
    found = find_suspects(gallery, limit=100).suspects
    assert used
    assert len({one.item.key for one in found} & {one.item.key for one in exact}) >= 97


def test_memory_is_bounded_by_chunks(
    noisy: tuple[Gallery, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, _ = noisy
    whole = find_suspects(gallery, limit=2000)
    monkeypatch.setattr(suspects, "_CHUNK", 64)
    parts = find_suspects(gallery, limit=2000)
    assert len(whole.suspects) > 100
    assert whole.suspects == parts.suspects


def test_labels_of_single_images_are_counted(tmp_path: Path) -> None:
    vectors = unit(np.array([[1, 0], [1, 0.1], [-1, 1]]))
    found = find_suspects(make(tmp_path / "g", vectors, labels=["a", "a", "b"]))
    assert (found.suspects, found.single) == ([], 1)
    with pytest.raises(InputError, match="1 to 100"):
        find_suspects(make(tmp_path / "h", vectors), k=0)


def test_command(noisy: tuple[Gallery, set[str]], tmp_path: Path) -> None:
    gallery, wrong = noisy
    table, sheet = tmp_path / "suspects.csv", tmp_path / "suspects.html"
    words = ["check", "suspects", str(gallery.folder), "--limit", "20"]
    facts = json.loads(lookalike_here(*words, "--json", "--list", str(table)).stdout)
    assert {one["item"]["key"] for one in facts["suspects"]} <= wrong
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["key"] for row in rows] == [one["item"]["key"] for one in facts["suspects"]]
    shown = lookalike_here(*words, "--sheet", str(sheet)).stdout.splitlines()
    share = f"{facts['suspects'][-1]['precision']:.0%}"
    assert shown[0].startswith(
        f"suspected labels: 20 of 2000, of which about {share} are expected to be wrong; neighbours outvote"
    )
    assert len(shown) == 22
    assert sheet.read_text().count("lead ") == 20
    likely = json.loads(lookalike_here(*words[:3], "--json").stdout)
    assert len(likely["suspects"]) == likely["likely"] == facts["likely"]
