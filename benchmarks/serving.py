"""Serving overhead: `POST /v1/search` with a JPEG, compared with the bare work of a response.

"bare" decodes, embeds and searches one image after the other on one core, in this process; "1 client" sends
the same images to the server, interleaved image by image. "batches" does the same work with 8 images at a
time on all cores, without a server; "8 clients" keep their connections and send the next image after a
response. "gathered" is a server that batches concurrent images for the model, as on a GPU; "2 workers" is
`--workers 2`. Servers run in separate processes. All run interleaved, and a ratio is the median of the ratios
of the rounds. Some have a goal, which is printed beside them.

Then the clients send 5,000 images, and the server's memory is read after every 500.

The highest sustained rate is measured with open-loop requests at random times: the largest rate at which 99
of 100 requests get status 200 within five times the median of a single client.

On a shared machine, where the clients also need the cores, CPU time is more reliable than wall-clock time; a
server's comes from its /metrics. The default model is EfficientNet-Lite0, which is downloaded once; the
gallery has 20,000 vectors.

    python -m benchmarks.serving
    python -m benchmarks.serving --model model.onnx --count 200000 --json serving.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when FAISS and numpy are imported

import argparse
import asyncio
import http.client
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks._arrivals import arriving, post
from benchmarks._photographs import write_photographs
from benchmarks._servers import COMMAND, GATHERING, memory, processor_seconds, serving
from retrieval import Embedder, Gallery, Runtime, load_image
from retrieval.commands.default_model import LITE0, chosen_model
from retrieval.machine.resources import cores
from retrieval.search.options import SearchOptions

BATCH = CLIENTS = 8
SAMPLE = 500  # requests between two readings of the memory
OPTIONS = SearchOptions(k=10)
PATH = "/v1/search?k=10"
SERVERS = {"": COMMAND, ", gathered": GATHERING, ", 2 workers": (*COMMAND, "--workers", "2")}
# Ratios that should be no higher, or no lower.
AT_MOST = {"CPU: 1 client to bare": 1.1, "memory: last to first": 1.05}
AT_LEAST = {"rate: 8 clients to batches": 0.95, "rate: 8 clients, 2 workers to 1": 1.0}
SLOW, STEPS = 5, 5  # times the median of a single client; halvings in the search for the highest rate


@dataclass(frozen=True)
class Taken:
    """Median and 99th percentile latency in ms; responses per second; CPU ms per response."""

    p50: float
    p99: float
    rate: float
    processor: float


def ask(connection: http.client.HTTPConnection, image: bytes) -> None:
    connection.request("POST", PATH, image, {"Content-Type": "image/jpeg"})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise SystemExit(f"the server refused: {body.decode()}")


def in_turns(url: str, work: Callable[[bytes], object], images: Sequence[bytes]) -> dict[str, Taken]:
    """Measure the bare work and a single client, interleaved image by image."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    took: dict[str, list[float]] = {"bare": [], "1 client": []}
    used, before = 0.0, processor_seconds(url)
    for image in images:
        begun, busy = time.perf_counter(), time.process_time()
        work(image)
        between, used = time.perf_counter(), used + time.process_time() - busy
        ask(connection, image)
        took["bare"].append(between - begun)
        took["1 client"].append(time.perf_counter() - between)
    processor = {"bare": used, "1 client": processor_seconds(url) - before}
    return {name: summary(took[name], sum(took[name]), processor[name]) for name in took}


def served(url: str, images: Sequence[bytes], clients: int) -> Taken:
    """Measure all images with several clients at once."""
    host, waiting, took = urlsplit(url).netloc, iter(images), list[float]()
    lock = threading.Lock()

    def client() -> None:
        connection = http.client.HTTPConnection(host, timeout=60)
        while True:
            with lock:
                image = next(waiting, None)
            if image is None:
                return
            begun = time.perf_counter()
            ask(connection, image)
            took.append(time.perf_counter() - begun)

    before, start = processor_seconds(url), time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        for one in [pool.submit(client) for _ in range(clients)]:
            one.result()
    seconds = time.perf_counter() - start
    return summary(took, seconds, processor_seconds(url) - before)


