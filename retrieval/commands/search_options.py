"""Options of commands that search, and functions that build options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from retrieval.errors import InputError
from retrieval.search.options import SearchOption


def combine_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds several options to a command, in this order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def where_option(text: str) -> Callable[[Any], Any]:
    """Return the option --where with a help text. @FILE stands for a condition in a file, however long."""

    def read(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
        if value is None or not value.startswith("@"):
            return value
        try:
            return Path(value[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{value[1:]}: the condition cannot be read ({error})") from error

    return click.option(
        "--where", metavar="CONDITION", callback=read, help=f"{text}; @FILE reads it from FILE."
    )


def search_option(option: SearchOption) -> Any:
    """Return the option of the command for an option of a search."""
    text = option.help
    if option.name == "where":
        return where_option(text.removesuffix("."))
    if option.high is not None:
        text = f"{text.removesuffix('.')}. From {option.low:g} to {option.high:g}."
    kind: Any = option.kind
    ends: Any = (option.low, option.high)
    if option.choices:
        kind = click.Choice(option.choices)
    elif option.kind is int:
        kind = click.IntRange(*ends)
    return click.option(
        f"--{option.name.replace('_', '-')}" if len(option.name) > 1 else f"-{option.name}",
        type=str if option.many else kind,
        multiple=option.many,
        default=None if option.default == () else option.default,
        show_default=option.default not in (None, ()),
        metavar=option.metavar,
        help=f"{text} Repeatable." if option.many else text,
    )
