"""Search spaces of hyper-parameters: intervals and lists of choices in place of values of settings.

A space is written where a setting has its value, as `{low: 0.05, high: 0.5, log: true}`,
`{low: 1, high: 8, step: 1}` or `{choices: [a, b]}`, at any depth, also in one of a loss's regularizers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from retrieval.errors import InputError, did_you_mean
from train.experiments.experiment import Experiment
from train.losses import registry
from train.settings import Changes
from train.yaml_files import to_line

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_INTERVAL, _CHOICES = ("low", "high", "log", "step"), ("choices",)
_DIGITS = 4  # significant digits of a number between two ends
Number = int | float


@dataclass(frozen=True)
class Interval:
    """Numbers from `low` to `high`, both included: integers if both ends are integers.

    Attributes:
        low, high: The ends.
        log: Draw the logarithm uniformly.
        step: Distance of neighbouring values; `None` for all numbers, 1 for integers.
    """

    low: Number
    high: Number
    log: bool = False
    step: Number | None = None

    def distribution(self) -> BaseDistribution:
        """Return the space as Optuna has it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.is_integer:
            return IntDistribution(int(self.low), int(self.high), self.log, int(self.step or 1))
        return FloatDistribution(self.low, self.high, self.log, self.step)

    def encoded(self, value: Number) -> Number:
        """Return a value as Optuna has it."""
        return value

    def decoded(self, drawn: Number) -> Number:
        """Return the value that Optuna has drawn."""
        return self.rounded(drawn)

    @property
    def is_integer(self) -> bool:
        """Whether the values are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def contains(self, value: Any) -> bool:
        """Return whether a value can be drawn."""
        if isinstance(value, bool) or not isinstance(value, int if self.is_integer else int | float):
            return False
        fits = self.step is None or math.isclose(value, self.rounded(value))
        return bool(self.low <= value <= self.high and fits)

    def rounded(self, value: float) -> Number:
        """Return the nearest value of the space, with 4 significant digits unless there is a step."""
        step = self.step or (1 if self.is_integer else None)
        near = (
            float(f"{value:.{_DIGITS}g}")
            if step is None
            else self.low + round((value - self.low) / step) * step
        )
        near = min(max(float(f"{near:.12g}"), self.low), self.high)  # 0.1 + 2 * 0.1 is 0.3
        return int(near) if self.is_integer else float(near)

    @property
    def values(self) -> Sequence[Number] | None:
        """All values in ascending order; `None` without a step."""
        step = self.step or (1 if self.is_integer else None)
        if step is None:
            return None
        return [self.rounded(self.low + i * step) for i in range(round((self.high - self.low) / step) + 1)]

    @property
    def middle(self) -> Number:
        """The value in the middle: the geometric mean of the ends of a logarithmic space."""
        return self.rounded(math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2)

    @property
    def extremes(self) -> list[Any]:
        """The values that a setting must accept for it to accept the whole space."""
        return [self.low, self.high]

    def to_dict(self) -> dict[str, Any]:
        """Return the space as it is written in YAML."""
        return {
            key: value
            for key, value in asdict(self).items()
            if value not in (None, False) or key in ("low", "high")
        }


@dataclass(frozen=True)
class Choices:
    """Values of any kind to choose from.

    Attributes:
        values: The values; the first one is the default.
    """

    values: tuple[Any, ...]

    @property
    def labels(self) -> list[str]:
        """The values, of any kind, as texts: what Optuna has in their place."""
        return list(map(to_line, self.values))

    def distribution(self) -> BaseDistribution:
        """Return the space as Optuna has it."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.labels)

    def encoded(self, value: Any) -> str:
        """Return a value as Optuna has it."""
        return self.labels[self.place(value) or 0]

    def decoded(self, drawn: str) -> Any:
        """Return the value that Optuna has drawn."""
        return self.values[self.labels.index(drawn)]

    def contains(self, value: Any) -> bool:
        """Return whether a value is one of the choices."""
        return self.place(value) is not None

    def place(self, value: Any) -> int | None:
        """Return the position of a value among the choices; `None` if it is none of them."""
        places = (
            i
            for i, own in enumerate(self.values)
            if own == value and isinstance(own, bool) == isinstance(value, bool)
        )
        return next(places, None)

    @property
    def middle(self) -> Any:
        """The first choice."""
        return self.values[0]

    @property
    def extremes(self) -> list[Any]:
        """The values that a setting must accept for it to accept the whole space."""
        return list(self.values)

    def to_dict(self) -> dict[str, Any]:
        """Return the space as it is written in YAML."""
        return {"choices": list(self.values)}


Space = Interval | Choices


def is_space(value: Any) -> bool:
    """Return whether a value of a setting is meant as a search space."""
    return isinstance(value, Mapping) and bool({"low", "high", "choices"} & set(value))


def parse_space(value: Any, where: str) -> Space:
    """Return the space of a mapping.

    Args:
        value: Mapping with low and high, and optionally log or step; or with choices.
        where: Name of the setting, for error messages.

    Raises:
        InputError: No search space.
    """
    example = "as in {low: 0.05, high: 0.5, log: true}, {low: 1, high: 8, step: 1} or {choices: [a, b]}"
    if not is_space(value):
        raise InputError(f"{where}: expected a search space, got {value!r}; write it {example}")
    known = _CHOICES if "choices" in value else _INTERVAL
    for key in value:
        if key not in known:
            raise InputError(
                f"{where}: {key}: not a part of this search space; {did_you_mean(str(key), known)}"
            )
    return _choices(value["choices"], where) if "choices" in value else _interval(value, where, example)


