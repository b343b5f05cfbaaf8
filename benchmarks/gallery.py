"""A gallery's operations in CPU time and wall-clock time, compared with bare FAISS, LanceDB and usearch.

Searches return complete hits: items with key, label and metadata. Bare FAISS searches the same index with the
same parameters and returns numbers only; "ratio" is our CPU time to its. "commit" adds one vector, before and
after 100,000 recorded runs and as many unusable files. "float16" is the cost of `--storage float16`: the
largest error of a score, the share of the ten nearest neighbours that are the same, and exact search.
"with facts" is with a CSV file of path, label and two more columns. "goal" is in CPU seconds, for as many
vectors. The longest wait is that of one of many reads meanwhile. "sync" is of as many files, none changed,
with its memory beside that of a tenth of them. --write puts what has a goal into benchmarks/results.json and
docs/benchmarks.md.

    python -m benchmarks.gallery
    python -m benchmarks.gallery --count 1000000 --kinds --write
    python -m benchmarks.gallery --count 1000000 --kinds flat hnsw ivf-sq8 --peers peers/bin/python
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when FAISS and numpy are imported

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from benchmarks import table
from benchmarks.search import draw
from retrieval import Gallery
from retrieval.storage.records import BadFile, Facts, FileStamp, IndexSpec
from retrieval.upkeep.compact import compact
from retrieval.upkeep.verify import verify

K = 10
ADDED, HISTORY = 1000, 100_000
# CPU seconds for a million vectors in the gallery; that of "add" holds at any size.
GOALS = {"import": 4, "import with facts": 8, "remove 10 %": 0.5, "sync, nothing changed": 10}
ADD_GOAL = 0.05
WAIT_GOAL = 0.05  # seconds
_BYTES = 200  # of memory for each file of a sync
ABOUT = "CPU time of work on a gallery of {count:,} vectors of {dim} dimensions, against fixed times."
REPEATED_RUNS = """
WITH RECURSIVE counter (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counter WHERE n < ?)
INSERT INTO runs (command, started, ended, counts, versions, crc)
SELECT command, started, ended, counts, versions, crc FROM counter, (SELECT * FROM runs LIMIT 1)
"""


class Report:
    """Rows of results, printed as they come."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        print(f"{'':34}{'seconds':>12}{'CPU s':>12}  more", flush=True)

    def time(self, name: str, work: Callable[[], Any], rounds: int = 1, **more: Any) -> Any:
        """Measure one round of some work, averaged over several, and return its last result."""
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(rounds):
            result = work()
        cpu = (time.process_time() - processor) / rounds
        self.add(name, (time.perf_counter() - wall) / rounds, cpu, **more)
        return result

    def add(self, name: str, seconds: float, cpu: float, **more: Any) -> None:
        """Add a row that was measured elsewhere."""
        self.rows.append({"name": name, "seconds": seconds, "cpu_seconds": cpu, **more})
        shown = ", ".join(f"{key} {value:.4g}" for key, value in more.items())
        print(f"{name:34}{seconds:12.5f}{cpu:12.5f}  {shown}", flush=True)

    def compare(self, name: str, ours: Callable[[], Any], bare: Callable[[], Any], rounds: int) -> None:
        """Measure a search and its bare counterpart in turns."""
        taken = np.zeros((2, 2))
        ours(), bare()
        for _ in range(rounds):
            for line, work in enumerate((ours, bare)):
                wall, processor = time.perf_counter(), time.process_time()
                work()
                taken[line] += time.perf_counter() - wall, time.process_time() - processor
        (seconds, cpu), (_, bare_cpu) = taken / rounds
        self.add(name, seconds, cpu, bare=bare_cpu, ratio=cpu / bare_cpu)


