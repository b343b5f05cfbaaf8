"""Memory for training on a CPU."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of glibc's mallopt


def keep_freed_memory() -> None:
    """Let the process keep the memory that it frees, up to 2 GiB.

    By default glibc gives the blocks of large tensors back to the system when they are freed. Every step
    takes them again, a page at a time: up to 40% of the time of a step. Elsewhere this does nothing.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, size in ((_MMAP_THRESHOLD, 2**30), (_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 2**26)):
            libc.mallopt(parameter, size)
