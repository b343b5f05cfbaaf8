"""Copies of a run folder: with several machines, each has one, unless they share a file system.

The main process alone writes during training. When a run begins or is resumed, the copies of the other
machines are brought up to date with the furthest one, and at its end with that of the main process. On a
shared file system all of them are the same files, and nothing is copied.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch

from retrieval.errors import InputError
from retrieval.files import atomic_write, sha256_of
from train import settings
from train.config import Config
from train.loop.process_group import ProcessGroup
from train.loop.processes import Processes
from train.loop.run_folder import Run

_FILES = (
    "config.yaml",
    "metrics.jsonl",
    "noise.csv",
    "teacher.json",
    "checkpoints/*.safetensors",
    "checkpoints/*/*.safetensors",
)
_PIECE = 1 << 26  # bytes sent at once


def refuse_begun(folder: Path, processes: Processes) -> None:
    """Check that no machine has a run with a checkpoint in a folder.

    Raises:
        InputError: One has.
    """
    begun = processes.gather(processes.leads_machine and Run(folder).is_begun)
    if processes.messages is not None and any(begun):
        where = f"{folder} on {processes.messages.name(begun.index(True))}"
        raise InputError(f"{where}: holds a run already; --resume continues it, or choose another --out")


def find_furthest(folder: Path, processes: Processes) -> tuple[int, Config]:
    """Find the furthest copy of a run.

    Returns:
        The process whose machine has it, and the settings of the run.

    Raises:
        InputError: No machine has the run, or two have different ones.
    """
    if processes.messages is None:
        return 0, Run.open(folder).config
    run = Run(folder)
    has = processes.leads_machine and (folder / "config.yaml").is_file()
    copies = {
        rank: (copy["progress"], settings.parse_config(copy["settings"]))
        for rank, copy in enumerate(
            processes.gather({"progress": run.progress, "settings": run.config.to_dict()} if has else None)
        )
        if copy is not None
    }
    if not copies:
        Run.open(folder)  # raises the error of a missing run
    source = max(copies, key=lambda rank: (copies[rank][0], -rank))
    config = copies[source][1]
    for rank, (_, other) in copies.items():
        same_device = other.model_copy(update={"device": config.device})
        if changes := settings.differences(same_device, config):
            where = f"{folder} on {processes.messages.name(rank)}"
            than = processes.messages.name(source)
            raise InputError(f"{where}: another run than on {than}: {changes[0]}; delete one of them")
    return source, config


def update_copies(folder: Path, group: ProcessGroup, source: int = 0) -> None:
    """Bring the copies of a run folder up to date with that of one process; waits for all processes.

    Files are compared by SHA-256; those that differ or are missing on any machine are sent to all.
    """
    processes = group.processes
    if processes.machines > 1:
        own = _digests(folder) if processes.leads_machine else None
        everyone = processes.gather(own)
        wanted, copies = everyone[source], [copy for copy in everyone if copy is not None]
        for name in wanted:
            if any(copy.get(name) != wanted[name] for copy in copies):
                outdated = own is not None and own.get(name) != wanted[name]
                _send(folder / name, group, source, writes=outdated)
        for name in set(own or ()) - set(wanted):
            (folder / name).unlink()
    group.barrier()


def _digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the files of a run and of the one that chose its number of epochs."""
    found = [
        file for root in (folder, Run(folder).choice.folder) for glob in _FILES for file in root.glob(glob)
    ]
    return {str(file.relative_to(folder)): sha256_of(file) for file in found}


def _send(file: Path, group: ProcessGroup, source: int, *, writes: bool) -> None:
    """Send a file from one process to all; those with `writes` replace theirs."""
    sends = group.rank == source
    size = group.processes.share(file.stat().st_size if sends else None, source)
    with ExitStack() as opened:
        reader = opened.enter_context(file.open("rb")) if sends else None
        writer = None
        if writes:
            file.parent.mkdir(parents=True, exist_ok=True)
            writer = opened.enter_context(opened.enter_context(atomic_write(file)).open("wb"))
        for start in range(0, size, _PIECE):
            piece = torch.empty(min(_PIECE, size - start), dtype=torch.uint8)
            if reader is not None:
                reader.readinto(piece.numpy().data)  # the memory of the tensor
            piece = piece.to(group.device)
            group.broadcast([piece], source)
            if writer is not None:
                writer.write(piece.cpu().numpy().data)
