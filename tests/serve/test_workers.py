"""A server of several processes: all of them serve the page."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import httpx
import pytest

from retrieval.machine.resources import cores
from tests.conftest import wait_until
from tests.serve.serving import SERVE, serving

_MOST_THREADS = (
    6  # of a worker: main, two that watch the server, one each for requests and thumbnails, opening
)


@pytest.mark.slow
def test_page_is_served_by_all_workers_and_outlives_each(shop_gallery: Path, tmp_path: Path) -> None:
    with serving([*SERVE, str(shop_gallery), "--workers", "2"], tmp_path) as server:
        for _ in range(8):  # whichever process accepts the connection
            page = httpx.get(server.url, headers={"Accept": "text/html"}, timeout=60).text
            assert "Lookalike: shop" in page
            style = re.search(r'href="(/page/\w+/page.css)"', page)
            assert style
            assert httpx.get(f"{server.url}{style[1]}", timeout=60).status_code == 200, "of any process"
            assert "3 labels" in httpx.get(f"{server.url}/parts/statistics", timeout=60).text
        assert httpx.get(f"{server.url}/config", timeout=60).status_code == 404, "the queue is of one process"
        (first, second) = sorted(server.workers())
        for killed in (first, second):
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda killed=killed: len(server.workers() - {killed}) == 2, 120)
            assert "3 labels" in httpx.get(f"{server.url}/parts/statistics", timeout=60).text
        code, output = server.stop()
    assert code == 0
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_libraries_are_in_memory_once_and_threads_are_divided(shop_gallery: Path, tmp_path: Path) -> None:
    """The workers are forked from a process that has imported them; the main process has not."""
    command = [*SERVE, str(shop_gallery), "--no-page", "--workers", str(2 * cores())]
    with serving(command, tmp_path) as server:
        workers = server.workers()
        assert len(workers) == 2 * cores()
        assert "onnxruntime" not in Path(f"/proc/{server.process.pid}/maps").read_text()
        for worker in workers:
            assert "onnxruntime" in Path(f"/proc/{worker}/maps").read_text()
            shared = re.findall(
                r"^Shared_Dirty: +(\d+) kB", Path(f"/proc/{worker}/smaps_rollup").read_text(), re.M
            )
            assert int(shared[0]) > 10_000  # pages of the process that it was forked from
            # A session, BLAS and OpenMP with one thread each have none besides those that run requests.
            assert len(list(Path(f"/proc/{worker}/task").iterdir())) <= _MOST_THREADS
