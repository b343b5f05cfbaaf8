"""`lookalike datasets`."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli import emit, json_option, say
from retrieval.errors import InputError
from train import data as datasets_by_name


@click.group()
def datasets() -> None:
    """List the data sets known by name, and fetch them."""


@datasets.command("list")
@json_option
def list_datasets(as_json: bool) -> None:
    """List what --data accepts."""
    known = datasets_by_name.KNOWN.items()
    facts = [{"name": n, "title": k.title, "protocol": k.protocol, "bundled": k.bundled} for n, k in known]
    lines = [f"{n:<12}{k.title}; {k.protocol}{'; bundled' if k.bundled else ''}" for n, k in known]
    lines += [
        f"{'folder:DIR':<12}your images, one folder a class at any depth; train/ and test/ are splits",
        f"{'csv:FILE':<12}your images, columns path,label and optionally split (train or test)",
    ]
    emit(facts, as_json, "\n".join(lines))


@datasets.command()
@click.argument("name")
@click.option("--root", required=True, type=click.Path(path_type=Path), help="Where to put it.")
def fetch(name: str, root: Path) -> None:
    """Put the data set NAME under a folder, ready for --data NAME:ROOT."""
    if name not in datasets_by_name.KNOWN:
        raise InputError(f"{name}: no such data set; known: {', '.join(datasets_by_name.KNOWN)}")
    datasets_by_name.KNOWN[name].fetch(root)
    say(f"{root}: ready for --data {name}:{root}")
