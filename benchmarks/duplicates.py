"""Near-duplicates of a gallery: nearby cells, all pairs, and FAISS's range search.

The vectors are noisy clusters; a tenth of them are copies of others, with noise up to the threshold and
beyond, and a hundredth are equal to others. "cells" is what galleries above 100,000 images do, "all pairs" is
`--exact`. FAISS searches the neighbours of each vector above the threshold in an IVF-Flat index of as many
cells, with the smallest `nprobe` that finds as large a share of the pairs of sampled vectors; connected
components of its pairs are computed by SciPy. It keeps a copy of all vectors in memory. "whole" is the share
of the groups of all pairs that a contender found exactly.

    python -m benchmarks.duplicates
    python -m benchmarks.duplicates --counts 100000 1000000 --all-pairs-up-to 200000
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when FAISS and numpy are imported

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from retrieval import Gallery
from retrieval.curation import duplicates
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import Facts
from retrieval.storage.store import Store

BATCH = 4096
SAMPLE = 2048
Groups = set[tuple[int, ...]]


def draw(count: int, dim: int) -> np.ndarray:
    """Return unit vectors with near-duplicates, float32 [count, dim]."""
    random = np.random.default_rng(0)
    clusters = max(20, count // 50)
    centres = random.standard_normal((clusters, 12), dtype=np.float32)
    points = centres[random.integers(0, clusters, count)] @ random.standard_normal(
        (12, dim), dtype=np.float32
    )
    points += random.standard_normal((count, dim), dtype=np.float32)
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    copies = random.permutation(count)[: count // 10]
    originals = points[random.integers(0, count, len(copies))]
    noise = random.uniform(0, 0.4, (len(copies), 1)) / np.sqrt(dim)
    noise[: len(copies) // 10] = 0
    points[copies] = originals + noise * random.standard_normal(originals.shape, dtype=np.float32)
    unit: np.ndarray = points / np.linalg.norm(points, axis=1, keepdims=True)
    return unit.astype(np.float32)


def create(folder: Path, vectors: np.ndarray) -> Gallery:
    """Return a gallery whose item ids are the numbers of the vectors, from 1."""
    store, count = Store.create(folder, Manifest("", vectors.shape[1], embedding="random")), len(vectors)
    texts, zeros, keys = [""] * count, [0] * count, [str(i) for i in range(count)]
    with store.writing():
        for start in range(0, count, 100_000):
            some = slice(start, start + 100_000)
            columns = (keys, texts, texts, zeros, zeros, texts, zeros, zeros, [None] * count)
            store.append(vectors[some], Facts(*(column[some] for column in columns)))
    return Gallery.open(folder)


def range_search(vectors: np.ndarray, min_score: float, recall: float) -> tuple[list[np.ndarray], float]:
    """Return the groups of FAISS's range search and its recall."""
    cells = 2 ** round(np.log2(np.sqrt(8 * len(vectors))))
    index = faiss.index_factory(vectors.shape[1], f"IVF{cells},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.max_points_per_centroid, index.cp.min_points_per_centroid = 5, 32, 1
    index.train(vectors)
    index.add(vectors)
    queries = vectors[np.random.default_rng(1).permutation(len(vectors))[:SAMPLE]]
    wanted = sum(int((some @ vectors.T >= min_score).sum()) for some in np.array_split(queries, 64))
    for probes in (2**i for i in range(12)):
        index.nprobe = probes
        found = index.range_search(queries, min_score)[0][-1] / wanted
        if found >= recall:
            break
    pairs = []
    for start in range(0, len(vectors), BATCH):
        ends, _, others = index.range_search(vectors[start : start + BATCH], min_score)
        who = np.repeat(np.arange(start, start + len(ends) - 1), np.diff(ends.astype(np.int64)))
        pairs.append(np.stack([who, others])[:, who < others])
    a, b = np.concatenate(pairs, axis=1)
    graph = coo_array((np.ones(len(a), bool), (a, b)), 2 * (len(vectors),))
    labels = connected_components(graph, directed=False)[1]
    several = np.flatnonzero(np.bincount(labels)[labels] > 1)
    order = several[np.argsort(labels[several], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1), found


def memory(kind: str) -> float:
    """Return a size of this process from Linux, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{kind}:"))


def measured(work: Callable[[], tuple[Sequence[Sequence[int]], float]]) -> tuple[dict[str, float], Groups]:
    """Return the cost and the recall of a contender, and its groups."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory("VmRSS")
    start, begun = time.perf_counter(), time.process_time()
    groups, recall = work()
    facts = {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - begun,
        "megabytes": memory("VmHWM") - before,
        "recall": recall,
    }
    return facts, {tuple(sorted(int(i) for i in group)) for group in groups}


def compare(
    count: int, dim: int, min_score: float, all_pairs: bool, folder: Path
) -> dict[str, dict[str, Any]]:
    """Return the facts of each contender."""
    gallery = create(folder / str(count), draw(count, dim))
    vectors = np.ascontiguousarray(gallery.state.stored.take(np.arange(count)))

    def ours(exact: bool) -> tuple[list[list[int]], float]:
        found = gallery.duplicates(min_score, exact=exact)
        share = 1.0 if found.recall is None else found.recall.share or 0.0
        return [[item.id - 1 for item in group.members] for group in found.groups], share

    duplicates.EXACT_UP_TO = 0
    cells, groups = measured(lambda: ours(exact=False))
    results = {"cells": (cells, groups)}
    results["FAISS range search"] = measured(
        lambda: range_search(vectors, min_score, cells["recall"] - 0.002)
    )
    if all_pairs:
        results["all pairs"] = measured(lambda: ours(exact=True))
    truth = results["all pairs"][1] if all_pairs else None
    return {
        name: facts | {"groups": len(found), "whole": len(found & truth) / len(truth) if truth else None}
        for name, (facts, found) in results.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[30_000, 100_000])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--min-score", type=float, default=0.95)
    parser.add_argument("--all-pairs-up-to", type=int, default=100_000)
    parser.add_argument("--json", help="output file")
    args = parser.parse_args()
    results = {}
    for count in args.counts:
        with tempfile.TemporaryDirectory() as folder:
            exact = count <= args.all_pairs_up_to
            results[count] = compare(count, args.dim, args.min_score, exact, Path(folder))
        print(f"{count:,} vectors of {args.dim} dimensions, threshold {args.min_score:g}")
        for name, facts in results[count].items():
            rest = "" if facts["whole"] is None else f", whole {facts['whole']:.4f}"
            cost = f"{facts['cpu_seconds']:8.1f} CPU-s{facts['seconds']:8.1f} s{facts['megabytes']:8.0f} MB"
            print(f"  {name:20}{cost}   recall {facts['recall']:.4f}, {facts['groups']} groups{rest}")
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
