"""The `lookalike recipes` group: list recipes, show one, run rows of the papers' tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from retrieval import text
from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.device_options import training_device_option
from retrieval.errors import InputError
from retrieval.machine.devices import Device
from train import settings
from train.commands import DATA_HELP
from train.recipes import (
    PAPERS,
    RecipeRow,
    RecipeTable,
    all_rows,
    column_title,
    find_row,
    find_rows,
    group_by_columns,
    load_table,
    read_recipe,
    recipe_file,
    recipe_names,
    table_names,
)


@click.group()
def recipes() -> None:
    """List, show and run experiments: the tables of five papers, and good defaults.

    \b
      lookalike recipes list
      lookalike recipes list --paper dcdl --table 1
      lookalike recipes show dcdl/table1/trip-w-sym03-cifar10
      lookalike train --recipe dcdl/table1/trip-w-sym03-cifar10 --data cifar10:ROOT --out run
      lookalike recipes run dcdl/table1 --data cifar10:ROOT --data stl10:ROOT --out table1
    """


@recipes.command("list")
@click.option("--paper", type=click.Choice(list(PAPERS)), help="Only the tables of this paper.")
@click.option("--table", help="Only this table: 1, 3a, 3 (all of 3a to 3c), supp1, fig4.")
@json_option
def list_recipes(paper: str | None, table: str | None, as_json: bool) -> None:
    """List the recipes; with --paper or --table, the rows of these tables.

    A row is a method on a data set, with the values that the paper publishes, in percent. Rows that cannot be
    run here are listed with the reason.

    \b
      lookalike recipes list
      lookalike recipes list --paper loop --table 3
      lookalike recipes list --json
    """
    if paper is None and table is None:
        facts = [*map(_plain_facts, recipe_names()), *(row.to_dict() for row in all_rows())]
        print_result(facts, as_json, _overview())
        return
    chosen = [row for row in all_rows() if paper in (None, row.paper) and _is_numbered(row.table, table)]
    if not chosen:
        known = sorted({row.table for row in all_rows() if paper in (None, row.paper)})
        raise InputError(f"--table {table}: there is no such table; the tables are {', '.join(known)}")
    print_result([row.to_dict() for row in chosen], as_json, "\n\n".join(_row_tables(chosen)))


@recipes.command()
@click.argument("name")
@click.option("--full", is_flag=True, help="Show all settings, with their defaults.")
@json_option
def show(name: str, full: bool, as_json: bool) -> None:
    """Show the settings of the recipe or row NAME, or the rows of the table NAME.

    The output is a YAML file that `lookalike train --recipe FILE` accepts. "ours" marks the settings that the
    paper leaves open, with the reason.

    \b
      lookalike recipes show catalogue
      lookalike recipes show dcdl/table1
      lookalike recipes show sct/table2/sct-cub200@code --full
    """
    if name in table_names():
        table = load_table(name)
        rows = list(table.rows.values())
        lines = [f"{PAPERS[table.paper]}", f"{table.source}: {table.title}", ""]
        lines += ["\n\n".join(_row_tables(rows)), ""]
        lines += [f"# {table.note}"] if table.note else []
        lines.append(_table_command(table))
        print_result([row.to_dict() for row in rows], as_json, "\n".join(lines))
        return
    row = find_row(name) if recipe_file(name) is None else None
    values = read_recipe(name)
    if full:
        values = settings.complete({"data": "folder:DIR", **values}).to_dict()
    command = f"lookalike train --recipe {name} --data {_data_argument(values.get('data'))} --out run"
    facts = {"name": name, "run": command, "settings": values}
    facts |= {"ours": dict(row.ours), **row.to_dict()} if row else {}
    print_result(facts, as_json, f"{_settings_text(name, row, values, full)}\n\n# To run it: {command}")


@recipes.command()
@click.argument("rows", nargs=-1, required=True)
@click.option("--data", "data_specs", multiple=True, required=True, help=f"{DATA_HELP} Repeatable.")
@click.option("--seeds", help="Number of seeds, or a list: 0,1,2. By default as many as in the paper.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of all rows; published values are then left out, if it changes the experiment. Repeatable.",
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the results.")
@training_device_option
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    rows: tuple[str, ...],
    data_specs: tuple[str, ...],
    seeds: str | None,
    overrides: tuple[str, ...],
    out: Path,
    device: Device | None,
    as_json: bool,
) -> None:
    """Train and measure the ROWS of a paper's table, and show ours beside the published values.

    ROWS is a table, a row, or several rows by `*`. Rows on data sets without --data are listed without
    results. Repeat the command to resume it, to retry failed runs, or to add rows, data sets and seeds.

    \b
      lookalike recipes run dcdl/table1 --data cifar10:ROOT --data stl10:ROOT --out table1
      lookalike recipes run "loop/table2/*-cub200" --data cub200:ROOT --seeds 3 --out cub
      lookalike recipes run sct/table2 --data cars196:ROOT --device cuda:1 --out cars

    OUT/table.md has the table, OUT/table.json all numbers; OUT/DATA/ROW/seed-0 is an ordinary run.
    """
    from train.experiments.sweep_plan import parse_seeds
    from train.papers.reproduction import reproduction_table, run_rows

    chosen = {row.name: row for pattern in rows for row in find_rows(pattern)}
    found = run_rows(
        out,
        list(chosen.values()),
        data_specs,
        print_status,
        changes=settings.parse_changes(overrides),
        seeds=parse_seeds(seeds) if seeds else None,
        device=device,
        show_progress=True,
    )
    print_result(found.to_dict(), as_json, reproduction_table(found))
    print_status(f"results: {out / 'table.md'}")
    if found.failed:
        hint = "see failure.txt in their folders, and repeat the command to retry them"
        print_status(f"{text.pluralize(found.failed, 'run')} failed; {hint}")
        ctx.exit(1)


def _is_numbered(number: str, wanted: str | None) -> bool:
    """Return whether a table has a number; "3" is also 3a, and "supp1" and "table supp 1" are "Supp. 1"."""
    if wanted is None:
        return True
    ours, theirs = (re.sub(r"[^a-z0-9]|table", "", name.lower()) for name in (number, wanted))
    return ours == theirs or re.fullmatch(rf"{theirs}[a-c]", ours) is not None


def _plain_facts(name: str) -> dict[str, Any]:
    """Return the facts of a recipe outside the papers, with the keys of a row."""
    values = dict.fromkeys(("paper", "table", "row", "setting", "variant", "runs", "published", "reason"))
    return {"name": name, **values, "data": read_recipe(name).get("data")}


def _overview() -> str:
    """Return all recipes on a screen: one line for each table."""
    rows = [("recipe", "rows", "data sets", "title")]
    rows += [(name, "1", str(read_recipe(name).get("data", "your own")), "") for name in recipe_names()]
    for name in table_names():
        table = load_table(name)
        runnable = [row for row in table.rows.values() if row.reason is None]
        data = ", ".join(dict.fromkeys(row.data for row in runnable)) or "-"
        rows.append((name, f"{len(runnable)} of {len(table.rows)}", data, f"{table.source}: {table.title}"))
    hint = "rows: those that can be run, of those that the paper prints; `lookalike recipes show TABLE`"
    return "\n".join([*text.align_columns(rows), "", hint])


def _row_tables(rows: Iterable[RecipeRow]) -> list[str]:
    """Return rows as text, one block for each table and set of columns; "-" for a missing value."""
    tables: dict[tuple[str, str], list[RecipeRow]] = {}
    for row in rows:
        tables.setdefault((row.paper, row.table), []).append(row)
    lines = []
    for columns, members in (block for table in tables.values() for block in group_by_columns(table).items()):
        cells = [("recipe", "row", "setting", *map(column_title, columns))]
        for row in members:
            values = {key: text.printed(value) for key, value in row.published_values.items()}
            cells.append((row.name, row.row, row.setting, *(values.get(key, "-") for key in columns)))
        block = text.align_columns(cells, right=range(3, 3 + len(columns)))
        for number, row in enumerate(members, 1):
            block[number] += f"   (not run here: {row.reason})" if row.reason else ""
        lines.append("\n".join(block))
    return lines


def _settings_text(name: str, row: RecipeRow | None, values: Mapping[str, Any], full: bool) -> str:
    """Return the settings as YAML: the file itself, or a row with its source and its own choices marked."""
    file = recipe_file(name)
    if file is not None and not full:
        return file.read_text().rstrip()
    lines = []
    if row is not None:
        lines += [f"# {row.row} on {row.data} ({row.setting}), settings of the {row.variant}"]
        lines += [f"# {PAPERS[row.paper]}, table {row.table}"]
        lines += [f"# ours: {setting}: {reason}" for setting, reason in row.ours.items()]
    return "\n".join([*lines, yaml.safe_dump(dict(values), sort_keys=False, width=100).rstrip()])


def _table_command(table: RecipeTable) -> str:
    data = dict.fromkeys(row.data for row in table.rows.values() if row.reason is None)
    specs = " ".join(f"--data {name}:ROOT" for name in data)
    return f"# To run it: lookalike recipes run {table.name} {specs} --out DIR"


def _data_argument(data: str | None) -> str:
    """Return the value of --data."""
    from train.data import KNOWN

    if data is None:
        return "folder:DIR"
    return f"{data}:ROOT" if data in KNOWN and not KNOWN[data].bundled else data
