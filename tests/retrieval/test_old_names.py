"""Old names of commands and options: each works, says its new name, and is in no help text."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from retrieval import old_names
from retrieval.cli import cli
from tests.conftest import lookalike_here


def leaves(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield each command without its groups, with its words after `lookalike`."""
    if not isinstance(command, click.Group):
        yield context.command_path.removeprefix("lookalike "), command
        return
    for name in command.list_commands(context):
        part = command.get_command(context, name)
        assert part is not None
        yield from leaves(part, click.Context(part, context, info_name=name))


ALL = dict(leaves(cli, click.Context(cli, info_name="lookalike")))
OLD_OPTIONS = [(command, old) for command, options in old_names.OPTIONS.items() for old in options]


@pytest.mark.parametrize("old", old_names.COMMANDS)
def test_old_command_is_the_present_one(old: str) -> None:
    done = lookalike_here(*old.split(), "--help") if "--" not in old else None
    new = old_names.COMMANDS[old]
    words = [word for word in new.split() if not word.startswith("-")]
    assert any(name.split()[: len(words)] == words for name in ALL), "there is such a command"
    assert old not in ALL
    if done is not None:
        assert done.stderr.splitlines() == [f"`lookalike {old}` is now `lookalike {new}`"]
        assert f"Usage: lookalike {' '.join(words)} " in done.stdout


@pytest.mark.parametrize(("command", "old"), OLD_OPTIONS)
def test_old_option_is_in_no_help(command: str, old: str) -> None:
    names = {name for parameter in ALL[command].params for name in parameter.opts}
    new = old_names.OPTIONS[command][old]
    assert old not in names
    assert not new.startswith("--") or new.split()[0] in names
    assert f"{old} " not in lookalike_here(*command.split(), "--help").stdout


@pytest.mark.parametrize(
    ("words", "new"),
    [
        ("suspects g --most 20", "check suspects g --limit 20"),
        ("suspects --most=20 g", "check suspects --limit 20 g"),
        ("inspect g --dark 0.1 --list a.csv", "check quality g --threshold dark=0.1 --list a.csv"),
        ("index decisions --undo 1 g --undo=2 --json", "check undo g --json 1 2"),
        ("index decisions g --labels t.csv --dry-run", "check decide g --dry-run t.csv"),
        ("index decisions g --all", "check decisions g --all"),
        ("index add g duplicates", "index add g duplicates"),
        ("check suspects --most", "check suspects --limit "),
        ("", ""),
    ],
)
def test_command_line_is_rewritten(words: str, new: str) -> None:
    assert old_names.renew(words.split())[0] == (new.split(" ") if new else [])
