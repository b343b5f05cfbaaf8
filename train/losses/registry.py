"""Registry of losses, sources of negatives, miners and regularizers, with validation of their parameters."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from retrieval.errors import LookalikeError, did_you_mean
from retrieval.plugins import KINDS, find_plugin, plugin_names

Kind = Literal["loss", "negatives", "mining", "regularizer"]
T = TypeVar("T", bound=type)


@dataclass(frozen=True)
class Parameter:
    """Parameter of an entry: its default and its type annotation."""

    default: Any
    annotation: Any

    def __str__(self) -> str:
        return "required" if self.default is inspect.Parameter.empty else repr(self.default)


@dataclass(frozen=True)
class Inert:
    """Parameter that has no effect under some of the other options.

    Attributes:
        parameter: Name of the parameter.
        when: Whether it has no effect, given the options: the values of all parameters and, for a loss, the
            built `negatives` and `mining` (None for samples and for no miner).
        reason: Why, to complete "has no effect".
    """

    parameter: str
    when: Callable[[Mapping[str, Any]], bool]
    reason: str


@dataclass(frozen=True)
class Entry:
    """Registered loss, source of negatives, miner or regularizer.

    Attributes:
        kind: Loss, negatives, mining or regularizer.
        name: Name in a specification.
        cls: Class that implements it.
        summary: First paragraph of the class's docstring.
        details: The other paragraphs.
        source: Paper and equation.
        formula: LaTeX of the value at the defaults; its `\\text` are parameters (symbols: docs/losses.md).
        parameters: Parameters by name.
        negatives: Accepted sources of negatives ("batch" is the samples themselves).
        mining: Accepted miners.
        default_mining: Miner used if the specification names none.
        refusal: Reason why other sources or miners are not accepted.
        mean_weight: For a regularizer that takes `classes`: its default weight with `classes: mean`.
        inert: Parameters that are refused where they have no effect.
    """

    kind: Kind
    name: str
    cls: type = field(repr=False)
    summary: str
    details: str
    source: str
    formula: str
    parameters: Mapping[str, Parameter]
    negatives: tuple[str, ...] = ("batch",)
    mining: tuple[str, ...] = ()
    default_mining: Mapping[str, Any] | None = None
    refusal: str = ""
    mean_weight: float | None = None
    inert: tuple[Inert, ...] = ()

    def __str__(self) -> str:
        return self.describe(details=False)

    @property
    def is_ours(self) -> bool:
        """Whether it is part of Lookalike, and no plug-in."""
        return self.cls.__module__.startswith("train.losses.")

    def describe(self, *, details: bool = True) -> str:
        """Return a readable text: the summary, the details, the parameters and the accepted parts."""
        parameters = ", ".join(f"{name}={p}" for name, p in self.parameters.items())
        lines = [f"{self.name}: {self.summary} [{self.source}]"]
        if details and self.details:
            lines += ["", *self.details.splitlines(), ""]
        if parameters:
            lines.append(f"parameters: {parameters}")
        if self.kind == "loss":
            lines.append(
                f"negatives: {', '.join(self.negatives)}; mining: {', '.join(self.mining) or 'none'}"
            )
        if self.kind == "regularizer":
            mean = "" if self.mean_weight is None else f"; {self.mean_weight:g} with classes: mean"
            lines.append(f"default weight: 1{mean}")
        return "\n".join(f"    {line}" if line and place else line for place, line in enumerate(lines))

    def default_weight(self, given: Mapping[str, Any]) -> float:
        """Return the weight of a regularizer with these parameters if the specification names none."""
        return self.mean_weight if self.mean_weight is not None and given.get("classes") == "mean" else 1.0


_ENTRIES: dict[Kind, dict[str, Entry]] = {"loss": {}, "negatives": {}, "mining": {}, "regularizer": {}}

_PLUGINS: dict[Kind, str] = {  # their kinds of plug-ins
    "loss": "losses",
    "negatives": "negatives",
    "mining": "miners",
    "regularizer": "regularizers",
}
WORDS: dict[Kind, str] = {kind: KINDS[plugins] for kind, plugins in _PLUGINS.items()}

# Supplied by the builder, not by the specification.
_SUPPLIED = frozenset({"negatives", "mining", "num_classes", "embedding_dim", "per_class"})


def register(kind: Kind, *names: str, source: str, formula: str = "", **traits: Any) -> Callable[[T], T]:
    """Register a class under names; parameters come from its signature, the summary from its docstring.

    Args:
        kind: Loss, negatives, mining or regularizer.
        *names: Names in a specification.
        source: Paper and equation.
        formula: LaTeX of its value.
        **traits: Other attributes of `Entry`, such as `negatives` and `mining` of a loss.
    """

    def enter(cls: T) -> T:
        parameters = {
            p.name: Parameter(p.default, p.annotation)
            for p in signature(cls)
            if p.name not in _SUPPLIED and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }
        summary, _, details = inspect.cleandoc(cls.__doc__ or "").partition("\n\n")
        summary = summary.replace("\n", " ")
        for name in names:
            _ENTRIES[kind][name] = Entry(
                kind, name, cls, summary, details, source, formula, parameters, **traits
            )
        return cls

    return enter


def signature(cls: type) -> list[inspect.Parameter]:
    """Return the parameters of a class's constructor, with evaluated annotations."""
    return list(inspect.signature(cls, eval_str=True).parameters.values())


