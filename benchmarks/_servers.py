"""Server processes to measure, over the same gallery."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

COMMAND = ("-m", "lookalike", "serve", "--no-page", "--port", "0", "--deadline", "600")
GATHERING = ("-m", "benchmarks._servers")


@contextmanager
def started(gallery: Path, words: Sequence[str] = COMMAND) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start `lookalike serve`, or another program of this folder that serves; return address and process."""
    command = [sys.executable, *words, str(gallery)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().removeprefix("Lookalike is at ").strip(), process
        finally:
            process.terminate()


@contextmanager
def serving(gallery: Path, words: Sequence[str] = COMMAND) -> Iterator[str]:
    """Start a server as `started` does, and return its address."""
    with started(gallery, words) as (url, _):
        yield url


def processor_seconds(url: str) -> float:
    """Return the CPU seconds of a server so far, from its /metrics."""
    return _figure(url, "process_cpu_seconds_total")


def memory(url: str) -> int:
    """Return the resident memory of a server in bytes, from its /metrics."""
    return int(_figure(url, "process_resident_memory_bytes"))


def _figure(url: str, name: str) -> float:
    text = httpx.get(f"{url}/metrics", timeout=60).text
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found is not None
    return float(found[1])


def family(process: int) -> list[int]:
    """Return a process and all that it has started and that still run, according to Linux."""
    children = defaultdict[int, list[int]](list)
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            values = (folder / "stat").read_text().rpartition(")")[2].split()
            children[int(values[1])].append(int(folder.name))
    found = [process]
    for member in found:
        found += children[member]
    return found


def processes_seconds(process: int) -> float:
    """Return the CPU seconds of a running process and of all that it has started, according to Linux."""
    ticks = 0
    for member in family(process):
        with suppress(OSError):  # it has ended
            values = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, values[11:15]))  # with children that have ended
    return ticks / os.sysconf("SC_CLK_TCK")


def gathering(gallery: Path) -> None:
    """Serve with batching as on a GPU: concurrent images go through the model in one batch."""
    from serve import processes
    from serve.config import Settings
    from serve.core.service import SearchService

    service = SearchService(gallery, batching=True)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        settings = Settings({service.name: gallery}, page=False, deadline=600)
        processes.run_single(
            settings, [service], listening, lambda: print(f"Lookalike is at {address}", flush=True)
        )


if __name__ == "__main__":
    gathering(Path(sys.argv[1]))
