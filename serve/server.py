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
from pathlib import Path
from types import FrameType
from typing import Any

from retrieval.cli import say
from retrieval.errors import InputError, LookalikeError

_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_GRACE_SECONDS = 2


def run(folder: Path, host: str = "127.0.0.1", port: int = 7860, *, insecure: bool = False) -> None:
    """Serve a gallery until Ctrl-C; prints the address on stdout as soon as it answers.

    Args:
        folder: the gallery.
        host: the address to listen on.
        port: the port; 0 takes a free one.
        insecure: allow addresses that other machines can reach, although nobody has to sign in.

    Raises:
        InputError: the folder is no gallery, or the address is refused or not of this machine.
        LookalikeError: the port is in use.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # one query at a time gains nothing from FAISS' threads
    try:
        with _terminated_like_interrupted(), _bound(host, port, insecure) as listening, _private_uploads():
            _serve(folder, host, listening, insecure)
    except KeyboardInterrupt:
        say("stopped")


def _serve(folder: Path, host: str, listening: socket.socket, insecure: bool) -> None:
    from serve.service import SearchService

    service = SearchService(folder)
    say(f"{folder}: {service.facts().images} images; starting the server")

    import uvicorn

    from serve.app import create_app

    app = create_app(service, ("*",) if insecure else (*_LOCAL_NAMES, host.lower()))

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(f"Lookalike is at http://{_name(host, listening)}", flush=True)
            say("Ctrl-C stops it")

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            app.state.stop_streams()  # one stays open for as long as a browser shows the page
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="on",
        ws="none",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    Server(config).run([listening])


@contextmanager
def _bound(host: str, port: int, insecure: bool) -> Iterator[socket.socket]:
    """A listening socket: a port in use is found out before anything slow is loaded."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError, OverflowError) as error:
        raise InputError(f"--host {host} --port {port}: no such address ({error}); use 127.0.0.1") from error
    if not insecure and not ipaddress.ip_address(address[0]).is_loopback:
        raise InputError(
            f"--host {host}: other machines could search and read this gallery without signing in; "
            "use 127.0.0.1, or add --insecure if that is what you want"
        )
    with socket.socket(family, kind) as listening:
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
    """SIGTERM ends the server as Ctrl-C does, so that the upload folder goes with it."""

    def interrupt(number: int, frame: FrameType | None) -> Any:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
