"""Peak memory of a part of the program, against an allocation of known size."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import pytest
import torch

from train.experiments import memory
from train.experiments.memory import PeakMemory

MIB = 2**20


def use(size: int) -> None:
    """Write to fresh pages and unmap them; once a training ran in this process, malloc keeps freed memory."""
    with mmap.mmap(-1, size) as block:
        np.frombuffer(block, np.uint8).fill(1)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_peak_counts_memory_that_was_freed_meanwhile_but_not_before() -> None:
    use(400 * MIB)
    measured = PeakMemory(torch.device("cpu"))
    begun = measured.read()
    use(200 * MIB)
    peak = measured.read()
    assert begun is not None
    assert peak is not None
    assert 190 * MIB < peak - begun < 300 * MIB


def test_peak_is_unknown_where_it_cannot_be_reset(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(memory, "_CLEAR", memory.Path(str(tmp_path)))
    assert PeakMemory(torch.device("cpu")).read() is None
