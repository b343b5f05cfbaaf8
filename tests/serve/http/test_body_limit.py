"""Timeouts of slow and stalled request bodies."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from serve.http.body_limit import BodyLimitMiddleware
from tests.serve.asgi_server import listening, measure, receive_all, send_raw

SIZE = 2_000_000  # 200 seconds at the lowest rate, beyond the client timeout of 30
TOGETHER = SIZE + SIZE // 2
HEAD = b"POST /v1/search HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with listening(BodyLimitMiddleware(measure, SIZE, TOGETHER, max_stall=1.0, min_rate=10_000)) as port:
        yield port


def _nearly_all(port: int) -> socket.socket:
    return send_raw(port, HEAD % SIZE, bytes(SIZE - 1000))


def test_fast_start_does_not_allow_a_longer_stall(port: int) -> None:
    found = receive_all(_nearly_all(port))
    assert found.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"too-slow"' in found
    again = httpx.post(f"http://127.0.0.1:{port}/", content=bytes(SIZE))  # its memory is free again
    assert again.text == str(SIZE)


def test_trickling_body_times_out(port: int) -> None:
    connection = _nearly_all(port)
    try:
        for _ in range(900):  # too slow for the last 100 bytes
            connection.sendall(b"x")
            connection.settimeout(0.03)
            try:
                found = connection.recv(65536)
                break
            except TimeoutError:
                continue
        else:
            raise AssertionError("it was waited for until the end")
    except (BrokenPipeError, ConnectionResetError):
        return
    finally:
        connection.close()
    assert found.startswith(b"HTTP/1.1 408 ")


def test_steady_slow_body_is_accepted(port: int) -> None:
    connection = send_raw(port, HEAD % 240_000)
    for _ in range(12):
        time.sleep(0.1)
        connection.sendall(bytes(20_000))
    assert b"\r\n240000\r\n" in receive_all(connection)
