"""What serving costs: `POST /v1/search` with a JPEG, beside the bare work that an answer takes.

"bare" decodes, embeds and searches one picture after the other on one core, in this process; "1 client" asks
the server for the same pictures, taking turns with it picture by picture. "batches" does the same work with
32 pictures at a time and all cores, as one would without a server; "32 clients" keep their connections and
send the next picture as soon as they have an answer. "gathered" is a server that puts pictures which arrive
together through the model together, as it is done with a GPU; "2 workers" is `--workers 2`. Servers are
processes of their own. All take turns, round after round, and a ratio is the median of the rounds' ratios.

The highest rate held is what a server can be sent on a clock, at random moments, whoever has been answered:
the largest one at which 99 of 100 are answered with 200, and that within five times the median of a single
client.

On a machine that others use, and as the clients need a share of the cores themselves, processor time says
more than seconds: a server's comes from its own /metrics. The default model is an untrained ResNet-18 at 224
pixels, the gallery holds 20,000 vectors.

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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks._arrivals import arriving, post
from benchmarks._servers import COMMAND, GATHERING, processor_seconds, serving
from benchmarks.indexing import draw, untrained
from retrieval import Embedder, Gallery, load_image
from retrieval.images.decode import cores
from retrieval.ingest.transfer import import_vectors
from retrieval.search.query import Options

BATCH = 32
OPTIONS = Options(k=10)
PATH = "/v1/search?k=10"
SERVERS = {"": COMMAND, ", gathered": GATHERING, ", 2 workers": (*COMMAND, "--workers", "2")}
SLOW, STEPS = 5, 5  # times the median of a single client; halvings in the search for the highest rate


@dataclass(frozen=True)
class Taken:
    """Milliseconds that half, and 99 of 100 of the answers took; answers a second; processor ms an answer."""

    p50: float
    p99: float
    rate: float
    processor: float


def ask(connection: http.client.HTTPConnection, picture: bytes) -> None:
    connection.request("POST", PATH, picture, {"Content-Type": "image/jpeg"})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise SystemExit(f"the server refused: {body.decode()}")


def in_turns(url: str, work: Callable[[bytes], object], pictures: Sequence[bytes]) -> dict[str, Taken]:
    """The bare work and a single client, a picture after the other."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    took: dict[str, list[float]] = {"bare": [], "1 client": []}
    used, before = 0.0, processor_seconds(url)
    for picture in pictures:
        begun, busy = time.perf_counter(), time.process_time()
        work(picture)
        between, used = time.perf_counter(), used + time.process_time() - busy
        ask(connection, picture)
        took["bare"].append(between - begun)
        took["1 client"].append(time.perf_counter() - between)
    processor = {"bare": used, "1 client": processor_seconds(url) - before}
    return {name: summary(took[name], sum(took[name]), processor[name]) for name in took}


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

    before, start = processor_seconds(url), time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        for one in [pool.submit(client) for _ in range(clients)]:
            one.result()
    seconds = time.perf_counter() - start
    return summary(took, seconds, processor_seconds(url) - before)


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


def highest_rate(url: str, pictures: Sequence[bytes], guess: float, slow: float, seconds: float) -> float:
    """The largest number of requests a second that is held; 0 where the least that is tried is too much.

    Args:
        guess: answers a second of clients that wait for them.
        slow: milliseconds that 99 of 100 answers stay within.
        seconds: that a rate is tried for.
    """
    requests = [post(url, PATH, picture, "image/jpeg") for picture in pictures]
    held, too_much = 0.0, 1.5 * guess
    for _ in range(STEPS):
        rate = (held + too_much) / 2
        answers = asyncio.run(arriving(url, requests, rate, seconds))
        good = sum(one.status == 200 and 1000 * one.seconds <= slow for one in answers)
        held, too_much = (rate, too_much) if good >= 0.99 * len(answers) else (held, rate)
    return held


