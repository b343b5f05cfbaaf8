"""Search speed and recall of every index kind, compared with bare FAISS and with usearch.

The vectors are stored in files of 4096, as in a gallery, and memory-mapped. They are clustered like
embeddings of classes: 2,000 centres and a spread of 0.7 in a common subspace of 64 dimensions, noise of 0.25
in all dimensions, scaled to unit length; queries are drawn from the same distribution. The parameters are
those that our tuning chooses for --recall. FAISS searches the same index with the same parameters and scores
the candidates from a copy of the vectors in memory (`IndexRefine`); our search scores them from the files and
verifies the checksums of the results. "bare" is FAISS without this second step, and with lower recall.
usearch gets the smallest `expansion_search` that reaches the recall. All run interleaved on one thread;
medians are reported.

    python -m benchmarks.search
    python -m benchmarks.search --count 1000000 --dim 512 --queries 200 --kinds flat ivf-pq --no-usearch
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when FAISS and numpy are imported

import argparse
import json
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from usearch.index import Index as USearch

from retrieval.search.index import Index, build_index, write_index
from retrieval.search.snapshot import Snapshot
from retrieval.search.vectors import Vectors
from retrieval.storage.records import IndexSpec

K = 10
SEGMENT = 4096
Search = Callable[[np.ndarray], Any]


def draw(count: int, dim: int, seed: int) -> np.ndarray:
    """Return clustered unit vectors, float32 [count, dim]."""
    shared, random = np.random.default_rng(0), np.random.default_rng([seed, 1])
    subspace = shared.standard_normal((64, dim), dtype=np.float32) / 8
    centres = shared.standard_normal((2000, 64), dtype=np.float32)
    inner = centres[random.integers(0, 2000, count)]
    inner += 0.7 * random.standard_normal((count, 64), dtype=np.float32)
    points = inner @ subspace + 0.25 * random.standard_normal((count, dim), dtype=np.float32)
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def write(folder: Path, count: int, dim: int) -> np.ndarray:
    """Write the segments and return the checksum of every row."""
    checksums = []
    for number, start in enumerate(range(0, count, SEGMENT)):
        rows = draw(min(SEGMENT, count - start), dim, number + 1)
        np.save(folder / f"{number:06}.npy", rows)
        checksums += [zlib.crc32(row) for row in rows]
    return np.array(checksums, np.uint32)


def mapped(folder: Path) -> list[np.ndarray]:
    return [np.load(path, mmap_mode="r") for path in sorted(folder.glob("*.npy"))]


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def compare(
    contenders: dict[str, Search], queries: np.ndarray, rounds: int
) -> dict[str, tuple[float, float]]:
    """Return queries per second of each contender, one at a time and a hundred at a time."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for search in contenders.values():
        search(queries[:1])
    for _ in range(rounds):
        for name, search in contenders.items():
            single = [seconds(lambda: search(query[None]))[0] for query in queries[:20]]  # noqa: B023
            many = seconds(lambda: search(queries[:100]))[0]  # noqa: B023
            taken[name].append((1 / statistics.median(single), 100 / many))
    return {name: tuple(map(statistics.median, zip(*each, strict=True))) for name, each in taken.items()}  # type: ignore[misc]


def recall(scores: np.ndarray, kth: np.ndarray) -> float:
    """Return the share of the true neighbours that were found, by their true scores."""
    return float((scores >= kth[:, None]).mean())


def parameters_of(index: faiss.Index, effort: int) -> Any:
    """Return the FAISS search parameters for an effort."""
    if isinstance(index, faiss.IndexIVF):
        return faiss.SearchParametersIVF(nprobe=effort)
    if isinstance(faiss.downcast_index(index.index), faiss.IndexHNSW):
        return faiss.SearchParametersHNSW(efSearch=effort)
    return None


def bare(index: Index) -> Search:
    """Return a search with FAISS alone, without exact scores."""
    parameters = parameters_of(index.faiss, index.card["effort"])
    return lambda queries: index.faiss.search(queries, K, params=parameters)[1]


def refined(index: Index, exact: faiss.Index) -> Search:
    """Return a search with FAISS that also gives exact scores."""
    both = faiss.IndexRefine(index.faiss, exact)
    first = parameters_of(index.faiss, index.card["effort"])
    factor = index.card["oversample"]
    parameters = faiss.IndexRefineSearchParameters(k_factor=factor, base_index_params=first)
    return lambda queries: both.search(queries, K, params=parameters)[1]


def flat(vectors: Vectors) -> faiss.Index:
    index = faiss.IndexFlatIP(vectors.dim)
    for part in vectors.parts:
        index.add(part)
    return index


