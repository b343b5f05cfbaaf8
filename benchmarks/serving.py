"""What serving costs: `POST /v1/search` with a JPEG, beside the bare work that an answer takes.

"bare" decodes, embeds and searches one picture after the other on one core, in this process. "batches" does
the same with 32 pictures at a time and all cores, as one would without a server. The server is `lookalike
serve --no-page`, a process of its own; its clients keep their connections and send the next picture as soon
as they have an answer. All take turns, round after round. On a machine that others use, and as the clients
need a share of the cores themselves, processor time says more than seconds: that of the server comes from its
own /metrics. The default model is an untrained ResNet-18 at 224 pixels, the gallery holds 20,000 vectors.

    python -m benchmarks.serving
    python -m benchmarks.serving --model model.onnx --count 200000 --json serving.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when FAISS and numpy are imported

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks.indexing import draw, untrained
from retrieval import Embedder, Gallery, load_image
from retrieval.decoding import cores
from retrieval.searching.query import Options
from retrieval.storage.transfer import import_vectors

BATCH = 32
OPTIONS = Options(k=10)


@dataclass(frozen=True)
class Taken:
    """Milliseconds that half, and 99 of 100 of the answers took; answers a second; processor ms an answer."""

    p50: float
    p99: float
    rate: float
    processor: float


@contextmanager
def serving(gallery: Path) -> Iterator[str]:
    """A server over a gallery -> its address."""
    command = [sys.executable, "-m", "retrieval.cli", "serve", str(gallery), "--no-page", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().removeprefix("Lookalike is at ").strip()
        finally:
            process.terminate()


def ask(connection: http.client.HTTPConnection, picture: bytes) -> None:
    connection.request("POST", "/v1/search?k=10", picture, {"Content-Type": "image/jpeg"})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise SystemExit(f"the server refused: {body.decode()}")


def processor_seconds(host: str) -> float:
    connection = http.client.HTTPConnection(host, timeout=60)
    connection.request("GET", "/metrics")
    found = re.search(rb"^process_cpu_seconds_total (\S+)$", connection.getresponse().read(), re.MULTILINE)
    assert found is not None
    return float(found[1])


def served(url: str, pictures: Sequence[bytes], clients: int) -> Taken:
    """All pictures, by so many clients at once."""
    host, waiting, took = urlsplit(url).netloc, iter(pictures), list[float]()
    lock = threading.Lock()

    def client() -> None:
        connection = http.client.HTTPConnection(host, timeout=60)
        while True:
            with lock:
                picture = next(waiting, None)
            if picture is None:
                return
            begun = time.perf_counter()
            ask(connection, picture)
            took.append(time.perf_counter() - begun)

    before, start = processor_seconds(host), time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        for one in [pool.submit(client) for _ in range(clients)]:
            one.result()
    seconds = time.perf_counter() - start
    return summary(took, seconds, processor_seconds(host) - before)


def alone(work: Callable[[bytes], object], pictures: Sequence[bytes]) -> Taken:
    """The bare work, a picture after the other."""
    took, before, start = [], time.process_time(), time.perf_counter()
    for picture in pictures:
        begun = time.perf_counter()
        work(picture)
        took.append(time.perf_counter() - begun)
    return summary(took, time.perf_counter() - start, time.process_time() - before)


def in_batches(gallery: Gallery, pictures: Sequence[bytes], pool: ThreadPoolExecutor) -> Taken:
    """The bare work on all cores, many pictures at a time."""
    embedder, took = gallery.embedder, []
    before, start = time.process_time(), time.perf_counter()
    for first in range(0, len(pictures), BATCH):
        begun = time.perf_counter()
        pixels = list(pool.map(lambda p: decode(embedder, p), pictures[first : first + BATCH]))
        gallery.find(embedder.embed_pixels(pixels), OPTIONS)
        took.append(time.perf_counter() - begun)
    return summary(took, time.perf_counter() - start, time.process_time() - before, len(pictures))


def decode(embedder: Embedder, picture: bytes) -> np.ndarray:
    return embedder.preprocess(load_image(picture, side=embedder.preprocess.scaled))


def summary(took: Sequence[float], seconds: float, processor: float, answers: int | None = None) -> Taken:
    count = answers or len(took)
    p50, p99 = (1000 * float(np.quantile(took, share)) for share in (0.5, 0.99))
    return Taken(p50, p99, count / seconds, 1000 * processor / count)


def compare(gallery: Path, pictures: Sequence[bytes], rounds: int) -> dict[str, Taken]:
    """What each contender takes; the first round warms up and does not count."""
    target = Gallery(gallery)
    single = Embedder(target.embedder.path, threads=1)

    def bare(picture: bytes) -> object:
        return target.find(single.embed_pixels(decode(single, picture)[None]), OPTIONS)

    few = pictures[: len(pictures) // 2]
    with serving(gallery) as url, ThreadPoolExecutor(cores()) as pool:
        contenders: dict[str, Callable[[], Taken]] = {
            "bare": lambda: alone(bare, few),
            "1 client": lambda: served(url, few, 1),
            "batches": lambda: in_batches(target, pictures, pool),
            "8 clients": lambda: served(url, pictures, 8),
            "32 clients": lambda: served(url, pictures, 32),
        }
        for contender in contenders.values():
            contender()
        taken = [{name: run() for name, run in contenders.items()} for _ in range(rounds)]
    return {
        name: Taken(
            *(statistics.median(getattr(t[name], part) for t in taken) for part in asdict(taken[0][name]))
        )
        for name in contenders
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model file")
    parser.add_argument("--count", type=int, default=20_000, help="vectors in the gallery")
    parser.add_argument("--pictures", type=int, default=64, help="a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = args.model or untrained(folder)
        dim = Embedder(model).dim
        np.save(folder / "v.npy", np.random.default_rng(0).standard_normal((args.count, dim), np.float32))
        import_vectors(folder / "g", folder / "v.npy", model=model)
        (folder / "pictures").mkdir()
        draw(folder / "pictures", args.pictures, (500, 375))
        pictures = [path.read_bytes() for path in sorted((folder / "pictures").iterdir())]
        taken = compare(folder / "g", pictures, args.rounds)
    print(f"{args.count} x {dim}, {cores()} cores")
    print(f"{'':12}{'p50 ms':>9}{'p99 ms':>9}{'a second':>10}{'CPU ms':>9}")
    for contender, t in taken.items():
        print(f"{contender:12}{t.p50:9.1f}{t.p99:9.1f}{t.rate:10.1f}{t.processor:9.1f}")
    ratios = {
        "p50 of 1 client to bare": taken["1 client"].p50 / taken["bare"].p50,
        "CPU of 1 client to bare": taken["1 client"].processor / taken["bare"].processor,
        "rate of 32 clients to batches": taken["32 clients"].rate / taken["batches"].rate,
        "CPU of 32 clients to batches": taken["32 clients"].processor / taken["batches"].processor,
    }
    for what, ratio in ratios.items():
        print(f"{what:32}{ratio:6.2f}")
    if args.json:
        args.json.write_text(json.dumps({**{n: asdict(t) for n, t in taken.items()}, **ratios}, indent=1))


if __name__ == "__main__":
    main()
