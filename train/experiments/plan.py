"""What a sweep compares: variants of one experiment, each under several seeds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from retrieval.errors import InputError, did_you_mean
from retrieval.files import atomic_write
from train import settings
from train.config import Config

PLAN = "sweep.yaml"
_SEEDS = (0, 1, 2)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_NEXT_SETTING = re.compile(r";\s*(?=[A-Za-z_][\w.]*=)")  # a `;` within a value stays
_TAKEN = re.compile(r"(sweep|results)\..*", re.IGNORECASE)


@dataclass(frozen=True)
class Experiment:
    """What all variants share, in the words of `lookalike train`: --data, --recipe and --set."""

    data: str | None = None
    recipe: str | None = None
    overrides: tuple[str, ...] = ()

    def config(self, changes: Sequence[str] = ()) -> Config:
        """The settings of a variant that makes these changes, each `key=value`.

        `loss.margin=0.3` changes one key of the experiment's loss, `loss={...}` replaces it.

        Raises:
            InputError: a setting that does not exist or does not take the value.
        """
        base = settings.resolve(self.data, self.recipe, self.overrides)
        if not changes:
            return base
        return settings.resolve(
            self.data, self.recipe, [*self.overrides, f"loss={_flow(base.loss)}", *changes]
        )


@dataclass(frozen=True)
class Plan:
    """What was asked of a sweep.

    Attributes:
        variants: name -> the settings that it changes, each `key=value`.
        seeds: every variant runs once with each.
        baseline: the variant that the others are compared with.
    """

    experiment: Experiment
    variants: Mapping[str, tuple[str, ...]]
    seeds: tuple[int, ...]
    baseline: str

    def configs(self) -> dict[str, Config]:
        """The settings of every variant.

        Raises:
            InputError: settings that do not exist, do not take the value or are not a variant's to change,
                or two variants that are the same.
        """
        if "seed" in map(_key, self.experiment.overrides):
            raise InputError("--set seed: --seeds says which seeds there are")
        found = {}
        for name, changes in self.variants.items():
            for key, hint in (("seed", "--seeds says which seeds there are"), ("data", "all share one")):
                if key in map(_key, changes):
                    raise InputError(f"variant {name}: {key}: {hint}")
            try:
                found[name] = self.experiment.config(changes)
            except InputError as error:
                raise InputError(f"variant {name}: {error}") from error
        for (one, a), (other, b) in combinations(found.items(), 2):
            if a == b:
                raise InputError(f"variants {one} and {other} are the same: all their settings are equal")
        return found

    def command(self, folder: Path) -> str:
        """The words that ask for all of this at once."""
        words = ["lookalike", "sweep"]
        experiment = self.experiment
        words += ["--data", experiment.data] if experiment.data else []
        words += ["--recipe", experiment.recipe] if experiment.recipe else []
        words += [word for override in experiment.overrides for word in ("--set", override)]
        for name, changes in self.variants.items():
            words += ["--variant", f"{name}:{'; '.join(changes)}" if changes else name]
        words += ["--baseline", self.baseline, "--seeds", ",".join(map(str, self.seeds))]
        words[-1] += "," if len(self.seeds) == 1 else ""  # a number alone would be how many
        return shlex.join([*words, "--out", str(folder)])

    def save(self, folder: Path) -> None:
        """Write sweep.yaml."""
        values = {**asdict(self.experiment), "overrides": list(self.experiment.overrides)}
        values["variants"] = {name: list(changes) for name, changes in self.variants.items()}
        values |= {"seeds": list(self.seeds), "baseline": self.baseline}
        with atomic_write(folder / PLAN) as draft:
            draft.write_text(yaml.safe_dump(values, sort_keys=False))

    @classmethod
    def load(cls, folder: Path) -> Plan | None:
        """Read sweep.yaml back; `None` where there is none."""
        file = folder / PLAN
        if not file.is_file():
            return None
        try:
            values = yaml.safe_load(file.read_text())
            experiment = Experiment(values["data"], values["recipe"], tuple(values["overrides"]))
            variants = {str(name): tuple(changes) for name, changes in values["variants"].items()}
            return cls(experiment, variants, tuple(map(int, values["seeds"])), values["baseline"])
        except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{file}: not a readable sweep ({error}); choose another --out") from error


def make_plan(
    folder: Path,
    experiment: Experiment,
    variants: Mapping[str, tuple[str, ...]],
    seeds: Sequence[int] | None,
    baseline: str | None,
) -> Plan:
    """What to do, given what is asked now and what the folder says was asked before: a sweep only grows.

    Args:
        experiment: what it leaves open is as before.
        seeds: `None` means those of before, or three.
        baseline: `None` means the one of before, or the first variant.

    Raises:
        InputError: settings other than before, or no variants.
    """
    kept = Plan.load(folder)
    if kept is None:
        if not variants:
            raise InputError("nothing to compare: name the variants, as in --variant loop:loss.margin=0.3")
        plan = Plan(experiment, variants, tuple(seeds or _SEEDS), baseline or next(iter(variants)))
    else:
        asked = Experiment(
            experiment.data or kept.experiment.data,
            experiment.recipe or kept.experiment.recipe,
            experiment.overrides or kept.experiment.overrides,
        )
        if asked != kept.experiment:
            _refuse_change(f"{folder}", kept.experiment.config(), asked.config())
        for name in set(variants) & set(kept.variants):
            before, now = (kept.experiment.config(plan[name]) for plan in (kept.variants, variants))
            _refuse_change(f"{folder}: variant {name}", before, now)
        plan = replace(
            kept,
            variants={**kept.variants, **variants},
            seeds=tuple(sorted({*kept.seeds, *(seeds or ())})),
            baseline=baseline or kept.baseline,
        )
    if plan.baseline not in plan.variants:
        others = f"the variants are {', '.join(plan.variants)}"
        raise InputError(f"--baseline {plan.baseline}: {did_you_mean(plan.baseline, plan.variants, others)}")
    return plan


def _refuse_change(where: str, before: Config, now: Config) -> None:
    changed = differences(before, now)
    if changed:
        what = "; ".join(changed)
        hint = "variants and seeds may be added, the rest stays: choose another name or another --out"
        raise InputError(f"{where}: begun with {what}; {hint}")


def differences(before: Config, now: Config) -> list[str]:
    """What differs, as "epochs 3, not 5"; in the order of the settings."""
    old, new = (dict(_leaves(config.to_dict())) for config in (before, now))
    return [
        f"{key} {old.get(key, 'unset')}, not {new.get(key, 'unset')}"
        for key in {**old, **new}
        if old.get(key) != new.get(key)
    ]


def _leaves(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", _flow(value)


# ---- what people write


def parse_seeds(text: str) -> tuple[int, ...]:
    """ "3" -> 0, 1, 2; "4,7" -> 4, 7; "4," -> 4."""
    counted = "," not in text
    try:
        numbers = [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        numbers = []
    seeds = tuple(range(numbers[0])) if counted and numbers else tuple(dict.fromkeys(numbers))
    if not seeds or min(seeds) < 0:
        raise InputError(f"--seeds {text}: expected how many, as in 3, or which, as in 0,1,2")
    return seeds


def parse_variants(words: Sequence[str], file: Path | None = None) -> dict[str, tuple[str, ...]]:
    """The variants of --variant and --variants, by name; the same name again adds settings.

    Args:
        words: each NAME, or NAME:key=value, or NAME:key=value;key=value.
        file: YAML, name -> settings, nested or with dots in their names. A `loss` that has a `name` replaces
            the experiment's loss; without one it changes some of its keys.

    Raises:
        InputError: words or a file that cannot be understood.
    """
    found: dict[str, tuple[str, ...]] = dict(_read_variants(file)) if file else {}
    for word in words:
        name, colon, text = word.partition(":")
        where = f"--variant {word}"
        _check_name(name, where)
        changes = tuple(change.strip() for change in _NEXT_SETTING.split(text) if change.strip())
        for change in changes:
            if not _key(change) or "=" not in change:
                raise InputError(f"{where}: expected NAME:key=value, got {change!r} after the name")
        if colon and not changes:
            raise InputError(f"{where}: expected key=value after the colon")
        found[name] = (*found.get(name, ()), *changes)
    return found


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name) or _TAKEN.fullmatch(name):
        example = "as in --variant wide:loss.margin=0.3"
        raise InputError(f"{where}: {name!r} cannot name a variant (letters, digits and . _ + -), {example}")


def _read_variants(file: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    try:
        values = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"--variants {file}: cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(values, Mapping) or not values:
        raise InputError(f"--variants {file}: expected names, each with its settings")
    for name, changes in values.items():
        where = f"--variants {file}: {name}"
        _check_name(str(name), f"--variants {file}")
        if not isinstance(changes, Mapping | None):
            raise InputError(f"{where}: expected settings, as in loss: {{margin: 0.3}}, got {changes!r}")
        yield str(name), tuple(_overrides(changes or {}))


def _overrides(changes: Mapping[str, Any]) -> Iterator[str]:
    """Nested settings as `key=value`; a section changes only the keys that it names."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and not (key == "loss" and "name" in value):
            yield from (f"{key}.{inner}={_flow(item)}" for inner, item in value.items())
        else:
            yield f"{key}={_flow(value)}"


def _flow(value: Any) -> str:
    """A value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("\n...\n").strip()


def _key(change: str) -> str:
    return change.partition("=")[0].strip()
