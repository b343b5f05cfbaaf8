"""A gallery at growing sizes: time, CPU time and memory of each operation, one process for each.

Vectors of dimension 64 are drawn from 20,000 clusters with 12 inner dimensions and written to a file. They
are imported, indexed, opened, searched and added to; then 1 % is removed and the gallery compacted.
Memory is the peak of the process: all of it, and without the files that it maps, which the system can drop.
A transaction keeps up to 512 MB of the database in memory, so that readers do not wait for it: `import`,
`remove` and `compact` reach that limit at 10^7 and do not grow further as the extrapolation says.
"bare" is the same FAISS index with the same parameters, without exact scores and items.

    python -m benchmarks.gallery_scale --counts 100000 1000000 --kind ivf-sq8 --json scale.json
    python -m benchmarks.gallery_scale --page        # writes docs/gallery_scale.md from the committed numbers
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

DIM = 64
ADDED = 1000
QUERIES = 200
COMMITTED = Path(__file__).parent / "gallery_scale.json"
PAGE = Path(__file__).parents[1] / "docs" / "gallery_scale.md"


def draw(count: int, seed: int) -> np.ndarray:
    """Return clustered unit vectors, float32 [count, DIM]."""
    shared, random = np.random.default_rng(0), np.random.default_rng([seed, 1])
    subspace = shared.standard_normal((12, DIM), dtype=np.float32)
    centres = shared.standard_normal((20_000, 12), dtype=np.float32)
    inner = centres[random.integers(0, len(centres), count)]
    inner += 0.3 * random.standard_normal(inner.shape, dtype=np.float32)
    points = inner @ subspace + 0.1 * random.standard_normal((count, DIM), dtype=np.float32)
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def write(path: Path, count: int, seed: int) -> None:
    """Write clustered vectors to a `.npy` file, in parts."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, DIM)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part, start in enumerate(range(0, count, 100_000)):
            file.write(draw(min(100_000, count - start), seed + part).data)


# ---- measuring


