"""Index tuning: measured recall against an independent count, and the choice of kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from retrieval import LookalikeError
from retrieval.search import kinds, training, tuning
from retrieval.search.index import build_index, write_index
from retrieval.search.tuning import IndexTrial
from retrieval.search.vectors import Vectors
from retrieval.storage.records import IndexSpec
from tests.retrieval.vectors import brute_force, clustered

DIM = 32
VECTORS = clustered(6000, DIM, 1)
STORED = Vectors(np.array_split(VECTORS, 3), DIM)
ALL = np.arange(6000)
KIND = kinds.APPROXIMATE["sq8"]


@pytest.fixture(scope="module", autouse=True)
def few_queries() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "QUERIES", 100)
        patch.setattr(tuning, "_TIMED", 4)
        yield


@pytest.fixture(scope="module")
def ground(few_queries: None) -> tuning.Ground:
    return tuning.prepare(STORED)


def test_recall_of_an_incomplete_index_is_its_share(ground: tuning.Ground) -> None:
    held_out = ground.held_out
    lacking = np.random.default_rng(0).choice(6000, 2500, replace=False)
    index = training.train_index(KIND, ground.training)
    training.add_rows(index, STORED, np.setdiff1d(ground.rows, lacking))
    others = np.isin(np.arange(6000), held_out.rows, invert=True)
    _, nearest = brute_force(VECTORS, VECTORS[held_out.rows], 10, others)
    there = ~np.isin(nearest, lacking)
    recall, at_least = held_out.recall(index, 1, 10)
    assert recall == pytest.approx(there.mean(), abs=1e-9)
    means = there.mean(1)
    resampled = np.random.default_rng(1).choice(means, (2000, len(means))).mean(1)
    assert at_least == pytest.approx(np.quantile(resampled, 0.05), abs=0.003)


def test_held_out_queries_are_new_and_not_their_own_neighbours() -> None:
    held_out, _ = tuning.hold_out_queries(STORED, ALL, ALL[5000:])
    assert held_out.rows.min() >= 5000
    assert len(set(held_out.rows.tolist())) == 100
    np.testing.assert_array_equal(held_out.queries, VECTORS[held_out.rows])
    assert (held_out.kth < 0.9999).all()


def test_held_out_queries_of_some_rows() -> None:
    rows = np.flatnonzero(np.random.default_rng(0).random(6000) < 0.5)
    held_out, _ = tuning.hold_out_queries(STORED, rows)
    assert np.isin(held_out.rows, rows).all()
    others = np.isin(ALL, np.setdiff1d(rows, held_out.rows))
    scores, _ = brute_force(VECTORS, held_out.queries, 10, others)
    np.testing.assert_allclose(held_out.kth, scores[:, -1], rtol=0, atol=1e-6)


def test_sweep_stops_at_the_least_sufficient_effort(ground: tuning.Ground) -> None:
    held_out = ground.held_out
    kind = kinds.APPROXIMATE["ivf-flat"]
    index = training.train_index(kind, ground.training)
    training.add_rows(index, STORED, ground.rows)
    efforts = []
    for wanted in (0.5, 0.9, 0.99, 1.0):
        (trial,) = tuning.sweep_efforts(kind, index, held_out, wanted)
        efforts.append(trial.effort)
        assert trial.at_least >= wanted
        if trial.effort > 1:
            assert held_out.recall(index, trial.effort // 2, 1)[1] < wanted
    assert efforts == sorted(efforts)
    assert efforts[0] < efforts[-1]


@pytest.fixture(scope="module")
def sampled() -> Iterator[tuning.Ground]:
    """Return the ground of 6,000 vectors with a sample of far fewer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "SAMPLE", 500)
        patch.setattr(tuning, "QUERIES", 50)
        patch.setattr(tuning, "_NEAREST", 40)
        yield tuning.prepare(STORED)


