"""Search speed and recall of every index kind, compared with bare FAISS and with usearch.

The vectors are those of a gallery on disk, in segments of --commit vectors. They are clustered like
embeddings of classes: 2,000 centres and a spread of 0.7 in a common subspace of 64 dimensions, noise of 0.25
in all dimensions, scaled to unit length; queries are drawn from the same distribution. With --noise they are
almost without structure. The parameters are those that our tuning chooses for --recall.

- bare: FAISS alone, with the same index and parameters, and with lower recall.
- FAISS: it also scores the candidates exactly from a copy of the vectors in memory (`IndexRefine`).
- ours: `Snapshot.nearest`, which scores them from the files and verifies the checksums of the results.
- hits: `Gallery.search_vectors`, with the facts about each hit.

usearch gets the smallest `expansion_search` that reaches the recall. All run interleaved on one thread;
medians of wall and CPU time of one query are reported, alone and in a batch of 100, and their ratio to bare
FAISS. `benchmarks.filters` has the same for searches with a condition.

    python -m benchmarks.search
    python -m benchmarks.search --count 1000000 --dim 512 --queries 200 --kinds flat ivf-pq --no-usearch
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when FAISS and numpy are imported

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from usearch.index import Index as USearch

from retrieval import Gallery
from retrieval.search import kinds
from retrieval.search.index import Index
from retrieval.search.vectors import Vectors
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import NO_FACTS, Facts, IndexSpec
from retrieval.storage.store import Store

K = 10
SINGLES, BATCH = 20, 100
Search = Callable[[np.ndarray], Any]


def draw(count: int, dim: int, seed: int, *, noise: bool = False) -> np.ndarray:
    """Return clustered unit vectors, or near noise, float32 [count, dim]."""
    shared, random = np.random.default_rng(0), np.random.default_rng([seed, 1])
    if noise:
        points = random.standard_normal((count, dim), dtype=np.float32)
        points += 0.5 * shared.standard_normal((100, dim), dtype=np.float32)[random.integers(0, 100, count)]
        return points / np.linalg.norm(points, axis=1, keepdims=True)
    subspace = shared.standard_normal((64, dim), dtype=np.float32) / 8
    centres = shared.standard_normal((2000, 64), dtype=np.float32)
    inner = centres[random.integers(0, 2000, count)]
    inner += 0.7 * random.standard_normal((count, 64), dtype=np.float32)
    points = inner @ subspace + 0.25 * random.standard_normal((count, dim), dtype=np.float32)
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def filled(folder: Path, args: Any) -> Gallery:
    """Return a new gallery of vectors without images."""
    Store.create(folder, Manifest("", args.dim, embedding="benchmark"))
    gallery = Gallery(folder)
    with gallery.store.writing():
        for start in range(0, args.count, args.commit):
            n = min(args.commit, args.count - start)
            keys = [f"k{number}" for number in range(start, start + n)]
            facts = Facts(keys, *([value] * n for value in NO_FACTS[1:]))
            gallery.store.append(draw(n, args.dim, start + 1, noise=args.noise), facts)
    gallery.refresh()
    return gallery


def timed(work: Callable[[], Any]) -> np.ndarray:
    """Return wall and CPU time in milliseconds, float64 [2]."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return 1000 * np.array([time.perf_counter() - wall, time.process_time() - cpu])


def compare(contenders: dict[str, Search], queries: np.ndarray, rounds: int) -> dict[str, np.ndarray]:
    """Return wall and CPU milliseconds per query, alone and in a batch: float64 [2, 2] by contender."""
    taken: dict[str, list[list[np.ndarray]]] = {name: [[], []] for name in contenders}
    for search in contenders.values():
        search(queries[:1])
    for _ in range(rounds):
        for name, search in contenders.items():
            alone, together = taken[name]
            alone += [timed(lambda: search(query[None])) for query in queries[:SINGLES]]  # noqa: B023
            together.append(timed(lambda: search(queries[:BATCH])) / len(queries[:BATCH]))  # noqa: B023
    return {name: np.array([np.median(each, 0) for each in both]) for name, both in taken.items()}


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


