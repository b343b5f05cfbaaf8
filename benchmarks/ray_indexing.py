"""Indexing on Ray compared with indexing in one process, on the same machine and the same images.

Both embed the same files into a new gallery, one after the other, for several rounds. Start-up is not
counted: of the local run the loading of the model, of the run on Ray the start of Ray, of the worker and of
its session, up to the first file. The end is counted: the last commit, but not the end of Ray. CPU time is
that of all processes: driver, worker, and Ray's own. On a shared machine only CPU time is reliable.
Memory is the proportional set size (PSS) of the processes, so that shared memory counts once, at its highest.

    python -m benchmarks.ray_indexing
    python -m benchmarks.ray_indexing --count 5000 --rounds 2 --json ray.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks._photographs import write_photographs
from benchmarks.indexing import untrained
from retrieval import Embedder, Gallery
from retrieval.ingest.indexing import BatchSource, add_images
from retrieval.ingest.ray_source import RaySource
from retrieval.ingest.ray_workers import connected
from retrieval.ingest.sources import Sources
from retrieval.machine.resources import cores

MEGABYTE = 1e6


@dataclass(frozen=True)
class Cost:
    """Cost of an indexing run after start-up.

    Attributes:
        seconds: Wall-clock time.
        processor: CPU time of all processes, in seconds.
        processors: CPU time of each kind of process.
        memory: Highest memory of each kind of process, in MB.
    """

    seconds: float
    processor: float
    processors: dict[str, float]
    memory: dict[str, float]


def tree() -> Iterator[psutil.Process]:
    """This process and its descendants."""
    yield psutil.Process()
    yield from psutil.Process().children(recursive=True)


def processor_times() -> dict[str, float]:
    """CPU time so far of this process and its descendants, without this thread, by kind of process."""
    total = {"driver": -time.thread_time()}
    for process in tree():
        try:
            times, name = process.cpu_times(), kind(process)
        except psutil.Error:
            continue
        total[name] = total.get(name, 0.0) + times.user + times.system
    return total


def kind(process: psutil.Process) -> str:
    if process.pid == psutil.Process().pid:
        return "driver"
    return "worker" if "MapWorker" in " ".join(process.cmdline()) else "rest of Ray"


class Watch(threading.Thread):
    """Samples the memory of all processes, and notes when the first file is embedded."""

    def __init__(self, begun: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self._begun, self._end = begun, threading.Event()
        self.memory: dict[str, float] = {}
        self.start_at = self.end_at = (0.0, dict[str, float]())

    def run(self) -> None:
        while not self._begun():
            time.sleep(0.02)
        self.start_at = time.perf_counter(), processor_times()
        while not self._end.wait(2):
            used: dict[str, float] = {}
            for process in tree():
                try:
                    name = kind(process)
                    used[name] = used.get(name, 0.0) + process.memory_full_info().pss / MEGABYTE
                except psutil.Error:
                    continue
            used["all"] = sum(used.values())
            self.memory |= {name: max(size, self.memory.get(name, 0)) for name, size in used.items()}
        self.end_at = time.perf_counter(), processor_times()

    def finish(self) -> Cost:
        self._end.set()
        self.join()
        (begin, before), (end, after) = self.start_at, self.end_at
        spent = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
        return Cost(end - begin, sum(spent.values()), spent, self.memory)


def measured(
    images: Path, embedder: Embedder, folder: Path, source: BatchSource | None, shards: Path
) -> tuple[Cost, np.ndarray]:
    """Return the cost of a run into a new gallery, and the vectors by id."""
    gallery = Gallery.create(folder / uuid.uuid4().hex, embedder)
    watch = Watch(lambda: source is None or any(shards.glob("*.attempt-0")))
    watch.start()
    add_images(gallery, Sources([images]), source=source)
    cost = watch.finish()
    return cost, gallery.state.vectors(gallery.state.live_rows())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=5000, help="images")
    parser.add_argument("--model", type=Path, help="default: an untrained ResNet-18 at 224 pixels")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="output file")
    args = parser.parse_args()
    costs: dict[str, list[Cost]] = {"local": [], "ray": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        model = args.model or untrained(folder / "model")
        write_photographs(folder / "images", args.count // 50, 50)
        worst = 0.0
        for number in range(args.rounds):
            shards = folder / f"shards{number}"
            here, expected = measured(folder / "images", Embedder(model), folder, None, shards)
            costs["local"].append(here)
            embedder = Embedder(model)
            with connected(None, embedder.runtime, model.stat().st_size):
                source = RaySource(shards=str(shards))
                there, vectors = measured(folder / "images", embedder, folder, source, shards)
            costs["ray"].append(there)
            worst = max(worst, float(np.abs(vectors - expected).max()))
    for engine, runs in costs.items():
        seconds = statistics.median(run.seconds for run in runs)
        processor = statistics.median(run.processor for run in runs)
        memory = ", ".join(f"{what} {size:.0f} MB" for what, size in runs[-1].memory.items())
        spent = ", ".join(f"{what} {size:.1f} s" for what, size in runs[-1].processors.items())
        print(f"{engine:6}{seconds:9.1f} s{processor:9.1f} s of CPU time ({spent}); {memory}")
    ratios = {
        what: statistics.median(
            getattr(ray, what) / getattr(local, what)
            for ray, local in zip(costs["ray"], costs["local"], strict=True)
        )
        for what in ("seconds", "processor")
    }
    print(f"ray / local: {ratios['seconds']:.3f} in time, {ratios['processor']:.3f} in CPU time")
    print(f"largest difference of a vector: {worst:.1e}; {cores()} cores", file=sys.stderr)
    if args.json:
        facts = {engine: [asdict(run) for run in runs] for engine, runs in costs.items()}
        args.json.write_text(json.dumps({**facts, "ratios": ratios, "cores": cores()}, indent=1))


if __name__ == "__main__":
    main()