def in_batches(gallery: Gallery, images: Sequence[bytes], pool: ThreadPoolExecutor) -> Taken:
    """Measure the bare work on all cores, in batches."""
    embedder, took = gallery.embedder, []
    before, start = time.process_time(), time.perf_counter()
    for first in range(0, len(images), BATCH):
        begun = time.perf_counter()
        pixels = list(pool.map(lambda p: decode(embedder, p), images[first : first + BATCH]))
        gallery.find(embedder.embed_pixels(pixels), OPTIONS)
        took.append(time.perf_counter() - begun)
    return summary(took, time.perf_counter() - start, time.process_time() - before, len(images))


def decode(embedder: Embedder, image: bytes) -> np.ndarray:
    return embedder.preprocess(load_image(image, side=embedder.preprocess.scaled))


def summary(took: Sequence[float], seconds: float, processor: float, answers: int | None = None) -> Taken:
    count = answers or len(took)
    p50, p99 = (1000 * float(np.quantile(took, share)) for share in (0.5, 0.99))
    return Taken(p50, p99, count / seconds, 1000 * processor / count)


def highest_rate(url: str, images: Sequence[bytes], guess: float, slow: float, seconds: float) -> float:
    """Return the highest sustained requests per second; 0 if the lowest rate tried is too high.

    Args:
        guess: answers a second of clients that wait for them.
        slow: milliseconds that 99 of 100 answers stay within.
        seconds: that a rate is tried for.
    """
    requests = [post(url, PATH, image, "image/jpeg") for image in images]
    held, too_much = 0.0, 1.5 * guess
    for _ in range(STEPS):
        rate = (held + too_much) / 2
        answers = asyncio.run(arriving(url, requests, rate, seconds))
        good = sum(one.status == 200 and 1000 * one.seconds <= slow for one in answers)
        held, too_much = (rate, too_much) if good >= 0.99 * len(answers) else (held, rate)
    return held


def compare(
    gallery: Path, images: Sequence[bytes], rounds: int, seconds: float
) -> tuple[list[dict[str, Taken]], dict[str, float]]:
    """Return the times of each contender per round, without the warm-up round, and the sustained rates."""
    target = Gallery(gallery)
    single = Embedder(target.embedder.path, threads=1)

    def bare(image: bytes) -> object:
        return target.find(single.embed_pixels(decode(single, image)[None]), OPTIONS)

    with ExitStack() as stack, ThreadPoolExecutor(cores()) as pool:
        urls = {name: stack.enter_context(serving(gallery, words)) for name, words in SERVERS.items()}

        def one_round() -> dict[str, Taken]:
            found = in_turns(urls[""], bare, images)
            found["1 client, gathered"] = served(urls[", gathered"], images, 1)
            found["batches"] = in_batches(target, images, pool)
            for name, url in urls.items():
                found[f"{CLIENTS} clients{name}"] = served(url, images, CLIENTS)
            found["batches again"] = in_batches(target, images, pool)
            return found

        one_round()
        taken = [one_round() for _ in range(rounds)]
        slow = SLOW * median(taken, "1 client").p50
        held = {
            name: highest_rate(url, images, median(taken, f"{CLIENTS} clients{name}").rate, slow, seconds)
            for name, url in urls.items()
        }
    return taken, held


def median(taken: Sequence[Mapping[str, Taken]], name: str) -> Taken:
    return Taken(
        *(statistics.median(getattr(t[name], part) for t in taken) for part in asdict(taken[0][name]))
    )


def growth(gallery: Path, images: Sequence[bytes], requests: int) -> Iterator[int]:
    """Yield the memory of a new server in bytes, each time that clients have sent `SAMPLE` images."""
    with serving(gallery) as url:
        for _ in range(0, requests, SAMPLE):
            served(url, [*islice(cycle(images), SAMPLE)], CLIENTS)
            yield memory(url)


