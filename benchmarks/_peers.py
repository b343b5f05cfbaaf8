"""The operations of `benchmarks.gallery` with LanceDB and usearch, in their own environment; prints JSON.

python benchmarks/_peers.py FOLDER    # with v.npy, queries.npy, more.npy and exact.npy, float32 [n, D]
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

K = 10


def taken(work: Callable[[], Any]) -> dict[str, float]:
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - processor}


def each(search: Callable[[np.ndarray], Any], queries: np.ndarray) -> dict[str, float]:
    search(queries[0])
    seconds, processor = [], time.process_time()
    for query in queries:
        start = time.perf_counter()
        search(query)
        seconds.append(time.perf_counter() - start)
    cpu = (time.process_time() - processor) / len(queries)
    return {"seconds": statistics.median(seconds), "cpu_seconds": cpu}


def lance(folder: Path) -> dict[str, Any]:
    import lancedb
    import pyarrow as pa

    def table(vectors: np.ndarray, first: int) -> Any:
        flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
        ids = pa.array(np.arange(first, first + len(vectors)))
        return pa.table({"id": ids, "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])})

    queries, found = np.load(folder / "queries.npy"), {}
    vectors = np.load(folder / "v.npy", mmap_mode="r")
    base = lancedb.connect(folder / "lance")
    found["import"] = taken(lambda: base.create_table("t", table(vectors, 0)))
    opened = base.open_table("t")
    cells = max(1, round(len(vectors) ** 0.5))
    build = {"metric": "dot", "num_partitions": cells, "num_sub_vectors": vectors.shape[1] // 4}
    found["index"] = taken(lambda: opened.create_index(**build))

    def search(query: np.ndarray) -> Any:
        asked = opened.search(query).distance_type("dot").limit(K).nprobes(32).refine_factor(20)
        return asked.select(["id", "_distance"]).to_arrow()["id"].to_numpy()

    found["search"] = {**each(search, queries), **recall(folder, vectors, queries, search)}
    more = table(np.load(folder / "more.npy"), len(vectors))
    found["add"] = taken(lambda: opened.add(more))
    found["remove"] = taken(lambda: opened.delete("id % 10 = 0"))
    found["compact"] = taken(opened.optimize)
    return found


def usearch(folder: Path) -> dict[str, Any]:
    from usearch.index import Index

    vectors, queries = np.load(folder / "v.npy", mmap_mode="r"), np.load(folder / "queries.npy")
    index = Index(ndim=vectors.shape[1], metric="ip", dtype="f16", connectivity=32)
    index.expansion_search = 128
    found = {"index": taken(lambda: index.add(np.arange(len(vectors)), np.asarray(vectors), threads=1))}

    def search(query: np.ndarray) -> Any:
        return np.asarray(index.search(query, K, threads=1).keys).astype(np.int64)

    found["search"] = {**each(search, queries), **recall(folder, vectors, queries, search)}
    more = np.load(folder / "more.npy")
    keys = np.arange(len(vectors), len(vectors) + len(more))
    found["add"] = taken(lambda: index.add(keys, more, threads=1))
    found["remove"] = taken(lambda: index.remove(np.arange(0, len(vectors), 10)))
    return found


def recall(
    folder: Path, vectors: np.ndarray, queries: np.ndarray, search: Callable[[np.ndarray], np.ndarray]
) -> dict[str, float]:
    """Return the share of the true neighbours that are found, by their exact scores."""
    last = np.load(folder / "exact.npy")[:, -1]
    scores = [vectors[np.sort(search(query))] @ query for query in queries]
    right = [(found >= least - 1e-6).sum() / K for found, least in zip(scores, last, strict=True)]
    return {"recall": float(np.mean(right))}


def main() -> None:
    results = {}
    for name, run in {"LanceDB": lance, "usearch": usearch}.items():
        try:
            results[name] = run(Path(sys.argv[1]))
        except ImportError as error:
            print(f"{name}: skipped ({error})", file=sys.stderr)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
