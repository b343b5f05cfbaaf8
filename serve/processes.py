"""One process that answers, or several that share the address and the gallery's files."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from retrieval.errors import LookalikeError
from retrieval.images.decode import cores
from serve.app import create_app
from serve.config import Settings
from serve.core.service import SearchService
from serve.core.telemetry import forget
from serve.core.workers import Limits
from serve.http import logs
from serve.http.buckets import Tallies, share
from serve.http.protocol import Protocol
from serve.http.stack import protect
from serve.opening import open_all


def alone(
    settings: Settings,
    services: Sequence[SearchService],
    listening: socket.socket,
    announce: Callable[[], None],
) -> None:
    """Answer in this process until SIGINT or SIGTERM; what was accepted is finished."""
    app = create_app(*services, page=settings.page, limits=Limits(seconds=settings.deadline))

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if settings.page:
                app.state.stop_streams()  # one stays open for as long as a browser shows the page
            await super().shutdown(sockets)

    Server(_config(settings, protect(app, settings, services[0].telemetry))).run([listening])


def together(settings: Settings, listening: socket.socket, announce: Callable[[], None]) -> None:
    """Answer in several processes until SIGINT or SIGTERM; one that dies or hangs is replaced.

    The vectors lie in memory once, for the system maps the same files into all of them; every process has its
    own model. What is limited by rate is counted together, what waits or is open in each by itself.

    Raises:
        LookalikeError: a process could not start.
    """
    with tempfile.TemporaryDirectory(prefix="lookalike-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # the library looks for it in every process
        worker = partial(_worker, settings, share(Path(folder)))
        config = _config(settings, worker, factory=True, workers=settings.workers)
        supervisor = _Supervisor(config, listening, announce, settings.log_format)
        supervisor.run()
    if supervisor.failed:
        raise LookalikeError("a worker process ended before it could answer; the lines above say why")


def _config(settings: Settings, app: ASGIApp | Callable[[], ASGIApp], **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Protocol,
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=settings.deadline,
        **more,
    )


def _worker(settings: Settings, tallies: Tallies) -> ASGIApp:
    """The application of one of several processes; called in it."""
    logs.configure(settings.log_level, settings.log_format)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # of a closed terminal: the supervisor says what it means
    threading.Thread(target=_end_with_parent, daemon=True).start()
    limits = Limits(threads=max(1, cores() // settings.workers), seconds=settings.deadline)
    services = open_all(settings)
    return protect(create_app(*services, page=False, limits=limits), settings, services[0].telemetry, tallies)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


class _Supervisor(Multiprocess):
    """The library's supervisor, which also says when it is ready and whom it has replaced.

    Attributes:
        failed: whether a process ended before all could answer.
    """

    def __init__(
        self, config: uvicorn.Config, listening: socket.socket, announce: Callable[[], None], form: str
    ) -> None:
        super().__init__(config, [listening])
        self.failed = False
        self._announce = announce
        self._form = form

    def init_processes(self) -> None:
        """Start all, and wait until all can answer."""
        super().init_processes()
        while not all(process.is_ready(timeout=1) for process in self.processes):
            self.handle_signals()
            self.failed = not all(process.process.is_alive() for process in self.processes)
            if self.failed:
                self.should_exit.set()
            if self.should_exit.is_set():
                return
            time.sleep(0.1)
        self._announce()

    def terminate_all(self) -> None:
        """Let the processes finish what they have; newcomers are refused rather than kept waiting."""
        for listening in self.sockets:
            listening.close()
        super().terminate_all()

    def keep_subprocess_alive(self) -> None:
        """Replace who has died or hangs."""
        before = list(self.processes)
        super().keep_subprocess_alive()
        self._tell_replaced(before)

    def restart_all(self) -> None:
        """Replace all, one after the other: each new one can answer before an old one goes."""
        before = list(self.processes)
        super().restart_all()
        self._tell_replaced(before)

    def _tell_replaced(self, before: list[Process]) -> None:
        for old, new in zip(before, self.processes, strict=True):
            if old is not new:
                assert old.pid is not None
                forget(old.pid)
                logs.tell(f"worker {old.pid} is gone; {new.pid} takes its place", self._form)
