"""Settings of glibc's malloc: keep the memory of freed blocks.

By default glibc returns the blocks of images and tensors to the system when they are freed, and the next ones
are faulted in again page by page. That takes up to 40% of a training step on a CPU and a third of decoding.
Threads that decode wait for each other as well: Python's lock is held while buffers are filled.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # parameters of glibc's mallopt
_MEBIBYTE = 2**20
_kept = 0


def keep_images() -> None:
    """Keep up to 64 MiB of freed blocks for each heap, of which glibc has about one per thread.

    Blocks of 32 MiB and more go back to the system at once. Does nothing without glibc.
    """
    _keep(32 * _MEBIBYTE, 64 * _MEBIBYTE, _MEBIBYTE)


def keep_tensors() -> None:
    """Keep up to 2 GiB of freed memory, for training on a CPU; does nothing without glibc."""
    _keep(1024 * _MEBIBYTE, 2048 * _MEBIBYTE - 1, 64 * _MEBIBYTE)


def _keep(block: int, most: int, ahead: int) -> None:
    """Keep freed blocks smaller than `block`, `most` bytes in all, and take `ahead` bytes in advance."""
    global _kept
    if most <= _kept or not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, size in ((_MMAP_THRESHOLD, block), (_TRIM_THRESHOLD, most), (_TOP_PAD, ahead)):
            libc.mallopt(parameter, size)
    _kept = most
