"""The processes of a run: one alone, or several under `torchrun`, each with a device of its own."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from retrieval.errors import InputError


@dataclass(frozen=True)
class ProcessGroup:
    """This process among those that train together.

    Attributes:
        device: of this process.
        rank: its number, from 0; rank 0 is_main: it alone writes and reports.
        size: how many there are.
    """

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        """Until all have come here."""
        if self.size > 1:
            dist.barrier()

    def close(self) -> None:
        """At the end of everything."""
        if self.size > 1:
            dist.destroy_process_group()


def join_process_group(device: str) -> ProcessGroup:
    """Find the others that `torchrun` started, if it did, and this process's device.

    Args:
        device: "auto" (a GPU where there is one), or as torch names it. Of several processes on one machine,
            each takes the GPU of its own number.

    Raises:
        InputError: a name that torch does not know, or a GPU that is not there.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if size > 1 and device == "cuda":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    chosen = _usable(device)
    if size == 1:
        return ProcessGroup(chosen)
    if not dist.is_initialized():
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    return ProcessGroup(chosen, dist.get_rank(), size)


def _usable(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device: {name!r} cannot be used here ({str(error).splitlines()[0]}); try auto"
        ) from error
    return device
