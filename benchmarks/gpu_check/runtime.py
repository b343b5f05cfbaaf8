"""ONNX Runtime, FAISS and galleries on the device: the same results as on the CPU, latencies and rates."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.gpu_check.results import Row, limited
from benchmarks.gpu_check.workload import Workload, lookalike
from retrieval import Embedder, Gallery

SIZES = (1, 2, 4, 8, 16, 32, 64, 256)
COSINES = {"fp32": 0.9999, "fp16": 0.999, "int8": 0.98}  # lowest between the CPU and the device
REPETITIONS = 5


def inference(work: Workload) -> Iterator[Row]:
    """Compare embeddings of ONNX Runtime on the device with the CPU's, and measure the latency by batch."""
    for precision, lowest in COSINES.items():
        file = work.model(precision)
        ours, cpu = Embedder(file, device=str(work.device)), Embedder(file, device="cpu")
        pixels = random_pixels(ours, 64)
        cosine = float((ours.embed_pixels(pixels) * cpu.embed_pixels(pixels)).sum(1).min())
        yield limited(f"1 - cosine to the CPU, {precision}, on {ours.provider}", 1 - cosine, 1 - lowest)
        latencies = {size: latency(ours, size) for size in SIZES}
        best = max(size / seconds for size, seconds in latencies.items())
        yield Row(
            f"latency by batch, {precision}",
            ", ".join(f"{size}: {1000 * seconds:.1f}" for size, seconds in latencies.items())
            + f" ms; at best {best:.0f} images/s",
            numbers={str(size): seconds for size, seconds in latencies.items()},
        )


def latency(embedder: Embedder, size: int) -> float:
    pixels = random_pixels(embedder, size)
    return fastest(lambda: embedder.embed_pixels(pixels))


def fastest(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of a few runs, after one to warm up."""
    work()
    taken = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def random_pixels(embedder: Embedder, count: int) -> list[np.ndarray]:
    side = embedder.preprocess.size
    return list(np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8))


def indexing(work: Workload) -> Iterator[Row]:
    """Compare `index build` with its halves: decoding alone and the network alone."""
    file = work.folder / "indexing.json"
    options = {"images": work.images(), "model": work.model(), "json": file, "device": work.device}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    subprocess.run([sys.executable, "-m", "benchmarks.indexing", *arguments], check=True, capture_output=True)
    measured = json.loads(file.read_text())
    yield Row("indexing JPEG files", json.dumps(measured), numbers=measured)


def galleries(work: Workload) -> Iterator[Row]:
    """Search a gallery on the device and on the CPU that was made on the other one."""
    query = next(work.images().rglob("*.jpg"))
    for precision in COSINES:
        hits = {}
        for made, opened in ((str(work.device), "cpu"), ("cpu", str(work.device))):
            folder = work.folder / f"{precision}-{made.replace(':', '')}.gallery"
            images = ("index", "build", str(folder), str(work.images()))
            lookalike(*images, "--model", str(work.model(precision)), "--device", made)
            with Gallery.open(folder, device=opened) as gallery:
                hits[made] = {hit.key: hit.score for hit in gallery.search(query, k=10)}
        first, second = hits.values()
        common = len(first.keys() & second.keys())
        yield Row(
            f"gallery across devices, {precision}",
            f"{common} of 10 hits are the same",
            "ok" if common >= 9 else "FAILED",
            {"common": common},
        )
