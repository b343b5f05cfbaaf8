"""Plans against indexes that are built, against the laws of costs, and against results of the benchmarks."""

from __future__ import annotations

import json
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scaling import checked
from retrieval.commands.plan import plan_facts
from retrieval.planning.constants import MEASURED, cited, measured, parse
from retrieval.planning.estimates import Need
from retrieval.planning.plan import make_plan, next_step
from retrieval.planning.setups import Setup, setups
from retrieval.planning.tables import WIDTH, plan_lines, source_lines, summary_lines
from retrieval.search import kinds, training
from retrieval.search.vectors import Vectors
from tests.retrieval.vectors import clustered

SETUPS = {setup.name: setup for setup in setups(measured())}
COUNTS, DIMS = st.floats(3, 11).map(lambda x: int(10**x)), st.integers(1, 4096)
BASES = {"given", "measured", "computed", "cited", "extrapolated"}


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
        planned, allowed = SETUPS[name].memory(count, dim).value, 0.001
    else:
        index = training.train_index(kinds.APPROXIMATE[name], training.draw_training(vectors))
        training.add_rows(index, vectors, rows)
        planned, allowed = SETUPS[name].index(count, dim).value, 0.1
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
        less, more = function(few, dim), function(many, dim)
        assert less is None or more is None or less.value <= more.value * (1 + 1e-9)


@pytest.mark.parametrize("name", SETUPS)
@given(count=COUNTS, dim=DIMS, pair=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted))
@settings(max_examples=20)
def test_a_higher_recall_is_never_cheaper(name: str, count: int, dim: int, pair: list[float]) -> None:
    low, high = (SETUPS[name].search(count, dim, recall) for recall in pair)
    if high is not None:
        assert low is not None
        assert low.ms <= high.ms * (1 + 1e-9)
        assert low.read <= high.read * (1 + 1e-9)


def numbers(value: Any) -> list[dict[str, Any]]:
    """Every number with a unit in JSON values."""
    if isinstance(value, dict):
        return [value] if "basis" in value else [found for each in value.values() for found in numbers(each)]
    return [found for each in value for found in numbers(each)] if isinstance(value, list) else []


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
    found = make_plan(need, measured())
    after = next_step(found, measured())
    facts = json.loads(json.dumps(plan_facts(found, after), allow_nan=False))
    assert {each["setup"] for each in facts["setups"]} == {*SETUPS}
    for number in numbers(facts):
        assert number["value"] >= 0
        assert number["unit"]
        assert number["source"]
        assert number["basis"] in BASES
    lines = [*plan_lines(found, after), *source_lines(found), *summary_lines([found])]
    assert max(len(line) for line in lines if "://" not in line) <= WIDTH
    best = found.recommended
    assert (best is None) == all(each.problem for each in found.estimates if each.is_built)
    if best is not None:
        assert best.machines is not None
        assert best.recall is not None
        assert best.recall.value >= recall
        share = cited("usable_memory").value * memory
        spans = SETUPS[best.setup].spans
        assert best.memory.value <= share * (best.machines.value if spans else 1)
        if best.search_ms is not None:
            assert best.machines.value * need.cores * 1000 >= qps * best.search_ms.value * (1 - 1e-9)
            assert best.latency is not None
            assert best.latency.value <= need.latency


def test_machines_follow_from_memory_cores_and_disk() -> None:
    def machines(name: str, **changes: Any) -> tuple[float, str]:
        need = Need(**{"images": 10**9, "dim": 128, "recall": 0.95, "memory": 64 * 10**9} | changes)
        (found,) = [each for each in make_plan(need, measured()).estimates if each.setup == name]
        assert found.machines is not None
        return found.machines.value, found.bound

    few, bound = machines("qdrant int8", qps=0.1)
    assert (few, bound) == (np.ceil(machines("qdrant int8", memory=32 * 10**9, qps=0.1)[0] / 2), "memory")
    assert machines("ivf-sq8", images=10**7, qps=1e5)[1] == "cores"
    assert machines("ivf-disk", qps=1000)[1] == "disk reads"
    assert machines("ivf-disk", qps=1000)[0] > machines("ivf-disk", qps=1000, disk_speed=2 * 10**10)[0]


def test_the_simplest_engine_wins_until_it_needs_twice_the_machines() -> None:
    small = make_plan(Need(10**6, 128, 0.95, 64 * 10**9), measured())
    assert small.recommended is not None
    assert small.recommended.engine == "embedded"
    many = make_plan(Need(10**9, 512, 0.95, 64 * 10**9, qps=1000), measured())
    assert many.recommended is not None
    assert many.recommended.engine not in ("embedded", "on disk")


def test_given_speeds_replace_the_constants() -> None:
    found = make_plan(Need(3600 * 1000, 128, 0.9, 10**10, gpu_rate=100), measured()).indexing
    assert found.gpu_rate.basis == "given"
    assert found.gpu_hours.value == pytest.approx(10)


def test_search_grows_as_its_kind_does() -> None:
    """Flat with the vectors; a graph with a power; cells with the root, until they cannot be more."""

    def ratio(setup: Setup, few: float, dim: int) -> float:
        low, high = (setup.search(count, dim, 0.95) for count in (few, 100 * few))
        assert low is not None
        assert high is not None
        facts = measured().facts_ms
        return (high.ms - facts) / (low.ms - facts)

    assert ratio(SETUPS["flat"], 10**6, 128) == pytest.approx(100)
    assert ratio(SETUPS["hnsw"], 10**6, 128) == pytest.approx(100 ** measured().growth)
    assert ratio(SETUPS["ivf-sq8"], 10**8, 512) > 80
    assert 3 < ratio(SETUPS["ivf-sq8"], 10**4, 64) < 20


@given(st.sampled_from(sorted(SETUPS)), st.floats(0.9991, 1))
def test_almost_exact_search_is_flat(name: str, recall: float) -> None:
    assert (SETUPS[name].search(10**6, 128, recall) is not None) == (name == "flat")


def test_kinds_that_did_not_reach_a_recall_do_not_serve_it() -> None:
    data = json.loads(MEASURED.read_text())
    for of in data["kinds"]["dims"].values():
        of["hnsw"]["search"]["0.99"] = None
    hnsw = {setup.name: setup for setup in setups(parse(data))}["hnsw"]
    assert hnsw.search(10**6, 128, 0.95) is not None
    assert hnsw.search(10**6, 128, 0.96) is None
