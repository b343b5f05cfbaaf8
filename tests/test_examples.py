"""Commands in the documentation and in help texts: their names, options and choices are those of click."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import click
import pytest

from retrieval import plugins
from retrieval.cli import COMMANDS, cli
from retrieval.errors import InputError

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
COMMAND = re.compile(r"(?<![\w.-])(?<!--entrypoint )lookalike (?!import )[a-z][^`]*?(?=   +[#(]|$|`)")
INCOMPLETE = (click.MissingParameter, click.BadOptionUsage, click.exceptions.NoArgsIsHelpError)
OPEN = re.compile(r"\.\.\.(?=$|\s)|…|\bCOMMAND\b")  # a command that is only begun


def of_blocks(text: str) -> Iterator[str]:
    """Yield the commands in indented and fenced lines, joined where a line ends with a backslash."""
    fenced = False
    for line in re.sub(r" *\\\n\s*", " ", text).splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif (fenced or line.startswith("    ")) and (found := COMMAND.search(line)):
            yield found[0]


def of_prose(text: str) -> Iterator[str]:
    """Yield the commands in inline code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from re.findall(r"`(lookalike [a-z][^`]*)`", text)


class RefusedError(Exception):
    """A command that click does not accept; `incomplete` if it only lacks an argument."""

    def __init__(self, command: str, error: click.ClickException | InputError) -> None:
        super().__init__(f"{command}: {error}")
        self.incomplete = isinstance(error, INCOMPLETE)


def failure(command: str) -> RefusedError | None:
    """Return why click does not accept a command, without running it; None if it does."""
    words = shlex.split(command, comments=True)[1:]
    context, part = click.Context(cli, info_name="lookalike"), cast(click.Command, cli)
    try:
        while isinstance(part, click.Group) and words and not words[0].startswith("-"):
            name, found, words = part.resolve_command(context, words)
            assert found is not None
            part = found
            if isinstance(part, click.Group):
                context = click.Context(part, info_name=name, parent=context)
        if not isinstance(part, click.Group):
            part.make_context(part.name, words, parent=context)
    except click.exceptions.Exit:  # --help
        pass
    except (click.ClickException, InputError) as error:
        return RefusedError(command, error)
    return None


@pytest.fixture(autouse=True)
def any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept paths that do not exist; there are a serve.toml, which is read, and an embedder."""
    monkeypatch.setitem(plugins._registered["embedders"], "colours", (None, "docs/plugins.md"))
    monkeypatch.chdir(ROOT / "deploy")
    monkeypatch.setattr(click.Path, "convert", lambda path, value, *_: (path.type or str)(value))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_blocks_parse(page: Path) -> None:
    commands = [command for command in of_blocks(page.read_text()) if not OPEN.search(command)]
    assert not [str(error) for command in commands if (error := failure(command))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_prose_exist(page: Path) -> None:
    """Their arguments may be left out."""
    commands = [command for command in of_prose(page.read_text()) if not OPEN.search(command)]
    assert not [str(error) for error in map(failure, commands) if error and not error.incomplete]


def test_commands_of_comments_parse() -> None:
    """Those in recipes, in variants of sweeps and in the configurations of servers."""
    files = [
        path for folder in ("recipes", "docs/figures", "deploy") for path in (ROOT / folder).rglob("*.*ml")
    ]
    texts = [re.sub(r"^# ?", "    ", path.read_text(), flags=re.MULTILINE) for path in files]
    commands = [command for text in texts for command in of_blocks(text) if not OPEN.search(command)]
    assert len(commands) >= 8
    assert not [str(error) for error in map(failure, commands) if error and not error.incomplete]


def helps(command: click.Command) -> Iterator[str]:
    """Yield the help texts of a command and its sub-commands."""
    yield inspect.cleandoc(command.help or "")
    if isinstance(command, click.Group):
        for part in command.commands.values():
            yield from helps(part)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_of_help_texts_parse(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for text in helps(command):
        lines = "\n".join(f"  {line}" for line in text.splitlines())
        commands = [command for command in of_blocks(lines) if not OPEN.search(command)]
        assert not [str(error) for command in commands if (error := failure(command))]