def memory(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


class Peak:
    """Peak of the memory that is not mapped from files, sampled by a thread."""

    def __init__(self) -> None:
        self.bytes, self._end = 0, threading.Event()
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while not self._end.wait(0.05):
            self.bytes = max(self.bytes, memory("RssAnon"))

    def close(self) -> int:
        self._end.set()
        return max(self.bytes, memory("RssAnon"))


@contextmanager
def measured(into: dict[str, Any]) -> Iterator[None]:
    """Measure seconds, CPU seconds and the peak of the memory of this process, in bytes."""
    peak, wall, processor = Peak(), time.perf_counter(), time.process_time()
    yield
    into["seconds"] = time.perf_counter() - wall
    into["cpu_seconds"] = time.process_time() - processor
    into["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    into["peak_anonymous_bytes"] = peak.close()


def milliseconds(work: Callable[[np.ndarray], Any], queries: np.ndarray) -> dict[str, float]:
    """Return the median time of one query, and its CPU time, in milliseconds."""
    taken, processor = [], time.process_time()
    for query in queries:
        start = time.perf_counter()
        work(query[None])
        taken.append(time.perf_counter() - start)
    cpu = 1000 * (time.process_time() - processor) / len(queries)
    return {"ms": 1000 * statistics.median(taken), "cpu_ms": cpu}


# ---- operations, each in a process of its own


def import_(folder: Path, _: str) -> dict[str, Any]:
    from retrieval.ingest.transfer import import_vectors
    from retrieval.storage.records import IndexSpec

    found: dict[str, Any] = {}
    with measured(found):
        import_vectors(folder / "g", folder / "v.npy", name="random", index=IndexSpec("flat"))
    sizes = [file.stat().st_size for file in (folder / "g").rglob("*") if file.is_file()]
    return {**found, "disk_bytes": sum(sizes)}


def index(folder: Path, kind: str) -> dict[str, Any]:
    from retrieval import Gallery
    from retrieval.storage.records import IndexSpec

    found: dict[str, Any] = {}
    with measured(found):
        gallery = Gallery(folder / "g")
        with gallery.store.writing():
            gallery.build_index(IndexSpec(kind), show_progress=True)
    assert gallery.index is not None
    names = ("kind", "effort", "oversample", "recall", "bytes_per_vector")
    return {**found, **{name: gallery.index.card[name] for name in names}}


def open_(folder: Path, _: str) -> dict[str, Any]:
    from retrieval import Gallery

    found: dict[str, Any] = {}
    query = draw(1, 10**6)
    with measured(found):
        gallery = Gallery(folder / "g")
        start = time.perf_counter()
        gallery.search_vectors(query)
        first = time.perf_counter() - start
    return {**found, "first_search_seconds": first}


def search(folder: Path, _: str) -> dict[str, Any]:
    from retrieval import Gallery

    found: dict[str, Any] = {}
    gallery, queries = Gallery(folder / "g"), draw(QUERIES, 10**6 + 1)
    gallery.search_vectors(queries[:1])
    with measured(found):
        found["cold_ms"] = milliseconds(gallery.search_vectors, queries)["ms"]
    found |= milliseconds(gallery.search_vectors, queries)
    snapshot = gallery.snapshot
    assert snapshot.index is not None
    own = snapshot.index
    bare = milliseconds(lambda query: own.propose(query, 10), queries)
    exact = snapshot.stored.nearest(queries, 10)[0][:, -1]
    hits = gallery.search_vectors(queries)
    right = [hit.score >= last - 1e-6 for one, last in zip(hits, exact.tolist(), strict=True) for hit in one]
    return {**found, "bare_ms": bare["ms"], "bare_cpu_ms": bare["cpu_ms"], "recall": sum(right) / len(right)}


def add(folder: Path, _: str) -> dict[str, Any]:
    from retrieval.ingest.transfer import import_vectors

    write(folder / "more.npy", ADDED, 10**7)
    import_vectors(folder / "g", folder / "more.npy", name="random", prefix=f"first-{os.getpid()}")
    found: dict[str, Any] = {}
    with measured(found):
        import_vectors(folder / "g", folder / "more.npy", name="random", prefix=f"next-{os.getpid()}")
    return found


def remove(folder: Path, _: str) -> dict[str, Any]:
    from retrieval import Gallery

    found: dict[str, Any] = {}
    with measured(found):
        gallery = Gallery(folder / "g")
        gallery.remove(list(range(1, len(gallery), 100)))
    return found


def compact(folder: Path, _: str) -> dict[str, Any]:
    from retrieval import Gallery
    from retrieval.upkeep.compact import compact

    found: dict[str, Any] = {}
    with measured(found):
        compact(Gallery(folder / "g"))
    gallery = Gallery(folder / "g")
    return {**found, "index": None if gallery.index is None else gallery.index.card["kind"]}


OPERATIONS = {
    "import": import_,
    "index": index,
    "open": open_,
    "search": search,
    f"add {ADDED}": add,
    "remove 1 %": remove,
    "compact": compact,
}


# ---- page


def page(results: dict[str, Any]) -> str:
    """Return the page of committed results as Markdown."""
    sizes = {int(count): found for count, found in results["sizes"].items()}
    counts = sorted(sizes)
    lines = [
        "# A gallery at ten million",
        "",
        "<!-- Written by `python -m benchmarks.gallery_scale --page` from benchmarks/gallery_scale.json. -->",
        "",
        *(__doc__ or "").strip().partition("\n\n")[2].partition("\n\n    python")[0].splitlines(),
        "",
        f"Measured on {results['machine']}, with {results['threads']} thread, while other programs used the",
        "machine: CPU time is reliable, wall-clock time an upper bound. "
        f"The index is `--kind {results['kind']}`.",
        f"The column {_power(10 * counts[-1])} is extrapolated: each number grows as it did from "
        f"{_power(counts[-2])} to {_power(counts[-1])}.",
        "",
        f"`open` includes the first search, `search` is {QUERIES} searches one by one.",
        "",
    ]
    operations = [name for name in OPERATIONS if all(name in sizes[count] for count in counts)]
    commits = {name: {sizes[count][name]["commit"] for count in counts} for name in operations}
    for title, field, unit in (
        ("CPU seconds", "cpu_seconds", 1.0),
        ("Seconds", "seconds", 1.0),
        ("Peak memory, MB", "peak_bytes", 1e6),
        ("Peak memory without mapped files, MB", "peak_anonymous_bytes", 1e6),
    ):
        lines += [f"## {title}", "", *_table(operations, sizes, field, unit), ""]
    details = {
        "recall@10": ("search", "recall", 1.0),
        "one search, files not in memory, ms": ("search", "cold_ms", 1.0),
        "one search, ms": ("search", "ms", 1.0),
        "one search, CPU ms": ("search", "cpu_ms", 1.0),
        "bare FAISS, CPU ms": ("search", "bare_cpu_ms", 1.0),
        "first search, seconds": ("open", "first_search_seconds", 1.0),
        "disk without index, MB": ("import", "disk_bytes", 1e6),
        "index, bytes per vector": ("index", "bytes_per_vector", 1.0),
    }
    rows = [
        [name, *(_number(sizes[count][operation][field] / unit) for count in counts)]
        for name, (operation, field, unit) in details.items()
        if all(operation in sizes[count] for count in counts)
    ]
    measured = ", ".join(f"{name} {' and '.join(sorted(found))}" for name, found in commits.items())
    lines += ["Measured at the commits:", f"{measured}.", ""]
    lines += ["## Search and disk", "", *_markdown(["", *map(_power, counts)], rows), ""]
    return "\n".join(lines)


def _table(operations: Sequence[str], sizes: dict[int, dict[str, Any]], field: str, unit: float) -> list[str]:
    counts = sorted(sizes)
    rows = []
    for name in operations:
        values = [sizes[count][name][field] / unit for count in counts]
        slope = math.log(values[-1] / values[-2]) / math.log(counts[-1] / counts[-2])
        rows.append([name, *map(_number, values), _number(values[-1] * 10 ** max(slope, 0))])
    return _markdown(["", *map(_power, counts), f"{_power(10 * counts[-1])}, extrapolated"], rows)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _power(count: int) -> str:
    exponent = round(math.log10(count))
    return f"10^{exponent}" if count == 10**exponent else f"{count:,}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def run(counts: Sequence[int], kind: str, folder: Path, json_file: Path) -> None:
    """Run all operations at each size, and write the results after each."""
    results: dict[str, Any] = json.loads(json_file.read_text()) if json_file.exists() else {}
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    results |= {"machine": machine(), "threads": threads, "dim": DIM, "kind": kind}
    sizes = results.setdefault("sizes", {})
    for count in counts:
        place = folder / str(count)
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "v.npy").exists():
            write(place / "v.npy", count, 1)
        done = sizes.setdefault(str(count), {})
        for name in OPERATIONS:
            if name in done:
                continue
            command = [sys.executable, "-m", "benchmarks.gallery_scale", "--operation", name, "--kind", kind]
            output = subprocess.run([*command, "--folder", str(place)], stdout=subprocess.PIPE, check=True)
            done[name] = json.loads(output.stdout.splitlines()[-1])
            done[name]["commit"] = commit()
            print(f"{count:>12,} {name:12} {done[name]}", flush=True)
            json_file.write_text(json.dumps(results, indent=1) + "\n")


def machine() -> str:
    """Return processor, cores and memory of this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{os.cpu_count()} cores of {model}, {pages / 2**30:.0f} GB of memory"


def commit() -> str:
    """Return the abbreviated commit of the working tree."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, cwd=PAGE.parent).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--counts", nargs="+", type=int, default=[20_000, 60_000])
    parser.add_argument("--kind", default="ivf-sq8")
    parser.add_argument(
        "--folder", type=Path, help="where to keep files and galleries; else they are deleted"
    )
    parser.add_argument("--json", type=Path, help="output file; what it has already is not measured again")
    parser.add_argument("--operation", help=argparse.SUPPRESS)
    parser.add_argument("--page", action="store_true", help="write the page from the committed numbers")
    args = parser.parse_args()
    if args.operation:
        print(json.dumps(OPERATIONS[args.operation](args.folder, args.kind)))
        return
    if args.page:
        PAGE.write_text(page(json.loads(COMMITTED.read_text())))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        run(args.counts, args.kind, folder, args.json or Path(temporary) / "scale.json")


if __name__ == "__main__":
    main()
