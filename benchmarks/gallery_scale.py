"""A gallery at growing sizes: time, CPU time and memory of each operation, one process for each.

Vectors of dimension 64 are drawn from 20,000 clusters with 12 inner dimensions and written to a file. They
are imported, indexed, opened, searched and added to; then 1 % is removed and the gallery compacted.
Memory is the peak of the process: all of it, and without the files that it maps, which the system can drop.
A transaction keeps up to 512 MB of the database in memory, so that readers do not wait for it: `import`,
`remove` and `compact` reach that limit at 10^7 and do not grow further as the extrapolation says.
"bare" is the same FAISS index with the same parameters, without exact scores and items.

    python -m benchmarks.gallery_scale --counts 100000 1000000 --kind ivf-sq8 --json scale.json
    python -m benchmarks.gallery_scale --counts 1000000 10000000 --dim 128 --kind ivf-disk \\
        --memory 256000000 --operations import index encode search --json benchmarks/gallery_disk.json
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

from retrieval import Gallery
from retrieval.progress import Stage, progress_listener
from retrieval.storage.records import IndexSpec

DIM = 64
ADDED = 1000
QUERIES = 200
COMMITTED = Path(__file__).parent / "gallery_scale.json"
ON_DISK = Path(__file__).parent / "gallery_disk.json"
LATER = 10**8  # vectors for which `encode` measures
ENCODED = 100_000
SAMPLE = 1 << 30  # bytes of training vectors
_PER_ROW = 17  # bytes of row numbers while an index is built
_REST = 300_000_000  # bytes of libraries, quantisers, blocks of vectors
PAGE = Path(__file__).parents[1] / "docs" / "gallery_scale.md"


def draw(count: int, seed: int, dim: int = DIM) -> np.ndarray:
    """Return clustered unit vectors, float32 [count, dim]."""
    shared, random = np.random.default_rng(0), np.random.default_rng([seed, 1])
    subspace = shared.standard_normal((12, dim), dtype=np.float32)
    centres = shared.standard_normal((20_000, 12), dtype=np.float32)
    inner = centres[random.integers(0, len(centres), count)]
    inner += 0.3 * random.standard_normal(inner.shape, dtype=np.float32)
    points = inner @ subspace + 0.1 * random.standard_normal((count, dim), dtype=np.float32)
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def write(path: Path, count: int, seed: int, dim: int = DIM) -> None:
    """Write clustered vectors to a `.npy` file, in parts."""
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, dim)}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part, start in enumerate(range(0, count, 100_000)):
            file.write(draw(min(100_000, count - start), seed + part, dim).data)


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


class Phases:
    """CPU seconds of each stage of work, in order of their progress messages."""

    def __init__(self) -> None:
        self._found: dict[str, float] = {}
        self._now, self._since = "preparing", time.process_time()

    def enter(self, stage: Stage) -> None:
        if stage.what != self._now:
            self.closed()
            self._now = stage.what

    def closed(self) -> dict[str, float]:
        spent = time.process_time()
        self._found[self._now] = self._found.get(self._now, 0.0) + spent - self._since
        self._since = spent
        return self._found


def evict(folder: Path) -> None:
    """Drop the files of a folder from the page cache."""
    os.sync()
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_read() -> int:
    """Return the bytes that this process has had read from disk."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


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


def import_(folder: Path, _: IndexSpec) -> dict[str, Any]:

    found: dict[str, Any] = {}
    with measured(found):
        Gallery.import_vectors(folder / "g", folder / "v.npy", name="random", index=IndexSpec("flat"))
    sizes = [file.stat().st_size for file in (folder / "g").rglob("*") if file.is_file()]
    return {**found, "disk_bytes": sum(sizes)}


