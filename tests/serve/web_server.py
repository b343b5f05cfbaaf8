"""Local web servers with scripted raw responses."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from serve.core.url_fetcher import Endpoint

Answer = Callable[[socket.socket], None]


@dataclass
class Web:
    """A server: its port and the headers of its requests."""

    machine: str
    port: int
    heads: list[str] = field(default_factory=list)

    @property
    def place(self) -> Endpoint:
        return self.machine, self.port

    def look_up(self, name: str, port: int) -> Sequence[Endpoint]:
        """Resolve every host name to this server."""
        return [self.place]


@contextmanager
def web(
    answer: Answer | bytes, machine: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[Web]:
    """Serve on a free port; respond to each connection after its request."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            connection = self.request
            connection.settimeout(30)
            with suppress(OSError):  # the client disconnected, as many tests want
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_side=True)
                head = b""
                while b"\r\n\r\n" not in head:
                    part = connection.recv(65536)
                    if not part:
                        return
                    head += part
                found.heads.append(head.decode("latin-1"))
                if isinstance(answer, bytes):
                    connection.sendall(answer)
                else:
                    answer(connection)
                connection.close()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 64

    with Server((machine, 0), Handler) as server:
        found = Web(machine, server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def http(body: bytes = b"", status: int = 200, length: int | None = None, **headers: str) -> bytes:
    """Return a raw response; `length` overrides the Content-Length."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    named.setdefault("Content-Length", str(len(body) if length is None else length))
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status} Whatever\r\n{lines}Connection: close\r\n\r\n".encode() + body
