"""Parser of settings: recipes, YAML files and `key=value` texts, validated into a `Config`."""

from __future__ import annotations

import copy
import re
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from retrieval.errors import InputError, did_you_mean
from retrieval.images.preprocess import Preprocess
from retrieval.machine.devices import Device
from train import automatic
from train.config import CHOICE_OF_PAPERS, Config, PreprocessConfig, StrictModel
from train.recipes import read_recipe
from train.yaml_files import parse_yaml, read_yaml, to_line

# Settings without influence on the result of a paper's experiment; the first characters of a difference.
_INCIDENTAL = (
    "seed ",
    "device ",
    "loader.",
    "save_every ",
    "wandb ",
    "compile ",
    "deterministic ",
    "checkpoints.",
    "watch",
    "published",
)


_LISTING = "train --explain"  # the command that lists all settings

Changes = Mapping[str, Any]
"""Changed settings by name, in order: `loss.margin` changes one key of a section, `loss` replaces it."""


def resolve(
    data: str | None, recipe: str | None, overrides: Sequence[str], notes: list[str] | None = None
) -> Config:
    """Build the configuration of a recipe with `key=value` overrides; see `configure`."""
    return configure(data, recipe, parse_changes(overrides), notes)


def configure(
    data: str | None, recipe: str | None, changes: Changes, notes: list[str] | None = None
) -> Config:
    """Build the configuration of a recipe with some settings changed.

    The published results of a recipe are kept only for the recipe's own experiment; see `altered_settings`.
    Automatic settings get plain values; see `train.automatic`.

    Args:
        data: Training data, as --data takes it; `None` takes the recipe's.
        recipe: Name or YAML file of a recipe; `None` starts from the defaults.
        changes: Settings to change.
        notes: Receives sentences about the values of automatic settings.

    Raises:
        InputError: An unknown recipe or setting (the nearest known one is named), a value that a setting
            does not accept, or no data.
    """
    values = read_recipe(recipe) if recipe else {}
    for name, value in changes.items():
        if name.startswith("loss."):  # changes the recipe's loss, or else the default one
            values.setdefault("loss", Config(data="").loss)
        _set_value(values, name, value)
    if data:
        values["data"] = data
    if "data" not in values:
        raise InputError("no data set: give --data, as in --data folder:DIR")
    config = complete(values, notes)
    if config.published is None or not altered_settings(recipe, config):
        return config
    return config.model_copy(update={"published": None})


def complete(values: Mapping[str, Any], notes: list[str] | None = None) -> Config:
    """Build a `Config` from plain values, some of them automatic; `parse_config` takes no automatic ones.

    Args:
        values: Plain values, nested by section.
        notes: Receives sentences about the values of automatic settings.

    Raises:
        InputError: As `parse_config`.
    """
    names = automatic.automatic_settings(values)
    if not names:
        return parse_config(values)
    given = copy.deepcopy(dict(values))
    for name in names:
        section, _, key = name.partition(".")
        given.setdefault(section, {}).pop(key, None)
    if "preprocess.size" in names:
        given["preprocess"]["size"] = 1  # below every other side
    chosen, sentences = automatic.choose(parse_config(given), names)
    for name, value in chosen.items():
        _set_value(given, name, value)
    if notes is not None:
        notes += sentences
    return parse_config(given)


def altered_settings(recipe: str | None, config: Config) -> list[str]:
    """Return the settings in which a configuration differs from its recipe, as "epochs 3, not 5".

    Settings that do not change the result of a paper's experiment are not counted: the location of the data,
    the seed, the device, and what is cached, saved, logged or watched. Without `recipe` there are none.
    """
    if recipe is None:
        return []
    here = {"data": data_set_name(config.data)}
    own = complete({**here, **read_recipe(recipe)})
    changed = differences(config.model_copy(update=here), own)
    return [change for change in changed if not change.startswith(_INCIDENTAL)]


def differences(before: Config, now: Config) -> list[str]:
    """Return the settings that differ, as "epochs 3, not 5", in the order of the settings."""
    old, new = dict(_leaves(before.to_dict())), dict(_leaves(now.to_dict()))
    return [
        f"{key} {_text(old, key)}, not {_text(new, key)}"
        for key in {**old, **new}
        if key not in old or key not in new or old[key] != new[key]
    ]


def _text(values: Mapping[str, Any], key: str) -> str:
    return to_line(values[key]) if key in values else "unset"


