"""CPU cores and memory that this process may use, also in a container (cgroup v2)."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from retrieval.system import physical_memory

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_MEMORY = Path("/proc/meminfo")


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for cgroup in _own_cgroups():
        quota, _, period = _read(cgroup / "cpu.max").partition(" ")
        if quota.isdecimal():  # else "max", or no such file
            found = min(found, math.ceil(int(quota) / int(period)))
    return max(1, found)


def free_memory() -> int:
    """Return the memory that is available to this process, in bytes; caches of files count as available.

    Where the system does not report it, half of the physical memory is taken.
    """
    available = re.search(r"^MemAvailable:\s+(\d+) kB$", _read(_MEMORY), re.MULTILINE)
    if available is None:
        return physical_memory() // 2
    found = 1024 * int(available[1])
    for cgroup in _own_cgroups():
        limit, used = _read(cgroup / "memory.max"), _read(cgroup / "memory.current")
        cached = re.search(r"^inactive_file (\d+)$", _read(cgroup / "memory.stat"), re.MULTILINE)
        if limit.isdecimal() and used.isdecimal() and cached is not None:
            found = min(found, int(limit) - int(used) + int(cached[1]))
    return max(0, found)


def _own_cgroups() -> Iterator[Path]:
    """Yield the folders of the cgroup of this process and of those that contain it."""
    own = re.search(r"^0::/(.*)$", _read(_OWN_CGROUP), re.MULTILINE)
    if own is not None:
        folder = _CGROUPS / own[1]
        yield folder
        yield from (parent for parent in folder.parents if parent.is_relative_to(_CGROUPS))


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
