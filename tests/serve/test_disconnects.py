"""Disconnects of clients whose requests are queued."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from serve.app import create_app
from serve.core.service import SearchService
from serve.core.workers import Limits
from tests.conftest import wait_until
from tests.serve.asgi_server import answering


class Gate:
    """In place of the semaphore for decoding: holds work up until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        self.reached.set()
        assert self.opened.wait(30)

    def __exit__(self, *error: object) -> None:
        pass


@pytest.mark.parametrize("kind", ["image/png", "multipart/form-data; boundary=x"])
def test_disconnected_client_is_dequeued(shop_gallery: Path, shop: Path, kind: str) -> None:
    image = (shop / "green" / "3.png").read_bytes()
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
    body = image if kind == "image/png" else head + image + b"\r\n--x--\r\n"
    service = SearchService(shop_gallery)
    value = service.telemetry.registry.get_sample_value
    with answering(create_app(service, page=False, limits=Limits(threads=1))) as url:
        where = urlsplit(url)

        def ask() -> socket.socket:
            connection = socket.create_connection((where.hostname or "", where.port or 0))
            lines = (
                "POST /v1/search HTTP/1.1",
                "Host: x",
                f"Content-Type: {kind}",
                f"Content-Length: {len(body)}",
            )
            connection.sendall("\r\n".join((*lines, "", "")).encode() + body)
            return connection

        service._resolver.decoding = gate = Gate()
        try:
            first, second = ask(), ask()
            assert gate.reached.wait(30)
            wait_until(lambda: (value("lookalike_workers_busy"), value("lookalike_queue_depth")) == (1, 1))
            second.close()
            wait_until(lambda: value("lookalike_queue_depth") == 0)
            assert value("lookalike_workers_busy") == 1
            first.close()
        finally:
            gate.opened.set()
        wait_until(lambda: value("lookalike_workers_busy") == 0)
        answer = httpx.post(
            f"{url}/v1/search", content=image, headers={"Content-Type": "image/png"}, timeout=30
        )
        assert answer.status_code == 200
    assert value("lookalike_stage_seconds_count", {"stage": "decode"}) == 2  # the first, and the last
    labels = {"method": "POST", "route": "/v1/search", "status": "499"}
    assert value("lookalike_requests_total", labels) == 1
