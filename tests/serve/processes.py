"""What a server takes of the machine, as the kernel counts it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.serve.serving import Server


def processes(server: Server) -> list[Path]:
    """The server's process and those it has started: where the kernel tells about each."""
    root = Path(f"/proc/{server.process.pid}")
    children = (root / f"task/{server.process.pid}/children").read_text().split()
    return [root, *(Path(f"/proc/{child}") for child in children)]


def memory(server: Server) -> int:
    """Bytes that they hold now."""
    pages = [int((process / "statm").read_text().split()[1]) for process in processes(server)]
    return sum(pages) * os.sysconf("SC_PAGESIZE")


def most_memory(server: Server) -> int:
    """Bytes that the server's own process held when it held most."""
    lines = (processes(server)[0] / "status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