def search(report: Report, folder: Path, kind: str, queries: np.ndarray) -> None:
    """Build an index of one kind; open the gallery and search it."""
    gallery = Gallery(folder)
    with gallery.store.writing():
        report.time(f"{kind}: index", lambda: gallery.build_index(IndexSpec(kind)))
    opened: Gallery = report.time(f"{kind}: open", lambda: Gallery(folder))
    report.time(f"{kind}: first search", lambda: opened.search_vectors(queries[:1], K))
    index = opened.index
    if index is None:
        exact = faiss.IndexFlatIP(queries.shape[1])
        for part in opened.state.stored.parts:
            exact.add(np.asarray(part, np.float32))

    def bare(asked: np.ndarray) -> Any:
        return exact.search(asked, K) if index is None else index.propose(asked, K)

    turn = iter(range(10**9))

    def one() -> np.ndarray:
        return queries[next(turn) // 2 % len(queries)][None]

    report.compare(f"{kind}: one search", lambda: opened.search_vectors(one(), K), lambda: bare(one()), 100)
    many = queries[:100]
    report.compare(f"{kind}: 100 at once", lambda: opened.search_vectors(many, K), lambda: bare(many), 5)


def with_facts(report: Report, folder: Path, count: int, dim: int, goals: Mapping[str, float]) -> None:
    """Import vectors with a CSV file, then add more, while another process reads."""
    (folder / "f").mkdir()
    source, more, gallery = folder / "f" / "v.npy", folder / "f" / "more.npy", folder / "f" / "g"
    for file, first, n in ((source, 0, count), (more, count, ADDED)):
        np.save(file, draw(n, dim, 4))
        random = np.random.default_rng(first)
        labels, prices = random.integers(0, 5000, n).tolist(), random.random(n).round(4).tolist()
        lines = (
            f"images/{label:04}/{row:08}.jpg,class {label},brand {label % 200},{price}"
            for row, (label, price) in enumerate(zip(labels, prices, strict=True), first)
        )
        file.with_suffix(".csv").write_text("\n".join(["path,label,brand,price", *lines]) + "\n")
    flat, name = IndexSpec("flat"), "import with facts"
    report.time(name, lambda: Gallery.import_vectors(gallery, source, name="x", index=flat), goal=goals[name])
    with waits(gallery) as longest:
        report.time(
            f"add {ADDED} with facts", lambda: Gallery.import_vectors(gallery, more, name="x"), goal=ADD_GOAL
        )
    report.add("longest wait of a read then", longest[0], longest[0], goal=WAIT_GOAL)


@contextmanager
def waits(gallery: Path) -> Iterator[list[float]]:
    """Read one row of a gallery again and again in another process; yield a list of the longest time."""
    script = (
        "import sqlite3, sys, time\n"
        "db = sqlite3.connect(sys.argv[1], timeout=60)\n"
        "longest = 0.0\n"
        "print(flush=True)\n"
        "while True:\n"
        "    start = time.perf_counter()\n"
        "    db.execute('SELECT label FROM items WHERE id = 1').fetchall()\n"
        "    longest = max(longest, time.perf_counter() - start)\n"
        "    print(longest, flush=True)\n"
        "    time.sleep(0.002)\n"
    )
    command = [sys.executable, "-c", script, str(gallery / "gallery.db")]
    longest = [0.0]
    with tempfile.TemporaryFile("w+") as output, subprocess.Popen(command, stdout=output) as reader:
        try:
            yield longest
        finally:
            reader.kill()
            reader.wait()
            output.seek(0)
            longest[0] = float(output.read().split()[-1])


def sync(report: Report, folder: Path, count: int, goals: Mapping[str, float]) -> None:
    """Sync galleries with folders in which nothing has changed: of a tenth of the files, and of all."""
    found = []
    for number in (count // 10, count):
        place = folder / f"s{number}"
        for row in range(number):
            if row % 1000 == 0:
                (place / "files" / f"{row // 1000:05}").mkdir(parents=True)
            (place / "files" / f"{row // 1000:05}" / f"{row % 1000:03}.jpg").touch()
        np.save(place / "v.npy", draw(number, 8, 5))
        paths = (f"{place}/files/{row // 1000:05}/{row % 1000:03}.jpg" for row in range(number))
        (place / "v.csv").write_text("\n".join(["path", *paths]) + "\n")
        Gallery.import_vectors(place / "g", place / "v.npy", name="x", index=IndexSpec("flat"))
        words = ["-m", "lookalike", "index", "sync", str(place / "g"), str(place / "files")]
        start = time.perf_counter()
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, process.returncode
        found.append((time.perf_counter() - start, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss))
    (_, few_cpu, few_bytes), (seconds, cpu, most_bytes) = found
    files, name = count - count // 10, "sync, nothing changed"
    report.add(name, seconds, cpu, goal=goals[name], microseconds=1e6 * (cpu - few_cpu) / files)
    print(f"{'':34}{(most_bytes - few_bytes) / files:.0f} bytes for each file, goal {_BYTES}")
    report.rows[-1]["bytes"] = (most_bytes - few_bytes) / files


def write(report: Report, count: int, dim: int) -> None:
    """Put the rows with a goal into the results of `make bench`."""
    results = table.Results.load()
    rows = []
    for row in report.rows:
        if "goal" not in row:
            continue
        cpu, wall, goal = (1000 * row[name] for name in ("cpu_seconds", "seconds", "goal"))
        ratio, against = cpu / goal, f"{row['goal']:g} s"
        rows.append(table.Row("gallery", row["name"], against, cpu, wall, goal, goal, ratio, ratio, ratio, 1))
    results.with_group("gallery", ABOUT.format(count=count, dim=dim), rows).save()


def commits(report: Report, folder: Path, vectors: np.ndarray) -> None:
    """Measure one commit before and after a long history."""
    gallery = Gallery(folder)
    numbers = iter(range(10**9))

    def commit() -> None:
        key = f"one-{next(numbers)}"
        gallery.store.append(vectors[:1], Facts([key], [""], [""], [0], [0], [""], [0], [0], [None]))

    with gallery.store.writing():
        report.time("commit", commit, 20)
        bad = [BadFile(FileStamp("/images", f"{n}.jpg", 1, 1), "damaged", "") for n in range(HISTORY)]
        gallery.store.commit(np.empty((0, vectors.shape[1]), np.float32), [], bad)
        with gallery.store.transaction() as db:
            db.execute(REPEATED_RUNS, (HISTORY,))
        report.time(f"commit after {HISTORY:,}", commit, 20)


def halves(report: Report, folder: Path, source: Path, queries: np.ndarray) -> None:
    """Measure what storage as float16 costs."""
    options: dict[str, Any] = {"name": "x", "storage": "float16", "index": IndexSpec("flat")}
    report.time("float16: import", lambda: Gallery.import_vectors(folder / "h", source, **options))
    full, half = Gallery(folder / "g"), Gallery(folder / "h")
    sizes = [sum(f.stat().st_size for f in (g.folder / "segments").glob("*")) for g in (full, half)]
    scores, rows = full.state.stored.nearest(queries, K)
    rounded = half.state.stored.score(queries, rows)
    found = half.state.stored.nearest(queries, K)[1]
    same = [len(set(a) & set(b)) / K for a, b in zip(rows.tolist(), found.tolist(), strict=True)]
    error = float(np.abs(rounded - scores).max())
    report.compare(
        "float16: exact search, to float32",
        lambda: half.state.stored.nearest(queries[:1], K),
        lambda: full.state.stored.nearest(queries[:1], K),
        10,
    )
    report.rows[-1] |= {"error": error, "recall": float(np.mean(same)), "bytes": sizes[1] / sizes[0]}
    print(f"{'':34}error {error:.2g}, recall {np.mean(same):.4f}, disk {sizes[1] / sizes[0]:.2f} times")


def peers(report: Report, python: Path, folder: Path, queries: np.ndarray) -> None:
    """Run the peers on the same files."""
    np.save(folder / "queries.npy", queries)
    np.save(folder / "exact.npy", Gallery(folder / "g").state.stored.nearest(queries, K)[0])
    script = Path(__file__).with_name("_peers.py")
    found = subprocess.run([python, script, folder], stdout=subprocess.PIPE, check=True).stdout
    for peer, operations in json.loads(found).items():
        for name, row in operations.items():
            more = {"recall": row["recall"]} if "recall" in row else {}
            report.add(f"{peer}: {name}", row["seconds"], row["cpu_seconds"], **more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=50_000, help="vectors in the gallery")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--write", action="store_true", help="write the rows with a goal")
    parser.add_argument("--kinds", nargs="*", default=["flat", "hnsw", "ivf-sq8"])
    parser.add_argument("--peers", type=Path, help="Python of an environment with lancedb and usearch")
    parser.add_argument("--json", type=Path, help="output file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        gallery, source = folder / "g", folder / "v.npy"
        np.save(source, draw(args.count, args.dim, 1))
        np.save(folder / "more.npy", draw(ADDED, args.dim, 2))
        queries = draw(200, args.dim, 3)
        print(f"{args.count} x {args.dim}", flush=True)
        report = Report()
        flat = IndexSpec("flat")
        goals = {name: goal * args.count / 1e6 for name, goal in GOALS.items()}
        report.time(
            "import",
            lambda: Gallery.import_vectors(gallery, source, name="x", index=flat),
            goal=goals["import"],
        )
        with_facts(report, folder, args.count, args.dim, goals)
        report.time("export", lambda: Gallery(gallery).export(folder / "out.npy"))
        halves(report, folder, source, queries)
        if args.peers:
            peers(report, args.peers, folder, queries)
        else:
            print("LanceDB, usearch: skipped; pass --peers PYTHON")
        for kind in args.kinds:
            search(report, gallery, kind, queries)
        report.time(f"add {ADDED}", lambda: Gallery.import_vectors(gallery, folder / "more.npy", name="x"))
        tenth = range(1, args.count, 10)
        report.time("remove 10 %", lambda: Gallery(gallery).remove(list(tenth)), goal=goals["remove 10 %"])
        sync(report, folder, args.count, goals)
        report.time("compact", lambda: compact(Gallery(gallery)))
        commits(report, gallery, queries)
        assert not report.time("verify", lambda: verify(gallery)).problems
    if args.write:
        write(report, args.count, args.dim)
    if args.json:
        args.json.write_text(
            json.dumps({"count": args.count, "dim": args.dim, "rows": report.rows}, indent=1)
        )


if __name__ == "__main__":
    main()
