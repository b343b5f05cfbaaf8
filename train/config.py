"""What a training run is made of: recipes, overrides, and the resolved configuration kept with the run."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from retrieval.errors import InputError
from retrieval.preprocess import Preprocess

POOLINGS = ("mean", "spatial")
RECIPES = Path(__file__).parent.parent / "recipes"


@dataclass(frozen=True)
class ModelConfig:
    """The network: a backbone and a linear embedding of its features.

    Args:
        backbone: by name.
        embedding_dim: D.
        pooling: "mean", one linear map on the mean over all locations; or "spatial", a linear map of its
            own for each location, for upright pictures of one thing (characters, faces, parts).
        weights: null (random), "imagenet" (torchvision's, downloaded) or a .safetensors file.
    """

    backbone: str = "conv4"
    embedding_dim: int = 64
    pooling: str = "mean"
    weights: str | None = None


@dataclass(frozen=True)
class AugmentConfig:
    """What happens to training pictures, drawn anew each time.

    Args:
        rotate: turned by up to so many degrees, either way.
        scale: enlarged or shrunk by up to this share.
        shear: slanted by up to this share of the height.
        shift: moved by up to this share of the side, in x and in y.
        flip: mirrored, every second time.
        symmetries: 1, or 4: a class turned by 90, 180 and 270 degrees makes three classes more (Santoro et
            al. 2016), or 8: their mirror images too.
    """

    rotate: float = 10.0
    scale: float = 0.1
    shear: float = 0.0
    shift: float = 0.1
    flip: bool = True
    symmetries: int = 1


@dataclass(frozen=True)
class BatchConfig:
    """P classes x K images."""

    classes: int = 16
    per_class: int = 4


@dataclass(frozen=True)
class OptimizerConfig:
    """Adam with decoupled weight decay; the rate falls to 0 along a half cosine."""

    lr: float = 1e-3
    weight_decay: float = 1e-4


@dataclass(frozen=True)
class Config:
    """Everything a run depends on; rerunning it reproduces the run."""

    data: str
    model: ModelConfig = field(default_factory=ModelConfig)
    preprocess: Preprocess = field(default_factory=lambda: Preprocess(size=64))
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    loss: dict[str, Any] = field(
        default_factory=lambda: {"name": "triplet", "negatives": "optimal", "margin": 0.2}
    )
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    epochs: int = 20
    validation: float = 0.1
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        augment = self.augment
        for name, value, right, wanted in (
            ("epochs", self.epochs, self.epochs >= 0, "0 or more"),
            ("validation", self.validation, 0 <= self.validation < 1, "a share of the classes, below 1"),
            ("model.embedding_dim", self.model.embedding_dim, self.model.embedding_dim >= 1, "1 or more"),
            ("model.pooling", self.model.pooling, self.model.pooling in POOLINGS, " or ".join(POOLINGS)),
            ("batch.classes", self.batch.classes, self.batch.classes >= 2, "2 or more"),
            ("batch.per_class", self.batch.per_class, self.batch.per_class >= 2, "2 or more"),
            ("optimizer.lr", self.optimizer.lr, self.optimizer.lr > 0, "more than 0"),
            ("augment.scale", augment.scale, 0 <= augment.scale < 1, "a share, 0 or more and below 1"),
            ("augment.symmetries", augment.symmetries, augment.symmetries in (1, 4, 8), "1, 4 or 8"),
        ):
            if not right:
                raise InputError(f"{name}: expected {wanted}, got {value!r}")

    def to_dict(self) -> dict[str, Any]:
        """For YAML and JSON: plain values."""
        return {**dataclasses.asdict(self), "preprocess": self.preprocess.to_dict()}

    def to_yaml(self) -> str:
        """As kept in config.yaml."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)


def resolve(data: str | None, recipe: str | None, overrides: Sequence[str]) -> Config:
    """A recipe (a name or a YAML file) with `a.b=value` overrides on top.

    Raises:
        InputError: an unknown recipe or key (the nearest known one is named), or a value of a wrong kind.
    """
    values: dict[str, Any] = _recipe(recipe) if recipe else {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise InputError(f"--set {override}: expected key=value")
        _put(values, key.split("."), _parse_yaml(text, f"--set {key}"), override)
    if data:
        values["data"] = data
    if "data" not in values:
        raise InputError("no data set: give --data, as in --data folder:DIR")
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


def _recipe(name: str) -> dict[str, Any]:
    file = Path(name) if name.endswith((".yaml", ".yml")) else RECIPES / f"{name}.yaml"
    if not file.is_file():
        known = sorted(str(p.relative_to(RECIPES).with_suffix("")) for p in RECIPES.rglob("*.yaml"))
        raise InputError(f"recipe {name!r}: no such file, and the recipes are: {', '.join(known)}")
    values = _parse_yaml(file.read_text(), str(file))
    if not isinstance(values, dict):
        raise InputError(f"recipe {name!r}: expected keys and values")
    return values


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return yaml.safe_load(text)
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
    types = typing.get_type_hints(kind)
    known = {f.name: types[f.name] for f in dataclasses.fields(kind)}
    built = {}
    for key, value in values.items():
        name = f"{where}.{key}" if where else str(key)
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise InputError(f"{name}: there is no such setting; {hint}")
        built[key] = _value(known[key], value, name)
    return kind(**built)


def _value(kind: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _build(typing.cast(type, kind), value, name)
    choices = typing.get_args(kind) if typing.get_origin(kind) not in (dict, tuple) else ()
    accepted = choices or (typing.get_origin(kind) or kind,)
    if float in accepted and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if tuple in accepted and isinstance(value, list):
        return tuple(value)
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
        wanted = " or ".join("null" if a is type(None) else a.__name__ for a in accepted)
        raise InputError(f"{name}: expected {wanted}, got {value!r}")
    return value
