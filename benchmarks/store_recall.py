"""Recall and time of one search in each store and in an embedded gallery, without and with filters.

The vectors are those of `benchmarks.search`. Filters on a column of metadata select 50 %, 5 % and 1 % of the
items at random; another one selects 5 % by a cut through space, where the nearest items of most queries are
not. Every store is optimized for the recall that it has by default. One client searches, one query at a time;
the reference is brute force. Stores are those of the tests, started for this run from wheels, or running ones
given by address.

    python -m benchmarks.store_recall --kinds postgres qdrant-edge
    python -m benchmarks.store_recall --stores postgresql://me@db.example/shop --json store_recall.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy is imported

import argparse
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gallery_scale import commit, machine
from benchmarks.search import draw
from retrieval import Gallery
from retrieval.storage.conditions import FilterTest
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import NO_FACTS, Facts, IndexSpec, StoredItem
from retrieval.storage.store import Store
from retrieval.stores.opening import open_engine, parse_address

K, RECALL = 10, 0.95
PART = 5000  # items written at once
COMMITTED = Path(__file__).with_suffix(".json")
# Name of a case, column and upper bound of its filter.
CASES: tuple[tuple[str, str, float], ...] = (
    ("all", "", 0),
    ("50 %", "share", 50),
    ("5 %", "share", 5),
    ("1 %", "share", 1),
    ("5 %, far", "side", 5),
)
Search = Callable[[np.ndarray, int, str, float], list[int]]


def metadata_of(vectors: np.ndarray) -> dict[str, np.ndarray]:
    """Return the columns: a random percentage, and the rank along one direction in percent."""
    random = np.random.default_rng(3)
    along = vectors @ random.standard_normal(vectors.shape[1]).astype(np.float32)
    ranks = np.argsort(np.argsort(along)) * 100 / len(vectors)
    return {"share": random.random(len(vectors)) * 100, "side": ranks}


def measured(
    search: Search, vectors: np.ndarray, queries: np.ndarray, columns: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Return recall and milliseconds of a search for each case."""
    found = {}
    for name, column, bound in CASES:
        selected = np.flatnonzero(columns[column] < bound) if column else np.arange(len(vectors))
        scores = queries @ vectors[selected].T
        best = selected[np.argpartition(scores, -K, axis=1)[:, -K:]] + 1
        search(queries[0], K, column, bound)
        hits, times = 0, []
        for query, expected in zip(queries, best.tolist(), strict=True):
            start = time.perf_counter()
            ids = search(query, K, column, bound)
            times.append(1000 * (time.perf_counter() - start))
            hits += len({*ids} & {*expected})
        p50 = statistics.median(times)
        p95 = float(np.percentile(times, 95))
        found[name] = {"recall": hits / (K * len(queries)), "p50_ms": p50, "p95_ms": p95}
    return found


def embedded(folder: Path, vectors: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
    """Measure an embedded gallery with the index that it would choose."""
    Store.create(folder, Manifest("", vectors.shape[1], embedding="benchmark"))
    gallery = Gallery(folder)
    columns = metadata_of(vectors)
    keys = [f"k{n}" for n in range(len(vectors))]
    facts = Facts(keys, *([value] * len(keys) for value in NO_FACTS[1:]))
    start = time.perf_counter()
    with gallery.store.writing():
        gallery.store.append(vectors, facts, {name: values.tolist() for name, values in columns.items()})
    gallery.refresh()
    written = time.perf_counter()
    with gallery.store.writing():
        gallery.build_index(IndexSpec(recall=RECALL), show_progress=False)

    def search(query: np.ndarray, k: int, column: str, bound: float) -> list[int]:
        where = f"{column} < {bound}" if column else None
        return [hit.id for hit in gallery.search_vectors(query[None], k, where=where)[0]]

    times = {"write_s": written - start, "optimize_s": time.perf_counter() - written}
    return {"index": gallery.index_kind, **times, **measured(search, vectors, queries, columns)}


def stored(address: str, vectors: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
    """Measure a store, in a collection that does not exist yet."""
    engine = open_engine(parse_address(address))
    if engine.manifest() is not None:
        raise SystemExit(f"{engine.address}: the collection exists; choose a name that is free")
    engine.create(Manifest("f" * 64, vectors.shape[1]))
    engine.add_columns({"share": "number", "side": "number"})
    columns = metadata_of(vectors)
    start = time.perf_counter()
    for first in range(0, len(vectors), PART):
        items = [
            StoredItem(
                n + 1,
                f"k{n}",
                *NO_FACTS[1:],
                None,
                {name: float(values[n]) for name, values in columns.items()},
            )
            for n in range(first, min(first + PART, len(vectors)))
        ]
        engine.put(items, vectors[first : first + PART])
    written = time.perf_counter()
    engine.optimize(RECALL)

    def search(query: np.ndarray, k: int, column: str, bound: float) -> list[int]:
        condition = FilterTest(column, "<", (bound,)) if column else None
        return [int(n) for n in engine.nearest(query[None], k, condition)[0].ids]

    times = {"write_s": written - start, "optimize_s": time.perf_counter() - written}
    found = {**engine.facts(), **times, **measured(search, vectors, queries, columns)}
    engine.close()
    return found


def main() -> None:
    """Print the table of all stores, and write the numbers as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--kinds", nargs="*", default=["postgres"], help="databases started from wheels")
    parser.add_argument("--stores", nargs="*", default=[], help="addresses of free collections")
    parser.add_argument("--json", type=Path, help="file with the results; other stores in it are kept")
    args = parser.parse_args()
    vectors, queries = draw(args.count, args.dim, 1), draw(args.queries, args.dim, 0)
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        results["embedded"] = embedded(folder / "gallery", vectors, queries)
        addresses = {address.split("@")[-1]: address for address in args.stores}
        for kind in args.kinds:
            running = import_module(f"tests.retrieval.stores.{kind.replace('-', '_')}_server").running
            (folder / kind).mkdir()
            server = stack.enter_context(running(folder / kind))
            addresses[kind] = server.collection(f"recall_{uuid.uuid4().hex[:8]}")
        for name, address in addresses.items():
            results[name] = stored(address, vectors, queries)
    for name, found in results.items():
        for case, *_ in CASES:
            row = found[case]
            times = f"p50 {row['p50_ms']:7.2f} ms  p95 {row['p95_ms']:7.2f} ms"
            print(f"{name:18} {case:9} recall {row['recall']:.4f}  {times}")
        times = f"write {found['write_s']:.1f} s, optimize {found['optimize_s']:.1f} s"
        print(f"{name:18} {times}, {found['index']}")
    if args.json:
        shape = f"{args.count} x {args.dim}"
        before = json.loads(args.json.read_text()) if args.json.exists() else {}
        at = {"machine": machine(), "commit": commit(), "recall": RECALL}
        runs = before.get(shape, {}) | {name: found | at for name, found in results.items()}
        args.json.write_text(json.dumps(before | {shape: runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