def compare(
    gallery: Path, pictures: Sequence[bytes], rounds: int, seconds: float
) -> tuple[list[dict[str, Taken]], dict[str, float]]:
    """What each contender takes, round by round, without the first, which warms up; and the rates held."""
    target = Gallery(gallery)
    single = Embedder(target.embedder.path, threads=1)

    def bare(picture: bytes) -> object:
        return target.find(single.embed_pixels(decode(single, picture)[None]), OPTIONS)

    with ExitStack() as stack, ThreadPoolExecutor(cores()) as pool:
        urls = {name: stack.enter_context(serving(gallery, words)) for name, words in SERVERS.items()}

        def one_round() -> dict[str, Taken]:
            found = in_turns(urls[""], bare, pictures)
            found["1 client, gathered"] = served(urls[", gathered"], pictures, 1)
            found["batches"] = in_batches(target, pictures, pool)
            for name, url in urls.items():
                found[f"32 clients{name}"] = served(url, pictures, 32)
            found["batches again"] = in_batches(target, pictures, pool)
            return found

        one_round()
        taken = [one_round() for _ in range(rounds)]
        slow = SLOW * median(taken, "1 client").p50
        held = {
            name: highest_rate(url, pictures, median(taken, f"32 clients{name}").rate, slow, seconds)
            for name, url in urls.items()
        }
    return taken, held


def median(taken: Sequence[Mapping[str, Taken]], name: str) -> Taken:
    return Taken(
        *(statistics.median(getattr(t[name], part) for t in taken) for part in asdict(taken[0][name]))
    )


def ratios(taken: Sequence[Mapping[str, Taken]]) -> dict[str, float]:
    """The medians of what each round says."""

    def of(part: str, one: str, *others: str) -> float:
        return statistics.median(
            getattr(t[one], part) / statistics.mean(getattr(t[other], part) for other in others)
            for t in taken
        )

    batches = ("batches", "batches again")
    return {
        "p50: 1 client to bare": of("p50", "1 client", "bare"),
        "CPU: 1 client to bare": of("processor", "1 client", "bare"),
        "rate: 32 clients to batches": of("rate", "32 clients", *batches),
        "CPU: 32 clients to batches": of("processor", "32 clients", *batches),
        "p50: 1 client, gathered to not": of("p50", "1 client, gathered", "1 client"),
        "rate: 32 clients, gathered to not": of("rate", "32 clients, gathered", "32 clients"),
        "CPU: 32 clients, gathered to not": of("processor", "32 clients, gathered", "32 clients"),
        "p99: 32 clients, gathered to not": of("p99", "32 clients, gathered", "32 clients"),
        "rate: 32 clients, 2 workers to 1": of("rate", "32 clients, 2 workers", "32 clients"),
        "CPU: 32 clients, 2 workers to 1": of("processor", "32 clients, 2 workers", "32 clients"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model file")
    parser.add_argument("--count", type=int, default=20_000, help="vectors in the gallery")
    parser.add_argument("--pictures", type=int, default=64, help="a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5, help="that a rate is tried for")
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = args.model or untrained(folder)
        dim = Embedder(model).dim
        np.save(folder / "v.npy", np.random.default_rng(0).standard_normal((args.count, dim), np.float32))
        import_vectors(folder / "g", folder / "v.npy", model=model)
        (folder / "pictures").mkdir()
        draw(folder / "pictures", args.pictures, (500, 375))
        pictures = [path.read_bytes() for path in sorted((folder / "pictures").iterdir())]
        taken, held = compare(folder / "g", pictures, args.rounds, args.seconds)
    print(f"{args.count} x {dim}, {cores()} cores; {before:.1f} processes wanted one before this began")
    print(f"{'':22}{'p50 ms':>9}{'p99 ms':>9}{'a second':>10}{'CPU ms':>9}")
    medians = {name: median(taken, name) for name in taken[0] if name != "batches again"}
    for name, t in medians.items():
        print(f"{name:22}{t.p50:9.1f}{t.p99:9.1f}{t.rate:10.1f}{t.processor:9.1f}")
    found = ratios(taken)
    for what, ratio in found.items():
        print(f"{what:36}{ratio:6.2f}")
    for name, rate in held.items():
        print(
            f"highest rate held{name:14}{rate:6.1f} a second, {rate / medians['batches'].rate:.2f} of batches"
        )
    if args.json:
        figures = {name: asdict(t) for name, t in medians.items()}
        rates = {f"rate held{name}": rate for name, rate in held.items()}
        args.json.write_text(json.dumps({**figures, **found, **rates}, indent=1))


if __name__ == "__main__":
    main()
