"""Processes forked from a server that has imported torch once: they start in milliseconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
from torch.distributed.run import main as torchrun

from retrieval.cli import main

# The tests' own process cannot be forked: autograd has threads there once a backward pass has run.
START_METHOD = "forkserver"
_CONTEXT = multiprocessing.get_context(START_METHOD)
_CONTEXT.set_forkserver_preload(["train.experiments.sweep", "tests.train.forking", "torch._dynamo"])


def start_lookalike(folder: Path, *words: str, variables: Mapping[str, str] | None = None) -> BaseProcess:
    """Start the command in a working folder, which gets its output in the files `stdout` and `stderr`."""
    return _start(main, folder, words, variables)


def start_torchrun(folder: Path, *words: str, variables: Mapping[str, str] | None = None) -> BaseProcess:
    """Start torchrun in a working folder, which gets its output in the files `stdout` and `stderr`."""
    return _start(torchrun, folder, words, variables)


def _start(
    command: Callable[[Sequence[str]], object],
    folder: Path,
    words: tuple[str, ...],
    variables: Mapping[str, str] | None,
) -> BaseProcess:
    process = _CONTEXT.Process(target=_run, args=(command, folder, words, dict(variables or {})))
    process.start()
    return process


def _run(
    command: Callable[[Sequence[str]], object],
    folder: Path,
    words: tuple[str, ...],
    variables: dict[str, str],
) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        with (folder / name).open("w") as file:
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    os.chdir(folder)
    os.environ.update(variables)
    torch.set_num_threads(1)
    command(words)
