"""Settings as people write them: recipes, YAML files and `key=value`, validated into a `Config`."""

from __future__ import annotations

import re
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from retrieval.errors import InputError, did_you_mean
from retrieval.images.preprocess import Preprocess
from train.config import Config, PreprocessConfig, Settings

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
    """Build a `Config` from plain values; the inverse of `Config.to_dict`.

    Raises:
        InputError: an unknown setting (the nearest known one is named), or a value that it does not accept.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise InputError(_message(error.errors()[0])) from error


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
    """Return every setting with its default and its description."""
    lines = []
    defaults = Config(data="").to_dict()
    for name, field in _fields(Config):
        section, _, key = name.rpartition(".")
        default = to_line(defaults[section][key] if section else defaults[key])
        lines.append(f"{name} = {default}" if name != "data" else name)
        lines += textwrap.wrap(field.description or "", 96, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _fields(section: type[Settings], where: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting with its dotted name."""
    for name, field in section.model_fields.items():
        kind = PreprocessConfig if field.annotation is Preprocess else field.annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            yield from _fields(kind, f"{where}{name}.")
        else:
            yield f"{where}{name}", field


def to_line(value: Any) -> str:
    """Return a plain value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n...\n").strip()


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


# ---- validation errors

_KINDS = {"int_type": "int", "float_type": "float", "string_type": "str", "bool_type": "bool"}
_CONTAINERS = {"model_type": "keys and values", "dict_type": "keys and values", "tuple_type": "a list"}
_BOUNDS = {"ge": "{:g} or more", "gt": "more than {:g}", "lt": "below {:g}", "le": "at most {:g}"}


def _message(error: ErrorDetails) -> str:
    """Return a validation error as one line: `setting: expected ..., got ...`."""
    name = ".".join(map(str, error["loc"])) or "configuration"
    if error["type"] in ("extra_forbidden", "invalid_key"):
        return f"{name}: there is no such setting; {_hint(name)}"
    if error["type"] == "missing":
        return f"{name}: missing; give it a value"
    return f"{name}: expected {_expected(error, dict(_fields(Config)).get(name))}, got {error['input']!r}"


def _expected(error: ErrorDetails, field: FieldInfo | None) -> str:
    if error["type"] in _CONTAINERS:
        return _CONTAINERS[error["type"]]
    if error["type"] in _KINDS:
        optional = field is not None and type(None) in typing.get_args(field.annotation)
        return _KINDS[error["type"]] + (" or null" if optional else "")
    if error["type"] == "literal_error":
        return str(error["ctx"]["expected"]).replace("'", "")
    limits = [
        words.format(getattr(limit, key))
        for limit in (field.metadata if field else ())
        for key, words in _BOUNDS.items()
        if hasattr(limit, key)
    ]
    return " and ".join(limits) or error["msg"]


def _hint(name: str) -> str:
    """Suggest a setting: one of the same name in another section, or the nearest name."""
    known = [setting for setting, _ in _fields(Config)]
    same = [setting for setting in known if setting.rpartition(".")[2] == name.rpartition(".")[2]]
    return did_you_mean(same[0] if same else name, known, "`lookalike train --help` lists them all")