def _choices(values: Any, where: str) -> Choices:
    if not isinstance(values, list) or len(values) < 2:
        raise InputError(
            f"{where}: choices: expected a list of two or more values, got {values!r}; fix the list"
        )
    found = Choices(tuple(values))
    if any(found.place(value) != place for place, value in enumerate(values)):
        raise InputError(f"{where}: choices: a value occurs twice; name each one once")
    return found


def _interval(value: Mapping[str, Any], where: str, example: str) -> Interval:
    missing = [key for key in ("low", "high") if key not in value]
    if missing:
        raise InputError(f"{where}: {missing[0]}: missing; write both ends, {example}")
    for key in ("low", "high", "step"):
        number = value.get(key)
        fits = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
        if not fits and not (key == "step" and number is None):
            raise InputError(f"{where}: {key}: expected a number, got {number!r}; write it {example}")
    low, high, step, log = value["low"], value["high"], value.get("step"), value.get("log", False)
    if not isinstance(log, bool):
        raise InputError(f"{where}: log: expected true or false, got {log!r}; correct it")
    if not low < high:
        raise InputError(f"{where}: expected low below high, got {low} and {high}; exchange or correct them")
    if log and low <= 0:
        raise InputError(f"{where}: log: needs low above 0, got {low}; raise low, or leave out log")
    if step is not None:
        _check_step(low, high, step, log, where)
    is_integer = isinstance(low, int) and isinstance(high, int)
    return Interval(low, high, log, step) if is_integer else Interval(float(low), float(high), log, step)


def _check_step(low: Number, high: Number, step: Number, log: bool, where: str) -> None:
    if log:
        raise InputError(f"{where}: log and step cannot be combined; leave one out, or list choices")
    if step <= 0 or (isinstance(low, int) and isinstance(high, int) and not isinstance(step, int)):
        what = "a positive number, an integer between integers"
        raise InputError(f"{where}: step: expected {what}, got {step}; correct it")
    steps = (high - low) / step
    if steps < 1 or not math.isclose(steps, round(steps)):
        raise InputError(
            f"{where}: step: {step} does not lead from {low} to {high}; change an end or the step"
        )


# ---- spaces inside the changed settings of a method


def find_spaces(changes: Changes, where: str = "") -> dict[str, Space]:
    """Return the spaces in place of values, by the dotted name of the value, as in "loss.margin".

    An item of a list has its position as a name: "loss.regularizers.0.weight".

    Args:
        changes: Changed settings, some with spaces.
        where: Start of error messages.

    Raises:
        InputError: A malformed space.
    """
    found = dict(_leaves(changes))
    return {name: parse_space(value, f"{where}{name}") for name, value in found.items() if is_space(value)}


def _leaves(values: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value that is no section, also a space, with its dotted name."""
    start = f"{where}." if where else ""
    if isinstance(values, Mapping) and not is_space(values):
        for key, value in values.items():
            yield from _leaves(value, f"{start}{key}")
    elif isinstance(values, list) and any(isinstance(item, Mapping) for item in values):
        for place, value in enumerate(values):
            yield from _leaves(value, f"{start}{place}")
    else:
        yield where, values


def add_common_spaces(changes: Changes, common: Changes) -> Changes:
    """Return the changes of a method with the spaces that all methods share, unless it sets these values."""
    own = dict(_leaves(changes))
    return {**changes, **{name: space for name, space in common.items() if name not in own}}


def fill_spaces(changes: Changes, values: Mapping[str, Any]) -> Changes:
    """Return changes with values in place of spaces.

    Args:
        changes: Changed settings, some with spaces.
        values: Value by dotted name; a space without one is left out with its key.
    """
    filled: dict[str, Any] = _filled(changes, values, "")
    return filled


def _filled(tree: Any, values: Mapping[str, Any], where: str) -> Any:
    start = f"{where}." if where else ""
    if isinstance(tree, Mapping):
        return {
            key: values[f"{start}{key}"] if is_space(value) else _filled(value, values, f"{start}{key}")
            for key, value in tree.items()
            if not is_space(value) or f"{start}{key}" in values
        }
    if isinstance(tree, list):
        return [
            values.get(f"{start}{place}") if is_space(value) else _filled(value, values, f"{start}{place}")
            for place, value in enumerate(tree)
        ]
    return tree


def default_values(experiment: Experiment, changes: Changes, spaces: Mapping[str, Space]) -> dict[str, Any]:
    """Return the values of the first trial: the defaults, or the middle of a space without its default.

    The default is the value of the recipe or of the experiment, or that of the loss's own parameter.

    Args:
        experiment: Settings that all methods share.
        changes: Settings of the method, with spaces.
        spaces: The spaces by setting.
    """
    try:
        config = experiment.config(fill_spaces(changes, {})).to_dict()
    except InputError:  # a setting of the method has no default
        return {name: space.middle for name, space in spaces.items()}
    defaults = dict(_leaves(config))
    entry = registry.entries("loss").get(config["loss"].get("name", ""))
    own = {f"loss.{name}": parameter.default for name, parameter in entry.parameters.items()} if entry else {}
    known = {**own, **defaults}
    return {
        name: known[name] if space.contains(known.get(name)) else space.middle
        for name, space in spaces.items()
    }