def index(folder: Path, spec: IndexSpec) -> dict[str, Any]:
    from retrieval import Gallery

    found: dict[str, Any] = {}
    phases = Phases()
    with measured(found):
        gallery = Gallery(folder / "g")
        with gallery.store.writing(), progress_listener(phases.enter):
            gallery.build_index(spec, show_progress=True)
    assert gallery.index is not None
    names = ("kind", "effort", "oversample", "recall", "bytes_per_vector", "bytes")
    return {**found, **{name: gallery.index.card[name] for name in names}, "phases": phases.closed()}


def encode(folder: Path, spec: IndexSpec) -> dict[str, Any]:
    """Measure the addition of vectors to an index with as many cells as one of `LATER` vectors has."""
    from retrieval import Gallery
    from retrieval.search import kinds, training

    vectors = Gallery(folder / "g").snapshot.stored
    cells = kinds.number_of_cells(LATER, vectors.dim)
    random = np.random.default_rng(0)
    centroids = vectors.take(np.sort(random.choice(len(vectors), cells, replace=False)))
    index = training.train_index(
        kinds.APPROXIMATE[spec.kind or "ivf-disk"], training.Training(centroids, centroids)
    )
    rows = np.sort(random.choice(len(vectors), min(ENCODED, len(vectors)), replace=False))
    found: dict[str, Any] = {"cells": cells, "vectors": len(rows)}
    with measured(found):
        training.add_rows(index, vectors, rows)
    return found


def open_(folder: Path, _: IndexSpec) -> dict[str, Any]:
    from retrieval import Gallery

    found: dict[str, Any] = {}
    query = draw(1, 10**6, Gallery(folder / "g").store.manifest.dim)
    with measured(found):
        gallery = Gallery(folder / "g")
        start = time.perf_counter()
        gallery.search_vectors(query)
        first = time.perf_counter() - start
    return {**found, "first_search_seconds": first}


def search(folder: Path, _: IndexSpec) -> dict[str, Any]:
    from retrieval import Gallery

    found: dict[str, Any] = {}
    evict(folder / "g")
    gallery = Gallery(folder / "g")
    dim = gallery.store.manifest.dim
    gallery.search_vectors(draw(1, 10**6, dim))
    before, queries = bytes_read(), draw(QUERIES, 10**6 + 2, dim)
    found["disk_ms"] = milliseconds(gallery.search_vectors, queries)["ms"]
    found["disk_bytes_read"] = (bytes_read() - before) / QUERIES
    queries = draw(QUERIES, 10**6 + 1, dim)
    with measured(found):
        found["cold_ms"] = milliseconds(gallery.search_vectors, queries)["ms"]
    found |= milliseconds(gallery.search_vectors, queries)
    snapshot = gallery.state
    assert snapshot.index is not None
    own = snapshot.index
    bare = milliseconds(lambda query: own.propose(query, 10), queries)
    exact = snapshot.stored.nearest(queries, 10)[0][:, -1]
    hits = gallery.search_vectors(queries)
    right = [hit.score >= last - 1e-6 for one, last in zip(hits, exact.tolist(), strict=True) for hit in one]
    return {**found, "bare_ms": bare["ms"], "bare_cpu_ms": bare["cpu_ms"], "recall": sum(right) / len(right)}


def add(folder: Path, _: IndexSpec) -> dict[str, Any]:
    from retrieval import Gallery

    write(folder / "more.npy", ADDED, 10**7, Gallery(folder / "g").store.manifest.dim)
    Gallery.import_vectors(folder / "g", folder / "more.npy", name="random", prefix=f"first-{os.getpid()}")
    found: dict[str, Any] = {}
    with measured(found):
        Gallery.import_vectors(folder / "g", folder / "more.npy", name="random", prefix=f"next-{os.getpid()}")
    return found


def remove(folder: Path, _: IndexSpec) -> dict[str, Any]:
    from retrieval import Gallery

    found: dict[str, Any] = {}
    with measured(found):
        gallery = Gallery(folder / "g")
        gallery.remove(list(range(1, len(gallery), 100)))
    return found


def compact(folder: Path, _: IndexSpec) -> dict[str, Any]:
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
    "encode": encode,
    "open": open_,
    "search": search,
    f"add {ADDED}": add,
    "remove 1 %": remove,
    "compact": compact,
}


