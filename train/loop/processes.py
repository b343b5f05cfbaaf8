"""Processes that `torchrun` started: ranks, machines, and small messages before they have a process group.

The messages travel through torchrun's key-value store. They serve to compare the machines before the first
step, to find the furthest copy of a run, and to report which process ended the others.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from retrieval.errors import LookalikeError

LONGEST_START = timedelta(hours=2)  # before the first step, one process may decode much longer than another
_POLL = timedelta(seconds=0.3)
_GRACE = 5.0  # seconds in which other processes report their end
_FAILURE, _LOST = "lookalike/failure", "lookalike/lost"  # keys of the store
# Beginnings of errors of Gloo and NCCL that another process causes; torch has no class for those of Gloo.
_CONNECTION = ("connection closed by peer", "connection reset by peer", "timed out waiting", "socket closed")


class OtherProcessError(LookalikeError):
    """Another process ended, and this one cannot go on without it."""


@dataclass(frozen=True)
class Processes:
    """This process's place among those that `torchrun` started; by default it is alone.

    Attributes:
        rank: Number of this process, from 0; rank 0 is the main process.
        size: Number of processes.
        local_rank, local_size: The same among the processes of this machine.
        machine: Number of this machine, from 0.
        machines: Number of machines.
        messages: The store of messages; `None` for a process that is alone.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    machine: int = 0
    machines: int = 1
    messages: Messages | None = None

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @property
    def leads_machine(self) -> bool:
        """Whether this is the process that handles the files of its machine."""
        return self.local_rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all processes, in the order of their ranks."""
        return [value] if self.messages is None else self.messages.gather(value)

    def share(self, value: Any, source: int = 0) -> Any:
        """Return the JSON value of one process."""
        return value if self.messages is None else self.messages.gather(value)[source]

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Report an error of this process to the others; say which one ended if a connection is lost.

        Raises:
            OtherProcessError: Another process ended.
        """
        if self.messages is None:
            yield
            return
        try:
            yield
        except OtherProcessError:
            raise
        except BaseException as error:
            if is_lost_connection(error):
                raise OtherProcessError(self.messages.explain_loss()) from error
            self.messages.report(str(error.__cause__ or error) or type(error).__name__)
            raise


class Messages:
    """Messages between the processes through the store of `torchrun`.

    Args:
        store: Store of torch.distributed.
        rank: Number of this process.
        size: Number of processes.

    Attributes:
        hosts: Name of the machine of each process.
    """

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self.store, self._rank, self._size, self._count = store, rank, size, 0
        self.hosts: list[str] = self.gather(socket.gethostname())

    def name(self, rank: int) -> str:
        """Return a process with its machine, as "rank 3 (gpu-node-2)"."""
        return f"rank {rank} ({self.hosts[rank]})"

    def gather(self, value: Any) -> list[Any]:
        """Return the JSON values of all processes; all must call this equally often.

        Raises:
            OtherProcessError: A process ended before it sent its value.
        """
        self._count += 1
        self.store.set(self._key(self._rank), json.dumps(value))
        return [json.loads(self._wait(self._key(rank))) for rank in range(self._size)]

    def report(self, problem: str) -> None:
        """Let the others know why this process ends; the first report counts."""
        self.store.compare_set(_FAILURE, "", f"{self.name(self._rank)}: {problem}")

    def explain_loss(self) -> str:
        """Return a message for a lost connection: the reported failure, or who did not report anything."""
        silent = list(range(self._size))
        try:
            self.store.set(f"{_LOST}/{self._rank}", "1")
            deadline = time.monotonic() + _GRACE
            while time.monotonic() < deadline:
                if failure := self._failure():
                    return failure
                silent = [r for r in silent if not self.store.check([f"{_LOST}/{r}"])]
                if not silent:
                    break
                time.sleep(0.1)
        except Exception:  # the store ends with the machine that holds it
            silent = []
        lost = ", ".join(map(self.name, silent))
        if silent:
            return f"training: {lost} ended without a message; see its output, then continue with --resume"
        where = "see the output on the other machines, then continue with --resume"
        return f"training: the connection to another process was lost; {where}"

    def _failure(self) -> str | None:
        if not self.store.check([_FAILURE]):
            return None
        return f"training: ended by {self.store.get(_FAILURE).decode()}"

    def _key(self, rank: int) -> str:
        return f"lookalike/{self._count}/{rank}"

    def _wait(self, key: str) -> bytes:
        deadline = time.monotonic() + LONGEST_START.total_seconds()
        while time.monotonic() < deadline:
            try:
                self.store.wait([key], _POLL)
                found: bytes = self.store.get(key)
                return found
            except Exception as error:  # of a class that depends on the store
                if "timeout" not in str(error).lower():
                    break
            if failure := self._failure():
                raise OtherProcessError(failure)
        raise OtherProcessError(self.explain_loss())


@cache
def launched_processes() -> Processes:
    """Return this process's place among those of `torchrun`; it waits until all have started.

    Raises:
        OtherProcessError: The others cannot be reached.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Processes()
    from torch.distributed.rendezvous import rendezvous  # a process that is alone starts without it

    store, rank, size = next(rendezvous("env://"))
    names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    local_rank, local_size, machine, machines = (
        int(os.environ.get(name, default)) for name, default in zip(names, (rank, size, 0, 1), strict=True)
    )
    return Processes(rank, size, local_rank, local_size, machine, machines, Messages(store, rank, size))


def is_lost_connection(error: BaseException) -> bool:
    """Return whether torch.distributed raised an error because another process is gone."""
    from torch.distributed import DistError

    text = str(error).lower()
    return isinstance(error, DistError) or (
        isinstance(error, RuntimeError) and any(words in text for words in _CONNECTION)
    )
