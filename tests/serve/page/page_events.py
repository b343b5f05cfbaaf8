"""Send the events of the page's scripts to a server."""

from __future__ import annotations

import json
from typing import Any

import httpx


def send_event(client: httpx.Client, name: str, data: list[Any], of: str | None = None) -> dict[str, Any]:
    """Send one event as the browser does, of the component with the id `of`, and return its outcome."""
    config = client.get("/config").json()
    theirs = [c["id"] for c in config["components"] if c["props"].get("elem_id") == of]
    number = next(
        d["id"]
        for d in config["dependencies"]
        if any(event == name and (of is None or source in theirs) for source, event in d["targets"])
    )
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