def setting_values(config: Config) -> dict[str, str]:
    """Return every setting with a dotted name, as in "loss.margin", and its value as on the command line."""
    return {key: to_line(value) for key, value in _leaves(config.to_dict())}


def _leaves(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def _set_value(values: dict[str, Any], name: str, value: Any) -> None:
    *sections, key = name.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise InputError(f"{name}: {section!r} is a single value and has no keys")
    values[key] = copy.deepcopy(value)  # later changes may modify it


def changed_values(values: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Return plain values, nested by section, with some of them changed.

    Raises:
        InputError: A change is within a value that is not a section.
    """
    changed = copy.deepcopy(dict(values))
    for name, value in changes.items():
        _set_value(changed, name, value)
    return changed


def data_set_name(data: object) -> str:
    """Return the name of a data set without its location: "cub200" for "cub200:ROOT"."""
    return str(data).partition(":")[0]


def parse_changes(texts: Iterable[str], option: str = "--set") -> Changes:
    """Parse `key=value` texts, with the values in YAML.

    Args:
        texts: Texts to parse; the last one of a setting takes precedence.
        option: Where the texts come from, for error messages.

    Raises:
        InputError: A text without `=`, or a value that is not YAML.
    """
    changes: Changes = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"{option} {text}: expected key=value")
        name = name.strip()
        changes = merge_changes(changes, {name: parse_yaml(value, f"{option} {name}")})
    return changes


def format_changes(changes: Changes) -> tuple[str, ...]:
    """Return changes as `key=value` for a command line; the inverse of `parse_changes`."""
    return tuple(f"{name}={to_line(value)}" for name, value in changes.items())


def merge_changes(first: Changes, then: Changes) -> Changes:
    """Return two sets of changes as one; the second one is applied last."""
    return {name: value for name, value in first.items() if name not in then} | dict(then)


def placed(config: Config, device: Device | None) -> Config:
    """Return a configuration with the device of --device, which wins over its own; `None` for its own."""
    return config if device is None else config.model_copy(update={"device": str(device)})


def parse_config(values: Mapping[str, Any]) -> Config:
    """Build a `Config` from plain values; the inverse of `Config.to_dict`.

    Raises:
        InputError: An unknown setting (the nearest known one is named), or a value that it does not accept.
    """
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise InputError(validation_message(error)) from error


def load_config(file: Path) -> Config:
    """Read a run's config.yaml; settings that the version which wrote it lacked keep their old meaning."""
    values = read_yaml(file, str(file))
    split = values.get("split") or {}
    if "choice" not in split and (split.get("validation") or split.get("folds")):
        values = {**values, "split": {**split, **CHOICE_OF_PAPERS}}
    return parse_config(values)


@dataclass(frozen=True)
class Setting:
    """What a setting is.

    Attributes:
        name: Dotted name.
        default: Default as on the command line; "" if there is none.
        accepts: Accepted values in words.
        meaning: Description.
    """

    name: str
    default: str
    accepts: str
    meaning: str

    def to_text(self) -> str:
        """Return the setting as a paragraph of at most 100 columns."""
        lines = [f"{self.name} = {self.default}" if self.default else self.name]
        for part in (self.accepts, self.meaning):
            lines += textwrap.wrap(part, 96, initial_indent="    ", subsequent_indent="    ")
        return "\n".join(lines)


def describe_settings(key: str = "") -> list[Setting]:
    """Return what a setting is, or each one of a section; all of them for "".

    Raises:
        InputError: There is no such setting or section (the nearest one is named), or it is one of a loss.
    """
    known = dict(fields(Config))
    chosen = [name for name in known if not key or name == key or name.startswith(f"{key}.")]
    if not chosen and key.startswith("loss."):
        raise InputError(f"{key}: a parameter of the loss; `lookalike losses NAME` explains those of a loss")
    if not chosen:
        raise InputError(f"{key}: there is no such setting; {_hint(key, Config, _LISTING)}")
    defaults = dict(_leaves(Config(data="").to_dict())) | {"loss": Config(data="").loss}
    found = []
    for name in chosen:
        default = automatic.AUTO if name in automatic.DEFAULTED else to_line(defaults[name])
        found.append(
            Setting(
                name,
                default if name != "data" else "",
                _accepted(name, known[name]),
                known[name].description or "",
            )
        )
    return found


def _accepted(name: str, field: FieldInfo) -> str:
    """Return the values that a setting accepts in words, such as "a number, 0 or more and below 1"."""
    kinds = typing.get_args(field.annotation) if _is_union(field.annotation) else (field.annotation,)
    words = [_kind(kind) for kind in kinds if kind is not type(None)]
    limits = " and ".join(_limits(field))
    text = ", ".join([*words, limits] if limits else words)
    text += ", or null" if type(None) in kinds else ""
    return text + (", or auto" if name in automatic.AUTOMATIC else "")


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _kind(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return " | ".join(map(str, typing.get_args(kind)))
    named = {int: "an integer", float: "a number", bool: "true | false", str: "text"}
    return named.get(kind, "a list" if typing.get_origin(kind) is tuple else "a mapping of keys to values")


def fields(section: type[StrictModel], where: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting with its dotted name."""
    for name, field in section.model_fields.items():
        kind = PreprocessConfig if field.annotation is Preprocess else field.annotation
        if isinstance(kind, type) and issubclass(kind, StrictModel):
            yield from fields(kind, f"{where}{name}.")
        else:
            yield f"{where}{name}", field


def parse_loss(text: str, option: str = "--loss") -> dict[str, Any]:
    """Parse a loss specification: a name, or a YAML mapping.

    Args:
        text: `triplet`, `pml:CircleLoss` or `{name: triplet, negatives: optimal}`.
        option: Where the text comes from, for error messages.

    Raises:
        InputError: Neither a name nor a mapping. Whether such a loss exists is checked by `losses.build`.
    """
    if re.fullmatch(r"[\w:.-]+", text):
        return {"name": text}
    try:
        spec = parse_yaml(text, option)
    except InputError:
        spec = None
    if not isinstance(spec, dict):
        example = "{name: triplet, margin: 0.2}"
        raise InputError(f"{option} {text}: neither a name nor a mapping in YAML; write it as in {example}")
    return spec


# ---- validation errors

_KINDS = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
}
_CONTAINERS = {
    "model_type": "a mapping of keys to values",
    "dict_type": "a mapping of keys to values",
    "tuple_type": "a list",
}
_BOUNDS = {"ge": "{:g} or more", "gt": "more than {:g}", "lt": "below {:g}", "le": "at most {:g}"}


def validation_message(
    error: ValidationError, model: type[StrictModel] = Config, listing: str = _LISTING
) -> str:
    """Return the first error of a validation as one line: `setting: expected ..., got ...`.

    Args:
        error: The errors.
        model: Settings that were validated.
        listing: Command that lists them.
    """
    return _error_message(error.errors()[0], model, listing)


def _error_message(error: ErrorDetails, model: type[StrictModel], listing: str) -> str:
    name = ".".join(map(str, error["loc"])) or "configuration"
    if error["type"] in ("extra_forbidden", "invalid_key"):
        return f"{name}: there is no such setting; {_hint(name, model, listing)}"
    if error["type"] == "missing":
        return f"{name}: missing; give it a value"
    expected = _expected(error, dict(fields(model)).get(name))
    expected += ", or auto" if model is Config and name in automatic.AUTOMATIC else ""
    message = f"{name}: expected {expected}, got {error['input']!r}"
    inside = [setting for setting, _ in fields(model) if setting.startswith(f"{name}.")]
    if name == "loss":
        inside = ["loss.name"]
    return f"{message}; set {inside[0]} or another setting in it" if inside else message


def _expected(error: ErrorDetails, field: FieldInfo | None) -> str:
    if error["type"] in _CONTAINERS:
        return _CONTAINERS[error["type"]]
    if error["type"] in _KINDS:
        optional = field is not None and type(None) in typing.get_args(field.annotation)
        return _KINDS[error["type"]] + (" or null" if optional else "")
    if error["type"] == "literal_error":
        return str(error["ctx"]["expected"]).replace("'", "")
    return " and ".join(_limits(field)) or error["msg"]


def _limits(field: FieldInfo | None) -> list[str]:
    return [
        words.format(getattr(limit, key))
        for limit in (field.metadata if field else ())
        for key, words in _BOUNDS.items()
        if hasattr(limit, key)
    ]


def _hint(name: str, model: type[StrictModel], listing: str) -> str:
    """Suggest a setting: one of the same name in another section, or the nearest name."""
    known = [setting for setting, _ in fields(model)]
    same = [setting for setting in known if setting.rpartition(".")[2] == name.rpartition(".")[2]]
    return did_you_mean(same[0] if same else name, known, f"`lookalike {listing}` lists them all")
