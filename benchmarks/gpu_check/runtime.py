"""ONNX Runtime and galleries on the device: the same results as on the CPU, latencies and rates."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import numpy as np

from benchmarks.gpu_check.results import Row, limited
from benchmarks.gpu_check.workload import Workload, lookalike
from retrieval import Embedder, Gallery
from retrieval.machine.devices import Device
from retrieval.model.embedder import measure_latency
from retrieval.model.runtime import Runtime

SIZES = (1, 2, 4, 8, 16, 32, 64, 256)
COSINES = {"fp32": 0.9999, "fp16": 0.999, "int8": 0.99}  # lowest to the CPU that a gallery accepts
SECONDS = 0.2  # of the measurement of a latency
INDEXED = 200  # images of the galleries


def inference(work: Workload) -> Iterator[Row]:
    """Compare embeddings of ONNX Runtime on the device with the CPU's, and measure the latency by batch."""
    for precision, lowest in COSINES.items():
        file = work.model(precision)
        ours, cpu = Embedder(file, device=str(work.device)), Embedder(file, device="cpu")
        pixels = random_pixels(ours, 64)
        cosine = float((ours.embed_pixels(pixels) * cpu.embed_pixels(pixels)).sum(1).min())
        yield limited(f"1 - cosine to the CPU, {precision}, on {ours.provider}", 1 - cosine, 1 - lowest)
        latencies = {size: measure_latency(ours, size, seconds=SECONDS) for size in SIZES}
        best = max(size / seconds for size, seconds in latencies.items())
        yield Row(
            f"latency by batch, {precision}",
            ", ".join(f"{size}: {1000 * seconds:.1f}" for size, seconds in latencies.items())
            + f" ms; at best {best:.0f} images/s",
            numbers={str(size): seconds for size, seconds in latencies.items()},
        )


def random_pixels(embedder: Embedder, count: int) -> list[np.ndarray]:
    side = embedder.preprocess.size
    return list(np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8))


def indexing(work: Workload) -> Iterator[Row]:
    """Compare `index build` with its halves: decoding alone and the network alone."""
    file = work.folder / "indexing.json"
    options = {
        "images": work.images(),
        "model": work.model(),
        "json": file,
        "device": work.device,
        "rounds": 1,
    }
    count = f"--count={4 * work.classes}"
    arguments = [count, *(f"--{name}={value}" for name, value in options.items())]
    subprocess.run([sys.executable, "-m", "benchmarks.indexing", *arguments], check=True, capture_output=True)
    measured = json.loads(file.read_text())
    taken = {name: 1 / one["seconds"] for name, one in measured["taken"].items()}
    ratio = measured["ratios"]["of the speed of the slower half"]
    yield Row(
        "indexing JPEG files, of the slower half",
        f"{ratio:.2f} on {measured['cores']} cores; images/s: decoding {taken['decoding alone']:.0f}, "
        f"model {taken['model alone']:.0f}, whole {taken['ours']:.0f}",
        numbers=measured,
    )


def galleries(work: Workload) -> Iterator[Row]:
    """Search a gallery on the device and on the CPU that was made on the other one."""
    images = [str(path) for path in sorted(work.images().rglob("*.jpg"))[:INDEXED]]
    for precision in COSINES:
        hits = []
        for made, opened in ((str(work.device), "cpu"), ("cpu", str(work.device))):
            folder = work.folder / f"{precision}-{len(hits)}.gallery"
            options = ("--model", str(work.model(precision)), "--device", made)
            lookalike("index", "build", str(folder), *images, *options)
            gallery = Gallery.open(folder, runtime=Runtime(Device.parse(opened)))
            hits.append({hit.key for hit in gallery.search(images[0], k=10)})
        common = len(hits[0] & hits[1])
        yield Row(
            f"gallery across devices, {precision}",
            f"{common} of 10 hits are the same",
            "ok" if common >= 9 else "FAILED",
            {"common": common},
        )
