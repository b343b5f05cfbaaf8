"""Server processes: a single one, or several that share the socket and the gallery's files."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import util
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn import _subprocess
from uvicorn.supervisors import Multiprocess, multiprocess
from uvicorn.supervisors.multiprocess import Process

from retrieval.errors import InputError, LookalikeError
from retrieval.machine.resources import cores
from retrieval.system import HANG_UP
from serve.config import Settings
from serve.core.telemetry import forget_process
from serve.core.workers import Limits
from serve.http.connections import Connections
from serve.http.logs import configure_logging, report_status
from serve.http.protocol import Protocol
from serve.http.rate_limit import SharedLimits
from serve.http.stack import protect

if TYPE_CHECKING:
    from serve.core.service import SearchService

# A process that only imports modules, and from which the others are forked: they share these modules, and are
# ready sooner. The first module makes sure that ours are found.
_CONTEXT = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)
_IMPORTED = ("lookalike.__main__", "serve.forked")
_LONG = 64  # bytes of the path of a temporary folder
# Seconds in which a worker answers its supervisor. A new one imports its modules and opens the galleries
# first: uvicorn's five seconds would end it again and again on a busy machine.
_ANSWER = 60


def run_single(
    settings: Settings,
    services: Sequence[SearchService],
    listening: socket.socket,
    announce: Callable[[], None],
) -> None:
    """Serve in this process until SIGINT or SIGTERM, then finish the accepted requests.

    Args:
        settings: Settings of the server.
        services: The galleries.
        listening: Listening socket.
        announce: Called once requests are answered.
    """
    from serve.app import create_app

    limits = Limits(seconds=settings.deadline)
    app = create_app(*services, page=settings.page, limits=limits, on_device=settings.on_device)
    config = _config(settings, protect(app, settings, services[0].telemetry))
    _Server(config, announce).run([listening])


class _Server(uvicorn.Server):
    """uvicorn's server, which does not wait for the event streams of Gradio's clients when it stops.

    Args:
        config: Its settings.
        announce: Called once requests are answered.
    """

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if stopping := self.lifespan.state.get("stopping"):
            stopping.set()
        if gradio := self.lifespan.state.get("gradio"):
            gradio.stop_streams()
        await super().shutdown(sockets)
        if self.force_exit:  # by a second Ctrl-C; cancelled, the lifespan would log a traceback
            await self.lifespan.shutdown()


def run_workers(
    settings: Settings,
    listening: socket.socket,
    opened: Callable[[Mapping[Path, int]], None],
    announce: Callable[[], None],
) -> None:
    """Serve in several processes until SIGINT or SIGTERM; a process that dies or hangs is replaced.

    The processes map the same gallery files, so the vectors are in memory once, as are imported modules; each
    process has its own model. Rate limits are shared, limits on queues and connections are per process.

    Args:
        settings: Settings of the server.
        listening: Listening socket.
        opened: Called with the number of images of each gallery.
        announce: Called once all processes answer requests.

    Raises:
        InputError: A folder is not a gallery.
        LookalikeError: A gallery's model is damaged or does not match its vectors, or a process could not
            start.
    """
    with tempfile.TemporaryDirectory(prefix="lookalike-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # prometheus_client reads it in every process
        _make_temporary_folder()
        _CONTEXT.set_forkserver_preload(list(_IMPORTED))
        # Opened before the workers, so that damage is reported early, and once; this process stays small.
        with ProcessPoolExecutor(1, _CONTEXT) as pool:
            opened(pool.submit(_count_images, settings).result())
        worker = partial(_worker, settings, SharedLimits.create(Path(folder)), Path(folder) / "work")
        config = _config(settings, worker, factory=True, workers=settings.workers)
        supervisor = _Supervisor(config, listening, announce, settings.log_format)
        supervisor.run()
    if supervisor.failed:
        raise LookalikeError("a worker process ended before it was ready: see the messages above")


def _make_temporary_folder() -> None:
    """Let multiprocessing make its folder, whose sockets have paths of some 100 bytes at most."""
    before = tempfile.gettempdir()
    if len(os.fsencode(before)) > _LONG and os.access("/tmp", os.W_OK):
        tempfile.tempdir = "/tmp"
    try:
        util.get_temp_dir()
    finally:
        tempfile.tempdir = before


def open_galleries(settings: Settings) -> list[SearchService]:
    """Open the galleries of a server; see `open_services`."""
    from serve.core.service import open_services

    return open_services(
        settings.galleries,
        settings.permissions,
        settings.runtime,
        settings.max_pixels * 10**6,
        settings.show,
        settings.query_log,
        settings.detector,
        settings.against,
    )


def count_images(services: Sequence[SearchService]) -> dict[Path, int]:
    """Return the number of images of each gallery."""
    return {service.folder: service.summary().images for service in services}


def _check_shared(settings: Settings) -> None:
    """Raise an `InputError` if a gallery is in a database that a single process can open."""
    from retrieval.galleries.database_folder import is_store, read_folder

    for folder in settings.galleries.values():
        if is_store(folder) and (address := read_folder(folder).address).embedded:
            what = f"--workers {settings.workers}: one process at a time can open {address}"
            raise InputError(f"{what}; use --workers 1, or a Qdrant server")


def _count_images(settings: Settings) -> dict[Path, int]:
    from serve.page.on_device import read_runtime

    _check_shared(settings)
    if settings.on_device:
        read_runtime(settings.on_device)
    configure_logging(settings.log_level, settings.log_format)
    return count_images(open_galleries(settings))


def _config(settings: Settings, app: ASGIApp | Callable[[], ASGIApp], **options: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=partial(Protocol, limits=Connections(settings.connections, settings.proxies)),  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        lifespan="on",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=settings.deadline,
        timeout_worker_healthcheck=_ANSWER,
        **options,
    )


def _worker(settings: Settings, shared: SharedLimits, folder: Path) -> ASGIApp:
    """Build the application in one of several processes."""
    configure_logging(settings.log_level, settings.log_format)
    if HANG_UP is not None:
        signal.signal(HANG_UP, signal.SIG_IGN)  # the supervisor handles it
    threading.Thread(target=_terminate_with_parent, daemon=True).start()
    from serve.app import create_app

    # Twice its share: the kernel does not divide connections evenly, and a core must not wait beside a queue.
    threads = min(cores(), max(1, 2 * cores() // settings.workers))
    limits = Limits(threads=threads, seconds=settings.deadline)
    services = open_galleries(settings)
    app = create_app(
        *services, page=settings.page, limits=limits, folder=folder, on_device=settings.on_device
    )
    return protect(app, settings, services[0].telemetry, shared)


def _terminate_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


class _Worker(Process):
    """uvicorn's worker process, with our server in it."""

    @property
    def server(self) -> uvicorn.Server:
        if self._server is None:
            self._server = _Server(self.config)
        return self._server

    def _healthcheck(self, timeout: float) -> bool | None:
        """Ask whether the process serves; uvicorn's would wait the whole time for one that ends meanwhile."""
        try:
            self.parent_conn.send(b"ping")
            ready = wait([self.parent_conn, self.process.sentinel], timeout)
            return bool(self.parent_conn.recv()) if self.parent_conn in ready else None
        except (OSError, EOFError):
            return None


