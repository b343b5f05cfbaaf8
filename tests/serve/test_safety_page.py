"""The page under load: its queue is bounded."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve.app import create_app
from serve.core.service import SearchService
from tests.serve.asgi_server import listening

_PLACES = 3


@pytest.mark.slow
def test_page_queue_is_bounded(shop_gallery: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    import gradio

    from serve.page import gallery as gallery_tab
    from serve.page import layout

    class Blocks(gradio.Blocks):
        def queue(self, *args: Any, **options: Any) -> Any:
            if options:  # Gradio calls it without options first
                assert options["max_size"] == 64
                options |= {"max_size": _PLACES, "default_concurrency_limit": 1}
            return super().queue(*args, **options)

    monkeypatch.setattr(layout.gr, "Blocks", Blocks)
    service, over = SearchService(shop_gallery), threading.Event()
    app = create_app(service)

    def slow(*_: object) -> str:
        assert over.wait(60)
        return ""

    monkeypatch.setattr(gallery_tab, "html_or_error", slow)
    with (
        listening(app, lifespan="on") as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        config = client.get("/config").json()
        (counts,) = (c["id"] for c in config["components"] if c["props"].get("elem_id") == "statistics")
        expand = next(d["id"] for d in config["dependencies"] if [counts, "expand"] in d["targets"])
        answers = []
        for number in range(20):
            body = {"fn_index": expand, "session_hash": f"visitor-{number}", "data": []}
            answers.append(client.post("/gradio_api/queue/join", json=body))
        over.set()
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {200, 503}
        # Those that wait, and the few that have been taken out of the queue meanwhile.
        assert _PLACES <= statuses.count(200) <= _PLACES + 3
        assert client.get("/healthz").status_code == 200
