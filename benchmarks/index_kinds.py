"""Every index kind over the same vectors: memory, disk, build time, and search time at given recalls.

The vectors are those of `benchmarks.search`. Queries are held out, and their exact neighbours known, as when
a gallery chooses its index; the sample and the cells are trained once and shared by the kinds that need them.
Each kind is built, written, opened memory-mapped and searched in a process of its own, on one thread.

- memory_bytes: what `--memory` counts for a vector. `ivf-disk` is built in memory here, as `ivf-sq8`; memory
  and time of its own build are measured by `benchmarks.gallery_scale`.
- disk_bytes: size of the index file for a vector.
- stored_bytes: vector, number, item and checksum in a segment; facts about the image are in the database.
- train_seconds: CPU seconds for sample, cells and quantiser, at any number of vectors of that order.
- add_seconds: CPU seconds to add a million vectors.
- peak_bytes: most memory in use beyond the mapped files and the training sample.
- search: least CPU milliseconds of one query with exact scores, whose recall@10 is at least so high with
  95 % confidence, and the parameters for that; null if no parameters reach it.

    python -m benchmarks.index_kinds
    python -m benchmarks.index_kinds --count 1000000 --dims 128 512 --json benchmarks/index_kinds.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when FAISS and numpy are imported

import argparse
import json
import multiprocessing
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from benchmarks.gallery_scale import Peak, commit, machine, memory
from benchmarks.search import draw
from retrieval.search import kinds, training, tuning
from retrieval.search.vectors import Vectors

RECALLS = (0.95, 0.99)
PART = 100_000
STORED = 24  # bytes of a vector's number, item and checksum


def measure(ground: tuning.Ground, name: str, folder: Path, trained: float) -> dict[str, Any]:
    """Return the measurements of one kind, in this process.

    Args:
        ground: Vectors, queries and training.
        name: Index kind, or "flat".
        folder: Where to write the index.
        trained: CPU seconds that sample and cells took.
    """
    dim, count = ground.vectors.dim, ground.count
    facts: dict[str, Any] = {
        "memory_bytes": kinds.memory_needed(name, dim, count) / count,
        "stored_bytes": 4 * dim + STORED,
    }
    if name == "flat":
        ms = tuning.milliseconds(lambda query: ground.vectors.nearest(query, 10), ground.held_out.queries)
        found = {"effort": 0, "oversample": 1, "recall": 1.0, "ms": ms}
        none: dict[str, Any] = {"disk_bytes": 0.0, "train_seconds": 0.0, "add_seconds": 0.0, "peak_bytes": 0}
        return facts | none | {"search": {str(recall): found for recall in RECALLS}}
    kind, peak, before = kinds.APPROXIMATE[name], Peak(), memory("RssAnon")
    start = time.process_time()
    index = training.train_index(kind, ground.training)
    train = time.process_time() - start + (trained if kind.in_cells else 0.0)
    start = time.process_time()
    training.add_rows(index, ground.vectors, ground.rows, show_progress=True)
    add = time.process_time() - start
    most = peak.close() - before
    faiss.write_index(index, str(folder / name))
    size = (folder / name).stat().st_size
    del index
    mapped = faiss.read_index(str(folder / name), faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)
    facts |= {"disk_bytes": size / count, "train_seconds": train, "add_seconds": 1e6 * add / count}
    facts |= {"peak_bytes": most, "cells": getattr(mapped, "nlist", 0), "search": {}}
    for recall in RECALLS:
        good = tuning.best_first([*tuning.sweep_efforts(kind, mapped, ground.held_out, recall)], recall)
        names = ("effort", "oversample", "recall", "ms")
        facts["search"][str(recall)] = {n: asdict(good[0])[n] for n in names} if good else None
    (folder / name).unlink()
    return facts


def in_process(results: Any, *arguments: Any) -> None:
    results.put(measure(*arguments))


def run(count: int, dim: int, names: list[str], folder: Path) -> dict[str, Any]:
    """Return the measurements of all kinds at one dimension."""
    parts = []
    for start in range(0, count, PART):
        file = folder / f"{start}.npy"
        np.save(file, draw(min(PART, count - start), dim, start + 1))
        parts.append(np.load(file, mmap_mode="r"))
    vectors = Vectors(parts, dim)
    start = time.process_time()
    ground = tuning.prepare(vectors, show_progress=True)
    trained = time.process_time() - start
    print(f"{count:,} x {dim}: queries, sample and cells in {trained:.1f} s of CPU", flush=True)
    processes, found = multiprocessing.get_context("fork"), {}
    for name in names:
        results = processes.Queue()
        process = processes.Process(target=in_process, args=(results, ground, name, folder, trained))
        process.start()
        found[name] = results.get()
        process.join()
        print(f"{count:,} x {dim} {name}: {found[name]}", flush=True)
    for start in range(0, count, PART):
        (folder / f"{start}.npy").unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=60_000)
    parser.add_argument("--dims", type=int, nargs="+", default=[128])
    known = ["flat", *kinds.APPROXIMATE]
    parser.add_argument("--kinds", nargs="+", choices=known, default=known)
    parser.add_argument("--json", type=Path, help="output file, to which the kinds are added")
    args = parser.parse_args()
    before = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    results: dict[str, Any] = {
        "machine": machine(),
        "threads": faiss.omp_get_max_threads(),
        "faiss": faiss.__version__,
        "commit": commit(),
        "command": f"python -m benchmarks.index_kinds --count {args.count} --dims "
        f"{' '.join(map(str, args.dims))}",
        "count": args.count,
        "dims": before.get("dims", {}),
    }
    for dim in args.dims:
        with tempfile.TemporaryDirectory() as folder:
            measured = run(args.count, dim, args.kinds, Path(folder))
            results["dims"][str(dim)] = {**results["dims"].get(str(dim), {}), **measured}
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