# ---- page


def page(results: dict[str, Any], on_disk: dict[str, Any]) -> str:
    """Return the page of committed results, in memory and on disk, as Markdown."""
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
    return "\n".join([*lines, *_section(on_disk)])


def _section(results: dict[str, Any]) -> list[str]:
    """Return the section about an index on disk."""
    from retrieval.search.kinds import disk_needed, number_of_cells

    sizes = {int(count): found for count, found in results["sizes"].items()}
    counts, dim, most = sorted(sizes), results["dim"], max(sizes)
    last = sizes[most]
    phases, times = last["index"]["phases"], LATER / most
    added = last["encode"]["cpu_seconds"] / last["encode"]["vectors"]
    trained = _training_work(LATER, dim) / _training_work(most, dim)
    seconds = {
        "preparing": phases["preparing"] * times,
        "training": trained * phases["training"],
        "choosing an index": phases["choosing an index"],
        "indexing": LATER * added,
        "merging": phases["merging"] * times,
    }
    entry = disk_needed("ivf-disk", dim, 1)
    parts = results["memory"] // 2
    peak = SAMPLE + _PER_ROW * LATER + parts + _REST
    longer = LATER / number_of_cells(LATER, dim) - most / number_of_cells(most, dim)
    effort, read = last["index"]["effort"], last["search"]["disk_bytes_read"]
    grown = (read + effort * longer * entry) / read
    search = {
        "one search, nothing in memory, ms": ("disk_ms", 1.0, grown),
        "read from disk for it, MB": ("disk_bytes_read", 1e6, grown),
        "one search, everything in memory, ms": ("ms", 1.0, None),
        "recall@10": ("recall", 1.0, None),
    }
    head = [f"{results['kind']}, dimension {dim}", *map(_power, counts), f"{_power(LATER)}, extrapolated"]
    rows = [
        [f"{name}, CPU s", *(_number(sizes[n]["index"]["phases"][name]) for n in counts), _number(value)]
        for name, value in seconds.items()
    ]
    whole = [sizes[n]["index"]["cpu_seconds"] for n in counts]
    rows.append(["build, CPU s", *map(_number, [*whole, sum(seconds.values())])])
    each = [1e6 * x / n for n, x in zip([*counts, LATER], [*whole, sum(seconds.values())], strict=True)]
    rows.append(["build, CPU us per vector", *map(_number, each)])
    anonymous = [sizes[n]["index"]["peak_anonymous_bytes"] for n in counts]
    rows.append(["peak memory without mapped files, MB", *(_number(x / 1e6) for x in [*anonymous, peak])])
    index = [sizes[n]["index"]["bytes"] / n for n in counts]
    rows.append(["index, bytes per vector", *map(_number, [*index, entry])])
    for name, (field, unit, factor) in search.items():
        values = [sizes[n]["search"][field] / unit for n in counts]
        rows.append([name, *map(_number, values), "" if factor is None else _number(values[-1] * factor)])
    cells, then = (f"{number_of_cells(n, dim):,} at {_power(n)}" for n in (most, LATER))
    return [
        "## An index on disk",
        "",
        f"`--kind {results['kind']} --memory {results['memory'] / 1e6:,.0f}MB` builds lists in parts of",
        f"{parts / 2e6:,.0f} MB and needs twice the size of the index on disk meanwhile. Measured on",
        f"{results['machine']}, with {results['threads']} thread, while others used",
        "the machine. `merging` includes the measurement of the recall. Before the searches with nothing in",
        "memory, the system was made to drop all files of the gallery.",
        "",
        *_markdown(head, rows),
        "",
        f"The column {_power(LATER)} follows from these, with n vectors in c cells",
        f"(c is {cells}, {then}):",
        "",
        "- preparing, merging: proportional to n. Choosing uses a sample of constant size.",
        f"- training: {trained:.2f} times, by the multiplications of k-means in two levels.",
        f"- indexing: n x {1e6 * added:.0f} us, measured with {last['encode']['cells']:,} cells.",
        f"- memory: {_number(SAMPLE / 1e6)} MB of training vectors, {parts / 1e6:,.0f} MB for a part,",
        f"  {_number(_REST / 1e6)} MB for libraries, quantisers and blocks of vectors, and {_PER_ROW} bytes",
        "  for each row number, which is all that grows with n.",
        f"- disk: {entry} bytes for each vector, one for each dimension and 8 for its number.",
        f"- search: {effort} lists are visited, of n / c vectors, {longer:,.0f} more; the disk is as fast.",
        "  The system reads ahead: more than the lists and the candidates take.",
        "",
        "Vectors that are added later are searched exactly until they are a tenth of all; then, or with",
        "`lookalike index optimize`, parts of them are merged with the index into a new file.",
        "",
    ]


