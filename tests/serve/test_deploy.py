"""The files in deploy/ use existing settings and commands."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import click
import pytest
import yaml
from starlette.types import Receive, Scope, Send

from retrieval.commands.index import index
from retrieval.images import load
from retrieval.stores.opening import parse_address
from serve import app, limits
from serve.api.jobs import KINDS
from serve.commands import serve
from serve.config import PASSWORD, settings
from serve.core import changes, queries, shared_pictures, url_fetcher
from serve.core.workers import Limits
from serve.http import auth, connections, protocol, rate_limit, stack
from serve.http.body_limit import BodyLimitMiddleware
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


@pytest.mark.parametrize("name", ["Containerfile", "lookalike.service", "README.md", "compose.search.yaml"])
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


@pytest.mark.parametrize("name", ["postgres", "qdrant", "milvus"])
def test_compose_file_has_what_lookalike_needs(name: str) -> None:
    found = yaml.safe_load((DEPLOY / f"compose.{name}.yaml").read_text())
    services, text = found["services"], (DEPLOY / "README.md").read_text()
    for service in services.values():
        if "image" in service:  # a version, so that the next start has the same
            assert re.fullmatch(r"[a-z.]+(/[a-z]+)+:[\w.-]*\d[\w.-]*", service["image"]), service["image"]
            assert service["healthcheck"]
            assert any(one.partition(":")[0] in found["volumes"] for one in service["volumes"])
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert other in services
    search = services["search"]
    base = yaml.safe_load((DEPLOY / search["extends"]["file"]).read_text())["services"]["search"]
    assert (DEPLOY / base["build"]["context"] / base["build"]["dockerfile"]).exists()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {*search["build"]["args"]["EXTRA"].split(",")} == {"cpu", "page", name} <= extras.keys()
    (address,) = {one for one in re.findall(r"[a-z]+://[\w@]*store[\w:/]*", text) if one.startswith(name)}
    parsed = parse_address(address)
    assert (parsed.kind[: len(name)], parsed.host, parsed.collection) == (name, "store", parsed.collection)
    if name == "postgres":
        environment = services["store"]["environment"]
        assert (parsed.user, parsed.database) == (environment["POSTGRES_USER"], environment["POSTGRES_DB"])
    assert set(re.findall(r"\$\{([A-Z_]+)", json.dumps([found, base]))) <= {
        "LOOKALIKE_FOLDER",
        "STORE_PASSWORD",
        "VISITOR_PASSWORD",
    }
    for key, value in [one for s in [*services.values(), base] for one in s.get("environment", {}).items()]:
        if re.search("PASSWORD|SECRET|API_KEY", key):
            assert value.startswith(("${", "/run/secrets/")), key


@pytest.mark.parametrize("page", ["deploy/README.md", "docs/stores.md", "README.md"])
def test_documented_commands_of_galleries_exist(page: str) -> None:
    text = (ROOT / page).read_text().replace("\\\n", " ")
    commands = re.findall(r"lookalike(?: search)? index ([^`\n]*)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        name, *words = shlex.split(command, comments=True)
        found = index.get_command(click.Context(index), name)
        assert found is not None, command
        found.make_context(name, words)


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


LIMITS = {  # numbers of a row of the table "Limits", as the code has them
    "pictures that one client shares": (rate_limit._SHARES, 1 / rate_limit._SHARES_PER_SECOND),
    "shared pictures": (shared_pictures.KEPT, shared_pictures.MAX_BYTES / 2**20),
    "failed sign-ins": (auth._ATTEMPTS, 1 / auth._ATTEMPTS_PER_SECOND),
    "one image": (load.MAX_PIXELS / 1e6,),
    "images in one API request": (changes.MAX_IMAGES, limits.MAX_K),
    "queued requests": (Limits().queued,),
    "queued thumbnails": (app._QUEUED_THUMBNAILS, app._THUMBNAIL_SECONDS),
    "time to send the request headers": (protocol.HEADER_SECONDS,),
    "images being fetched": (
        url_fetcher.MAX_CONCURRENT,
        url_fetcher.TIMEOUT_SECONDS,
        url_fetcher.MAX_BYTES / 2**20,
    ),
    "connections; open streams": (
        connections.MAX_CONNECTIONS,
        rate_limit._MAX_STREAMS,
        rate_limit._MAX_STREAMS_PER_CLIENT,
    ),
}


@pytest.mark.parametrize("row", LIMITS)
def test_documented_limits_are_those_of_the_code(row: str) -> None:
    (limit,) = re.findall(rf"^\| {row}.*?\| (.+?) \|", (DEPLOY / "README.md").read_text(), re.MULTILINE)
    assert [float(number) for number in re.findall(r"\d+", limit)] == pytest.approx([*LIMITS[row]])


def test_other_documented_limits_are_those_of_the_code() -> None:
    text = " ".join((DEPLOY / "README.md").read_text().split())
    assert f"{connections.RESERVED} further connections are kept" in text
    assert f"send its request within {protocol.RESERVE_SECONDS:g} seconds" in text
    assert rate_limit._BURST_SECONDS == 10
    assert "`--rate` per second, burst ten times as many" in text
    assert f"images of over {queries._LARGE / 1e6:g} megapixels" in text
    assert Limits().queue_share == pytest.approx(1 / 3)
    assert "at most a third of `--deadline`" in text
    assert stack._CONCURRENT_BODIES == 8
    assert "eight times `--max-body` | 503" in text
    slow = inspect.signature(BodyLimitMiddleware).parameters
    rate, seconds = slow["min_rate"].default / 1000, slow["max_stall"].default
    assert f"body slower than {rate:g} kB per second | {seconds:g} seconds" in text
    assert f"if less than {changes._MIN_FREE_BYTES / 2**30:g} GiB of disk is free" in text


def test_the_documented_job_kinds_are_those_of_the_code() -> None:
    text = " ".join((DEPLOY / "README.md").read_text().split())
    free = [name for name, kind in KINDS.items() if not kind.changes]
    assert f"start an analysis ({', '.join(free)})" in text
    guarded = " or a ".join(name for name, kind in KINDS.items() if kind.changes)
    assert f"`--allow-changes`: everyone with access can add and remove images, and start a {guarded}" in text