def bare(index: Index, vectors: Vectors) -> Search:
    """Return a search with FAISS alone, without exact scores."""
    parameters = parameters_of(index.faiss, index.card["effort"])
    return lambda queries: vectors.rows_of(index.faiss.search(queries, K, params=parameters)[1])


def refined(index: Index, exact: faiss.Index, vectors: Vectors) -> Search:
    """Return a search with FAISS that also gives exact scores."""
    exact.ntotal -= 1  # the empty position, which the constructor does not expect
    both = faiss.IndexRefine(index.faiss, exact)
    exact.ntotal += 1
    first = parameters_of(index.faiss, index.card["effort"])
    factor = index.card["oversample"]
    parameters = faiss.IndexRefineSearchParameters(k_factor=factor, base_index_params=first)
    return lambda queries: vectors.rows_of(both.search(queries, K, params=parameters)[1])


def flat(vectors: Vectors) -> faiss.Index:
    """Return FAISS's exact index, whose positions are the vector numbers; the first is empty."""
    index = faiss.IndexFlatIP(vectors.dim)
    index.add(np.zeros((1, vectors.dim), np.float32))
    for _, block in vectors.blocks():
        index.add(block)
    return index


def rows_of(kind: str, gallery: Gallery, queries: np.ndarray, args: Any) -> dict[str, Any]:
    """Return the row of one index kind."""
    with gallery.store.writing():
        building = timed(lambda: gallery.build_index(IndexSpec(kind, recall=args.recall)))
    opened: list[Gallery] = []
    opening = timed(lambda: opened.append(Gallery(gallery.folder)))
    first = timed(lambda: opened[0].search_vectors(queries[:1], K))
    index, vectors, snapshot = opened[0].index, opened[0].state.stored, opened[0].state
    exact = flat(vectors)
    contenders: dict[str, Search] = {}
    if index is None:
        contenders["bare"] = lambda asked: exact.search(asked, K)[1] - 1
    else:
        contenders["bare"] = bare(index, vectors)
        if kinds.APPROXIMATE[kind].metric == exact.metric_type:
            contenders["faiss"] = refined(index, exact, vectors)
    contenders["ours"] = lambda asked: snapshot.nearest(asked, K)[1]
    contenders["hits"] = lambda asked: opened[0].search_vectors(asked, K)
    times = compare(contenders, queries, args.rounds)
    kth = vectors.nearest(queries, K)[0][:, -1]
    row: dict[str, Any] = {"kind": kind, "build_s": building[1] / 1000}
    row["bytes_per_vector"] = 4 * args.dim if index is None else index.card["bytes"] / len(vectors)
    row |= {"open_ms": opening[0], "first_ms": first[0]}
    if index is not None:
        row |= {"predicted_ms": predicted(index.card), "measured_ms": index.card["ms"]}
    for name in contenders:
        if name != "hits":
            row[f"{name}_recall"] = recall(vectors.score(queries, contenders[name](queries)), kth)
        for which, both in zip(("1", "100"), times[name], strict=True):
            row |= {f"{name}_ms_{which}": both[0], f"{name}_cpu_{which}": both[1]}
    for which, column in (("1", 0), ("100", 1)):
        for unit, place in (("time", 0), ("cpu_times", 1)):
            row[f"hits_{unit}_{which}"] = times["hits"][column, place] / times["bare"][column, place]
    return row


def predicted(card: dict[str, Any]) -> float:
    """Return the milliseconds that the trials predicted for the chosen parameters, or the nearest to them."""
    same = [trial for trial in card["tried"] if trial["kind"] == card["kind"]]
    return (
        min((abs(trial["effort"] - card["effort"]), trial["ms"]) for trial in same)[1]
        if same
        else float("nan")
    )


