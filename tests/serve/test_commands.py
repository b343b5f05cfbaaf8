"""The commands `lookalike serve` and `python app.py`, their settings and error messages."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import httpx
import pytest

from retrieval.errors import InputError
from retrieval.machine.devices import Device
from retrieval.model.runtime import Runtime
from serve.commands import serve
from serve.config import LOCAL_NAMES, Settings, settings
from tests.conftest import lookalike_here
from tests.serve.serving import APP, SERVE, files_in, serving


def _refused(*words: str, code: int) -> str:
    with mock.patch.dict(os.environ):  # which a server modifies
        output = lookalike_here("serve", *words, code=code).stderr
    assert output.startswith("lookalike: ")
    assert output.count("\n") == 1
    return output


def test_missing_gallery_is_an_input_error(tmp_path: Path) -> None:
    assert "not a gallery" in _refused(str(tmp_path / "nothing"), "--port", "0", code=2)


def test_port_in_use_is_reported_with_a_hint(shop_gallery: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        output = _refused(str(shop_gallery), "--port", port, code=1)
    assert f"port {port} is in use" in output
    assert "--port" in output


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_public_host_needs_insecure(shop_gallery: Path, host: str) -> None:
    assert "--insecure" in _refused(str(shop_gallery), "--host", host, "--port", "0", code=2)


@pytest.mark.parametrize("words", [("--host", "no.such.invalid"), ("--port", "70000"), ("--colour", "red")])
def test_wrong_usage_is_refused(shop_gallery: Path, words: tuple[str, str]) -> None:
    _refused(str(shop_gallery), *words, code=2)


def test_help_and_imports_load_no_web_framework() -> None:
    code = (
        "import sys, serve, serve.commands, serve.server\n"
        "from click.testing import CliRunner\n"
        "print(CliRunner().invoke(serve.commands.serve, ['--help']).output)\n"
        "print('LOADED', [m for m in ('gradio', 'torch', 'fastapi', 'uvicorn', 'faiss') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--insecure" in done.stdout
    assert "LOADED []" in done.stdout


# ---- settings


def _set(*words: str) -> Settings:
    """Return the settings of a command line."""
    params = serve.make_context("serve", ["shop.gallery", *words]).params
    return settings(**params)


def test_defaults_are_those_of_the_settings() -> None:
    found = replace(_set(), names=())  # these also have the host
    assert found == Settings(found.galleries, names=())


def test_command_line_overrides_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(
        'port = 1\nrate = 1.5\nmax-body = 1\nlog_level = "info"\npage = false\nworkers = 2\n'
        'allow-host = ["a.example", "*.b.example"]\ninsecure = true\ntrusted-proxy = "10.0.0.0/8"\n'
        'device = "cuda:1"\n'
    )
    monkeypatch.setenv("LOOKALIKE_SERVE_RATE", "2.5")
    monkeypatch.setenv("LOOKALIKE_SERVE_MAX_BODY", "2")
    monkeypatch.setenv("LOOKALIKE_SERVE_BATCH_SIZE", "8")
    monkeypatch.setenv("LOOKALIKE_SERVE_ALLOW_ORIGIN", "https://a.example http://b.example:8080")
    found = _set("--config", str(file), "--max-body", "3")
    assert found == Settings(
        galleries={"shop": Path("shop.gallery")},
        host="127.0.0.1",  # set nowhere
        port=1,  # only in the file
        workers=2,
        page=False,
        names=(*LOCAL_NAMES, "127.0.0.1", "a.example", "*.b.example"),
        origins=("https://a.example", "http://b.example:8080"),  # only in the environment
        proxies=("10.0.0.0/8",),
        insecure=True,
        connections=128,  # the default behind a proxy
        rate=2.5,  # environment before file
        max_body=3,  # command line before environment before file
        log_level="info",
        runtime=Runtime(Device("cuda", 1), batch_size=8),
    )
    monkeypatch.setenv("LOOKALIKE_SERVE_CONFIG", str(file))
    assert _set().port == 1
    assert serve.make_context("serve", [], resilient_parsing=True).params["gallery"] in (None, ())
    monkeypatch.setenv("LOOKALIKE_SERVE_GALLERY", "my birds.gallery:cars=/other")
    assert serve.make_context("serve", []).params["gallery"] == ("my birds.gallery", "cars=/other")
    monkeypatch.delenv("LOOKALIKE_SERVE_GALLERY")
    for text, galleries in (('"third.gallery"', ("third.gallery",)), ('["a", "b=c"]', ("a", "b=c"))):
        file.write_text(f"gallery = {text}")
        assert serve.make_context("serve", []).params["gallery"] == galleries


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "did you mean 'port'?"),
        ("tokenfile = 'x'", "did you mean 'token-file'?"),
        ("token = 'secret-in-the-wrong-place'", "unknown setting 'token'"),
        ("config = 'x'", "unknown setting 'config'"),
        ("[port]\nx = 1", "port must be text, a number"),
        ("port = ", "not TOML"),
        ("port = 'seven'", "'seven' is not a valid integer"),
        ("workers = 0", "0 is not in the range"),
    ],
)
def test_invalid_config_file_is_refused(shop_gallery: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "serve.toml").write_text(text)
    assert message in _refused(str(shop_gallery), "--config", str(tmp_path / "serve.toml"), code=2)


def test_misspelt_variable_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOOKALIKE_SERVE_PROT", "1")
    _set()
    assert "LOOKALIKE_SERVE_PROT: no such setting, ignored; did you mean 'port'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--allow-origin", "*"], "one site at a time"),
        (["--allow-origin", "https://*.example"], "one site at a time"),
        (["--allow-origin", "https://shop.example/page"], "one site at a time"),
        (["--allow-origin", "shop.example"], "one site at a time"),
        (["--allow-origin", "null"], "one site at a time"),
        (["--allow-host", "*"], "not a host name"),
        (["--trusted-proxy", "*"], "an address or network"),
        (["--trusted-proxy", "proxy.example"], "an address or network"),
        (["--trusted-proxy", "10.0.0.1/8"], "an address or network"),
        (["--trusted-proxy", "127.0.0.1"], "a proxy lets other machines in"),
        (["--user", "ann"], "without a password"),
        (["--token-file", "/nowhere"], "cannot be read"),
    ],
)
def test_invalid_settings_are_refused(shop_gallery: Path, words: list[str], message: str) -> None:
    assert message in _refused(str(shop_gallery), *words, "--port", "0", code=2)


def test_page_needs_a_password_beside_a_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-for-programs")
    with pytest.raises(InputError, match="--no-page"):
        _set("--token-file", str(tmp_path / "token"))
    assert _set("--token-file", str(tmp_path / "token"), "--no-page").credentials


def test_rate_limit_defaults_to_public_servers() -> None:
    assert _set().rate == 0
    assert _set("--host", "localhost").rate == 0
    assert _set("--host", "0.0.0.0").rate > 0
    assert _set("--trusted-proxy", "127.0.0.1", "--insecure").rate > 0
    assert _set("--host", "0.0.0.0", "--rate", "0").rate == 0


def test_host_names_default_to_local_names() -> None:
    assert _set().names == (*LOCAL_NAMES, "127.0.0.1")
    assert _set("--host", "0.0.0.0", "--insecure").names == ("*",)
    assert "*" not in _set("--host", "0.0.0.0", "--insecure", "--allow-host", "a.example").names


def test_variable_of_a_repeatable_option_has_values_separated_by_spaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOOKALIKE_SERVE_ALLOW_HOST", "a.example  *.b.example")
    assert {"a.example", "*.b.example"} <= {*_set().names}


def _without(modules: str, gallery: Path) -> list[str]:
    """Return a command that runs `lookalike serve` with some modules unimportable."""
    code = (
        f"import sys; sys.modules |= dict.fromkeys({modules.split()})\n"
        "from retrieval.cli import main; main(sys.argv[1:])"
    )
    return [sys.executable, "-c", code, "serve", str(gallery)]


@pytest.mark.slow
def test_server_needs_neither_gradio_nor_matplotlib(shop_gallery: Path, tmp_path: Path) -> None:
    with serving(_without("torch gradio matplotlib", shop_gallery), tmp_path / "page") as server:
        assert "Lookalike: shop" in httpx.get(server.url, timeout=30).text
        refused = httpx.get(f"{server.url}/config", timeout=30)
        assert refused.status_code == 404
        assert "Gradio's API needs gradio" in refused.text
        assert server.stop()[0] == 0
    command = [*_without("torch gradio", shop_gallery), "--no-page"]
    with serving(command, tmp_path / "scratch") as server:
        assert httpx.get(f"{server.url}/v1/gallery", timeout=30).json()["images"] == 24
        assert httpx.get(server.url, timeout=30).headers["location"] == "/v1/docs"
        assert server.stop()[0] == 0


@pytest.mark.slow
def test_both_commands_serve_the_page_and_leave_no_files(shop_gallery: Path, tmp_path: Path) -> None:
    """One is stopped with Ctrl-C, the other one terminated."""
    pages = []
    for command, number in (
        (_without("torch", shop_gallery), signal.SIGINT),
        ([*APP, "--gallery", str(shop_gallery)], signal.SIGTERM),
    ):
        with serving(command, tmp_path / "scratch") as server:
            page = httpx.get(server.url, timeout=30).text
            pages.append(page.replace(server.url, ""))
            assert list(server.scratch.glob("lookalike-*"))
            server.process.send_signal(number)
            _, output = server.process.communicate(timeout=30)
        assert server.process.returncode == 0
        assert output.endswith("stopped\n")
        assert "Traceback" not in output
        assert "ERROR" not in output
        assert "Lookalike: shop" in page
        assert files_in(tmp_path / "scratch") == set()
        assert list((tmp_path / "scratch").glob("lookalike-*")) == []
    assert pages[0] == pages[1]


@pytest.mark.slow
def test_insecure_accepts_any_host(shop_gallery: Path, tmp_path: Path) -> None:
    command = [*SERVE, str(shop_gallery), "--no-page", "--host", "0.0.0.0", "--insecure"]
    with serving(command, tmp_path / "scratch") as server:
        answer = httpx.get(f"{server.url}/healthz", headers={"Host": "gallery.example"}, timeout=30)
        assert answer.json() == {"status": "ok"}


def test_second_interruption_ends_as_quietly(shop_gallery: Path, tmp_path: Path) -> None:
    with serving([*SERVE, str(shop_gallery)], tmp_path) as server:
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.02)  # two signals at once are one
        code, output = server.stop()
    assert code == 0
    assert "Traceback" not in output
    assert output.endswith("stopped\n")