def test_sample_has_the_nearest_of_each_query(sampled: tuning.Ground) -> None:
    others = np.isin(ALL, sampled.held_out.rows, invert=True)
    _, nearest = brute_force(VECTORS, sampled.held_out.queries, 40, others)
    sample = {row.tobytes() for row in sampled.sample.take(np.arange(len(sampled.sample)))}
    assert len(sample) < 3000
    there = np.array([[VECTORS[row].tobytes() in sample for row in line] for line in nearest])
    assert there[:, :10].all()
    assert there.mean() > 0.9


@pytest.mark.parametrize("name", ["ivf-flat", "ivf-sq8", "sq8", "hnsw"])
def test_recall_in_the_sample_is_that_of_the_full_index(sampled: tuning.Ground, name: str) -> None:
    kind = kinds.APPROXIMATE[name]
    index = training.train_index(kind, sampled.training)
    training.add_rows(index, sampled.vectors, sampled.rows)
    for trial in tuning._try(sampled, kind, 0.9):
        in_full, _ = sampled.held_out.recall(index, trial.effort, trial.oversample)
        assert trial.recall == pytest.approx(in_full, abs=0.01)


def test_times_grow_with_the_vectors_that_are_compared(
    sampled: tuning.Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that counts compared vectors, the extrapolated time is the count in the full index."""
    compared = [0.0]
    search = kinds.candidates

    def counting(index: faiss.Index, queries: np.ndarray, k: int, effort: int, *rest: Any) -> np.ndarray:
        if isinstance(index, faiss.IndexIVF):
            visited = kinds.visited_cells(index, queries, min(effort, index.nlist))
            compared[0] += sum(index.invlists.list_size(int(cell)) for cell in visited.ravel())
        else:
            compared[0] += index.ntotal
        return search(index, queries, k, effort, *rest)

    monkeypatch.setattr(tuning, "_clock", lambda: compared[0] / 1000)
    monkeypatch.setattr(kinds, "candidates", counting)
    for name in ("sq8", "ivf-flat"):
        kind = kinds.APPROXIMATE[name]
        index = training.train_index(kind, sampled.training)
        training.add_rows(index, sampled.vectors, sampled.rows)
        (trial, *_) = tuning._try(sampled, kind, 0.9)
        compared[0] = 0.0
        for query in sampled.held_out.queries:
            counting(index, query[None], 10, trial.effort, 1)
        assert trial.ms == pytest.approx(compared[0] / len(sampled.held_out.rows), rel=0.15)


def test_busy_machine_does_not_change_the_time(
    ground: tuning.Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading of the clock is late by up to ten times the duration of a search."""
    random, now = np.random.default_rng(0), [0.0]
    monkeypatch.setattr(tuning, "_clock", lambda: now[0])

    def search(query: np.ndarray) -> None:
        now[0] += 1.0 + (random.random() < 0.5) * random.exponential(10.0)

    monkeypatch.setattr(tuning, "_SECONDS", 1e9)
    assert tuning.milliseconds(search, ground.held_out.queries) == pytest.approx(1000, rel=0.2)


def test_nearly_equal_times_give_the_smaller_kind() -> None:
    times = {"flat": (512, 9.0), "ivf-pq": (24, 1.0), "ivf-sq8": (136, 0.9), "hnsw": (400, 0.95)}
    random = np.random.default_rng(0)
    for _ in range(50):
        noise = random.uniform(1, 1.05, len(times))
        trials = [
            IndexTrial(name, 1, 1, 1.0, 1.0, size, ms * late)
            for (name, (size, ms)), late in zip(times.items(), noise, strict=True)
        ]
        assert tuning.best_first(trials, 0.9)[0].kind == "ivf-pq"
    disk = IndexTrial("ivf-disk", 1, 1, 1.0, 1.0, 1, 0.1)
    assert tuning.best_first([disk, *trials], 0.9)[-1] == disk, "its time does not include the disk"
    assert tuning.best_first([IndexTrial("pq", 1, 1, 0.9, 0.85, 24, 1.0)], 0.9) == []


def test_identical_vectors_do_not_stall() -> None:
    """Every vector ties with every other; a scan keeps a bounded number of them."""
    same = Vectors([np.repeat(VECTORS[:1], 60_000, 0)], DIM)
    ground = tuning.prepare(same)
    assert len(ground.sample) <= tuning.SAMPLE + 26 * tuning.QUERIES
    np.testing.assert_allclose(ground.held_out.kth, 1.0, rtol=0, atol=1e-6)
    (trial,) = tuning.sweep_efforts(
        kinds.APPROXIMATE["ivf-flat"],
        _filled(kinds.APPROXIMATE["ivf-flat"], ground),
        ground.sampled_queries,
        0.9,
    )
    assert trial.recall == 1.0


def _filled(kind: kinds.Kind, ground: tuning.Ground) -> faiss.Index:
    index = training.train_index(kind, ground.training)
    training.add_rows(index, ground.sample, np.arange(len(ground.sample)))
    return index


def trials_of(ground: tuning.Ground, recall: float, memory: int | None) -> list[IndexTrial]:
    return tuning.run_trials(ground, tuning.CANDIDATES, recall=recall, memory=memory, show_progress=False)


def test_best_kind_within_recall_and_memory_is_chosen(ground: tuning.Ground) -> None:
    memory = kinds.memory_needed("sq8", DIM, 6000)
    tried = trials_of(ground, 0.97, memory)
    in_memory = {"pq", "sq8", "ivf-pq", "ivf-sq4"}
    assert {trial.kind for trial in tried} == {*in_memory, "ivf-disk"}, "the others are too large"
    good = [trial for trial in tried if trial.at_least >= 0.97 and trial.kind in in_memory]
    assert tuning.best_first(tried, 0.97)[0].ms <= 1.25**2 * min(trial.ms for trial in good)
    assert all(trial.at_least <= trial.recall for trial in tried)
    exact = trials_of(ground, 1.0, None)
    for_less_memory = {name for name in tuning.CANDIDATES if kinds.instead_of(name)}
    assert {trial.kind for trial in exact} == {*tuning.CANDIDATES} - for_less_memory
    assert for_less_memory == {"ivf-disk", "ivf-rabitq", "hnsw-rabitq"}
    tight = {trial.kind for trial in trials_of(ground, 0.5, kinds.memory_needed("hnsw", DIM, 6000) - 1)}
    assert tight >= {"hnsw-rabitq", "ivf-sq4"}
    assert not tight & {"hnsw", "ivf-rabitq"}
    assert "flat" in {trial.kind for trial in tuning.best_first(exact, 1.0)}, "exact search always is"


def test_no_kind_fits(ground: tuning.Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        LookalikeError, match=r"(?s)within 1,000 bytes \(the smallest takes \d+,\d+\);.*recall@10"
    ):
        trials_of(ground, 0.9, 1000)
    monkeypatch.setitem(kinds.APPROXIMATE, "pq", replace(kinds.APPROXIMATE["pq"], oversample=(1, 2)))
    memory = kinds.memory_needed("pq", DIM, 6000)
    on_disk = replace(kinds.APPROXIMATE["ivf-disk"], efforts=(1,))
    monkeypatch.setitem(kinds.APPROXIMATE, "ivf-disk", on_disk)
    with pytest.raises(LookalikeError, match=r"(?s)no index reaches recall 1 within.*pq .*0\.\d{4}"):
        trials_of(ground, 1.0, memory)
    with pytest.raises(LookalikeError, match=r"(?s)kind pq does not reach recall 1; .*pq "):
        tuning.run_trials(ground, ["pq"], recall=1.0, memory=None, show_progress=False)


def test_graph_is_not_judged_beyond_the_sampled_neighbours(sampled: tuning.Ground) -> None:
    """The sample is as dense as all vectors only next to the queries: 40 vectors each."""
    trials = [*tuning._try(sampled, kinds.APPROXIMATE["hnsw"], 1.0)]
    assert max(trial.effort for trial in trials) <= 40


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
    on_disk = kinds.disk_needed(kind, DIM, 6000) if kinds.is_on_disk(kind) else 0
    assert kinds.memory_needed(kind, DIM, 6000) + on_disk == pytest.approx(size, rel=0.15)
