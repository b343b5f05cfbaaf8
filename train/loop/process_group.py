"""Process group of a distributed run: one process, or several under `torchrun` with one device each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from retrieval.errors import InputError
from retrieval.installation import report_idle_gpu

_TIMEOUT = timedelta(hours=2)  # before the first step, one process may decode much longer than another


@dataclass(frozen=True)
class ProcessGroup:
    """This process's place among those that train together.

    Attributes:
        device: Device of this process.
        rank: Number of this process, from 0; rank 0 is the main process, which alone writes and reports.
        size: Number of processes.
    """

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        """Wait until all processes have called this."""
        if self.size > 1:
            dist.barrier()

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the tensors of the main process, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0)

    def close(self) -> None:
        """Destroy the process group at the end of the run."""
        if self.size > 1:
            dist.destroy_process_group()


def join_process_group(device: str) -> ProcessGroup:
    """Join the process group that `torchrun` started, if any, and select this process's device.

    Args:
        device: "auto" (a GPU if available) or a torch device name. With several processes on one machine,
            each takes the GPU of its local rank.

    Raises:
        InputError: An unknown device name, or a GPU that does not exist.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = find_device(device)
    if size == 1:
        return ProcessGroup(chosen)
    if not dist.is_initialized():
        on_gpu = chosen.type == "cuda"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", timeout=_TIMEOUT, device_id=chosen if on_gpu else None
        )
    return ProcessGroup(chosen, dist.get_rank(), size)


def find_device(name: str) -> torch.device:
    """Return a device after checking that it works; a GPU becomes torch's current one.

    Args:
        name: "auto" (a GPU if available) or a torch device name. Under `torchrun` a GPU without a number is
            that of the local rank.

    Raises:
        InputError: An unknown device name, or a GPU that does not exist.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cpu":
            report_idle_gpu("torch")
    if name == "cuda":
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        device = torch.device(name)
        if device.type == "cuda":  # the thread that pins memory would open a context on the first GPU
            torch.cuda.set_device(device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device: {name!r} cannot be used here ({str(error).splitlines()[0]}); try auto"
        ) from error
    return device
