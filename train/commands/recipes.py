"""The `lookalike recipes` group: list recipes and show one."""

from __future__ import annotations

from typing import Any

import click

from retrieval import text
from retrieval.cli import json_option, print_result
from train import settings


@click.group()
def recipes() -> None:
    """List the experiments that come with Lookalike, or show one.

    \b
      lookalike recipes list
      lookalike recipes show loop/cars196-triplet
      lookalike train --recipe loop/cars196-triplet --data cars196:ROOT --out run
    """


@recipes.command("list")
@json_option
def list_recipes(as_json: bool) -> None:
    """List the recipes, with the Recall@1 published in the papers."""
    facts = [_facts(name) for name in settings.recipe_names()]
    columns = ("name", "data", "backbone", "loss", "recall_at_1")
    titles = ("recipe", "data set", "backbone", "loss", "published R@1")
    rows = [titles, *(tuple("-" if f[c] is None else str(f[c]) for c in columns) for f in facts)]
    print_result(facts, as_json, "\n".join(text.align_columns(rows)))


@recipes.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show the settings of the recipe NAME and the command that runs it."""
    content, values = settings.recipe_file(name).read_text(), settings.read_recipe(name)
    command = f"lookalike train --recipe {name} --data {_data_argument(values.get('data'))} --out run"
    facts = {"name": name, "run": command, "settings": values}
    print_result(facts, as_json, f"{content.rstrip()}\n\n# To run it: {command}")


def _facts(name: str) -> dict[str, Any]:
    values = settings.read_recipe(name)
    published = values.get("published") or {}
    return {
        "name": name,
        "data": values.get("data"),
        "backbone": values["model"]["backbone"],
        "loss": _loss_summary(values["loss"]),
        "recall_at_1": published.get("recall", {}).get(1),
        "source": published.get("source"),
    }


def _loss_summary(loss: dict[str, Any]) -> str:
    """Return a loss by its names, as in "triplet, optimal + wasserstein"."""
    words = [loss["name"], loss.get("negatives")]
    extra = [regularizer["name"] for regularizer in loss.get("regularizers", ())]
    return " + ".join([", ".join(word for word in words if word), *extra])


def _data_argument(data: str | None) -> str:
    """Return the value of --data."""
    from train.data import KNOWN

    if data is None:
        return "folder:DIR"
    return f"{data}:ROOT" if data in KNOWN and not KNOWN[data].bundled else data
