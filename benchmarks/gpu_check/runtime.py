"""ONNX Runtime and galleries on the device: the same results as on the CPU, latencies and rates."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from benchmarks.gpu_check.results import Row, limited
from benchmarks.gpu_check.workload import Workload, lookalike, module
from retrieval import Embedder, Gallery
from retrieval.machine.devices import Device
from retrieval.model.embedder import measure_latency
from retrieval.model.precision import Precision, measure_drift
from retrieval.model.runtime import Runtime

SIZES = (1, 8, 64, 256)
COSINES = {"fp32": 0.9999, "fp16": 0.999, "int8": 0.99}  # lowest to the CPU that a gallery accepts
SECONDS = 0.2  # of the measurement of a latency
INDEXED = 200  # images of the galleries


def inference(work: Workload) -> Iterator[Row]:
    """Compare embeddings of ONNX Runtime on the device with the CPU's, and measure the latency by batch."""
    both = dict.fromkeys((work.main_backbone[0], [*work.backbones][-1]))
    for precision, lowest in COSINES.items():
        for backbone in [*both][: 1 if precision == "int8" else None]:
            name = f"{backbone.rpartition(':')[2]} {precision}"
            file = work.model(precision, backbone)
            ours, cpu = Embedder(file, device=str(work.device)), Embedder(file, device="cpu")
            pixels = random_pixels(ours, 64)
            wanted = cpu.embed_pixels(pixels)
            cosine = float((ours.embed_pixels(pixels) * wanted).sum(1).min())
            yield limited(f"{name}: 1 - cosine to the CPU, on {ours.provider}", 1 - cosine, 1 - lowest)
            yield latency(f"{name}: latency by batch", ours)
            if precision == "fp32" and work.device.type == "cuda":
                ours = Embedder(file, device=str(work.device), tf32=True)
                cosine = float((ours.embed_pixels(pixels) * wanted).sum(1).min())
                what = f"{name}, TF32: 1 - cosine to the CPU"
                yield Row(what, f"{1 - cosine:.2g}", numbers={"value": 1 - cosine})
                yield latency(f"{name}, TF32: latency by batch", ours)


def latency(what: str, embedder: Embedder) -> Row:
    latencies = {size: measure_latency(embedder, size, seconds=SECONDS) for size in SIZES}
    best = max(size / seconds for size, seconds in latencies.items())
    return Row(
        what,
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
    count = f"--count={8 * work.classes}"  # so many that processes begin
    arguments = [count, *(f"--{name}={value}" for name, value in options.items())]
    module("benchmarks.indexing", *arguments)
    measured = json.loads(file.read_text())
    taken = {name: 1 / one["seconds"] for name, one in measured["taken"].items()}
    ratio = measured["ratios"]["of the speed of the slower half"]
    yield Row(
        "indexing JPEG files, of the slower half",
        f"{ratio:.2f} on {measured['cores']} cores; images/s: decoding {taken['decoding alone']:.0f}, "
        f"model {taken['model alone']:.0f}, whole {taken['ours']:.0f}",
        numbers=measured,
    )


def decided(model: str, chosen: Precision, images: list[str], work: Workload) -> Row:
    """Judge the decision of a gallery, which compared on the device, by the vectors of a CPU."""
    file = work.model(model)
    reference = Embedder(file, device="cpu").embed(images)
    drift = measure_drift(reference, Embedder(file, device=str(work.device), tf32=True).embed(images))
    right = drift.within == chosen.allows_tf32
    return Row(
        f"precision of a gallery, {model}",
        f"{chosen}; TF32 against the CPU: {drift}",
        "ok" if right else "FAILED",
        {"tf32": chosen.allows_tf32, **vars(drift)},
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
            if gallery.manifest.precision is not None:
                yield decided(precision, gallery.manifest.precision, images, work)
            hits.append({hit.key for hit in gallery.search(images[0], k=10)})
        common = len(hits[0] & hits[1])
        yield Row(
            f"gallery across devices, {precision}",
            f"{common} of 10 hits are the same",
            "ok" if common >= 9 else "FAILED",
            {"common": common},
        )
