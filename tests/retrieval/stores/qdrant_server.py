"""A Qdrant server, from the program named by $LOOKALIKE_TEST_QDRANT.

No package of PyPI, npm or Debian has the server, so these tests are skipped unless it is there:

    LOOKALIKE_TEST_QDRANT=/usr/local/bin/qdrant pytest tests/retrieval/stores
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.retrieval.stores.server import Server, free_port

_PROGRAM = "LOOKALIKE_TEST_QDRANT"


class QdrantServer(Server):
    """A server with an API key and its data in a folder."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder, self._port = program, folder, free_port()
        self.address = f"qdrant://:right@127.0.0.1:{self._port}"
        self.password_address = f"qdrant://:very-wrong@127.0.0.1:{self._port}"
        self._settings = {
            "QDRANT__SERVICE__HOST": "127.0.0.1",
            "QDRANT__SERVICE__HTTP_PORT": str(self._port),
            "QDRANT__SERVICE__GRPC_PORT": str(free_port()),
            "QDRANT__SERVICE__API_KEY": "right",
            "QDRANT__STORAGE__STORAGE_PATH": str(folder / "storage"),
            "QDRANT__STORAGE__SNAPSHOTS_PATH": str(folder / "snapshots"),
            "QDRANT__TELEMETRY_DISABLED": "true",
        }
        self.start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            environment = {**os.environ, **self._settings}
            self._process = subprocess.Popen(
                [self._program], cwd=self._folder, stdout=log, stderr=log, env=environment
            )
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=5).close()
            except (urllib.error.URLError, OSError):
                assert self._process.poll() is None, (self._folder / "log").read_text()
                time.sleep(0.1)
            else:
                return
        raise AssertionError("Qdrant did not start")


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Start a server."""
    pytest.importorskip("qdrant_client", reason="needs qdrant-client")
    if not (program := os.environ.get(_PROGRAM)):
        pytest.skip(f"needs the program of a Qdrant server in ${_PROGRAM}")
    server = QdrantServer(program, folder)
    try:
        yield server
    finally:
        server.kill()
