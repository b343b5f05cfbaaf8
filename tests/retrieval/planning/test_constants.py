"""The planner's constants against the results of the benchmarks, and its page against the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scaling import PAGE, page, spread
from retrieval.planning import constants
from retrieval.search.kinds import AIM

ROOT = Path(__file__).parents[3]


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / name).read_text())


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-3)


def test_index_kinds() -> None:
    found, small = results("index_kinds.json"), results("index_kinds_small.json")
    assert found["count"] == constants.MEASURED
    for dim, of in found["dims"].items():
        assert {*constants.KINDS[int(dim)]} == {*of} - {"ivf-disk"}  # as ivf-sq8
        for name, costs in constants.KINDS[int(dim)].items():
            assert costs.train_seconds == close(of[name]["train_seconds"])
            assert costs.add_seconds == close(of[name]["add_seconds"])
            for recall, search in zip(constants.RECALLS, costs.searches, strict=True):
                measured = of[name]["search"][str(recall)]
                assert (search is None) == (measured is None)
                if search is not None:
                    assert search == (measured["effort"], measured["oversample"], close(measured["ms"]))
    powers = []
    for dim in found["dims"].keys() & small["dims"].keys():
        less, more = (data["dims"][dim]["hnsw"]["search"]["0.95"]["ms"] for data in (small, found))
        powers.append(math.log(more / less) / math.log(found["count"] / small["count"]))
    assert max(powers) == close(constants.GRAPH_GROWTH)


def test_gallery_and_images() -> None:
    data = results("gallery_scale.json")
    largest = data["sizes"]["10000000"]
    search, index = largest["search"], largest["index"]
    assert largest["import"]["disk_bytes"] / 1e7 - 4 * data["dim"] == close(constants.ITEM_BYTES)
    assert search["cpu_ms"] - search["bare_cpu_ms"] == close(constants.FACTS_MS)
    assert index["effort"] == constants.EFFORT
    assert (search["cold_ms"] - search["ms"]) / (AIM * index["oversample"]) == close(constants.PLACE_MS)
    taken = results("indexing.json")["taken"]
    assert 1000 * taken["decoding alone"]["processor"] == close(constants.DECODE_MS)
    assert 1000 * taken["model alone"]["processor"] == close(constants.EMBED_MS)


def test_stores() -> None:
    for name, costs in constants.STORES.items():
        sizes = {
            tuple(map(int, size.split(" x "))): found for size, found in results("stores.json")[name].items()
        }
        (count, dim), full = max(sizes.items())
        assert (count, dim) == (constants.STORE_MEASURED, constants.STORE_DIM)
        seconds = full["insert_cpu_seconds"] + full["build_cpu_seconds"]
        assert costs.build_seconds == close(seconds / count)
        for recall, ms in costs.searches:
            assert min(row["cpu_ms"] for row in full["search"] if row["recall"] >= recall) == close(ms)
        assert {each for _, each in sizes} == {*costs.row_bytes}
        for (n, each), found in sizes.items():
            graph = found.get("index_bytes", found.get("graph_bytes"))
            table = found.get("table_bytes")
            rows = found["disk_bytes"] - graph if table is None else table
            assert rows / n == close(costs.row_bytes[each])
        if name.startswith("qdrant"):
            assert full["graph_bytes"] / count == pytest.approx(constants.QDRANT_LINK_BYTES, rel=2e-3)


def test_page_has_what_the_command_prints() -> None:
    text = PAGE.read_text()
    assert text.count("<!-- end -->") == 3
    assert page(text) == text


def test_labels_are_moved_apart() -> None:
    moved = spread({"a": 1.0, "b": 1.0, "c": 5.0}, 0.5)
    assert moved["b"] - moved["a"] == pytest.approx(0.5)
    assert moved["c"] == 5
