"""Index tuning: measured recall against an independent count, and the choice of kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from retrieval import LookalikeError
from retrieval.search import kinds, tuning
from retrieval.search.index import build_index, write_index
from retrieval.search.tuning import IndexTrial
from retrieval.search.vectors import Vectors
from retrieval.storage.records import IndexSpec
from tests.retrieval.vectors import brute_force, clustered

DIM = 32
VECTORS = clustered(6000, DIM, 1)
STORED = Vectors(np.array_split(VECTORS, 3), DIM)
KIND = kinds.APPROXIMATE["sq8"]


def test_recall_of_an_incomplete_index_is_its_share() -> None:
    held_out = tuning.hold_out_queries(STORED)
    lacking = np.random.default_rng(0).choice(6000, 2500, replace=False)
    index = kinds.train_index(KIND, VECTORS, 6000)
    tuning.add_rows(index, STORED, np.union1d(held_out.rows, lacking))
    others = np.isin(np.arange(6000), held_out.rows, invert=True)
    _, nearest = brute_force(VECTORS, VECTORS[held_out.rows], 10, others)
    there = ~np.isin(nearest, lacking)
    recall, at_least = held_out.recall(index, 1, 10)
    assert recall == pytest.approx(there.mean(), abs=1e-9)
    means = there.mean(1)
    resampled = np.random.default_rng(1).choice(means, (2000, len(means))).mean(1)
    assert at_least == pytest.approx(np.quantile(resampled, 0.05), abs=0.003)


def test_held_out_queries_are_new_and_not_their_own_neighbours() -> None:
    held_out = tuning.hold_out_queries(STORED, old=5000)
    assert held_out.rows.min() >= 5000
    assert len(set(held_out.rows.tolist())) == 100
    np.testing.assert_array_equal(held_out.queries, VECTORS[held_out.rows])
    assert (held_out.kth < 0.9999).all()


def test_sweep_stops_at_the_least_sufficient_effort() -> None:
    held_out = tuning.hold_out_queries(STORED)
    kind = kinds.APPROXIMATE["ivf-flat"]
    index = kinds.train_index(kind, VECTORS, 6000)
    tuning.add_rows(index, STORED, held_out.rows)
    efforts = []
    for wanted in (0.5, 0.9, 0.99, 1.0):
        (trial,) = tuning.sweep_efforts(kind, index, held_out, wanted)
        efforts.append(trial.effort)
        assert trial.at_least >= wanted
        if trial.effort > 1:
            assert held_out.recall(index, trial.effort // 2, 1)[1] < wanted
    assert efforts == sorted(efforts)
    assert efforts[0] < efforts[-1]


def test_fastest_kind_within_recall_and_memory_is_chosen() -> None:
    memory = kinds.memory_needed("sq8", DIM, 6000)
    tried = tuning.run_trials(STORED, recall=0.97, memory=memory, show_progress=False)
    chosen = tuning.fastest(tried, 0.97)
    assert chosen is not None
    assert {trial.kind for trial in tried} == {"pq", "sq8", "ivf-pq"}, "the others are too large"
    good = [trial for trial in tried if trial.at_least >= 0.97]
    assert chosen.ms == min(trial.ms for trial in good)
    assert all(trial.at_least <= trial.recall for trial in tried)
    assert tuning.fastest_first(tried, 0.97)[0] == chosen.kind
    all_tried = tuning.run_trials(STORED, recall=1.0, memory=None, show_progress=False)
    assert {trial.kind for trial in all_tried} == {"flat", "pq", "sq8", "ivf-pq", "ivf-sq8", "hnsw"}
    assert "flat" in tuning.fastest_first(all_tried, 1.0), "exact search always is"


def test_no_kind_fits() -> None:
    with pytest.raises(
        LookalikeError, match=r"(?s)within 1,000 bytes \(the smallest takes \d+,\d+\);.*recall@10"
    ):
        tuning.run_trials(STORED, recall=0.9, memory=1000, show_progress=False)
    points = np.random.default_rng(0).standard_normal((4000, 64))
    noise = Vectors([(points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)], 64)
    memory = kinds.memory_needed("pq", 64, 4000)
    with pytest.raises(LookalikeError, match=r"(?s)no index reaches recall 1 within.*pq .*0\.\d{4}"):
        tuning.run_trials(noise, recall=1.0, memory=memory, show_progress=False)


def test_times_are_extrapolated_to_all_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SAMPLE", 1500)
    monkeypatch.setattr(tuning.HeldOutQueries, "milliseconds", lambda *_: 1.0)
    tried = tuning.run_trials(STORED, recall=0.9, memory=None, show_progress=False)
    times = {trial.kind: trial.ms for trial in tried}
    assert times["flat"] == times["sq8"] == times["pq"] == 4.0
    assert times["ivf-pq"] == times["ivf-sq8"] == 2.0
    assert 1.0 < times["hnsw"] < 2.0


def test_table_marks_the_chosen_one() -> None:
    trials = [IndexTrial("pq", 1, 5, 0.97, 0.96, 40, 0.5), IndexTrial("hnsw", 64, 2, 1.0, 1.0, 600, 0.25)]
    head, pq, hnsw = tuning.trial_table(trials, trials[1])
    assert head.split() == [
        "kind",
        "effort",
        "candidates",
        "recall@10",
        "at",
        "least",
        "bytes/vector",
        "ms/query",
    ]
    assert pq.split() == ["pq", "1", "50", "0.9700", "0.9600", "40", "0.500"]
    assert hnsw.split() == ["*", "hnsw", "64", "20", "1.0000", "1.0000", "600", "0.250"]


@pytest.mark.parametrize("kind", kinds.APPROXIMATE)
def test_memory_needed_matches_the_file_size(kind: str, tmp_path: Path) -> None:
    built = build_index(STORED, IndexSpec(kind, recall=0.5))
    assert built is not None
    folder = write_index(built, tmp_path).folder
    size = (tmp_path / folder / "index.faiss").stat().st_size
    assert kinds.memory_needed(kind, DIM, 6000) == pytest.approx(size, rel=0.15)