def entries(kind: Kind) -> dict[str, Entry]:
    """Return all entries of a kind, by name."""
    return dict(_ENTRIES[kind])


def find(kind: Kind, name: object) -> Entry:
    """Return the entry of a name, which may be that of a plug-in.

    Raises:
        ValueError: The name is unknown; the message suggests similar names.
        LookalikeError: The plug-in cannot be used.
    """
    known = _ENTRIES[kind]
    if isinstance(name, str) and name not in known:
        _plug_in(kind, name)
    if isinstance(name, str) and name in known:
        return known[name]
    elsewhere = [WORDS[k] for k in _ENTRIES if k != kind and name in _ENTRIES[k]]
    hint = f" (it is a {elsewhere[0]})" if elsewhere else ""
    names = [*known, *not_loaded(kind)]
    otherwise = f"known: {', '.join(map(repr, names))}; a file of yours that defines one is given by --import"
    raise ValueError(
        f"there is no {WORDS[kind]} named {name!r}{hint}; {did_you_mean(str(name), names, otherwise)}"
    )


def not_loaded(kind: Kind) -> dict[str, str]:
    """Return the names of plug-ins that have not been imported, each with its distribution."""
    return {
        name: origin for name, origin in plugin_names(_PLUGINS[kind]).items() if name not in _ENTRIES[kind]
    }


def _plug_in(kind: Kind, name: str) -> None:
    """Import and register the plug-in of a name, if there is one."""
    found = find_plugin(_PLUGINS[kind], name)
    if found is None or name in _ENTRIES[kind]:  # it may register itself
        return
    origin = plugin_names(_PLUGINS[kind])[name]
    if not isinstance(found, type):
        raise LookalikeError(
            f"{WORDS[kind]} {name!r} of {origin}: {found!r} is no class; see docs/plugins.md"
        )
    register(kind, name, source=origin)(found)


def check_parameters(entry: Entry, given: Mapping[str, Any], also: Iterable[str] = ()) -> dict[str, Any]:
    """Return the given parameters after checking their names and types.

    Raises:
        ValueError: An unknown parameter or a value of the wrong type.
    """
    for key, value in given.items():
        if key not in entry.parameters:
            raise ValueError(
                f"{entry.kind} {entry.name!r} has no parameter {key!r}; "
                f"{did_you_mean(str(key), [*entry.parameters, *also])}"
            )
        annotation = entry.parameters[key].annotation
        if not _fits(value, annotation):
            raise ValueError(
                f"{entry.kind} {entry.name!r}: {key} is {value!r}; {_expected(value, annotation)}"
            )
    return dict(given)


def check_effects(entry: Entry, given: Mapping[str, Any], parts: Mapping[str, Any] | None = None) -> None:
    """Check that each given parameter can change the result.

    Args:
        entry: Entry of the parameters.
        given: Values that the specification names.
        parts: Built `negatives` and `mining` of a loss.

    Raises:
        ValueError: A parameter has no effect, given the other options.
    """
    defaults = {name: parameter.default for name, parameter in entry.parameters.items()}
    options = {**defaults, **given, **(parts or {})}
    for inert in entry.inert:
        if inert.parameter in given and inert.when(options):
            raise ValueError(
                f"{entry.kind} {entry.name!r}: {inert.parameter} has no effect {inert.reason}; leave it out"
            )


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Raise a ValueError with the expected value of a parameter unless the condition holds."""
    if not condition:
        raise ValueError(f"{name} is {value!r}; it must be {expected}")


def _fits(value: Any, annotation: Any) -> bool:
    try:
        _adapter(annotation).validate_python(value)
    except ValidationError:
        return False
    return True


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False))


_WORDS: dict[Any, str] = {
    float: "a finite number",
    int: "a whole number",
    bool: "true or false",
    list[float]: "a list of finite numbers",
    list[int]: "a list of whole numbers",
}


def _expected(value: Any, annotation: Any) -> str:
    words, choices = [], []
    union = isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
    for option in typing.get_args(annotation) if union else (annotation,):
        if typing.get_origin(option) is Literal:
            choices += [str(choice) for choice in typing.get_args(option)]
        else:
            words.append(_WORDS.get(option, "null"))
    if choices and isinstance(value, str):
        return did_you_mean(value, choices)
    return f"it takes {' or '.join([*words, *map(repr, choices)])}"
