"""Filtered search beside bare FAISS with a bitmap selector: time, first use, after a commit, and recall.

A gallery of clustered vectors (see `benchmarks.search`) with four columns of metadata. For each share of the
items that a condition selects:

- FAISS: `IndexFlatIP`, or our index with an effort that grows as the share falls, with an `IDSelectorBitmap`
  that is made beforehand.
- ours: the same condition in `Snapshot.nearest`, with exact scores and verified checksums; "hits" adds the
  facts about the hits, `Gallery.search_vectors`.
- first: the first search with the condition after opening the gallery.
- commit: the first search after a commit of 1,000 items.

All run interleaved on one thread; medians of wall and CPU time in milliseconds. The exact neighbours among
the selected items are the reference of recall.

    python -m benchmarks.filters
    python -m benchmarks.filters --count 1000000 --kinds flat ivf-sq8
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when FAISS and numpy are imported

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from benchmarks.search import K, draw, parameters_of, recall
from retrieval import Gallery
from retrieval.search.filters import Filters, State
from retrieval.search.selection import Selection
from retrieval.storage.lookups import create_lookups
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import NO_FACTS, Facts, IndexSpec
from retrieval.storage.store import Store

AT_ONCE = 100_000  # items in one commit
SHARES = (0.01, 0.1, 0.5)
Times = tuple[float, float]  # wall and CPU, in milliseconds


def fill(gallery: Gallery, first: int, count: int, dim: int) -> None:
    """Append items whose price is uniform from 0 to 1, in pieces."""
    random = np.random.default_rng([first, 2])
    for start in range(first, first + count, AT_ONCE):
        n = min(AT_ONCE, first + count - start)
        keys = [f"k{number}" for number in range(start, start + n)]
        others = [[value] * n for value in NO_FACTS[3:-1]]
        labels = [f"class {number % 1000}" for number in range(start, start + n)]
        facts = Facts(keys, ["/pictures"] * n, [f"{key}.jpg" for key in keys], *others, labels)
        metadata = {
            "brand": [f"brand{x}" for x in random.integers(0, 1000, n)],
            "price": random.random(n).tolist(),
            "sku": [f"s{number:08}" for number in range(start, start + n)],
            "added": [f"2024-{1 + x % 12:02}-{1 + x % 28:02}" for x in random.integers(0, 336, n)],
        }
        with gallery.store.writing():
            gallery.store.append(draw(n, dim, start + 1), facts, metadata)
    gallery.refresh()


def timed(work: Callable[[], Any]) -> Times:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return 1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)


def median(times: list[Times]) -> Times:
    wall, cpu = zip(*times, strict=True)
    return statistics.median(wall), statistics.median(cpu)


def bare(gallery: Gallery, exact: faiss.Index, allowed: np.ndarray) -> Callable[[np.ndarray], Any]:
    """Return a search by FAISS alone, with a selector that is made beforehand."""
    numbers = np.zeros(gallery.state.last + 1 if gallery.index else len(allowed), bool)
    numbers[gallery.state.stored.numbers_of(np.flatnonzero(allowed)) if gallery.index else allowed] = True
    selector = faiss.IDSelectorBitmap(np.packbits(numbers, bitorder="little"))
    if gallery.index is None:
        parameters = faiss.SearchParameters(sel=selector)
        return lambda queries: exact.search(queries, K, params=parameters)[1]
    index = gallery.index.faiss
    widened = math.ceil(gallery.index.card["effort"] * len(allowed) / max(np.count_nonzero(allowed), 1))
    most = index.nlist if isinstance(index, faiss.IndexIVF) else widened
    parameters = parameters_of(index, min(widened, most)) or faiss.SearchParameters()
    parameters.sel = selector
    stored = gallery.state.stored
    return lambda queries: stored.rows_of(index.search(queries, K, params=parameters)[1])


def rows_of(gallery: Gallery, exact: faiss.Index, kind: str, share: float, args: Any) -> dict[str, Any]:
    """Return the row of one kind and share."""
    where, queries = f"price < {share}", draw(args.queries, args.dim, 0)
    filters, snapshot = Filters(gallery.store), gallery.state
    state = State(gallery.store.state(), snapshot)
    selected = filters.selection(where, state)
    faiss_search = bare(gallery, exact, selected.allowed)

    def ours(asked: np.ndarray) -> np.ndarray:
        return snapshot.nearest(asked, K, filters.selection(where, state))[1]

    times: dict[str, list[Times]] = {"faiss": [], "ours": [], "hits": [], "first": [], "first group": []}
    for _ in range(args.rounds):
        for query in np.split(queries[: args.singles], args.singles):
            times["faiss"].append(timed(lambda: faiss_search(query)))  # noqa: B023
            times["ours"].append(timed(lambda: ours(query)))  # noqa: B023
            times["hits"].append(timed(lambda: gallery.search_vectors(query, K, where=where)))  # noqa: B023
        opened = Gallery(gallery.folder)
        opened.search_vectors(queries[:1], K)
        times["first"].append(timed(lambda: opened.search_vectors(queries[:1], K, where=where)))  # noqa: B023
    kth = snapshot.stored.nearest(queries, K, Selection(selected.allowed))[0][:, -1]
    row: dict[str, Any] = {"kind": kind, "share": share, "selected": selected.count}
    row |= {name: median(found) for name, found in times.items() if found}
    for name, search in (("faiss", faiss_search), ("ours", ours)):
        row[f"{name}_recall"] = recall(snapshot.stored.score(queries, search(queries)), kth)
    return row


def after_a_commit(gallery: Gallery, queries: np.ndarray, args: Any) -> dict[float, Times]:
    """Return the time of the first search with each condition after a commit of 1,000 items."""
    times: dict[float, list[Times]] = {share: [] for share in SHARES}
    for share in SHARES:
        gallery.search_vectors(queries[:1], K, where=f"price < {share}")
    for _ in range(args.rounds):
        fill(gallery, len(gallery.state), 1000, args.dim)
        gallery.search_vectors(queries[:1], K)
        for share, found in times.items():
            where = f"price < {share}"
            found.append(timed(lambda: gallery.search_vectors(queries[:1], K, where=where)))  # noqa: B023
    return {share: median(found) for share, found in times.items()}


def grouping(gallery: Gallery, queries: np.ndarray) -> dict[str, Times]:
    """Return the time of the first grouped search, and of later ones."""
    opened = Gallery(gallery.folder)
    opened.search_vectors(queries[:1], K)

    def grouped() -> Any:
        return opened.search_vectors(queries[:1], K, group_by="brand")

    return {"first": timed(grouped), "later": median([timed(grouped) for _ in range(5)])}


def show(row: dict[str, Any]) -> None:
    cells = [f"{row['kind']:8} {row['share']:>5.0%}"]
    for name in ("faiss", "ours", "hits", "first"):
        wall, cpu = row[name]
        cells.append(f"{wall:7.2f} {cpu:7.2f}")
    against = [row[name][1] / row["faiss"][1] for name in ("ours", "hits", "first")]
    cells.append(" ".join(f"{ratio:6.2f}" for ratio in against))
    cells.append(f"{row['faiss_recall']:.4f} {row['ours_recall']:.4f}")
    print("  ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=200_000, help="vectors in the gallery")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=200, help="queries to compute recall on")
    parser.add_argument("--singles", type=int, default=10, help="queries to time, one at a time")
    parser.add_argument("--kinds", nargs="+", default=["flat", "ivf-sq8", "hnsw"])
    parser.add_argument("--recall", type=float, default=0.99)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="output file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "g"
        Store.create(made, Manifest("", args.dim, embedding="random"))
        gallery = Gallery(made)
        fill(gallery, 0, args.count, args.dim)
        with gallery.store.writing():
            lookups = timed(lambda: create_lookups(gallery.store))
        exact = faiss.IndexFlatIP(args.dim)
        for _, block in gallery.state.stored.blocks(size=AT_ONCE):
            exact.add(np.ascontiguousarray(block))
        print("lookup indexes: {:.0f} ms, {:.0f} CPU-ms".format(*lookups))
        print(f"{args.count} x {args.dim}; wall and CPU ms; ratios of CPU time to FAISS; recall")
        heads = "".join(f"{name:>17}" for name in ("FAISS", "ours", "hits", "first"))
        print(f"{'':14}{heads}  {'ours':>6} {'hits':>6} {'first':>6}  FAISS  ours", flush=True)
        rows = []
        for kind in args.kinds:
            if kind != "flat":
                with gallery.store.writing():
                    gallery.build_index(IndexSpec(kind, args.recall))
            for share in SHARES:
                rows.append(rows_of(gallery, exact, kind, share, args))
                show(rows[-1])
        queries = draw(1, args.dim, 0)
        groups = grouping(gallery, queries)
        print("group_by, first and later:", *(f"{wall:.1f} {cpu:.1f}" for wall, cpu in groups.values()))
        commits = after_a_commit(gallery, queries, args)
        print("after a commit:", *(f"{share:.0%}: {w:.1f} {c:.1f}" for share, (w, c) in commits.items()))
    if args.json:
        Path(args.json).write_text(json.dumps({"rows": rows, "groups": groups}, indent=1))


if __name__ == "__main__":
    main()
