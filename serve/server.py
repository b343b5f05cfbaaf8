"""Run the server: bind, load, answer, and leave nothing behind."""

from __future__ import annotations

import errno
import ipaddress
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from retrieval.errors import InputError, LookalikeError
from serve.config import Settings
from serve.http import logs


def run(settings: Settings) -> None:
    """Serve a gallery until Ctrl-C, SIGTERM or SIGHUP; prints the address on stdout as soon as it answers.

    Several processes take SIGHUP as a wish to be replaced, one after the other, and go on.

    Raises:
        InputError: the folder is no gallery, or the address is refused or not of this machine.
        LookalikeError: the port is in use.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one query at a time gains nothing from FAISS' threads
    logs.configure(settings.log_level, settings.log_format)
    try:
        with _terminated_like_interrupted(), _bound(settings) as listening, _private_uploads():
            _serve(settings, listening)
    except KeyboardInterrupt:
        pass
    logs.tell("stopped", settings.log_format)


def _serve(settings: Settings, listening: socket.socket) -> None:
    from serve.opening import open_all

    services = open_all(settings)  # what is wrong with a gallery shows now, and once
    for service in services:
        logs.tell(f"{service.folder}: {service.facts().images} images", settings.log_format)
    logs.tell("starting the server", settings.log_format)

    def announce() -> None:
        print(f"Lookalike is at http://{_name(settings.host, listening)}", flush=True)
        logs.tell("Ctrl-C stops it", settings.log_format)

    from serve import processes

    if settings.workers > 1:
        del service, services  # every process has its own
        processes.together(settings, listening, announce)
    else:
        processes.alone(settings, services, listening, announce)


@contextmanager
def _bound(settings: Settings) -> Iterator[socket.socket]:
    """A listening socket: a port in use is found out before anything slow is loaded."""
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
    # Only where the protocol is known does asyncio send small answers at once.
    with socket.socket(family, kind, protocol) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
            listening.listen(128)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                what = f"port {port} is in use on {host}; stop what uses it, or choose another with --port"
                raise LookalikeError(what) from error
            raise LookalikeError(f"cannot listen on {host} port {port}: {error.strerror}") from error
        yield listening


def _name(host: str, listening: socket.socket) -> str:
    return f"[{host}]:{listening.getsockname()[1]}" if ":" in host else f"{host}:{listening.getsockname()[1]}"


@contextmanager
def _private_uploads() -> Iterator[None]:
    """A folder of our own for what the page framework writes; it has to be named before its import."""
    with tempfile.TemporaryDirectory(prefix="lookalike-") as folder:
        os.environ.update(
            GRADIO_TEMP_DIR=folder,
            GRADIO_ANALYTICS_ENABLED="False",
            HF_HUB_OFFLINE="1",
            HF_HUB_DISABLE_TELEMETRY="1",
        )
        yield


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP end the server as Ctrl-C does, so that the upload folder goes with it."""

    def interrupt(number: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    def hang_up(number: int, frame: FrameType | None) -> Any:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of a terminal may send it twice
        signal.raise_signal(signal.SIGTERM)  # to whoever hears it now: us, or the web server

    handlers: dict[signal.Signals, Any] = {signal.SIGTERM: interrupt}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else it was started by nohup
        handlers[signal.SIGHUP] = hang_up
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
