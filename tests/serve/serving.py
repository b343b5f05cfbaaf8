"""Run the server as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import restore_signals

ROOT = Path(__file__).parents[2]
SERVE = [sys.executable, "-m", "retrieval.cli", "serve"]
APP = [sys.executable, str(ROOT / "app.py")]


@dataclass(frozen=True)
class Server:
    """A running server, its URL and its folder for temporary files."""

    url: str
    scratch: Path
    process: subprocess.Popen[str]

    def workers(self) -> set[int]:
        """Return the ids of the worker processes."""
        own = self.process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        found = set()
        for child in children:
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.add(int(child))
        return found

    def stop(self) -> tuple[int, str]:
        """Send SIGINT. Return the exit code and stderr."""
        self.process.send_signal(signal.SIGINT)
        _, output = self.process.communicate(timeout=30)
        return self.process.returncode, output


@contextmanager
def serving(command: list[str], scratch: Path) -> Iterator[Server]:
    """Run a command on a free port, wait for its address and yield the server."""
    scratch.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [*command, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
        preexec_fn=restore_signals,
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
