"""`lookalike serve` and `python app.py`: the same server, and errors of one line."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.conftest import lookalike
from tests.serve.serving import APP, ROOT, SERVE, files_in, serving


def _refused(*words: str, code: int) -> str:
    said = lookalike("serve", *words, code=code).stderr
    assert said.startswith("lookalike: ")
    assert said.count("\n") == 1
    return said


def test_a_missing_gallery_is_unusable_input(tmp_path: Path) -> None:
    assert "not a gallery" in _refused(str(tmp_path / "nothing"), "--port", "0", code=2)


def test_a_port_in_use_is_named_with_what_to_do(shop_gallery: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = _refused(str(shop_gallery), "--port", port, code=1)
    assert f"port {port} is in use" in said
    assert "--port" in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_addresses_that_others_can_reach_need_insecure(shop_gallery: Path, host: str) -> None:
    assert "--insecure" in _refused(str(shop_gallery), "--host", host, "--port", "0", code=2)


@pytest.mark.parametrize("words", [("--host", "no.such.invalid"), ("--port", "70000"), ("--colour", "red")])
def test_wrong_usage_is_refused(shop_gallery: Path, words: tuple[str, str]) -> None:
    _refused(str(shop_gallery), *words, code=2)


def test_help_and_imports_load_no_framework() -> None:
    code = (
        "import sys, serve, serve.commands, serve.server\n"
        "from click.testing import CliRunner\n"
        "print(CliRunner().invoke(serve.commands.serve, ['--help']).output)\n"
        "print('LOADED', [m for m in ('gradio', 'torch', 'fastapi', 'uvicorn', 'faiss') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--insecure" in done.stdout
    assert "LOADED []" in done.stdout


@pytest.mark.slow
def test_serving_needs_no_torch(shop_gallery: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from pathlib import Path\n"
        "from serve.app import create_app; from serve.service import SearchService\n"
        "create_app(SearchService(Path(sys.argv[1])))"
    )
    environment = {**os.environ, "GRADIO_TEMP_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(shop_gallery)], check=True, env=environment)


@pytest.mark.slow
def test_both_commands_open_the_same_page_and_stop_with_ctrl_c(shop_gallery: Path, tmp_path: Path) -> None:
    pages = []
    for command in ([*SERVE, str(shop_gallery)], [*APP, "--gallery", str(shop_gallery)]):
        with serving(command, tmp_path / "scratch") as server:
            config = httpx.get(f"{server.url}/config", timeout=30).json()
            page = httpx.get(server.url, timeout=30).text
            pages.append((config["title"], config["components"], config["dependencies"]))
            code, said = server.stop()
        assert code == 0
        assert said.endswith("stopped\n")
        assert "Traceback" not in said
        assert "ERROR" not in said
        assert "Lookalike: shop.gallery" in page
    one, other = (re.sub("0x[0-9a-f]+", "", str(page)) for page in pages)
    assert one == other
    assert files_in(tmp_path / "scratch") == set()  # no upload, and no cache of reports to send home


@pytest.mark.slow
def test_a_terminated_server_leaves_nothing_behind(shop_gallery: Path, tmp_path: Path) -> None:
    before = {*ROOT.rglob("*.pyi")}
    with serving([*SERVE, str(shop_gallery)], tmp_path / "scratch") as server:
        answer = httpx.post(f"{server.url}/gradio_api/upload", files={"files": ("a.png", b"x")}, timeout=30)
        assert answer.status_code == 200
        assert files_in(server.scratch)
        server.process.send_signal(signal.SIGTERM)
        server.process.communicate(timeout=30)
        assert server.process.returncode == 0
    assert list((tmp_path / "scratch").glob("lookalike-*")) == []
    assert {*ROOT.rglob("*.pyi")} == before  # the framework writes some beside components that are subclassed


@pytest.mark.slow
def test_insecure_answers_to_any_name(shop_gallery: Path, tmp_path: Path) -> None:
    command = [*SERVE, str(shop_gallery), "--host", "0.0.0.0", "--insecure"]
    with serving(command, tmp_path / "scratch") as server:
        answer = httpx.get(f"{server.url}/healthz", headers={"Host": "gallery.example"}, timeout=30)
        assert answer.json() == {"status": "ok"}
