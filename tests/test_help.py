"""Help texts as a newcomer reads them: one sentence for each command, and no more than a screen can show."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import click
import pytest

from retrieval.cli import COMMANDS, TOPICS, cli
from retrieval.old_names import COMMANDS as OLD
from tests.conftest import lookalike_here

# What there is: a new command or option replaces another one, or raises its number here with a reason.
MOST_COMMANDS, MOST_OPTIONS = 68, 516


def commands(group: click.Group, context: click.Context) -> dict[str, click.Command]:
    """Return all commands below a group, by their words."""
    found = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        below = click.Context(command, context, info_name=name)
        found[below.command_path.removeprefix("lookalike ")] = command
        if isinstance(command, click.Group):
            found |= commands(command, below)
    return found


ALL = commands(cli, click.Context(cli, info_name="lookalike"))


@pytest.mark.parametrize("name", [name for name, command in ALL.items() if isinstance(command, click.Group)])
def test_each_line_of_a_list_is_one_sentence(name: str) -> None:
    group = ALL[name]
    assert isinstance(group, click.Group)
    context = click.Context(group, info_name=name)
    formatter = click.HelpFormatter(width=1000)
    group.format_commands(context, formatter)
    rows = re.findall(r"^  ([a-z][\w-]*) +(.*)$", formatter.getvalue(), re.MULTILINE)
    assert [row[0] for row in rows] == group.list_commands(context)
    for command, line in rows:
        assert re.fullmatch(r"[A-Z][^.]*(\.\w[^.]*)*\.", line), f"{name} {command}: {line}"
        assert len(line) <= 100


def test_lines_of_the_first_list_are_sentences() -> None:
    for name, (_, line) in COMMANDS.items():
        assert re.fullmatch(r"[A-Z][^.]*\.", line), name
        assert len(line) <= 100


def test_first_list_begins_with_what_most_people_need() -> None:
    assert list(next(iter(TOPICS.values())))[:8] == [
        *("up", "index", "search", "serve", "check", "evaluate", "train", "export"),
    ]
    lines = lookalike_here("--help").stdout.splitlines()
    assert len(lines) <= 80
    assert [line.rstrip(":") for line in lines if line.rstrip(":") in TOPICS] == list(TOPICS)


def test_old_names_are_in_no_list() -> None:
    assert not {old for old in OLD if old in ALL}


def test_help_of_training_fits_two_screens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = lookalike_here("train", "--help").stdout.splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 100


def test_number_of_commands_and_options() -> None:
    leaves = [command for command in ALL.values() if not isinstance(command, click.Group)]
    leaves += [command for command in ALL.values() if getattr(command, "invoke_without_command", False)]
    options = [
        parameter
        for command in leaves
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    assert len(leaves) <= MOST_COMMANDS
    assert len(options) <= MOST_OPTIONS


def test_completion_imports_no_command() -> None:
    variables = {"_LOOKALIKE_COMPLETE": "bash_complete", "COMP_WORDS": "lookalike se", "COMP_CWORD": "1"}
    command = [sys.executable, "-X", "importtime", "-m", "lookalike"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})
    assert done.stdout.split() == ["plain,search", "plain,serve"]
    assert "retrieval.cli" in done.stderr
    assert "retrieval.commands" not in done.stderr
    assert "serve.commands" not in done.stderr