# The supervisor has no settings for them.
multiprocess.Process = _Worker  # type: ignore[misc]
_subprocess.spawn = _CONTEXT  # type: ignore[assignment]


class _Supervisor(Multiprocess):
    """uvicorn's supervisor, which also announces readiness and logs replaced processes.

    Attributes:
        failed: Whether a process ended before all were ready.
    """

    def __init__(
        self, config: uvicorn.Config, listening: socket.socket, announce: Callable[[], None], log_format: str
    ) -> None:
        super().__init__(config, [listening])
        self.failed = False
        self._announce = announce
        self._log_format = log_format

    def init_processes(self) -> None:
        """Start all processes and wait until they are ready."""
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
        """Let the processes finish their requests; new connections are refused instead of queued."""
        for listening in self.sockets:
            listening.close()
        super().terminate_all()

    def keep_subprocess_alive(self) -> None:
        """Replace processes that have died or hang."""
        before = list(self.processes)
        super().keep_subprocess_alive()
        self._forget_replaced(before)

    def restart_all(self) -> None:
        """Replace all processes one after the other; each new one is ready before the old one stops."""
        before = list(self.processes)
        super().restart_all()
        self._forget_replaced(before)

    def _forget_replaced(self, before: list[Process]) -> None:
        for old, new in zip(before, self.processes, strict=True):
            if old is not new:
                assert old.pid is not None
                forget_process(old.pid)
                report_status(f"worker {old.pid} ended; replaced by {new.pid}", self._log_format)
