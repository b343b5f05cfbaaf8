"""Server run: socket, upload folder, signals and start-up messages."""

from __future__ import annotations

import errno
import gc
import ipaddress
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from retrieval.errors import InputError, LookalikeError
from retrieval.system import HANG_UP
from serve.config import Settings
from serve.http.logs import configure_logging, report_status

if TYPE_CHECKING:
    from serve.core.service import SearchService

Following = Callable[["SearchService"], AbstractContextManager[object]]
"""Function that returns work beside a server, given its first gallery."""


def run(
    settings: Settings, follow: Following | None = None, ready: Callable[[str], None] | None = None
) -> None:
    """Serve galleries until Ctrl-C, SIGTERM or SIGHUP; print the address on stdout when ready.

    With several processes, SIGHUP restarts them one after the other and the server continues.

    Args:
        settings: Settings of the server.
        follow: Work beside the server.
        ready: Called with the address once requests are answered.

    Raises:
        InputError: A folder is not a gallery, or the address is refused or not of this machine.
        LookalikeError: The port is in use.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # single queries gain nothing from threads of FAISS
    configure_logging(settings.log_level, settings.log_format)
    try:
        with _interrupt_on_signals(), _bind(settings) as listening, _private_folder(), _garbage_kept():
            _serve(settings, listening, follow, ready)
    except KeyboardInterrupt:
        pass
    report_status("stopped", settings.log_format)
    _end_under_work()


def _end_under_work() -> None:
    """End the process at once if long work is running: FAISS aborts if the interpreter ends under it.

    Gradio's import is such work, too: it may take longer than people wait after Ctrl-C.
    """
    from serve.core.background import is_working
    from serve.gradio.engine import LOADING

    if is_working() or any(thread.name == LOADING for thread in threading.enumerate()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        shutil.rmtree(os.environ["GRADIO_TEMP_DIR"], ignore_errors=True)  # Gradio may have made it again
        os._exit(0)


def _serve(
    settings: Settings,
    listening: socket.socket,
    follow: Following | None,
    ready: Callable[[str], None] | None,
) -> None:
    from serve import processes

    def opened(images: Mapping[Path, int]) -> None:
        for folder, count in images.items():
            report_status(f"{folder}: {count} images", settings.log_format)
        report_status("starting the server", settings.log_format)

    def announce() -> None:
        gc.freeze()
        gc.enable()
        address = f"http://{_authority(settings.host, listening)}"
        print(f"Lookalike is at {address}", flush=True)
        if ready is not None:
            ready(address)
        report_status("press Ctrl-C to stop", settings.log_format)

    if settings.workers > 1:
        processes.run_workers(settings, listening, opened, announce)
        return
    services = processes.open_galleries(settings)
    opened(processes.count_images(services))
    with nullcontext() if follow is None else follow(services[0]):
        processes.run_single(settings, services, listening, announce)


@contextmanager
def _bind(settings: Settings) -> Iterator[socket.socket]:
    """Open the listening socket, before anything slow is loaded: a port in use is reported at once."""
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError, OverflowError) as error:
        raise InputError(f"--host {host} --port {port}: no such address ({error}); use 127.0.0.1") from error
    if not (settings.insecure or settings.credentials or ipaddress.ip_address(address[0]).is_loopback):
        raise InputError(
            f"--host {host}: other machines could search and read this gallery without signing in; use "
            "127.0.0.1, or add --user with --password-file, or --insecure if that is what you want"
        )
    # asyncio sets TCP_NODELAY only on sockets with an explicit protocol; without it, small responses wait.
    with socket.socket(family, kind, protocol) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
            listening.listen(128)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                message = f"port {port} is in use on {host}; stop the other program, or choose another --port"
                raise LookalikeError(message) from error
            raise LookalikeError(f"cannot listen on {host} port {port}: {error.strerror}") from error
        yield listening


def _authority(host: str, listening: socket.socket) -> str:
    """Return host and port as in a URL."""
    port = listening.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Collect no garbage until the server is ready, which freezes what there is by then: modules and models.

    They stay. To go through them takes a fifth of the start, and in a server that runs a tenth of a second.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _private_folder() -> Iterator[None]:
    """Create a private folder for Gradio's files, which reads its name at import; delete it in the end."""
    with tempfile.TemporaryDirectory(prefix="lookalike-") as folder:
        os.environ.update(
            GRADIO_TEMP_DIR=folder,
            GRADIO_ANALYTICS_ENABLED="False",
            HF_HUB_OFFLINE="1",
            HF_HUB_DISABLE_TELEMETRY="1",
        )
        yield


@contextmanager
def _interrupt_on_signals() -> Iterator[None]:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that the private folder is deleted."""

    def interrupt(number: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    def hang_up(number: int, frame: FrameType | None) -> Any:
        signal.signal(number, signal.SIG_IGN)  # a closing terminal may send it twice
        signal.raise_signal(signal.SIGTERM)  # to the current handler: ours, or uvicorn's

    handlers: dict[signal.Signals, Any] = {signal.SIGTERM: interrupt}
    if HANG_UP is not None and signal.getsignal(HANG_UP) is not signal.SIG_IGN:  # ignored under nohup
        handlers[HANG_UP] = hang_up
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
