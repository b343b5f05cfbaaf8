"""A server for an hour at a steady rate: whether its memory, open files and threads stay as they are.

Requests arrive at random times, on connections of their own: searches by picture, by item and among some,
items, thumbnails, counts, embeddings, the page; pictures that are damaged, paths that do not exist, bodies
that are no JSON; clients that leave before the answer, and streams of changes that are dropped. Images are
added, relabelled and removed again, so the gallery grows and is compacted.

Memory is the Pss of all processes, which counts shared pages once. The first tenth, in which caches fill, is
left out; the rest is divided into halves. A gallery to which images are added again and again has more files
and rows at the end than at the start, so the work of its commits is in these figures.

    python -m benchmarks.soak --seconds 3600 --rate 5 --json benchmarks/soak.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from benchmarks._arrivals import Answer, ask, get, post
from benchmarks._photographs import write_photographs
from benchmarks._servers import COMMAND, family, processes_seconds, started
from retrieval import Embedder, Gallery, Runtime
from retrieval.commands.default_model import LITE0, chosen_model

CLASSES, PER_CLASS = 50, 20
PAGE = tuple(word for word in COMMAND if word != "--no-page")
SAMPLE = 15.0  # seconds between two readings
_KEPT = 20  # of so many readings one is written


@dataclass(frozen=True)
class Reading:
    """State of all processes of the server at one time.

    Attributes:
        seconds: Since the start.
        memory: Pss in bytes.
        files: Open descriptors.
        threads: Threads.
        processor: CPU seconds so far.
    """

    seconds: float
    memory: int
    files: int
    threads: int
    processor: float


def reading(server: int, begun: float) -> Reading:
    """Read the state of a process and of all that it has started."""
    held = files = threads = 0
    for process in family(server):
        folder = Path(f"/proc/{process}")
        with suppress(OSError):  # it has ended
            rollup = (folder / "smaps_rollup").read_text()
            held += 1024 * int(
                next(line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:"))
            )
            files += len(os.listdir(folder / "fd"))
            threads += len(os.listdir(folder / "task"))
    return Reading(time.monotonic() - begun, held, files, threads, processes_seconds(server))


class Visitors:
    """Requests of many kinds, drawn at random.

    Args:
        url: Address of the server.
        pictures: Bytes of JPEG files.
    """

    def __init__(self, url: str, pictures: Sequence[bytes]) -> None:
        self.kinds = Counter[str]()
        self._url, self._pictures = url, pictures
        self._chance = random.Random(0)
        self._added = list[int]()

    async def visit(self) -> Answer | None:
        """Send one request; None if the client left before the answer."""
        picture, item = self._chance.choice(self._pictures), self._chance.randrange(CLASSES * PER_CLASS)
        kinds = {
            "picture": (6, post(self._url, "/v1/search?k=20", picture, "image/jpeg")),
            "some": (2, post(self._url, "/v1/search?k=20&where=label%3D%27007%27", picture, "image/jpeg")),
            "embedding": (1, post(self._url, "/v1/embed", picture, "image/jpeg")),
            "like": (3, self._json("/v1/search", {"like": [{"id": item}], "k": 20})),
            "items": (2, get(self._url, "/v1/items?limit=100&order=label")),
            "thumbnail": (4, get(self._url, f"/v1/items/{item}/thumbnail")),
            "original": (1, get(self._url, f"/v1/items/{item}/picture")),
            "counts": (1, get(self._url, "/v1/facets?columns=label")),
            "page": (1, get(self._url, "/")),
            "damaged": (1, post(self._url, "/v1/search", picture[: len(picture) // 3], "image/jpeg")),
            "no JSON": (1, post(self._url, "/v1/search", b'{"like": [', "application/json")),
            "no path": (1, get(self._url, "/v1/nothing")),
        }
        changes = {"add": 1, "label": 1, "remove": 1, "leave": 1, "stream": 1}
        weights = [*(weight for weight, _ in kinds.values()), *changes.values()]
        [kind] = self._chance.choices([*kinds, *changes], weights)
        self.kinds[kind] += 1
        match kind:
            case "add":  # other bytes than before, so that it is not known
                path = "/v1/items?label=new"
                answer = await ask(self._url, post(self._url, path, picture + os.urandom(8), "image/jpeg"))
                [_, _, body] = answer.text.partition(b"\r\n\r\n")
                self._added += [one["image"]["id"] for one in json.loads(body).get("results", ())]
                return answer
            case "label" | "remove" if self._added:
                id = self._chance.choice(self._added)
                if kind == "label":
                    return await ask(self._url, self._json(f"/v1/items/{id}", {"label": "old"}, "PATCH"))
                self._added.remove(id)
                return await ask(self._url, self._json(f"/v1/items/{id}", {}, "DELETE"))
            case "leave" | "stream":
                request = get(self._url, "/v1/events") if kind == "stream" else kinds["picture"][1]
                await self._drop(request, self._chance.uniform(0, 0.1) if kind == "leave" else 20)
                return None
        return await ask(self._url, kinds.get(kind, kinds["page"])[1])

    def _json(self, path: str, body: object, method: str = "POST") -> bytes:
        request = post(self._url, path, json.dumps(body).encode(), "application/json")
        return request.replace(b"POST", method.encode(), 1)

    async def _drop(self, request: bytes, seconds: float) -> None:
        """Send a request and close the connection after some time."""
        where = urlsplit(self._url)
        with suppress(OSError):
            _, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.write(request)
            await asyncio.sleep(seconds)
            writer.close()


async def soak(
    url: str, server: int, pictures: Sequence[bytes], rate: float, seconds: float
) -> tuple[list[Reading], list[Answer], Counter[str]]:
    """Send requests and read the state of the server meanwhile."""
    visitors, chance, begun = Visitors(url, pictures), random.Random(1), time.monotonic()
    readings, answers, tasks = list[Reading](), list[Answer](), set[asyncio.Task[None]]()

    async def visit() -> None:
        answer = await visitors.visit()
        if answer is not None:
            answers.append(Answer(answer.status, answer.seconds, b""))

    async def watch() -> None:
        while True:
            readings.append(await asyncio.to_thread(reading, server, begun))
            last = readings[-1]
            print(
                f"{last.seconds:6.0f} s  {last.memory / 2**20:6.1f} MB"
                f"  {last.files} files  {last.threads} threads",
                flush=True,
            )
            await asyncio.sleep(SAMPLE)

    watching = asyncio.create_task(watch())
    while time.monotonic() < begun + seconds:
        await asyncio.sleep(chance.expovariate(rate))
        tasks.add(task := asyncio.create_task(visit()))
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    watching.cancel()
    return readings, answers, visitors.kinds


def summary(readings: Sequence[Reading], answers: Sequence[Answer]) -> dict[str, object]:
    """Compare the halves of the run after its first tenth."""
    rest = readings[len(readings) // 10 :]
    halves = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    times = sorted(one.seconds for one in answers)
    return {
        "requests": len(answers),
        "statuses": {str(status): n for status, n in sorted(Counter(one.status for one in answers).items())},
        "p50_ms": 1000 * times[len(times) // 2],
        "p99_ms": 1000 * times[len(times) * 99 // 100],
        **{
            name: [statistics.median(getattr(one, name) for one in half) for half in halves]
            for name in ("memory", "files", "threads")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="model file (default: EfficientNet-Lite0)")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--rate", type=float, default=5, help="requests per second (default: 5)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = write_photographs(folder / "images", CLASSES, PER_CLASS)
        gallery = Gallery.create(
            folder / "soak.gallery", Embedder(args.model or chosen_model(LITE0, Runtime()))
        )
        gallery.add([folder / "images"])
        pictures = [path.read_bytes() for path in paths[::7]]
        words = (*PAGE, "--allow-changes", "--workers", str(args.workers))
        with started(folder / "soak.gallery", words) as (url, process):
            httpx.get(url, timeout=60).raise_for_status()
            readings, answers, kinds = asyncio.run(soak(url, process.pid, pictures, args.rate, args.seconds))
    found = {
        "seconds": args.seconds,
        "rate": args.rate,
        "workers": args.workers,
        "kinds": kinds,
        **summary(readings, answers),
        "readings": [asdict(one) for one in readings[::_KEPT]],
    }
    print(json.dumps({name: value for name, value in found.items() if name != "readings"}, indent=2))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
