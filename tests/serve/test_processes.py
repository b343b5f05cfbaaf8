"""Server processes: graceful shutdown, signals, restarts and logs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.conftest import wait_until
from tests.serve.serving import ROOT, SERVE, Server, serving

pytestmark = pytest.mark.slow  # starts servers


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _begin(server: Server, body: bytes) -> socket.socket:
    """Send the headers of a search and half of its image."""
    where = urlsplit(server.url)
    assert where.hostname
    assert where.port
    connection = socket.create_connection((where.hostname, where.port), timeout=30)
    head = (
        f"POST /v1/search?k=3 HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: image/png\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body[: len(body) // 2])
    return connection


def _end(connection: socket.socket, body: bytes) -> str:
    connection.sendall(body[len(body) // 2 :])
    found = b""
    while part := connection.recv(65536):
        found += part
    return found.decode()


@pytest.mark.parametrize(
    ("workers", "number"), [("1", signal.SIGTERM), ("1", signal.SIGHUP), ("2", signal.SIGTERM)]
)
def test_accepted_requests_are_finished(
    shop_gallery: Path, shop: Path, tmp_path: Path, workers: str, number: signal.Signals
) -> None:
    image = (shop / "red" / "1.png").read_bytes()
    with serving([*SERVE, str(shop_gallery), "--no-page", "--workers", workers], tmp_path) as server:
        connection = _begin(server, image)
        assert httpx.get(f"{server.url}/healthz", timeout=30).status_code == 200
        server.process.send_signal(number)

        def refused() -> bool:
            try:
                httpx.get(f"{server.url}/healthz", timeout=30)
            except httpx.TransportError:
                return True
            return False

        wait_until(refused)
        answered = _end(connection, image)
        assert answered.startswith("HTTP/1.1 200 ")
        assert '"label":"red"' in answered
        _, output = server.process.communicate(timeout=30)
        assert server.process.returncode == 0
        assert output.endswith("stopped\n")
        assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_garbage_is_collected_once_a_server_is_ready(shop_gallery: Path, workers: int) -> None:
    program = f"""
import gc, os, signal, sys
from pathlib import Path
from serve import server
from serve.config import Settings

def ready(_):
    print(gc.isenabled(), gc.get_freeze_count() > 10_000)
    os.kill(os.getpid(), signal.SIGTERM)

settings = Settings({{"shop": Path(sys.argv[1])}}, page=False, port=0, workers={workers})
server.run(settings, ready=ready)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, shop_gallery], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert done.stdout.splitlines()[-1] == "True True", done.stderr


def test_sighup_is_ignored_under_nohup(shop_gallery: Path, tmp_path: Path) -> None:
    with serving(["nohup", *SERVE, str(shop_gallery), "--no-page"], tmp_path) as server:
        server.process.send_signal(signal.SIGHUP)
        assert httpx.get(f"{server.url}/healthz", timeout=30).status_code == 200
        assert server.stop()[0] == 0


def test_killed_worker_is_replaced(shop_gallery: Path, tmp_path: Path) -> None:
    with serving([*SERVE, str(shop_gallery), "--workers", "2", "--no-page"], tmp_path) as server:
        before = server.workers()
        assert len(before) == 2
        killed = before.pop()
        os.kill(killed, signal.SIGKILL)
        statuses = []

        def replaced() -> bool:
            try:
                statuses.append(httpx.get(f"{server.url}/v1/gallery", timeout=30).status_code)
            except httpx.TransportError:
                statuses.append(0)  # it was sent to the killed process
            return len(server.workers() - {killed}) == 2

        wait_until(replaced)
        assert statuses.count(200) >= len(statuses) - 1
        assert httpx.get(f"{server.url}/v1/gallery", timeout=30).json()["images"] == 24
        code, output = server.stop()
        assert code == 0
        assert f"worker {killed} ended" in output
        assert "Traceback" not in output
        wait_until(lambda: not any(_alive(worker) for worker in before))


