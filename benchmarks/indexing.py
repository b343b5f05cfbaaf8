"""Indexing throughput of a folder, compared with its limits and with a simple loop.

"decoding alone" and "model alone" are the two halves, each with all cores. On an accelerator they run in
parallel, and the limit is the slower one; on a CPU they share the cores, and the limit is the sum of both.
The model runs with the batch size that the embedder has measured; "model, 32 a run" shows the gain. "one by
one" opens, scales and embeds one image at a time with Pillow, 200 at most. All run interleaved for several
rounds, and the medians are compared. Ours includes the commits but not the start-up: an empty gallery exists,
its model is loaded, and on a GPU its precision is chosen. On a shared machine, CPU time is more reliable than
images per second. The default model is an untrained ResNet-18 at 224 pixels.

"the rest" is what an image costs beside decoding and the model: images of 8 pixels, and a function in place
of the model. The time of the main thread limits the images a second of any number of cores.

    python -m benchmarks.indexing
    python -m benchmarks.indexing --size 3000 2000 --count 64
    python -m benchmarks.indexing --images DIR --model model.onnx --json indexing.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
from PIL import Image

from benchmarks._photographs import write_photographs
from benchmarks.gallery_scale import commit, machine
from retrieval import Embedder, Gallery
from retrieval.images.decode import BATCH, decode_ahead
from retrieval.images.location import Location
from retrieval.images.picture import Decoded
from retrieval.ingest.precision_choice import choose_precision
from retrieval.machine.resources import cores

MEASURED = 640  # images after which the embedder has chosen its batch size
SIMPLE = 200  # most images of the simple loop, which takes as many seconds for thousands as all else together


def decoding_alone(paths: Sequence[Path], embedder: Embedder) -> None:
    for _ in decode_ahead(paths, embedder.preprocess, side=embedder.preprocess.scaled):
        pass


def model_alone(pixels: Sequence[np.ndarray], embedder: Embedder) -> None:
    size = embedder.batch_size
    with ThreadPoolExecutor(embedder.concurrency) as pool:
        starts = range(0, len(pixels), size)
        list(pool.map(lambda start: embedder.embed_pixels(pixels[start : start + size]), starts))


def model_in_batches(pixels: Sequence[np.ndarray], embedder: Embedder) -> None:
    for start in range(0, len(pixels), BATCH):
        embedder.embed_in_one_run(pixels[start : start + BATCH])


def one_by_one(paths: Sequence[Path], embedder: Embedder) -> None:
    for path in paths:
        with Image.open(path) as image:
            embedder.embed_pixels([embedder.preprocess(image.convert("RGB"))])


@dataclass(frozen=True)
class Rest:
    """CPU seconds per image of a run without a model, in one and all threads, and of decoding alone."""

    main_thread: float
    all_threads: float
    decoding: float


def measure_rest(model: Path, count: int, folder: Path) -> Rest:
    """Measure what indexing costs beside decoding and the model; the fastest of three runs."""
    embedder = Embedder(model, device="cpu")  # not run; on a GPU, its precision would be chosen first
    images, random = folder / "tiny", np.random.default_rng(0)
    images.mkdir()
    for number in range(count):
        pixels = random.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(images / f"{number}.jpg")
    vectors = np.eye(1, embedder.dim, dtype=np.float32).repeat(embedder.batch_size, axis=0)
    paths, taken = sorted(images.iterdir()), []
    for _ in range(3):
        gallery = Gallery.create(folder / uuid.uuid4().hex, embedder)
        with patch.object(embedder, "embed_pixels", lambda pixels: vectors[: len(pixels)]):
            start = time.thread_time(), time.process_time()
            gallery.add([images])
            end = time.thread_time(), time.process_time()
        decoding_alone(paths, embedder)
        spent = end[0] - start[0], end[1] - start[1], time.process_time() - end[1]
        taken.append([seconds / count for seconds in spent])
    return Rest(*map(min, zip(*taken, strict=True)))


@dataclass(frozen=True)
class Taken:
    """Wall-clock seconds and CPU seconds on all cores, per image."""

    seconds: float
    processor: float


def choose(paths: Sequence[Path], count: int, folder: Path) -> list[Path]:
    """Fill a folder with links to files, and with copies that differ in bytes after their end."""
    folder.mkdir()
    for number in range(count):
        file, source = folder / f"{number}.jpg", paths[number % len(paths)].resolve()
        if number < len(paths):
            file.symlink_to(source)
        else:
            file.write_bytes(source.read_bytes() + str(number).encode())
    return sorted(folder.iterdir())


def compare(images: Path, embedder: Embedder, count: int, rounds: int, folder: Path) -> dict[str, Taken]:
    """Return the times of each contender, without the first round, which warms up."""
    paths = sorted(path for path in images.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        raise SystemExit(f"{images}: no JPEG files in it")
    if len(paths) != count:
        images = folder / "chosen"
        paths = choose(paths, count, images)
    files = decode_ahead(paths, embedder.preprocess, side=embedder.preprocess.scaled)
    pixels = [file.pixels for file in files if isinstance(file, Decoded)]
    few = paths[:SIMPLE]

    def measured(work: Callable[[], object], images: int = len(paths)) -> Taken:
        start, begun = time.perf_counter(), time.process_time()
        work()
        return Taken((time.perf_counter() - start) / images, (time.process_time() - begun) / images)

    def each() -> dict[str, Taken]:
        gallery = Gallery.create(folder / uuid.uuid4().hex, embedder)
        with gallery.writer.running():  # which a run does once for a gallery, on a GPU
            choose_precision(gallery, map(Location.parse, paths))
        gallery.embedder.embed_pixels([pixels[i % len(pixels)] for i in range(MEASURED)])
        return {
            "decoding alone": measured(lambda: decoding_alone(paths, embedder)),
            "model alone": measured(lambda: model_alone(pixels, gallery.embedder)),
            "model, 32 a run": measured(lambda: model_in_batches(pixels, gallery.embedder)),
            "one by one": measured(lambda: one_by_one(few, embedder), len(few)),
            "ours": measured(lambda: gallery.add([images])),
        }

    each()
    taken = [each() for _ in range(rounds)]
    return {
        name: Taken(
            *(statistics.median(getattr(t[name], part) for t in taken) for part in ("seconds", "processor"))
        )
        for name in taken[0]
    }


def untrained(folder: Path) -> Path:
    """Export an untrained ResNet-18."""
    words = ["train", "--data", "digits", "--out", str(folder / "run"), "--set", "epochs=0"]
    words += [
        "--set",
        "model.backbone=resnet18",
        "--set",
        "model.weights=null",
        "--set",
        "preprocess.size=224",
    ]
    export = ["export", str(folder / "run"), "--out", str(folder / "model.onnx"), "--data", "noise"]
    for command in (words, export):
        subprocess.run([sys.executable, "-m", "lookalike", *command], check=True, capture_output=True)
    return folder / "model.onnx"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder of JPEG files; default: generated images")
    parser.add_argument(
        "--size", type=int, nargs=2, default=(500, 375), help="width and height of generated images"
    )
    parser.add_argument(
        "--count", type=int, default=96, help="images per round; files are repeated if there are fewer"
    )
    parser.add_argument("--tiny", type=int, default=2000, help='images of "the rest"')
    parser.add_argument("--model", type=Path)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", help="output file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("images", "model", "galleries"):
            (folder / part).mkdir()
        model = args.model or untrained(folder / "model")
        embedder = Embedder(model, device=args.device)
        if args.images is None:
            write_photographs(folder / "images", args.count, 1, tuple(args.size))
        images = args.images or folder / "images"
        taken = compare(images, embedder, args.count, args.rounds, folder / "galleries")
        rest = measure_rest(model, args.tiny, folder)
    for name, one in taken.items():
        print(f"{name:16}{1 / one.seconds:10.1f} images/s{1000 * one.processor:10.2f} ms of CPU time each")
    ours, decoding, model = (taken[name] for name in ("ours", "decoding alone", "model alone"))
    ratios = {
        "of the speed of the slower half": max(decoding.seconds, model.seconds) / ours.seconds,
        "of the speed of both halves on the same cores": (decoding.seconds + model.seconds) / ours.seconds,
        "the same in CPU time": (decoding.processor + model.processor) / ours.processor,
        "of one by one": taken["one by one"].seconds / ours.seconds,
    }
    print(
        f"the rest, an image: {1000 * rest.main_thread:.3f} ms in the main thread, "
        f"{1000 * (rest.all_threads - rest.decoding):.3f} ms in all beside decoding "
        f"({rest.all_threads / rest.decoding:.2f}x the CPU time of decoding 8 pixels)"
    )
    print(f"on {cores()} cores with {embedder.provider}, ours is")
    for what, ratio in ratios.items():
        print(f"{ratio:10.2f}x {what}")
    if args.json:
        facts = {name: asdict(one) for name, one in taken.items()}
        where = {"machine": machine(), "commit": commit(), "cores": cores(), "provider": embedder.provider}
        what = {"images": str(args.images or args.size), "model": str(args.model or "resnet18, 224 pixels")}
        found = where | what | {"taken": facts, "rest": asdict(rest), "ratios": ratios}
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
