"""Run the server as a process: started like a user's, or forked from one that has imported it already."""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from retrieval.cli import main

ROOT = Path(__file__).parents[2]
SERVE = [sys.executable, "-m", "lookalike", "serve"]
APP = [sys.executable, str(ROOT / "app.py")]


@dataclass(frozen=True)
class Server:
    """A running server, its URL and its folder for temporary files."""

    url: str
    scratch: Path
    process: subprocess.Popen[str] | Forked

    def workers(self) -> set[int]:
        """Return the ids of the worker processes."""
        found = set()
        for child in _children(self.process.pid):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                if b"multiprocessing.forkserver" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found |= _children(child)
        return found

    def stop(self) -> tuple[int, str]:
        """Send SIGINT. Return the exit code and stderr."""
        self.process.send_signal(signal.SIGINT)
        _, output = self.process.communicate(timeout=30)
        return self.process.returncode, output


def _children(process: int) -> set[int]:
    return set(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


class Forked:
    """A server forked from a process that has imported it, which saves a second of CPU time.

    It has the attributes and methods of `subprocess.Popen` that the tests need.

    Args:
        words: Words of the command.
        variables: Environment variables.
    """

    def __init__(self, words: list[str], variables: dict[str, str]) -> None:
        pipes = [os.pipe() for _ in range(3)]
        _, nursery = _start_nursery()
        socket.send_fds(nursery, [json.dumps([words, variables]).encode()], [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        self.pid = int.from_bytes(nursery.recv(4), "big")
        self.returncode: int | None = None
        self.stdout, self.stderr, self._code = (os.fdopen(read) for read, _ in pipes)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._code], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("serve", timeout or 0)
            self.returncode = int(self._code.readline())
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end; return the rest of stdout and stderr."""
        with ThreadPoolExecutor(2) as pool:
            pipes = (self.stdout, self.stderr)
            output, errors = (pool.submit(pipe.read) if not pipe.closed else None for pipe in pipes)
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            texts = [found.result() if found else "" for found in (output, errors)]
        for pipe in (*pipes, self._code):
            pipe.close()
        return texts[0], texts[1]


@functools.cache
def _start_nursery() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process from which servers are forked; it ends when this one does."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "tests.serve.serving", str(theirs.fileno())]
        found = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    atexit.register(found.wait)
    atexit.register(ours.close)  # before
    return found, ours


def _fork_servers(requests: socket.socket) -> None:
    """Fork a server for every request, and report its process id and its exit code."""
    # As the server does before it imports FAISS.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in ("serve.processes", "serve.app"):
        importlib.import_module(name)
    running: dict[int, tuple[int, int]] = {}  # process id and pipe of each server
    while True:
        for ready in select.select([requests, *running], [], [])[0]:
            if ready is not requests:
                server, code = running.pop(ready)
                os.write(code, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(server, 0)[1]))
                os.close(code)
                os.close(ready)
                continue
            request, pipes, *_ = socket.recv_fds(requests, 2**20, 3)
            if not request:
                return
            output, errors, code = pipes
            server = os.fork()
            if not server:
                requests.close()
                for descriptor in [code, *running, *(other for _, other in running.values())]:
                    os.close(descriptor)
                os.dup2(output, 1)
                os.dup2(errors, 2)
                os.close(output)
                os.close(errors)
                words, variables = json.loads(request)
                os.environ.clear()
                os.environ.update(variables)
                tempfile.tempdir = None  # the environment has another one
                main(words)
            os.close(output)
            os.close(errors)
            running[os.pidfd_open(server)] = server, code
            requests.sendall(server.to_bytes(4, "big"))


@contextmanager
def serving(command: list[str], scratch: Path, *, forked: bool = False, port: int = 0) -> Iterator[Server]:
    """Run a command, wait for its address and yield the server.

    Args:
        command: The command; it begins with `SERVE` if it is forked.
        scratch: Folder for its temporary files.
        forked: Whether to fork the server, which is faster; not if its start is tested, or its memory.
        port: Its port; 0 for a free one.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    words, variables = [*command, "--port", str(port)], {**os.environ, "TMPDIR": str(scratch)}
    process: subprocess.Popen[str] | Forked
    if forked:
        assert words[: len(SERVE) - 1] == SERVE[:-1]
        process = Forked(words[len(SERVE) - 1 :], variables)
    else:
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()  # empty if the process fails
        prefix = "Lookalike is at "
        assert line.startswith(prefix), process.communicate(timeout=30)[1]
        yield Server(line.removeprefix(prefix).strip(), scratch, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def files_in(folder: Path) -> set[Path]:
    """Return all files below a folder."""
    return {path for path in folder.rglob("*") if path.is_file()}


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        _fork_servers(connection)
