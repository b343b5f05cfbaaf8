"""Talk to the page's server as the page's scripts do."""

from __future__ import annotations

import json
from typing import Any

import httpx


def send_event(client: httpx.Client, name: str, data: list[Any]) -> dict[str, Any]:
    """Send one event of the page as the browser does -> its outcome."""
    config = client.get("/config").json()
    number = next(d["id"] for d in config["dependencies"] if any(t[1] == name for t in d["targets"]))
    session = f"test-{name}"
    body = {"fn_index": number, "session_hash": session, "data": data}
    joined = client.post("/gradio_api/queue/join", json=body)
    if joined.is_error:
        return {"success": False}
    with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            message = json.loads(line.removeprefix("data: ")) if line else {}
            if message.get("msg") == "process_completed":
                return message
    raise AssertionError("the stream ended without an outcome")


def upload(client: httpx.Client, name: str, content: bytes) -> httpx.Response:
    """Upload a file -> the answer: a list with its path."""
    return client.post("/gradio_api/upload", files={"files": (name, content)})
