"""Plans against indexes that are built, against the laws of costs, and against results of the benchmarks."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scaling import checked
from retrieval.planning.constants import FACTS_MS, GRAPH_GROWTH, USABLE_MEMORY
from retrieval.planning.plan import SETUPS as ALL
from retrieval.planning.plan import Estimate, Need, Setup, estimate, recommend
from retrieval.search import kinds, training
from retrieval.search.vectors import Vectors
from tests.retrieval.vectors import clustered

SETUPS = {setup.name: setup for setup in ALL}
COUNTS, DIMS = st.floats(3, 11).map(lambda x: int(10**x)), st.integers(1, 4096)


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    return Vectors([clustered(5000, 64, seed=1)], 64)


@pytest.mark.parametrize("name", ["flat", *kinds.APPROXIMATE])
def test_bytes_are_those_of_a_built_index(name: str, vectors: Vectors) -> None:
    count, dim = len(vectors), vectors.dim
    rows = np.arange(count)
    if name == "flat":
        index = faiss.IndexFlatIP(dim)
        index.add(vectors.take(rows))
        planned, allowed = SETUPS[name].memory(count, dim), 0.001
    else:
        index = training.train_index(kinds.APPROXIMATE[name], training.draw_training(vectors))
        training.add_rows(index, vectors, rows)
        planned, allowed = SETUPS[name].index(count, dim), 0.1
    built = len(faiss.serialize_index(index))
    assert planned == pytest.approx(built, rel=allowed)


@pytest.mark.parametrize(("where", "what", "planned", "found"), checked())
def test_plan_agrees_with_what_was_built(where: str, what: str, planned: float, found: float) -> None:
    """Bytes within a twentieth; times, which were extrapolated to other sizes and dimensions, within 3."""
    factor = 1.05 if what.endswith("bytes") else 3
    assert found / factor <= planned <= found * factor, where


@pytest.mark.parametrize("name", SETUPS)
@given(pair=st.tuples(COUNTS, COUNTS).map(sorted), dim=DIMS)
@settings(max_examples=20)
def test_more_images_never_need_less(name: str, pair: list[int], dim: int) -> None:
    setup, (few, many) = SETUPS[name], pair
    for function in (setup.memory, setup.index, setup.vectors, setup.build):
        assert function(few, dim) <= function(many, dim) * (1 + 1e-9)


@pytest.mark.parametrize("name", SETUPS)
@given(count=COUNTS, dim=DIMS, pair=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted))
@settings(max_examples=20)
def test_a_higher_recall_is_never_cheaper(name: str, count: int, dim: int, pair: list[float]) -> None:
    low, high = (SETUPS[name].search(count, dim, recall) for recall in pair)
    if high is not None:
        assert low is not None
        assert low.ms <= high.ms * (1 + 1e-9)
        assert low.read <= high.read * (1 + 1e-9)


@given(
    images=st.floats(5, 10).map(lambda x: int(10**x)),
    dim=st.sampled_from([2, 32, 512, 2001, 4096]),
    recall=st.floats(0.5, 1),
    memory=st.floats(8, 13).map(lambda x: int(10**x)),
    qps=st.floats(0.01, 1e5),
)
@settings(max_examples=40, deadline=None)
def test_every_need_has_a_plan(images: int, dim: int, recall: float, memory: int, qps: float) -> None:
    need = Need(images, dim, recall, memory, qps=qps)
    found = [estimate(setup, need) for setup in ALL]
    best = recommend(found)
    assert (best is None) == all(each.problem for each in found)
    if best is not None:
        assert best.machines * need.cores * 1000 >= qps * best.search_ms * (1 - 1e-9)
        assert best.latency_ms <= need.latency
        assert best.memory <= USABLE_MEMORY * memory * (best.machines if best.setup.spans else 1)
        found_by = best.setup.search(images, dim, recall)
        assert found_by is not None


def estimated(name: str, **changes: Any) -> Estimate:
    need = Need(**{"images": 10**9, "dim": 128, "recall": 0.95, "memory": 64 * 10**9} | changes)
    return estimate(SETUPS[name], need)


def test_machines_follow_from_memory_cores_and_disk() -> None:
    few = estimated("qdrant int8", qps=0.1)
    assert few.bound == "memory"
    assert few.machines == np.ceil(estimated("qdrant int8", memory=32 * 10**9, qps=0.1).machines / 2)
    assert estimated("ivf-sq8", images=10**7, qps=1e5).bound == "cores"
    assert estimated("ivf-disk", qps=1000).bound == "disk reads"
    fast = estimated("ivf-disk", qps=1000, disk_speed=2 * 10**10)
    assert estimated("ivf-disk", qps=1000).machines > fast.machines


def test_the_simplest_engine_wins_until_it_needs_twice_the_machines() -> None:
    def engine(need: Need) -> str:
        best = recommend([estimate(setup, need) for setup in ALL])
        assert best is not None
        return best.setup.engine

    assert engine(Need(10**6, 128, 0.95, 64 * 10**9)) == "embedded"
    assert engine(Need(10**9, 512, 0.95, 64 * 10**9, qps=1000)) not in ("embedded", "on disk")


def test_search_grows_as_its_kind_does() -> None:
    """Flat with the vectors; a graph with a power; cells with the root, until they cannot be more."""

    def ratio(setup: Setup, few: float, dim: int) -> float:
        low, high = (setup.search(count, dim, 0.95) for count in (few, 100 * few))
        assert low is not None
        assert high is not None
        return (high.ms - FACTS_MS) / (low.ms - FACTS_MS)

    assert ratio(SETUPS["flat"], 10**6, 128) == pytest.approx(100)
    assert ratio(SETUPS["hnsw"], 10**6, 128) == pytest.approx(100**GRAPH_GROWTH)
    assert ratio(SETUPS["ivf-sq8"], 10**8, 512) > 80
    assert 3 < ratio(SETUPS["ivf-sq8"], 10**4, 64) < 20


@given(st.sampled_from(sorted(SETUPS)), st.floats(0.9991, 1))
def test_almost_exact_search_is_flat(name: str, recall: float) -> None:
    assert (SETUPS[name].search(10**6, 128, recall) is not None) == (name == "flat")


def test_kinds_that_did_not_reach_a_recall_do_not_serve_it() -> None:
    assert SETUPS["hnsw"].search(10**6, 128, 0.95) is not None
    assert SETUPS["hnsw"].search(10**6, 128, 0.96) is None
