"""Milvus for tests: the server of milvus-lite, a process of its own that speaks the protocol of Milvus."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.retrieval.stores.server import Server, free_port


class MilvusServer(Server):
    """A server of milvus-lite with its data in a folder."""

    def __init__(self, folder: Path) -> None:
        self._port, self._folder = free_port(), folder
        self.address = f"milvus://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        place = ["--data-dir", str(self._folder / "data"), "--host", "127.0.0.1", "--port", str(self._port)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "milvus_lite", "server", *place],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
                return
            except OSError:
                assert self._process.poll() is None, (self._folder / "log").read_text()
                time.sleep(0.1)
        raise AssertionError("Milvus did not start")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Start a server with its data in a folder."""
    pytest.importorskip("pymilvus", reason="needs pymilvus")
    pytest.importorskip("milvus_lite", reason="needs milvus-lite")
    server = MilvusServer(folder)
    try:
        yield server
    finally:
        server.kill()
