"""The workflows of a host of the repository: pinned actions, few rights, commands and paths that exist."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def jobs(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(file.read_text())["jobs"]
    return found


def steps(file: Path) -> list[dict[str, Any]]:
    return [step for job in jobs(file).values() for step in job["steps"]]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_actions_are_pinned_and_rights_are_few(file: Path) -> None:
    uses = re.findall(r"uses: (.+)", file.read_text())
    assert len(uses) == sum("uses" in step for step in steps(file)) > 0
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line) for line in uses)
    assert yaml.safe_load(file.read_text())["permissions"] == {"contents": "read"}
    written = {name for name, job in jobs(file).items() if "write" in job.get("permissions", {}).values()}
    assert written <= {"publish"}
    assert all("timeout-minutes" in job for job in jobs(file).values())
    assert {job["needs"] for job in jobs(file).values() if "needs" in job} <= jobs(file).keys()


def test_one_action_has_one_version() -> None:
    assert len(FILES) == 2
    pins = {tuple(step["uses"].split("@")) for file in FILES for step in steps(file) if "uses" in step}
    assert len(pins) == len(dict(pins))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_commands_exist(file: Path) -> None:
    commands = "\n".join(step["run"] for step in steps(file) if "run" in step)
    assert re.search(r"^\.ci/run$", commands, re.MULTILINE)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    paths = re.findall(r"(?:tests|docs|deploy)/[\w./-]+", commands)
    assert not [path for path in paths if not (ROOT / path).exists()]
    extras = {extra for words in re.findall(r"\.\[([\w,]+)\]", commands) for extra in words.split(",")}
    assert extras <= PROJECT["optional-dependencies"].keys()
    targets = set(re.findall(r"^make ([\w-]+)", commands, re.MULTILINE))
    assert targets <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_pythons_are_the_oldest_and_the_newest_that_are_stated() -> None:
    stated = [found[1] for line in PROJECT["classifiers"] if (found := re.search(r":: (3\.\d+)$", line))]
    ends = [min(stated, key=minor), max(stated, key=minor)]
    assert jobs(ROOT / ".github" / "workflows" / "ci.yml")["linux"]["strategy"]["matrix"]["python"] == ends


def minor(version: str) -> int:
    return int(version.partition(".")[2])
