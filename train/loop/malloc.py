"""glibc malloc settings (mallopt) for training on a CPU."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # parameters of glibc's mallopt


def keep_freed_memory() -> None:
    """Let the process keep up to 2 GiB of freed memory; does nothing without glibc.

    By default glibc returns the blocks of large tensors to the system when they are freed, and every step
    faults them in again page by page, which takes up to 40% of a step.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, size in ((_MMAP_THRESHOLD, 2**30), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 2**26)):
            libc.mallopt(parameter, size)