def rows_of(
    kind: str, segments: Path, checksums: np.ndarray, queries: np.ndarray, args: Any
) -> list[dict[str, Any]]:
    """Return the rows of one index kind: ours, FAISS and bare."""
    vectors = Vectors(mapped(segments), args.dim)
    ids = np.arange(1, len(vectors) + 1)
    building, built = seconds(lambda: build_index(vectors, IndexSpec(kind, recall=args.recall)))
    with tempfile.TemporaryDirectory(dir=segments.parent) as folder:
        index, size = None, 4 * args.dim
        if built is not None:
            active = write_index(built, Path(folder))
            place = Path(folder) / active.folder
            size = (place / "index.faiss").stat().st_size / len(vectors)
            del built

        def opened() -> Snapshot:
            index = Index(place, active.sha256, active.card_sha256) if kind != "flat" else None
            return Snapshot(mapped(segments), ids, checksums, index, len(ids) if index else 0, dim=args.dim)

        opening, state = seconds(opened)
        first, _ = seconds(lambda: state.nearest(queries[:1], K))
        index, exact = state.index, flat(vectors)
        contenders: dict[str, Search] = {"ours": lambda asked: state.nearest(asked, K)[1]}
        if index is None:
            contenders["faiss"] = lambda asked: exact.search(asked, K)[1]
        else:
            contenders |= {"faiss": refined(index, exact), "bare": bare(index)}
        rates = compare(contenders, queries, args.rounds)
        kth = vectors.nearest(queries, K)[0][:, -1]
        row = {"kind": kind, "build_s": building, "bytes_per_vector": size}
        row |= {"open_ms": 1000 * opening, "first_ms": 1000 * first}
        for name, search in contenders.items():
            row[f"{name}_recall"] = recall(vectors.score(queries, search(queries)), kth)
            row |= dict(zip((f"{name}_qps_1", f"{name}_qps_100"), rates[name], strict=True))
        for batch in (1, 100):
            row[f"time_{batch}"] = row[f"faiss_qps_{batch}"] / row[f"ours_qps_{batch}"]
    return row


def usearch(segments: Path, queries: np.ndarray, args: Any) -> dict[str, Any]:
    """Return the row of usearch: a graph over the vectors."""
    vectors = Vectors(mapped(segments), args.dim)
    index = USearch(ndim=args.dim, metric="ip", dtype="f32", connectivity=16)

    def fill() -> None:
        for start, block in vectors.blocks():
            index.add(np.arange(start, start + len(block)), block, threads=1)

    building, _ = seconds(fill)
    kth = vectors.nearest(queries, K)[0][:, -1]

    def search(asked: np.ndarray) -> np.ndarray:
        found = index.search(asked if len(asked) > 1 else asked[0], K, threads=1)
        return np.asarray(found.keys).astype(np.int64).reshape(len(asked), -1)

    for effort in (16, 32, 64, 128, 256, 512, 1024):
        index.expansion_search = effort
        reached = recall(vectors.score(queries, search(queries)), kth)
        if reached >= args.recall:
            break
    single, many = compare({"usearch": search}, queries, args.rounds)["usearch"]
    size = index.serialized_length / len(vectors)
    row = {"kind": f"usearch, {effort}", "ours_recall": reached, "build_s": building}
    return row | {"bytes_per_vector": size, "ours_qps_1": single, "ours_qps_100": many}


COLUMNS = {
    "build_s": ("build s", ".1f"),
    "bytes_per_vector": ("B/vector", ".0f"),
    "ours_recall": ("recall", ".4f"),
    "ours_qps_1": ("q/s 1", ".0f"),
    "ours_qps_100": ("100", ".0f"),
    "faiss_recall": ("FAISS", ".4f"),
    "faiss_qps_1": ("q/s 1", ".0f"),
    "faiss_qps_100": ("100", ".0f"),
    "time_1": ("time 1", ".2f"),
    "time_100": ("100", ".2f"),
    "bare_recall": ("bare", ".4f"),
    "bare_qps_1": ("q/s 1", ".0f"),
    "bare_qps_100": ("100", ".0f"),
    "open_ms": ("open ms", ".0f"),
    "first_ms": ("first ms", ".0f"),
}


def show(row: dict[str, Any]) -> None:
    cells = [format(row[name], form) if name in row else "" for name, (_, form) in COLUMNS.items()]
    print(f"{row['kind']:14}" + "".join(f"{cell:>9}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="vectors in the gallery")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=1000, help="queries to compute recall on")
    parser.add_argument("--recall", type=float, default=0.99)
    parser.add_argument("--kinds", nargs="+", default=["flat", "sq8", "pq", "ivf-sq8", "ivf-pq", "hnsw"])
    parser.add_argument("--no-usearch", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="output file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        segments = Path(folder) / "segments"
        segments.mkdir()
        checksums = write(segments, args.count, args.dim)
        queries = draw(args.queries, args.dim, 0)
        print(f"{args.count} x {args.dim}; time: ours to FAISS", flush=True)
        print(" " * 14 + "".join(f"{head:>9}" for head, _ in COLUMNS.values()), flush=True)
        rows = []
        for kind in args.kinds:
            rows.append(rows_of(kind, segments, checksums, queries, args))
            show(rows[-1])
        if not args.no_usearch:
            rows.append(usearch(segments, queries, args))
            show(rows[-1])
    if args.json:
        Path(args.json).write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
