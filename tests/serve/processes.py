"""Memory and processes of a server, according to the kernel."""

from __future__ import annotations

import os
from pathlib import Path

from tests.serve.serving import Server


def processes(server: Server) -> list[Path]:
    """Return the /proc folders of the server and its worker processes."""
    return [Path(f"/proc/{process}") for process in (server.process.pid, *server.workers())]


def memory(server: Server) -> int:
    """Return the resident memory of all processes, in bytes."""
    pages = [int((process / "statm").read_text().split()[1]) for process in processes(server)]
    return sum(pages) * os.sysconf("SC_PAGESIZE")


def most_memory(server: Server) -> int:
    """Return the peak resident memory of the main process, in bytes."""
    lines = (processes(server)[0] / "status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
