"""Two server processes over one gallery: in PostgreSQL, and in files for comparison.

Each case has 20,000 clustered vectors and two processes of `lookalike serve`. Clients keep one request in
flight and search with JPEG images of 640 x 480 pixels; the model is the small one of the tests, so that the
time is that of decoding, HTTP and the database. All run on this machine, so that CPU time says more than
requests per second: that of the servers and that of the database. Four steps, the first two interleaved:

- search: 32 clients, half of them on each server. Requests per second, latency, responses by status.
- one server: the same clients on the first server alone.
- changes: an image is added through one server and searched at once through the other, which must find it;
  then it is removed through one and must be unknown to the other. Milliseconds of an addition.
- killed: clients add images through both servers and search; the first server is killed by SIGKILL. Every
  addition that was acknowledged must be there, and the second server must not refuse anything.

    python -m benchmarks.store_serving
    python -m benchmarks.store_serving --seconds 10 --json benchmarks/store_serving.json
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when numpy is imported

import argparse
import asyncio
import io
import json
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from benchmarks._arrivals import Answer, ask, in_turn, post
from benchmarks._servers import COMMAND, processor_seconds, started
from benchmarks.gallery_scale import machine
from benchmarks.search import draw
from retrieval import Gallery
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.storage.records import NO_FACTS, Facts, FileStamp, NewItem
from retrieval.stores.address import PASSWORD
from retrieval.stores.opening import parse_address
from tests.retrieval.stores.postgres_server import PostgresServer, running
from tests.serve.model import DIM, write_model

CLIENTS, WRITERS, QUERIES, ROUNDS = 32, 4, 64, 40
PART = 5000  # vectors written at once
SERVE = (*COMMAND, "--allow-changes")
SEARCH, IMAGES = "/v1/search?k=10", "/v1/items"


@dataclass(frozen=True)
class Load:
    """Result of searching clients.

    Attributes:
        rate: Responses per second.
        p50, p99: Latency in ms.
        processor: CPU ms of the servers per response.
        database: CPU ms of the database per response.
        statuses: Responses by status.
    """

    rate: float
    p50: float
    p99: float
    processor: float
    database: float
    statuses: dict[int, int]


def jpeg(seed: int, size: tuple[int, int] = (640, 480)) -> bytes:
    """Return the bytes of an image of random coloured squares, different for each seed."""
    colours = np.random.default_rng([seed, 7]).integers(0, 256, (6, 8, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(colours).resize(size, Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def in_files(folder: Path, model: Path, vectors: np.ndarray) -> Path:
    """Create a gallery in files."""
    gallery = Gallery.create(folder, model)
    facts = Facts([f"k{n}" for n in range(len(vectors))], *([value] * len(vectors) for value in NO_FACTS[1:]))
    with gallery.store.writing():
        gallery.store.append(vectors, facts, {})
        gallery.refresh()
        gallery.build_index()
    return folder


def in_store(folder: Path, model: Path, vectors: np.ndarray, address: str) -> Path:
    """Create a gallery in a database."""
    gallery = Gallery.create(folder, Embedder.open(model, Runtime()), store=address)
    for first in range(0, len(vectors), PART):
        some = vectors[first : first + PART]
        items = [NewItem(FileStamp("", "", 0, 0), "", 0, 0, key=f"k{first + n}") for n in range(len(some))]
        gallery.put(items, some)
    gallery.optimize()
    gallery.engine.close()
    return folder


async def answered(urls: Sequence[str], seconds: float) -> list[Answer]:
    """Search with all clients, divided among the servers."""
    images, each = [jpeg(seed) for seed in range(QUERIES)], CLIENTS // len(urls)
    requests = {url: [post(url, SEARCH, image, "image/jpeg") for image in images] for url in urls}
    found = await asyncio.gather(*(in_turn(url, requests[url], each, seconds) for url in urls))
    return [answer for group in found for answer in group]


def searched(urls: Sequence[str], database: int | None, seconds: float) -> Load:
    """Measure searches; `database` is the process of the database, if there is one."""

    def used() -> tuple[float, float]:
        return sum(map(processor_seconds, urls)), 0.0 if database is None else ticks_of_children(database)

    before, start = used(), time.perf_counter()
    answers = asyncio.run(answered(urls, seconds))
    took = time.perf_counter() - start
    servers, engine = (1000 * (b - a) / len(answers) for a, b in zip(before, used(), strict=True))
    times = [1000 * answer.seconds for answer in answers]
    p50, p99 = (float(np.quantile(times, share)) for share in (0.5, 0.99))
    statuses = dict(Counter(answer.status for answer in answers))
    return Load(len(answers) / took, p50, p99, servers, engine, statuses)


def added_id(answer: Answer) -> int | None:
    """Return the id of an acknowledged addition; `None` if it was not acknowledged."""
    if answer.status != 201:
        return None
    return int(json.loads(answer.text.split(b"\r\n\r\n", 1)[1])["results"][0]["image"]["id"])


def changed(urls: Sequence[str]) -> dict[str, Any]:
    """Add and remove through one server, look through the other, in turns."""
    times, seen, gone = [], 0, 0
    with ExitStack() as stack:
        clients = [stack.enter_context(httpx.Client(base_url=url, timeout=60)) for url in urls]
        for number in range(ROUNDS):
            one, other = clients[number % 2], clients[1 - number % 2]
            image, how = jpeg(10_000 + number), {"content-type": "image/jpeg"}
            start = time.perf_counter()
            answer = one.post(IMAGES, content=image, headers=how)
            times.append(1000 * (time.perf_counter() - start))
            item = answer.json()["results"][0]["image"]["id"]
            hits = other.post(SEARCH, content=image, headers=how).json()["hits"]
            seen += hits[0]["id"] == item
            assert one.delete(f"{IMAGES}/{item}").status_code == 204
            gone += other.get(f"{IMAGES}/{item}").status_code == 404
    p50, p99 = (float(np.quantile(times, share)) for share in (0.5, 0.99))
    return {"rounds": ROUNDS, "seen_at_once": seen, "gone_at_once": gone, "add_p50": p50, "add_p99": p99}


async def killed(urls: Sequence[str], process: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    """Kill the first server while clients add through both and search through the second."""
    until, added, refused = time.perf_counter() + seconds, list[int](), Counter[str]()

    async def writer(server: int, number: int) -> None:
        count = 0
        while time.perf_counter() < until and (server or process.poll() is None):
            count += 1
            seed = 100_000 * (1 + server) + 10_000 * number + count
            answer = await ask(urls[server], post(urls[server], IMAGES, jpeg(seed), "image/jpeg"))
            item = added_id(answer)
            if item is not None:
                added.append(item)
            elif server:
                refused[f"add {answer.status}"] += 1

    async def reader() -> None:
        request = post(urls[1], SEARCH, jpeg(1), "image/jpeg")
        while time.perf_counter() < until:
            answer = await ask(urls[1], request)
            if answer.status != 200:
                refused[f"search {answer.status}"] += 1

    async def kill() -> None:
        await asyncio.sleep(seconds / 2)
        process.kill()

    writers = [writer(server, number) for server in (0, 1) for number in range(WRITERS)]
    await asyncio.gather(kill(), reader(), *writers)
    with httpx.Client(base_url=urls[1], timeout=60) as client:
        lost = sum(client.get(f"{IMAGES}/{item}").status_code != 200 for item in added)
    return {"acknowledged": len(added), "lost": lost, "refused_by_the_other": dict(refused)}


def ticks_of_children(process: int) -> float:
    """Return the CPU seconds of the processes that a process has started and that live."""
    seconds = 0.0
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            facts = file.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(facts[1]) == process:
            seconds += (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def median(loads: Sequence[Load]) -> Load:
    """Return the median of each number over the rounds, and all statuses."""
    statuses = sum((Counter(one.statuses) for one in loads), Counter[int]())
    numbers = [
        statistics.median(getattr(one, name) for one in loads)
        for name in ("rate", "p50", "p99", "processor", "database")
    ]
    return Load(*numbers, dict(statuses))


def main() -> None:
    """Print the results of each case, and write them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=6, help="of each step")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are shown")
    parser.add_argument("--json", type=Path, help="output file")
    args = parser.parse_args()
    vectors, results = draw(args.count, DIM, 1), dict[str, Any]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = write_model(folder / "model.onnx")
        (folder / "postgres").mkdir()
        engine = stack.enter_context(running(folder / "postgres"))
        assert isinstance(engine, PostgresServer)
        os.environ[PASSWORD] = parse_address(engine.address).password
        galleries = {
            "files": in_files(folder / "files.gallery", model, vectors),
            "postgresql": in_store(folder / "store.gallery", model, vectors, engine.address),
        }
        servers = {
            name: [stack.enter_context(started(gallery, SERVE)) for _ in range(2)]
            for name, gallery in galleries.items()
        }
        loads: dict[tuple[str, str], list[Load]] = {}
        for number in range(args.rounds + 1):  # the first is to warm up
            for name, two in servers.items():
                database = engine.process_id if name == "postgresql" else None
                for step, some in (("search", two), ("one server", two[:1])):
                    found = searched([url for url, _ in some], database, args.seconds if number else 2)
                    if number:
                        loads.setdefault((name, step), []).append(found)
        for name, two in servers.items():
            urls = [url for url, _ in two]
            results[name] = {step: asdict(median(of)) for (n, step), of in loads.items() if n == name}
            results[name]["changes"] = changed(urls)
            results[name]["killed"] = asyncio.run(killed(urls, two[0][1], args.seconds))
    for name, found in results.items():
        for step in ("search", "one server"):
            row = found[step]
            text = f"{row['rate']:6.1f} requests/s  p50 {row['p50']:5.0f} ms  p99 {row['p99']:5.0f} ms"
            text += f"  CPU {row['processor']:.1f} + {row['database']:.1f} ms"
            print(f"{name:11} {step:11} {text}  {row['statuses']}")
        print(f"{name:11} changes     {found['changes']}")
        print(f"{name:11} killed      {found['killed']}")
    if args.json:
        about = {"machine": machine(), "clients": CLIENTS, "count": args.count}
        args.json.write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