def usearch(vectors: Vectors, queries: np.ndarray, args: Any) -> dict[str, Any]:
    """Return the row of usearch: a graph over the vectors."""
    index = USearch(ndim=args.dim, metric="ip", dtype="f32", connectivity=16)

    def fill() -> None:
        for start, block in vectors.blocks():
            index.add(np.arange(start, start + len(block)), block, threads=1)

    building = timed(fill)
    kth = vectors.nearest(queries, K)[0][:, -1]

    def search(asked: np.ndarray) -> np.ndarray:
        found = index.search(asked if len(asked) > 1 else asked[0], K, threads=1)
        return np.asarray(found.keys).astype(np.int64).reshape(len(asked), -1)

    for effort in (16, 32, 64, 128, 256, 512, 1024):
        index.expansion_search = effort
        reached = recall(vectors.score(queries, search(queries)), kth)
        if reached >= args.recall:
            break
    alone, together = compare({"usearch": search}, queries, args.rounds)["usearch"]
    size = index.serialized_length / len(vectors)
    row = {"kind": f"usearch, {effort}", "ours_recall": reached, "build_s": building[1] / 1000}
    row |= {"bytes_per_vector": size, "ours_ms_1": alone[0], "ours_cpu_1": alone[1]}
    return row | {"ours_ms_100": together[0], "ours_cpu_100": together[1]}


COLUMNS = {
    "build_s": ("build CPU-s", ".1f"),
    "bytes_per_vector": ("B/vector", ".0f"),
    "ours_recall": ("recall", ".4f"),
    "bare_recall": ("bare", ".4f"),
    "bare_ms_1": ("bare ms", ".3f"),
    "bare_cpu_1": ("CPU-ms", ".3f"),
    "faiss_ms_1": ("FAISS ms", ".3f"),
    "faiss_cpu_1": ("CPU-ms", ".3f"),
    "ours_ms_1": ("ours ms", ".3f"),
    "ours_cpu_1": ("CPU-ms", ".3f"),
    "hits_ms_1": ("hits ms", ".3f"),
    "hits_cpu_1": ("CPU-ms", ".3f"),
    "hits_time_1": ("hits/bare", ".2f"),
    "hits_cpu_times_1": ("CPU", ".2f"),
    "bare_ms_100": ("bare 100", ".3f"),
    "bare_cpu_100": ("CPU-ms", ".3f"),
    "hits_ms_100": ("hits 100", ".3f"),
    "hits_cpu_100": ("CPU-ms", ".3f"),
    "hits_time_100": ("hits/bare", ".2f"),
    "hits_cpu_times_100": ("CPU", ".2f"),
    "predicted_ms": ("predicted", ".3f"),
    "measured_ms": ("measured", ".3f"),
    "open_ms": ("open ms", ".0f"),
    "first_ms": ("first ms", ".0f"),
}


def show(row: dict[str, Any]) -> None:
    cells = [format(row[name], form) if name in row else "" for name, (_, form) in COLUMNS.items()]
    print(f"{row['kind']:14}" + "".join(f"{cell:>12}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="vectors in the gallery")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--commit", type=int, default=100_000, help="vectors in one commit")
    parser.add_argument("--noise", action="store_true", help="vectors almost without structure")
    parser.add_argument("--queries", type=int, default=1000, help="queries to compute recall on")
    parser.add_argument("--recall", type=float, default=0.99)
    parser.add_argument("--kinds", nargs="+", default=["flat", "sq8", "pq", "ivf-sq8", "ivf-pq", "hnsw"])
    parser.add_argument("--no-usearch", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="output file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gallery = filled(Path(folder) / "gallery", args)
        queries = draw(args.queries, args.dim, 0, noise=args.noise)
        print(f"{args.count} x {args.dim}; milliseconds per query, alone and in a batch of {BATCH}")
        print(" " * 14 + "".join(f"{head:>12}" for head, _ in COLUMNS.values()), flush=True)
        rows = []
        for kind in args.kinds:
            rows.append(rows_of(kind, gallery, queries, args))
            show(rows[-1])
        if not args.no_usearch:
            rows.append(usearch(gallery.state.stored, queries, args))
            show(rows[-1])
    if args.json:
        Path(args.json).write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
