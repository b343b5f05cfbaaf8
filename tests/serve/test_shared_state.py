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
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import wait_until
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
        wait_until(lambda: worker not in (now := server.workers()) and len(now) == 2, 90)  # noqa: B023
        wait_until(lambda: (answer := _get(server, "/healthz")) is not None and answer.status_code == 200, 90)


def test_metrics_and_jobs_cover_all_processes(shop_gallery: Path, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("L", (4000, 4000)).save(buffer, "PNG")
    files = [("images", (f"{number}.png", buffer.getvalue())) for number in range(12)]  # seconds of work
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

        def ask() -> None:
            with suppress(httpx.TransportError):  # its process is killed
                httpx.post(f"{server.url}/v1/search:batch", files=files, timeout=60)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: _figures(server)["lookalike_workers_busy",] == 1)
        _kill_all(server)
        asking.join()
        assert httpx.get(job, timeout=30).json()["result"] == results[0]
        figures = _figures(server)
        assert figures[SEARCHES] == 30
        assert figures["lookalike_workers_busy",] == 0  # that of the dead process is forgotten
        httpx.post(f"{server.url}/v1/search/by-id", json={"id": 1}, timeout=30)
        assert _figures(server)[SEARCHES] == 31
        code, output = server.stop()
        assert (code, "Traceback" in output) == (0, False)
    assert files_in(tmp_path) == set()


def test_limits_and_shared_pictures_are_those_of_all_processes(
    shop_gallery: Path, shop: Path, tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("long enough")
    password.chmod(0o600)
    words = ["--user", "ann", "--password-file", str(password), "--rate", "6", "--share-pictures", "1"]
    with serving(
        [*SERVE, str(shop_gallery), "--no-page", "--workers", "2", *words], tmp_path / "scratch"
    ) as server:
        right, image = ("ann", "long enough"), (shop / "red" / "5.png").read_bytes()
        start = time.monotonic()
        wrong = [_code(_get(server, "/v1/gallery", auth=("ann", "a guess"))) for _ in range(30)]
        shared = httpx.post(f"{server.url}/v1/pictures", content=image, auth=right).json()
        read = [_code(_get(server, shared["address"], auth=right)) for _ in range(8)]
        seconds = time.monotonic() - start
        asked = list[str | None]()
        while "too-many-requests" not in asked and len(asked) < 600:  # slow answers earn new tokens
            asked.append(_code(_get(server, "/v1/gallery", auth=right)))
        seconds_of_all = time.monotonic() - start
    # A burst of ten, and one in six seconds; two processes may take the same token.
    assert 10 <= wrong.count("sign-in") <= 10 + seconds / 6 + 2
    assert set(wrong) == {"sign-in", "too-many-tries"}
    assert set(read) == {None}
    allowed = 39 + asked.count(None)
    assert 60 <= allowed <= 60 + 6 * seconds_of_all + 2
    assert set(asked) == {None, "too-many-requests"}


def _code(answer: httpx.Response | None) -> str | None:
    """Return the code of a problem."""
    assert answer is not None
    return None if answer.is_success else answer.json()["code"]
