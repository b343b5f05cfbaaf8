"""Time and memory of indexing runs over a folder in which nothing has changed, for each file of it.

The folder holds empty files, 1,000 in each sub-folder, and the gallery an item for each, written without a
model. Every run is a process of its own; its memory is the highest resident size during the run less the size
when the gallery is open. "add one" adds a single file of the gallery, and should cost the same at any size.
The goal of "sync" is 10 us of CPU and 200 bytes a file, for a million files.

    python -m benchmarks.planning
    python -m benchmarks.planning --files 10000 1000000 --json planning.json
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from retrieval import Gallery
from retrieval.ingest.indexing import add_images
from retrieval.ingest.sources import Sources
from retrieval.ingest.sync import folder_difference, sync, update
from retrieval.storage.manifest import Manifest
from retrieval.storage.merging import merge_small
from retrieval.storage.records import Facts, IndexSpec
from retrieval.storage.store import Store

DIM, PART = 4, 1000
RUNS: dict[str, Callable[[Gallery, Path], object]] = {
    "build": lambda gallery, folder: add_images(gallery, Sources([folder])),
    "sync": sync,
    "dry run": folder_difference,
    "update": lambda gallery, folder: update(gallery),
    "add one": lambda gallery, folder: add_images(gallery, Sources([folder / "000000" / "000000.jpg"])),
}


def fill(folder: Path, count: int) -> None:
    """Write files and a gallery with an item for each."""
    Store.create(folder / "g", Manifest("", DIM, embedding="none", index_spec=IndexSpec("flat")))
    store, root = Store(folder / "g"), folder / "photos"
    vector = np.full(DIM, DIM**-0.5, np.float32)
    with store.writing():
        for start in range(0, count, PART):
            part = f"{start // PART:06}"
            (root / part).mkdir(parents=True)
            paths, times = [], []
            for number in range(min(PART, count - start)):
                file = root / part / f"{number:06}.jpg"
                file.touch()
                paths.append(f"{part}/{file.name}")
                times.append(file.stat().st_mtime_ns)
            n = len(paths)
            digests = [f"{start + i:064x}" for i in range(n)]
            facts = Facts(
                paths, [str(root)] * n, paths, [0] * n, times, digests, [9] * n, [9] * n, [part] * n
            )
            store.append(np.tile(vector, (n, 1)), facts)
        merge_small(store)  # the first run would do it


def resident(name: str) -> int:
    """Return a size from the status of this process, in bytes: VmRSS, or VmHWM for the peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measure(folder: Path, run: str) -> dict[str, float]:
    """Return CPU seconds, seconds and bytes of one run, in this process."""
    gallery = Gallery(folder / "g")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, start = resident("VmRSS"), time.perf_counter()
    used = resource.getrusage(resource.RUSAGE_SELF)
    RUNS[run](gallery, folder / "photos")
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return {"cpu": cpu, "seconds": time.perf_counter() - start, "bytes": resident("VmHWM") - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--json", help="output file")
    parser.add_argument("--measure", nargs=2, metavar=("FOLDER", "RUN"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(Path(args.measure[0]), args.measure[1])))
        return
    found = []
    for count in args.files:
        with tempfile.TemporaryDirectory() as name:
            fill(Path(name), count)
            for run in RUNS:
                words = [sys.executable, "-m", "benchmarks.planning", "--measure", name, run]
                done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
                taken = json.loads(done.stdout)
                found.append({"files": count, "run": run, **taken})
                cpu, size = taken["cpu"], taken["bytes"]
                each = f"{1e6 * cpu / count:8.2f} us of CPU and {size / count:8.1f} bytes a file"
                whole = f"{cpu:8.2f} s of CPU, {taken['seconds']:8.2f} s, {size / 2**20:7.1f} MiB"
                print(f"{count:>10,} files  {run:8} {each}   {whole}", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
