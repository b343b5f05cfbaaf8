"""Settings of malloc: freed blocks are kept, and a smaller setting does not undo a larger one."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

PROGRAM = """
import resource, threading
import numpy as np
from retrieval.machine import malloc

{prepare}

def work():
    for _ in range(100):  # glibc keeps two of the largest block so far in any case
        blocks = [np.full(1_500_000, 1, np.uint8) for _ in range(5)]
        del blocks

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

work()
print(faults())
"""
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallopt"),
    reason="this C library has no mallopt",
)


def faults(prepare: str) -> int:
    """Return the pages that a thread faults in which allocates blocks again and again."""
    command = [sys.executable, "-c", PROGRAM.format(prepare=prepare)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_blocks_of_images_are_not_faulted_in_again() -> None:
    assert faults("malloc.keep_images()") < 3000 < 30_000 < faults("")


def test_the_larger_setting_stays() -> None:
    large = "assert malloc._kept > 2**30"
    assert faults(f"malloc.keep_tensors(); malloc.keep_images(); {large}") < 3000
    assert faults(f"malloc.keep_images(); malloc.keep_tensors(); {large}") < 3000


def test_tensors_are_not_faulted_in_again() -> None:
    program = """
import resource, torch
from retrieval.machine.malloc import keep_tensors
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        (torch.ones(2**24) + 1).relu()  # three times 64 MiB, which glibc does not keep by default
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
keep_tensors()
faults(), faults()  # let the heap grow first
print(faults())
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    before, after = map(int, done.stdout.split())
    assert after < before / 8  # of 12 allocations, one may still grow the heap
