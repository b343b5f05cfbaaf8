"""Several processes: shared metrics, jobs and rate limits."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import draw, wait_until
from tests.serve.serving import SERVE, Server, files_in, serving

pytestmark = pytest.mark.slow  # starts servers
SEARCHES = ("lookalike_requests_total", "/v1/search/by-id", "200", "POST")


def _get(server: Server, path: str, **how: object) -> httpx.Response | None:
    """Return a response over a new connection, to any process; None if that process died."""
    try:
        return httpx.get(server.url + path, timeout=30, **how)  # type: ignore[arg-type]
    except httpx.TransportError:
        return None


def _figures(server: Server) -> dict[tuple[str, ...], float]:
    """Return the metrics by name and label values, checked for duplicates."""
    answer = _get(server, "/metrics")
    assert answer is not None
    families = text_string_to_metric_families(answer.text)
    found = [((s.name, *sorted(s.labels.values())), s.value) for family in families for s in family.samples]
    assert len(dict(found)) == len(found)
    return dict(found)


def _kill_all(server: Server) -> None:
    """Kill all workers one after the other and wait until they are replaced."""
    for worker in server.workers():
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: worker not in (now := server.workers()) and len(now) == 2)  # noqa: B023
        wait_until(lambda: (answer := _get(server, "/healthz")) is not None and answer.status_code == 200)


def test_metrics_and_jobs_cover_all_processes(shop_gallery: Path, tmp_path: Path) -> None:
    with serving([*SERVE, str(shop_gallery), "--no-page", "--workers", "2"], tmp_path) as server:
        for _ in range(30):
            asked = httpx.post(f"{server.url}/v1/search/by-id", json={"id": 1}, timeout=30)
            assert asked.status_code == 200
        for _ in range(10):  # any process may respond
            figures = _figures(server)
            assert figures[SEARCHES] == 30
            assert figures["lookalike_queue_seconds_count",] == 30
            assert figures["lookalike_request_seconds_bucket", "+Inf", "/v1/search/by-id"] == 30
            assert figures["lookalike_gallery_images", "shop"] == 24
            assert figures["lookalike_workers_busy",] == figures["lookalike_queue_depth",] == 0
        pages = [int(Path(f"/proc/{one}/statm").read_text().split()[1]) for one in server.workers()]
        assert figures["process_resident_memory_bytes",] > 0.9 * sum(pages) * os.sysconf("SC_PAGESIZE")
        assert figures["process_start_time_seconds",] <= time.time()

        started = httpx.post(f"{server.url}/v1/jobs", json={"kind": "duplicates"}, timeout=30)
        job = server.url + started.headers["location"]
        wait_until(lambda: httpx.get(job, timeout=30).json()["state"] == "done")
        results = [httpx.get(job, timeout=30).json()["result"] for _ in range(10)]
        assert all(result == results[0] for result in results)
        assert results[0]["total"] >= 0

        _kill_all(server)
        assert httpx.get(job, timeout=30).json()["result"] == results[0]
        assert _figures(server)[SEARCHES] == 30
        httpx.post(f"{server.url}/v1/search/by-id", json={"id": 1}, timeout=30)
        assert _figures(server)[SEARCHES] == 31
        code, output = server.stop()
        assert (code, "Traceback" in output) == (0, False)
    assert files_in(tmp_path) == set()


def test_dead_processes_leave_the_gauges(shop_gallery: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    draw(1, size=(4000, 4000)).save(buffer, "PNG")
    files = [("images", (f"{number}.png", buffer.getvalue())) for number in range(64)]
    with serving([*SERVE, str(shop_gallery), "--no-page", "--workers", "2"], tmp_path) as server:

        def ask() -> None:
            with suppress(httpx.TransportError):  # its process is killed
                httpx.post(f"{server.url}/v1/search:batch", files=files, timeout=60)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: _figures(server)["lookalike_workers_busy",] == 1)
        _kill_all(server)
        assert _figures(server)["lookalike_workers_busy",] == 0
        asking.join()


@pytest.mark.parametrize("what", ["requests", "wrong passwords"])
def test_rate_limit_is_shared_by_processes(shop_gallery: Path, tmp_path: Path, what: str) -> None:
    password = tmp_path / "password"
    password.write_text("long enough")
    password.chmod(0o600)
    words = (
        ["--user", "ann", "--password-file", str(password)] if what == "wrong passwords" else ["--rate", "1"]
    )
    command = [*SERVE, str(shop_gallery), "--no-page", "--workers", "2", *words]
    with serving(command, tmp_path / "scratch") as server:
        auth = ("ann", "a guess") if what == "wrong passwords" else None
        start = time.monotonic()
        answers = [_get(server, "/v1/gallery", auth=auth) for _ in range(60)]
        seconds = time.monotonic() - start
    statuses = [answer.status_code for answer in answers if answer]
    allowed = len(statuses) - statuses.count(429)
    assert len(statuses) == 60
    assert (
        10 <= allowed <= 10 + seconds + 2
    )  # burst of ten, one per second; two processes may take the same token
