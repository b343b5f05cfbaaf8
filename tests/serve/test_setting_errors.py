"""Error messages about settings: source and hint."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from retrieval.errors import InputError
from retrieval.galleries.database_folder import NAME
from serve.commands import serve
from serve.config import read_credentials, settings
from tests.conftest import lookalike
from tests.serve.serving import SERVE


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TOKEN", "set LOOKALIKE_TOKEN, or name a file"),
        ("PASSWORD", "set LOOKALIKE_PASSWORD, or name a file"),
        ("NO_PAGE", "write LOOKALIKE_SERVE_PAGE=false"),
        ("ALLOW_HOSTS", "did you mean 'allow-host'?"),
    ],
)
def test_unknown_variable_gets_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, message: str
) -> None:
    monkeypatch.setenv(f"LOOKALIKE_SERVE_{name}", "a-secret-perhaps")
    serve.make_context("serve", ["shop.gallery"])
    output = capsys.readouterr().err
    assert f"LOOKALIKE_SERVE_{name}: no such setting, ignored; {message}" in output
    assert "a-secret-perhaps" not in output


def test_hinted_variables_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOOKALIKE_SERVE_PAGE", "false")
    monkeypatch.setenv("LOOKALIKE_TOKEN", "a-token-for-programs")
    found = settings(**serve.make_context("serve", ["shop.gallery"]).params)
    assert not found.page
    assert found.credentials is not None
    assert found.credentials.authenticate("Bearer a-token-for-programs") == "token"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no-page = true", "unknown setting 'no-page'; write page = false"),
        (
            "token = 'a-secret-perhaps'",
            "set LOOKALIKE_TOKEN, or name a file with 'token-file'",
        ),
        ("port = 'seven'", "Invalid value for FILE: port: 'seven' is not a valid integer"),
        ("max-body = 0", "Invalid value for FILE: max-body: 0 is not in the range"),
        ("log_level = 'loud'", "Invalid value for FILE: log-level: 'loud' is not one of"),
        ("allow-origin = 'x'", "lookalike: FILE: allow-origin x: one site at a time"),
        ("host = '192.0.2.7'", "lookalike: FILE: host 192.0.2.7: other machines could search"),
    ],
)
def test_error_names_the_config_file(shop_gallery: Path, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    output = lookalike("serve", str(shop_gallery), "--config", str(file), code=2).stderr
    assert message.replace("FILE", str(file)) in output
    assert "a-secret-perhaps" not in output


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PORT", "seven", "Invalid value for LOOKALIKE_SERVE_PORT: 'seven' is not a valid integer"),
        (
            "INSECURE",
            "perhaps",
            "Invalid value for LOOKALIKE_SERVE_INSECURE: 'perhaps' is not a valid boolean",
        ),
        ("CONFIG", "/nowhere.toml", "lookalike: LOOKALIKE_SERVE_CONFIG /nowhere.toml: cannot be read"),
        ("TRUSTED_PROXY", "10.0.0.1/8", "lookalike: LOOKALIKE_SERVE_TRUSTED_PROXY 10.0.0.1/8: an address"),
    ],
)
def test_error_names_the_environment_variable(
    monkeypatch: pytest.MonkeyPatch, shop_gallery: Path, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(f"LOOKALIKE_SERVE_{name}", value)
    assert message in lookalike("serve", str(shop_gallery), code=2).stderr


def test_error_names_the_command_line_option(monkeypatch: pytest.MonkeyPatch, shop_gallery: Path) -> None:
    monkeypatch.setenv("LOOKALIKE_SERVE_ALLOW_ORIGIN", "https://shop.example")
    output = lookalike("serve", str(shop_gallery), "--allow-origin", "x", code=2).stderr
    assert output.startswith("lookalike: --allow-origin x: one site at a time")


@pytest.mark.parametrize(
    "token", ["a-tökén-for-programs", "a-token-\N{EN DASH}-for-programs", "a-token\x7fof-programs"]
)
def test_non_ascii_token_is_refused(tmp_path: Path, token: str) -> None:
    (tmp_path / "tokens").write_text(f"a-token-that-is-right\n{token}\n", "utf-8")
    with pytest.raises(InputError, match="printable ASCII") as refused:
        read_credentials(tmp_path / "tokens", None, None)
    assert str(refused.value).startswith(str(tmp_path / "tokens"))
    assert token not in str(refused.value)


def test_search_on_the_device_needs_the_page(shop_gallery: Path, tmp_path: Path) -> None:
    words = ("--on-device", str(tmp_path), "--no-page")
    assert "leave out --no-page" in lookalike("serve", str(shop_gallery), *words, code=2).stderr


def test_workers_need_a_database_that_they_can_share(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"format": 1, "address": "qdrant:///data/birds", "collection_uuid": "u"}')
    command = [*SERVE, str(tmp_path), "--workers", "2", "--no-page", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "one process at a time can open qdrant:///data/birds; use" in done.stderr
