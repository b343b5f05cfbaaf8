"""Memory of a part of the program: peak (resident in the process, or tensors on a GPU), and its release."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

_CLEAR = Path("/proc/self/clear_refs")  # writing 5 resets VmHWM to the current size (man 5 proc)
_STATUS = Path("/proc/self/status")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class PeakMemory:
    """Measures the most memory that was in use since its creation.

    Args:
        device: A GPU measures PyTorch's tensors on it, everything else the resident memory of this process.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_reset = False
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        try:
            _CLEAR.write_text("5")
            self._is_reset = True
        except OSError:  # not Linux, or not allowed
            pass

    def read(self) -> int | None:
        """Return the peak in bytes; `None` where the system does not tell it."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        found = _PEAK.search(_STATUS.read_text()) if self._is_reset else None
        return 1024 * int(found[1]) if found else None


@contextmanager
def release_memory() -> Iterator[None]:
    """Collect the cyclic garbage of the block when it ends, and with it the tensors that it holds.

    Objects that existed before are left out: visiting those of the imported modules takes 0.3 s.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
