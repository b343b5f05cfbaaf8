"""Run an ASGI application on a real server in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import httpx
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from serve.http.connections import Connections
from serve.http.protocol import Protocol


@contextmanager
def listening(
    app: ASGIApp, lifespan: Literal["on", "off"] = "off", limits: Connections | None = None
) -> Iterator[int]:
    """Serve an application and yield its port; with a lifespan, shut it down gracefully."""
    # asyncio sets TCP_NODELAY only on sockets with an explicit protocol.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=partial(Protocol, limits=limits or Connections()),  # type: ignore[arg-type]
                lifespan=lifespan,
                log_config=None,
                ws="none",
            )
        )
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield bound.getsockname()[1]
        finally:
            server.should_exit, server.force_exit = True, lifespan == "off"
            thread.join()


@contextmanager
def answering(app: ASGIApp) -> Iterator[str]:
    """Serve an application with its lifespan and yield its URL."""
    with listening(app, lifespan="on") as port:
        yield f"http://127.0.0.1:{port}"


async def measure(scope: Scope, receive: Receive, send: Send) -> None:
    """Application that responds with the size of the request body."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("the client went away")
        size += len(message["body"])
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def send_raw(port: int, *parts: bytes) -> socket.socket:
    """Send bytes and return the open connection."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    for part in parts:
        connection.sendall(part)
    return connection


def receive_all(connection: socket.socket) -> bytes:
    """Return everything the server sends until it closes the connection."""
    found = b""
    try:
        while part := connection.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    connection.close()
    return found


def get(app: ASGIApp, path: str = "/v1/gallery", client: str = "192.0.2.1", **headers: str) -> httpx.Response:
    """Send a GET request to an application, without a network."""

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as asking:
            return await asking.get(path, headers=headers)

    return asyncio.run(asked())
