"""Peak memory of a part of the program: resident in the process, or of the tensors on a GPU."""

from __future__ import annotations

import re
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
