"""Freed memory stays with the process: measured by the page faults of allocating it again."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from train.loop.malloc import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        (torch.ones(2**24) + 1).relu()  # three times 64 MiB, which glibc does not keep by default
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
keep_freed_memory()
faults(), faults()  # let the heap grow first
print(faults())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library has no mallopt")
def test_freed_memory_is_reused_without_page_faults() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, kept = map(int, done.stdout.split())
    assert kept < before / 8  # of 12 allocations, one may still grow the heap