def test_sighup_replaces_all_workers_without_downtime(shop_gallery: Path, tmp_path: Path) -> None:
    """The first new one is paused for longer than uvicorn waits by default, as if the machine were busy."""
    with serving([*SERVE, str(shop_gallery), "--workers", "2", "--no-page"], tmp_path) as server:
        before = server.workers()
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: server.workers() - before)
        (first,) = server.workers() - before
        os.kill(first, signal.SIGSTOP)
        threading.Timer(6, os.kill, (first, signal.SIGCONT)).start()
        statuses = []

        def replaced() -> bool:
            statuses.append(httpx.get(f"{server.url}/v1/gallery", timeout=30).status_code)
            now = server.workers()
            return len(now) == 2 and not now & before

        wait_until(replaced, seconds=60)
        assert {*statuses} == {200}
        assert first in server.workers()
        code, output = server.stop()
    assert code == 0
    assert "Traceback" not in output


def test_workers_end_with_a_killed_server(shop_gallery: Path, tmp_path: Path) -> None:
    with serving([*SERVE, str(shop_gallery), "--workers", "2", "--no-page"], tmp_path) as server:
        workers = server.workers()
        server.process.kill()
        wait_until(lambda: not any(_alive(worker) for worker in workers))


def test_json_log_has_one_object_per_line_and_no_query_string(shop_gallery: Path, tmp_path: Path) -> None:
    words = ["--no-page", "--log-level", "info", "--log-format", "json"]
    number = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
    with serving([*SERVE, str(shop_gallery), *words], tmp_path) as server:
        answers = [
            httpx.get(server.url + path, headers={"X-Request-Id": given}, timeout=30)
            for path, given in (("/v1/items/1?q=secret", number), ("/v1/%0A%22x\u2028", "forged\tline"))
        ]
        code, output = server.stop()
    assert code == 0
    lines = [json.loads(line) for line in output.splitlines()]
    first, second = (line for line in lines if "path" in line)
    assert answers[0].headers["x-request-id"] == first["request_id"] == number
    assert answers[1].headers["x-request-id"] == second["request_id"] != "forged\tline"
    assert answers[1].json()["instance"] == f"urn:uuid:{second['request_id']}"
    assert {name: first[name] for name in ("method", "path", "status", "client", "level")} == {
        **{"method": "GET", "path": "/v1/items/1", "status": 200},
        **{"client": "127.0.0.1", "level": "info"},
    }
    assert first["ms"] > 0
    assert first["bytes"] == len(answers[0].content)
    assert second["path"] == "/v1/%0A%22x%E2%80%A8"
    assert "secret" not in output


def test_server_ends_if_workers_cannot_start(shop_gallery: Path, tmp_path: Path) -> None:
    """Otherwise they would be restarted forever; the gallery breaks after the check at start-up."""
    broken, program = tmp_path / "broken", tmp_path / "program.py"
    shutil.copytree(shop_gallery, broken)
    program.write_text(
        "import shutil, socket\n"
        "from pathlib import Path\n"
        "from retrieval.errors import LookalikeError\n"
        "from serve import processes\n"
        "from serve.config import Settings\n"
        "if __name__ == '__main__':\n"
        f"    gallery = Path({str(broken)!r})\n"
        "    settings = Settings({'broken': gallery}, workers=2, page=False)\n"
        "    bound = socket.create_server(('127.0.0.1', 0))\n"
        "    def opened(images):\n"
        "        print(images[gallery])\n"
        "        shutil.rmtree(gallery)\n"
        "    try:\n"
        "        processes.run_workers(settings, bound, opened, lambda: print('ready'))\n"
        "    except LookalikeError as error:\n"
        "        print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=60,
    )
    assert done.stdout == "24\na worker process ended before it was ready: see the messages above\n"
    assert f"{broken}: not a gallery" in done.stderr