def goal(what: str, ratio: float) -> str:
    """Return the goal of a ratio, if it has one, and whether it is met."""
    if what in AT_MOST:
        return f"  at most {AT_MOST[what]:g}: {'met' if ratio <= AT_MOST[what] else 'missed'}"
    if what in AT_LEAST:
        return f"  at least {AT_LEAST[what]:g}: {'met' if ratio >= AT_LEAST[what] else 'missed'}"
    return ""


def ratios(taken: Sequence[Mapping[str, Taken]]) -> dict[str, float]:
    """Return the medians over the rounds."""

    def of(part: str, one: str, *others: str) -> float:
        found: list[float] = [
            getattr(t[one], part) / statistics.mean(getattr(t[other], part) for other in others)
            for t in taken
        ]
        return statistics.median(found)

    batches = ("batches", "batches again")
    return {
        "p50: 1 client to bare": of("p50", "1 client", "bare"),
        "CPU: 1 client to bare": of("processor", "1 client", "bare"),
        "rate: 8 clients to batches": of("rate", "8 clients", *batches),
        "CPU: 8 clients to batches": of("processor", "8 clients", *batches),
        "p50: 1 client, gathered to not": of("p50", "1 client, gathered", "1 client"),
        "rate: 8 clients, gathered to not": of("rate", "8 clients, gathered", "8 clients"),
        "CPU: 8 clients, gathered to not": of("processor", "8 clients, gathered", "8 clients"),
        "p99: 8 clients, gathered to not": of("p99", "8 clients, gathered", "8 clients"),
        "rate: 8 clients, 2 workers to 1": of("rate", "8 clients, 2 workers", "8 clients"),
        "CPU: 8 clients, 2 workers to 1": of("processor", "8 clients, 2 workers", "8 clients"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, help="model file; default: EfficientNet-Lite0")
    parser.add_argument("--count", type=int, default=20_000, help="vectors in the gallery")
    parser.add_argument("--images", type=int, default=64, help="images per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="seconds per tried rate")
    parser.add_argument("--requests", type=int, default=5000, help="requests between which memory is read")
    parser.add_argument("--json", type=Path, help="output file")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = args.model or chosen_model(LITE0, Runtime())
        dim = Embedder(model).dim
        np.save(folder / "v.npy", np.random.default_rng(0).standard_normal((args.count, dim), np.float32))
        Gallery.import_vectors(folder / "g", folder / "v.npy", model=model)
        (folder / "images").mkdir()
        write_photographs(folder / "images", args.images, 1)
        images = [path.read_bytes() for path in sorted((folder / "images").rglob("*.jpg"))]
        taken, held = compare(folder / "g", images, args.rounds, args.seconds)
        sizes = [*growth(folder / "g", images, args.requests)]
    print(f"{args.count} x {dim}, {cores()} cores; {before:.1f} processes wanted one before this began")
    print(f"{'':22}{'p50 ms':>9}{'p99 ms':>9}{'a second':>10}{'CPU ms':>9}")
    medians = {name: median(taken, name) for name in taken[0] if name != "batches again"}
    for name, t in medians.items():
        print(f"{name:22}{t.p50:9.1f}{t.p99:9.1f}{t.rate:10.1f}{t.processor:9.1f}")
    found = ratios(taken) | {"memory: last to first": sizes[-1] / sizes[0]}
    for what, ratio in found.items():
        print(f"{what:36}{ratio:6.2f}{goal(what, ratio)}")
    print("memory in MB:", *(round(size / 2**20) for size in sizes))
    for name, rate in held.items():
        print(
            f"highest rate held{name:14}{rate:6.1f} a second, {rate / medians['batches'].rate:.2f} of batches"
        )
    if args.json:
        figures = {name: asdict(t) for name, t in medians.items()}
        rates = {f"rate held{name}": rate for name, rate in held.items()}
        results = {**figures, **found, **rates, "memory": sizes}
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
