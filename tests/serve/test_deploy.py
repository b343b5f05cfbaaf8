"""The files in deploy/ use existing settings and commands."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from serve.commands import serve
from serve.config import PASSWORD, settings
from tests.serve.asgi_server import listening, measure
from tests.serve.serving import ROOT

DEPLOY = ROOT / "deploy"
OPTIONS = {option.name for option in serve.params}


def test_example_configuration_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD, "long enough")
    found = settings(**serve.make_context("serve", ["--config", str(DEPLOY / "serve.toml")]).params)
    assert found.galleries == {"shop": Path("/srv/lookalike/shop.gallery")}
    assert found.proxies
    assert found.credentials


@pytest.mark.parametrize("name", ["Containerfile", "lookalike.service", "README.md"])
def test_environment_variables_are_settings(name: str) -> None:
    variables = re.findall(r"LOOKALIKE_SERVE_([A-Z_]+)", (DEPLOY / name).read_text())
    assert variables
    assert {variable.lower() for variable in variables} <= OPTIONS


def test_container_copies_all_installed_packages() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    copied = re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)
    for name in " ".join(copied).split():
        assert name.startswith("--") or (ROOT / name).exists() or name == "/opt/lookalike"
    packages = re.search(
        r"include = \[(.*)\]\n\n\[tool\.setuptools\.package-data", (ROOT / "pyproject.toml").read_text()
    )
    assert packages
    assert set(re.findall(r'"(\w+)\*"', packages[1])) <= set(" ".join(copied).split())


def test_container_checks_health_at_its_port() -> None:
    health = re.search(
        r"^HEALTHCHECK .* CMD \\\n +(\[.*\])$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE
    )
    assert health
    python, *words = json.loads(health[1])
    assert python == "python"
    paths: list[str] = []

    async def healthy(scope: Scope, receive: Receive, send: Send) -> None:
        paths.append(scope["path"])
        await measure(scope, receive, send)

    def probe(port: int) -> int:
        environment = {**os.environ, "LOOKALIKE_SERVE_PORT": str(port)}
        return subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, check=False
        ).returncode

    with listening(healthy) as port:
        assert probe(port) == 0
    assert paths == ["/healthz"]
    assert probe(port) != 0


CHANGES = re.search(r"^    \[Service\]\n(    \w+=.*\n)+", (DEPLOY / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("changes", [False, True])
def test_systemd_accepts_the_unit_and_rates_it_safe(tmp_path: Path, changes: bool) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / "lookalike.service"
    text = (DEPLOY / "lookalike.service").read_text()
    if changes:
        assert CHANGES
        text += textwrap.dedent(CHANGES[0])
    unit.write_text(text.replace("/opt/lookalike/bin/lookalike", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", str(unit)]
    rating = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert rating.returncode == 0, rating.stdout.splitlines()[-1]
