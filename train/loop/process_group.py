"""Process group of a distributed run: one process, or several under `torchrun` with one device each."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from retrieval.errors import InputError
from retrieval.machine.devices import gpus
from retrieval.machine.gpu_trials import build_problem, report_cpu
from train.loop.processes import LONGEST_START, Processes, launched_processes

_T = TypeVar("_T")


@dataclass(frozen=True)
class ProcessGroup:
    """This process's place among those that train together, and what they exchange.

    Attributes:
        device: Device of this process.
        processes: Ranks and machines.
    """

    device: torch.device
    processes: Processes = field(default_factory=Processes)

    @property
    def rank(self) -> int:
        """Number of this process, from 0; rank 0 is the main process, which alone writes and reports."""
        return self.processes.rank

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.processes.size

    @property
    def is_main(self) -> bool:
        return self.processes.is_main

    def barrier(self) -> None:
        """Wait until all processes have called this."""
        if self.size > 1:
            dist.barrier()

    def broadcast(self, tensors: Iterable[Tensor], source: int = 0) -> None:
        """Give all processes the tensors of one of them, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), source)

    def share(self, value: _T) -> _T:
        """Return the object of the main process."""
        if self.size == 1:
            return value
        shared = [value]
        dist.broadcast_object_list(shared, 0)
        return shared[0]

    def any(self, flag: bool) -> bool:
        """Return whether a flag is set in any process; waits for the device."""
        if self.size == 1:
            return flag
        flags = torch.tensor([int(flag)], device=self.device)
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return bool(flags.item())

    def limit_waiting(self, longest: timedelta) -> None:
        """Let collective operations fail that wait longer for another process."""
        if self.size > 1:
            # Newer versions of torch have a public function.
            change = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
            change(longest)

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
    chosen, processes = find_device(device), launched_processes()
    if processes.messages is not None and not dist.is_initialized():
        on_gpu = chosen.type == "cuda"
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=processes.messages.store,
            rank=processes.rank,
            world_size=processes.size,
            timeout=LONGEST_START,
            device_id=chosen if on_gpu else None,
        )
    return ProcessGroup(chosen, processes)


def find_device(name: str) -> torch.device:
    """Return a device after checking that it works; a GPU becomes torch's current one.

    Args:
        name: "auto" (a GPU if available) or a torch device name. Under `torchrun` a GPU without a number is
            that of the local rank.

    Raises:
        InputError: An unknown device name, or a GPU that does not exist.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if gpus() and (name == "cpu" or build_problem("torch", local_rank)):
            name = "cpu"
            report_cpu("torch", local_rank)
    if name == "cuda":
        name = f"cuda:{local_rank}"
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