def _training_work(count: int, dim: int) -> float:
    """Return the multiplications of k-means in two levels for an index of so many vectors."""
    from retrieval.search import training
    from retrieval.search.kinds import number_of_cells

    cells = number_of_cells(count, dim)
    sample = min(count, training._PER_CELL * cells, SAMPLE // (4 * dim))
    groups = 2 ** (int(math.log2(cells)) // 2)
    refined = cells if cells <= training._REFINED else 0
    return float(sample * dim * (training._ROUNDS * cells / groups + groups + refined))


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


def run(
    counts: Sequence[int], dim: int, spec: IndexSpec, operations: Sequence[str], folder: Path, json_file: Path
) -> None:
    """Run operations at each size, and write the results after each."""
    results: dict[str, Any] = json.loads(json_file.read_text()) if json_file.exists() else {}
    threads = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    results |= {"machine": machine(), "threads": threads, "dim": dim, "kind": spec.kind}
    results |= {"memory": spec.memory} if spec.memory else {}
    sizes = results.setdefault("sizes", {})
    limit = ["--memory", str(spec.memory)] if spec.memory else []
    for count in counts:
        place = folder / str(count)
        place.mkdir(parents=True, exist_ok=True)
        done = sizes.setdefault(str(count), {})
        if "import" not in done:
            write(place / "v.npy", count, 1, dim)
        for name in operations:
            if name in done:
                continue
            command = [sys.executable, "-m", "benchmarks.gallery_scale", "--operation", name]
            command += ["--kind", str(spec.kind), *limit, "--folder", str(place)]
            output = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            done[name] = json.loads(output.stdout.splitlines()[-1])
            done[name]["commit"] = commit()
            print(f"{count:>12,} {name:12} {done[name]}", flush=True)
            json_file.write_text(json.dumps(results, indent=1) + "\n")
            if name == "import":
                (place / "v.npy").unlink()


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
    parser.add_argument("--dim", type=int, default=DIM)
    parser.add_argument("--kind", default="ivf-sq8")
    parser.add_argument("--memory", type=int, help="memory limit of the index in bytes")
    growing = [name for name in OPERATIONS if name != "encode"]
    parser.add_argument("--operations", nargs="+", choices=[*OPERATIONS], default=growing)
    parser.add_argument(
        "--folder", type=Path, help="where to keep files and galleries; else they are deleted"
    )
    parser.add_argument("--json", type=Path, help="output file; what it has already is not measured again")
    parser.add_argument("--operation", help=argparse.SUPPRESS)
    parser.add_argument("--page", action="store_true", help="write the page from the committed numbers")
    args = parser.parse_args()
    spec = IndexSpec(args.kind, memory=args.memory)
    if args.operation:
        print(json.dumps(OPERATIONS[args.operation](args.folder, spec)))
        return
    if args.page:
        PAGE.write_text(page(json.loads(COMMITTED.read_text()), json.loads(ON_DISK.read_text())))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        json_file = args.json or Path(temporary) / "scale.json"
        run(args.counts, args.dim, spec, args.operations, folder, json_file)


if __name__ == "__main__":
    main()
