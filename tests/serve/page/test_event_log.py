"""Malformed events of the page: one line in the log for each failure, never a traceback."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.app import create_app
from serve.core.service import SearchService
from tests.serve.asgi_server import listening


@pytest.fixture(scope="module")
def client(shop_gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("uploads")))
        app = create_app(SearchService(shop_gallery))
        with listening(app, lifespan="on") as port:
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, timeout=30) as client:
                yield client


def _send(client: httpx.Client, number: int, body: dict[str, Any]) -> bool:
    """Send an event; return whether it was accepted into the queue, and wait for its outcome."""
    session = f"malformed-{number}"
    joined = client.post("/gradio_api/queue/join", json={"session_hash": session, **body})
    if joined.is_error:
        return False
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            message = json.loads(line.removeprefix("data: ")) if line else {}
            if message.get("msg") in ("process_completed", "unexpected_error", "close_stream"):
                return True
    return True


def test_malformed_events_leave_one_line_each(
    client: httpx.Client, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    numbers = [one["id"] for one in client.get("/config").json()["dependencies"]]
    bodies: list[dict[str, Any]] = [{"fn_index": 10**6, "data": []}, {"fn_index": -1, "data": [1]}]
    for value in ({"path": "/etc/passwd"}, ["x"] * 50, {"a": {"b": None}}, "🙂\n\nTraceback"):
        bodies += [{"fn_index": number, "data": [value]} for number in numbers[:6]]
    with caplog.at_level(logging.WARNING, "lookalike.serve"):
        accepted = sum(_send(client, number, body) for number, body in enumerate(bodies))
    assert accepted > 5
    out, err = capfd.readouterr()
    assert "Traceback (most recent call last)" not in out + err
    failed = [one for one in caplog.records if one.getMessage().startswith("an event of the page failed at")]
    assert 2 <= len(failed) <= len(bodies)  # two are refused at once
    assert all("\n" not in one.getMessage() and one.exc_info is None for one in failed)
    refused = client.post("/gradio_api/queue/join", json={"session_hash": "x", **bodies[0]})
    assert refused.status_code == 400
