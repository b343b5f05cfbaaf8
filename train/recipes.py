"""Recipes: named settings of experiments, and the tables of the papers with their published values.

A recipe is a YAML file of settings (`recipes/catalogue.yaml`), or one row of a table
(`dcdl/table1/trip-sym01-cifar10`). A file such as `recipes/dcdl/table1.yaml` holds a whole table:

    paper: dcdl
    table: "1"                       # as the paper numbers it
    title: Accuracy of a linear classifier on embeddings trained with noisy labels
    source: DCDL (2022), Table 1
    runs: 6                          # seeds of a row, as many as in the paper
    base: dcdl/_images               # optional: a file with more settings, parameters, exceptions and ours
    name: "{method}-{noise}-{data}"  # name of a row, of the keys of its parameters; `@{variant}` comes last
    settings: {epochs: 100}          # of all rows
    ours: {augment.crop: the paper does not describe the crop}   # settings that the paper leaves open
    parameters:
      method:
        trip: {label: Trip, set: {loss: {name: triplet}}}
        daml: {label: DAML, reason: trains a generator}          # published, but cannot be run here
      noise:
        sym01: {label: sym 0.1, set: {noise: {rate: 0.1}}}
      data:
        cifar10: {label: CIFAR-10, set: {data: cifar10}}
    exceptions:                      # for rows with all these parameters
      - {where: {method: [np], data: cifar10}, set: {optimizer: {name: sgd}}}
    published:                       # the rows of the table, with values as printed; null: not reported
      - where: {noise: sym01, data: cifar10}
        columns: [accuracy]          # accuracy, nmi, f1, R@K, coarse R@K
        rows: {trip: [80.4], daml: [null]}
      - {where: {noise: sym01}, metric: accuracy, columns: [{data: cifar10}], rows: {trip: [80.4]}}

A block of `published` may have its own `table`, `source`, `note` and `runs`.

`set` changes single keys of a section; a `loss` with a `name` replaces the loss, one without changes its
keys. Parameters apply in the order of the file, exceptions after them.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from retrieval.errors import InputError, did_you_mean
from train.config import Published, StrictModel
from train.yaml_files import read_yaml

RECIPES = Path(__file__).parent.parent / "recipes"
PAPERS = {
    "loop": "LoOp: Looking for Optimal Hard Negative Embeddings for Deep Metric Learning (ICCV 2021)",
    "sct": "Hard negative examples are hard, but useful (ECCV 2020)",
    "raw": "A unified view of deep metric learning via gradient analysis (ICLR 2020 submission)",
    "symm": "Symmetrical Synthesis for Deep Metric Learning (AAAI 2020)",
    "dcdl": "Learning Deep Optimal Embeddings with Sinkhorn Divergences (2022)",
}
BY_COARSE = "coarse "
_COLUMN = re.compile(r"accuracy|nmi|f1|(coarse )?R@[1-9][0-9]*")
_DEFAULT_VARIANT = "paper"


# ---- files


class _Part(StrictModel):
    """Settings that a part of a table adds, with the reasons for those that the paper leaves open."""

    set: dict[str, Any] = Field(default={})
    ours: dict[str, str] = Field(default={})


class _Option(_Part):
    """One value of a parameter; with a `reason`, its rows cannot be run."""

    label: str | None = None
    reason: str | None = None


class _Exception(_Part):
    """Settings for the rows with all these parameters."""

    where: dict[str, str | list[str]]


class _Block(StrictModel):
    """Published values: rows and columns of a table, for fixed values of the other parameters."""

    where: dict[str, str] = Field(default={})
    metric: str | None = None
    columns: list[str | dict[str, str]] = Field(default=[])
    rows: dict[str, list[float | None] | None]
    table: str | None = None
    source: str | None = None
    note: str | None = None
    runs: int | None = Field(default=None, ge=1)


class _Table(StrictModel):
    """File of a table, merged with its base."""

    paper: str
    table: str
    title: str
    source: str
    name: str
    runs: int = Field(default=1, ge=1)
    settings: dict[str, Any] = Field(default={})
    ours: dict[str, str] = Field(default={})
    parameters: dict[str, dict[str, _Option]] = Field(default={})
    exceptions: list[_Exception] = Field(default=[])
    published: list[_Block]
    note: str | None = None


# ---- rows


@dataclass(frozen=True)
class RecipeRow:
    """One row of a paper's table: a method on a data set.

    Attributes:
        name: Name of the recipe, as in "dcdl/table1/trip-w-sym03-cifar10".
        paper: Key of `PAPERS`.
        table: Number of the table in the paper.
        row: Label of the row in the paper.
        data: Name of the data set.
        setting: What else distinguishes the row, as in "sym 0.3"; "clean" if nothing does.
        variant: "paper" (settings as printed) or "code" (settings of the released code).
        parameters: Parameter -> key of its value.
        runs: Number of seeds in the paper.
        settings: Settings of the run, as plain values, without the published results.
        ours: Setting -> reason, for settings that the paper leaves open.
        published: Published values in percent; `None` if there are none.
        reason: Why the row cannot be run; `None` if it can.
    """

    name: str
    paper: str
    table: str
    row: str
    data: str
    setting: str
    variant: str
    parameters: Mapping[str, str]
    runs: int
    settings: Mapping[str, Any]
    ours: Mapping[str, str]
    published: Published | None
    reason: str | None

    @property
    def published_values(self) -> dict[str, float]:
        """Published values in percent by metric key; BY_COARSE precedes those by the coarse labels."""
        return {} if self.published is None else percents_by_key(self.published)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, without the settings."""
        return {
            "name": self.name,
            "paper": self.paper,
            "table": self.table,
            "row": self.row,
            "data": self.data,
            "setting": self.setting,
            "variant": self.variant,
            "runs": self.runs,
            "published": self.published.model_dump() if self.published else None,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class RecipeTable:
    """A paper's table.

    Attributes:
        name: Name of the file, as in "dcdl/table1".
        paper: Key of `PAPERS`.
        title: What the table shows.
        source: Paper and table.
        rows: Rows by name.
        note: A remark for readers.
    """

    name: str
    paper: str
    title: str
    source: str
    rows: Mapping[str, RecipeRow] = field(repr=False)
    note: str | None = None


def percents_by_key(published: Published) -> dict[str, float]:
    """Return published values in percent by metric key; BY_COARSE precedes those by the coarse labels."""
    coarse = published.percents(coarse=True)
    return {**published.percents(), **{BY_COARSE + key: value for key, value in coarse.items()}}


def column_title(key: str) -> str:
    """Return the title of a column: "R@1" for "recall_at_1", "coarse R@1" for "coarse recall_at_1"."""
    from retrieval.metrics.table import metric_columns  # slow to import

    by = BY_COARSE if key.startswith(BY_COARSE) else ""
    return by + metric_columns([key.removeprefix(BY_COARSE)])[0].short


def group_by_columns(rows: Sequence[RecipeRow]) -> dict[tuple[str, ...], list[RecipeRow]]:
    """Group rows by the keys of their published values, for one text table each.

    A row that lacks some of the values of another joins it, first of all one on its own data set.
    """
    data: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        data.setdefault(tuple(row.published_values), set()).add(row.data)
    widest = [keys for keys in data if not any(set(keys) < set(others) for others in data)]
    groups: dict[tuple[str, ...], list[RecipeRow]] = {keys: [] for keys in widest}
    for row in rows:
        fitting = [keys for keys in widest if set(row.published_values) <= set(keys)]
        groups[next((keys for keys in fitting if row.data in data[keys]), fitting[0])].append(row)
    return groups


def recipe_names() -> list[str]:
    """Return the names of the recipes that are files of settings, sorted."""
    return [name for name in _files() if not _is_table(name)]


def table_names() -> list[str]:
    """Return the names of the tables, sorted."""
    return [name for name in _files() if _is_table(name)]


def _files() -> list[str]:
    """Return the names of all recipe files but those of shared parts, which begin with `_`."""
    files = (p.relative_to(RECIPES).with_suffix("") for p in RECIPES.rglob("*.yaml"))
    return sorted(str(file) for file in files if not file.name.startswith("_"))


def _is_table(name: str) -> bool:
    return name.partition("/")[0] in PAPERS


def all_rows() -> list[RecipeRow]:
    """Return the rows of all tables, in the order of the papers' tables."""
    return [row for name in table_names() for row in load_table(name).rows.values()]


def find_rows(pattern: str) -> list[RecipeRow]:
    """Return the rows of a table (`dcdl/table1`), of a row's name, or of a name with `*`.

    Raises:
        InputError: No such table or row; the nearest known one is named. Or a recipe outside the papers.
    """
    if pattern in table_names():
        return list(load_table(pattern).rows.values())
    if pattern in recipe_names():
        command = f"`lookalike train --recipe {pattern} --data DATA --out RUN`"
        raise InputError(f"recipe {pattern!r}: settings, and no row of a paper's table; train by {command}")
    expression = re.compile(".*".join(map(re.escape, pattern.split("*"))))
    found = [row for row in all_rows() if expression.fullmatch(row.name)]
    if found or "*" in pattern:
        if not found:
            raise InputError(f"recipe {pattern!r}: no row matches; `lookalike recipes list` shows all")
        return found
    return [find_row(pattern)]


def find_row(name: str) -> RecipeRow:
    """Return a row; a name without `@` is the variant of the paper.

    Raises:
        InputError: No such row; the nearest known one is named.
    """
    table = name.rpartition("/")[0]
    if table in table_names():
        rows = load_table(table).rows
        for candidate in (name, f"{name}@{_DEFAULT_VARIANT}"):
            if candidate in rows:
                return rows[candidate]
        known = list(rows)
    else:
        known = [*recipe_names(), *table_names(), *(row.name for row in all_rows())]
    hint = did_you_mean(name, known, "`lookalike recipes list` shows them")
    raise InputError(f"recipe {name!r}: there is no such file or recipe; {hint}")


def recipe_file(name: str) -> Path | None:
    """Return the file of a recipe that is a file of settings, by its name or path; `None` for a row.

    Raises:
        InputError: A path without a file.
    """
    is_path = name.endswith((".yaml", ".yml"))
    if not is_path and name not in recipe_names():
        return None
    file = Path(name) if is_path else RECIPES / f"{name}.yaml"
    if not file.is_file():
        raise InputError(f"recipe {name!r}: there is no such file")
    return file


def read_recipe(name: str) -> dict[str, Any]:
    """Return the settings of a recipe as plain values, with the published results of a row.

    Args:
        name: Name of a recipe or of a row, or a YAML file of settings.

    Raises:
        InputError: No such recipe, or a row that cannot be run.
    """
    file = recipe_file(name)
    if file is not None:
        values = read_yaml(file, f"recipe {name}")
        if not isinstance(values, dict):
            raise InputError(f"recipe {name!r}: expected a mapping of settings")
        return values
    if name in table_names():
        example = next(iter(load_table(name).rows))
        hint = f"choose a row, such as {example}, or run it with `lookalike recipes run {name}`"
        raise InputError(f"recipe {name!r}: a table of many experiments; {hint}")
    row = find_row(name)
    if row.reason is not None:
        raise InputError(f"recipe {row.name!r}: cannot be run: {row.reason}")
    published = {"published": row.published.model_dump(exclude_defaults=True)} if row.published else {}
    return {**copy.deepcopy(dict(row.settings)), **published}


@lru_cache
def load_table(name: str) -> RecipeTable:
    """Read a table.

    Raises:
        InputError: A file that is not a table.
    """
    where = f"recipe {name}"
    values = read_yaml(RECIPES / f"{name}.yaml", where)
    base = values.pop("base", None)
    if base is not None:
        values = _with_base(read_yaml(RECIPES / f"{base}.yaml", f"recipe {base}"), values)
    try:
        table = _Table.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    rows = {row.name: row for row in _rows(name, table)}
    return RecipeTable(name, table.paper, table.title, table.source, rows, table.note)


def _with_base(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table on top of its base: lists are joined, options of a parameter replaced one by one."""
    merged = {**base, **values}
    merged["settings"] = overlay(base.get("settings", {}), values.get("settings", {}))
    merged["ours"] = {**base.get("ours", {}), **values.get("ours", {})}
    merged["exceptions"] = [*base.get("exceptions", []), *values.get("exceptions", [])]
    known = base.get("parameters", {})
    merged["parameters"] = {**known}
    for parameter, options in values.get("parameters", {}).items():
        merged["parameters"][parameter] = {**known.get(parameter, {}), **options}
    return merged


def overlay(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with others on top: sections key by key, a `loss` with a `name` as a whole."""
    merged = copy.deepcopy(dict(values))
    for key, value in changes.items():
        old = merged.get(key)
        if (
            isinstance(value, Mapping)
            and isinstance(old, Mapping)
            and not (key == "loss" and "name" in value)
        ):
            merged[key] = {**old, **copy.deepcopy(dict(value))}
        else:
            merged[key] = copy.deepcopy(value)
    return merged


# ---- from a table to its rows


@dataclass
class _Cell:
    """The published values of one row, collected from the columns of a block."""

    block: _Block
    by: str  # parameter that names the rows of the block
    values: dict[str, float] = field(default_factory=dict)


def _rows(file: str, table: _Table) -> Iterator[RecipeRow]:
    cells: dict[tuple[str, ...], _Cell] = {}
    for block in table.published:
        for keys, by, metric, value in _values(file, table, block):
            cell = cells.setdefault(tuple(keys[name] for name in table.parameters), _Cell(block, by))
            if metric is not None and value is not None:
                cell.values[metric] = value
    for chosen, cell in cells.items():
        yield _row(file, table, dict(zip(table.parameters, chosen, strict=True)), cell)


def _values(
    file: str, table: _Table, block: _Block
) -> Iterator[tuple[dict[str, str], str, str | None, float | None]]:
    """Yield every value of a block: keys of the parameters, the parameter of the rows, metric, value."""
    where = f"recipe {file}: published"
    columns = [
        ({}, column) if isinstance(column, str) else (column, block.metric) for column in block.columns
    ]
    fixed = {*block.where, *itertools.chain(*(keys for keys, _ in columns))}
    free = [name for name in table.parameters if name not in fixed]
    if len(free) != 1:
        raise InputError(f"{where} {block.where}: expected one parameter for the rows, got {free}")
    for row, values in block.rows.items():
        if values is None:
            yield {**block.where, free[0]: row}, free[0], None, None
            continue
        if len(values) != len(columns):
            raise InputError(f"{where} {row}: expected {len(columns)} values, got {len(values)}")
        for (keys, metric), value in zip(columns, values, strict=True):
            if metric is None or not _COLUMN.fullmatch(metric):
                raise InputError(f"{where}: {metric!r} is no column; expected accuracy, nmi, f1 or R@K")
            yield {**block.where, **keys, free[0]: row}, free[0], metric, value


def _row(file: str, table: _Table, keys: dict[str, str], cell: _Cell) -> RecipeRow:
    options: dict[str, _Option] = {}
    for parameter, key in keys.items():
        if key not in table.parameters[parameter]:
            hint = did_you_mean(key, table.parameters[parameter])
            raise InputError(f"recipe {file}: {parameter} {key!r} is not defined; {hint}")
        options[parameter] = table.parameters[parameter][key]
    parts: list[_Part] = [*options.values()]
    parts += [e for e in table.exceptions if all(keys[n] in _as_list(v) for n, v in e.where.items())]
    settings, ours = dict(table.settings), dict(table.ours)
    for part in parts:
        settings, ours = overlay(settings, part.set), {**ours, **part.ours}
    others = [o.label or keys[n] for n, o in options.items() if n not in (cell.by, "data", "variant")]
    name = f"{file}/{table.name.format(**keys)}"
    return RecipeRow(
        name=name,
        paper=table.paper,
        table=cell.block.table or table.table,
        row=options[cell.by].label or keys[cell.by],
        data=settings["data"],
        setting=", ".join(others) or "clean",
        variant=keys.get("variant", _DEFAULT_VARIANT),
        parameters=keys,
        runs=cell.block.runs or table.runs,
        settings=settings,
        ours=ours,
        published=_published(table, cell, ours) if cell.values else None,
        reason=next((option.reason for option in options.values() if option.reason), None),
    )


def _published(table: _Table, cell: _Cell, ours: Mapping[str, str]) -> Published:
    recall = {metric: value for metric, value in cell.values.items() if "@" in metric}
    notes = [cell.block.note, table.note, f"ours: {', '.join(ours)}" if ours else None]
    return Published(
        source=cell.block.source or table.source,
        recall={int(m.partition("@")[2]): v for m, v in recall.items() if m.startswith("R@")},
        coarse_recall={int(m.partition("@")[2]): v for m, v in recall.items() if m.startswith("coarse")},
        nmi=cell.values.get("nmi"),
        f1=cell.values.get("f1"),
        accuracy=cell.values.get("accuracy"),
        note="; ".join(note for note in notes if note) or None,
    )


def _as_list(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
