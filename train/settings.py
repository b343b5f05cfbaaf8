"""Settings as people write them: recipes, YAML files and `key=value`, checked into a `Config`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from retrieval.errors import InputError, did_you_mean
from train.config import Config

RECIPES = Path(__file__).parent.parent / "recipes"


def resolve(data: str | None, recipe: str | None, overrides: Sequence[str]) -> Config:
    """A recipe (a name or a YAML file) with `a.b=value` overrides on top.

    The published numbers of a recipe stay only where its own data set is trained on.

    Raises:
        InputError: an unknown recipe or key (the nearest known one is named), or a value of a wrong kind.
    """
    values = read_recipe(recipe) if recipe else {}
    named = values.get("data")
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise InputError(f"--set {override}: expected key=value")
        if key.startswith("loss."):  # one key of the loss that there is: without a recipe, the default
            values.setdefault("loss", Config(data="").loss)
        _put(values, key.split("."), _parse_yaml(text, f"--set {key}"), override)
    if data:
        values["data"] = data
    if "data" not in values:
        raise InputError("no data set: give --data, as in --data folder:DIR")
    if named is not None and str(values["data"]).partition(":")[0] != str(named).partition(":")[0]:
        values.pop("published", None)
    return parse(values)


def parse(values: Mapping[str, Any]) -> Config:
    """Plain values -> `Config`; the inverse of `Config.to_dict`."""
    return _build(Config, values, "")


def load(file: Path) -> Config:
    """Read a run's config.yaml."""
    try:
        return parse(_parse_yaml(file.read_text(), str(file)))
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from error


def recipes() -> list[str]:
    """The names of the recipes that come with Lookalike, sorted."""
    return sorted(str(p.relative_to(RECIPES).with_suffix("")) for p in RECIPES.rglob("*.yaml"))


def recipe_file(name: str) -> Path:
    """Where a recipe lies; an `InputError` names the nearest known one where there is none."""
    file = Path(name) if name.endswith((".yaml", ".yml")) else RECIPES / f"{name}.yaml"
    if not file.is_file():
        hint = did_you_mean(name, recipes(), "`lookalike recipes list` shows them")
        raise InputError(f"recipe {name!r}: there is no such file or recipe; {hint}")
    return file


def read_recipe(name: str) -> dict[str, Any]:
    """The plain values of a recipe."""
    values = _parse_yaml(recipe_file(name).read_text(), f"recipe {name}")
    if not isinstance(values, dict):
        raise InputError(f"recipe {name!r}: expected keys and values")
    return values


def explain() -> str:
    """Every setting with its default and its meaning."""
    lines = []
    for name, default, meaning in _settings(Config(data=""), ""):
        lines.append(f"{name} = {default}" if name != "data" else name)
        lines += textwrap.wrap(meaning, 96, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _settings(instance: Any, where: str) -> Iterator[tuple[str, str, str]]:
    meanings = _meanings(type(instance))
    for setting in dataclasses.fields(instance):
        name, value = f"{where}{setting.name}", getattr(instance, setting.name)
        if dataclasses.is_dataclass(value):
            yield from _settings(value, f"{name}.")
        else:
            plain = list(value) if isinstance(value, tuple) else value
            text = yaml.safe_dump(plain, default_flow_style=True, width=1000).removesuffix("\n...\n").strip()
            yield name, text, meanings.get(setting.name, "")


def _meanings(kind: type) -> dict[str, str]:
    """What the `Args:` of a docstring say of each name."""
    _, _, arguments = inspect.cleandoc(kind.__doc__ or "").partition("Args:\n")
    found: dict[str, str] = {}
    names: list[str] = []
    for line in arguments.splitlines():
        if line.startswith("    ") and not line.startswith("     "):
            head, _, text = line.strip().partition(": ")
            names = head.split(", ")
            found |= dict.fromkeys(names, text)
        else:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


class _Loader(yaml.SafeLoader):
    """Reads 1e-4 as a number; for YAML 1.1, whose rules PyYAML follows, it is a word."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: not valid YAML ({' '.join(str(error).split())})") from error


def _put(values: dict[str, Any], path: list[str], value: Any, override: str) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            raise InputError(f"--set {override}: {key!r} is a single value, it has no keys")
    values[path[-1]] = value


def _build(kind: type, values: Any, where: str) -> Any:
    """A dataclass out of plain values, refusing unknown keys and wrong kinds of value."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where or 'configuration'}: expected keys and values, got {values!r}")
    types_of = typing.get_type_hints(kind)
    known = {f.name: types_of[f.name] for f in dataclasses.fields(kind)}
    built = {}
    for key, value in values.items():
        name = f"{where}.{key}" if where else str(key)
        if key not in known:
            raise InputError(f"{name}: there is no such setting; {_hint(name)}")
        built[key] = _value(known[key], value, name)
    return kind(**built)


def _hint(name: str) -> str:
    """The setting that was meant: one of that very name elsewhere, or the nearest."""
    known = [setting for setting, _, _ in _settings(Config(data=""), "")]
    same = [setting for setting in known if setting.rpartition(".")[2] == name.rpartition(".")[2]]
    return did_you_mean(same[0] if same else name, known, "`lookalike train --help` lists them all")


def _value(kind: Any, value: Any, name: str) -> Any:
    choices = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if type(None) in choices and value is None:
        return None
    for choice in choices:
        if dataclasses.is_dataclass(choice):
            return _build(typing.cast(type, choice), value, name)
    accepted = tuple(typing.get_origin(choice) or choice for choice in choices)
    if float in accepted and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if tuple in accepted and isinstance(value, list):
        return tuple(value)
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
        wanted = " or ".join("null" if a is type(None) else a.__name__ for a in accepted)
        raise InputError(f"{name}: expected {wanted}, got {value!r}")
    return value
