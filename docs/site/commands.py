"""Pages of the commands: everything that `--help` says, from click."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator

import click
import repository

from retrieval.cli import COMMANDS, cli


def pages() -> dict[str, str]:
    """Return a page for each command and an overview, by their places on the site."""
    mentions = _mentions()
    made = {"commands.md": _overview()}
    with click.Context(cli, info_name="lookalike") as context:
        for name in COMMANDS:
            command = cli.get_command(context, name)
            assert command is not None
            text = "\n".join(_describe(command, context, level=1, guides=mentions.get(name, [])))
            made[f"commands/{name}.md"] = text
    return made


def _overview() -> str:
    rows = [f"| [`{name}`](commands/{name}.md) | {line} |" for name, (_, line) in COMMANDS.items()]
    return "\n".join(
        [
            "# Commands",
            "",
            "These pages are made from the commands themselves and say what `lookalike COMMAND --help` says.",
            "",
            "| command | what it does |",
            "|---|---|",
            *rows,
            "",
            *_prose(cli.help or ""),
        ]
    )


def _describe(
    command: click.Command, parent: click.Context, level: int, guides: list[tuple[str, str]]
) -> Iterator[str]:
    """Yield the lines of a command's section, and of its sub-commands."""
    with click.Context(command, info_name=command.name, parent=parent) as context:
        yield from (f"{'#' * level} {context.command_path.removeprefix('lookalike ')}", "")
        yield from _prose(command.help or "")
        if guides:
            links = ", ".join(f"[{title}](../{page})" for page, title in guides)
            yield from (f"*Guides:* {links}.", "")
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        yield from ("```text", usage, "```", "")
        for parameter in command.get_params(context):
            names, text = parameter.get_help_record(context) or ("", "")
            if text and parameter.name != "help":
                yield from (f"`{names}`", ":   " + repository.prose(text, "../"), "")
        if command.name == "train":
            yield from ("Settings of `--set` and their defaults: [Settings](../settings.md).", "")
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                part = command.get_command(context, name)
                assert part is not None
                yield from _describe(part, context, level + 1, [])


def _prose(text: str) -> Iterator[str]:
    """Yield a help text as Markdown: paragraphs, and indented lines as code."""
    for block in inspect.cleandoc(text).split("\n\n"):
        kept = block.startswith("\b")
        lines = block.removeprefix("\b").strip("\n").splitlines()
        if not kept:
            yield from (repository.prose(" ".join(line.strip() for line in lines), "../"), "")
            continue
        start = next((i for i, line in enumerate(lines) if line.startswith("  ")), len(lines))
        if start:
            yield from (repository.prose(" ".join(lines[:start]), "../"), "")
        if lines[start:]:
            language = "sh" if "lookalike " in lines[start] else "text"
            yield from (f"```{language}", *(line.removeprefix("  ") for line in lines[start:]), "```", "")


def _mentions() -> dict[str, list[tuple[str, str]]]:
    """Return, for each command, the pages that use it most, as their place and title."""
    found: dict[str, Counter[tuple[str, str]]] = {name: Counter() for name in COMMANDS}
    for source, page in repository.PLACES.items():
        if source == "CHANGELOG.md":
            continue
        text = (repository.ROOT / source).read_text()
        title = "Home" if source == "README.md" else repository.title(source)
        for name in re.findall(r"lookalike ([a-z]+)\b", text):
            if name in found:
                found[name][page, title] += 1
    return {name: [page for page, _ in pages.most_common(5)] for name, pages in found.items()}
