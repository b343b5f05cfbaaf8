"""List of the papers' figures: its page is up to date, and every command in it parses."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise
from pathlib import Path

import click
import pytest

from retrieval.cli import cli
from tests.conftest import lookalike_here
from train import settings
from train.papers.figures import figures_page, paper_figures

COMMANDS = [command for figure in paper_figures() for command in figure.commands]


def test_page_agrees_with_the_list() -> None:
    page = Path("docs/figures.md").read_text()
    assert page == figures_page(), "python -m train.papers.figures > docs/figures.md"


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_and_their_options_exist(line: str) -> None:
    program, *words = shlex.split(line)
    assert program == "lookalike"
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, words[0]
        command, words = found, words[1:]
    command.make_context(command.name, words)  # parses without running
    assert all(Path(word).is_file() for word in words if word.startswith("docs/"))
    for option, word in pairwise(words):
        if option == "--recipe":
            settings.read_recipe(word)


def test_figures_are_listed_once_and_explained() -> None:
    keys = [(figure.paper, figure.figure) for figure in paper_figures()]
    assert len(keys) == len(set(keys))
    numbers = {paper: {figure for of, figure in keys if of == paper} for paper, _ in keys}
    assert numbers == {
        "LoOp": {"1", "2", "3a", "3b", "3c", "3d", "4", "section 4.3", "S1", "S2", "S3", "S4", "S5"},
        "SCT": set("123456789"),
        "RAW": set("12"),
        "Symm": set("12345678"),
        "DCDL": set("123"),
    }
    assert all(figure.commands or figure.note for figure in paper_figures())


def test_list_on_the_command_line() -> None:
    listed = lookalike_here("analyze", "--list").stdout
    assert all(command in listed for command in COMMANDS)
    facts = json.loads(lookalike_here("analyze", "--list", "--json").stdout)
    assert [(fact["paper"], fact["figure"]) for fact in facts] == [
        (f.paper, f.figure) for f in paper_figures()
    ]
    for words, why in (
        (("--list", "tsne", "x.npz", "--out", "x.svg"), "--list takes no command"),
        (("--json",), "put it after the command"),
    ):
        assert why in lookalike_here("analyze", *words, code=2).stderr
