"""Plan of a sweep: variants of one experiment, each trained with several seeds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from retrieval.errors import InputError, did_you_mean
from train import settings
from train.config import Config
from train.experiments.baselines import baseline_changes
from train.experiments.experiment import Experiment, load_plan, save_plan, seed_words
from train.settings import Changes
from train.yaml_files import read_yaml

PLAN = "sweep.yaml"
_SEEDS = (0, 1, 2)
_FEWEST_POINTS = 3  # of a curve
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_NEXT_SETTING = re.compile(r";\s*(?=[A-Za-z_][\w.]*=)")  # a `;` within a value is kept
_RESERVED = re.compile(r"(sweep|results|references)\..*", re.IGNORECASE)


@dataclass(frozen=True)
class SweptNumber:
    """The one setting that the variants of a sweep differ in, if its values are numbers.

    Attributes:
        setting: Dotted name of the setting, as in "loss.margin".
        values: Name of each variant -> its value.
    """

    setting: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class SweepPlan:
    """Runs of a sweep.

    Attributes:
        experiment: Settings that all variants share.
        variants: Name -> settings that the variant changes.
        seeds: Seeds that every variant is trained with.
        baseline: Variant that the others are compared with.
        added: Names of the variants that were added as trained baselines by default.
    """

    experiment: Experiment
    variants: Mapping[str, Changes]
    seeds: tuple[int, ...]
    baseline: str
    added: tuple[str, ...] = ()

    def configs(self) -> dict[str, Config]:
        """Return the settings of every variant.

        Raises:
            InputError: An unknown setting, a value that it does not accept, a setting that must not differ
                between variants, or two variants with equal settings.
        """
        if "seed" in self.experiment.overrides:
            raise InputError("--set seed: a sweep sets the seed of every run; use --seeds")
        found = {}
        for name, changes in self.variants.items():
            for key, hint in (("seed", "use --seeds"), ("data", "use --data, which all variants share")):
                if key in changes:
                    raise InputError(f"variant {name}: {key}: cannot differ between variants; {hint}")
            try:
                found[name] = self.experiment.config(changes)
            except InputError as error:
                raise InputError(f"variant {name}: {error}") from error
        for (one, a), (other, b) in combinations(found.items(), 2):
            if a == b:
                raise InputError(f"variants {one} and {other} have equal settings; remove one")
        return found

    def swept_number(self) -> SweptNumber | None:
        """Return the setting that the variants differ in: the only one, a number, of at least 3 variants.

        Baselines that were added by default do not count.
        """
        # The unchanged recipe has published values, which its variants have not.
        configs = {
            name: config.model_copy(update={"published": None})
            for name, config in self.configs().items()
            if name not in self.added
        }
        found = {name: settings.setting_values(config) for name, config in configs.items()}
        settings_of_all = dict.fromkeys(key for values in found.values() for key in values)
        differing = [
            key for key in settings_of_all if len({values.get(key) for values in found.values()}) > 1
        ]
        if len(differing) != 1 or len(found) < _FEWEST_POINTS:
            return None
        try:
            numbers = {name: float(values[differing[0]]) for name, values in found.items()}
        except (KeyError, ValueError):  # unset in a variant, or no number
            return None
        return SweptNumber(differing[0], numbers)

    def variant_settings(self) -> dict[str, tuple[str, ...]]:
        """Return the changes of every variant as `key=value`."""
        return {name: settings.format_changes(changes) for name, changes in self.variants.items()}

    def command(self, folder: Path) -> str:
        """Return the command line that runs the whole sweep."""
        words = ["lookalike", "sweep", *self.experiment.words()]
        for name, changes in self.variant_settings().items():
            if name in self.added:
                continue
            words += ["--variant", f"{name}:{'; '.join(changes)}" if changes else name]
        words += [] if self.added else ["--no-baselines"]
        words += ["--baseline", self.baseline, *seed_words(self.seeds)]
        return shlex.join([*words, "--out", str(folder)])

    def save(self, folder: Path) -> None:
        """Write sweep.yaml, with each change as `key=value` like on the command line."""
        values = {
            **self.experiment.to_dict(),
            "variants": {name: list(words) for name, words in self.variant_settings().items()},
            "seeds": list(self.seeds),
            "baseline": self.baseline,
            "added": list(self.added),
        }
        save_plan(folder / PLAN, values)

    @classmethod
    def load(cls, folder: Path) -> SweepPlan | None:
        """Read sweep.yaml; `None` if the folder has none."""

        def parse(values: Mapping[str, Any]) -> SweepPlan:
            variants = {
                str(name): settings.parse_changes(changes, f"variant {name}:")
                for name, changes in values["variants"].items()
            }
            seeds, added = tuple(map(int, values["seeds"])), tuple(values.get("added", ()))
            return cls(Experiment.from_dict(values), variants, seeds, values["baseline"], added)

        return load_plan(folder / PLAN, "sweep", parse)


def make_sweep_plan(
    folder: Path,
    experiment: Experiment,
    variants: Mapping[str, Changes],
    seeds: Sequence[int] | None,
    baseline: str | None,
    *,
    with_baselines: bool | None = None,
) -> SweepPlan:
    """Combine a requested sweep with the one that a folder holds: variants and seeds are only added.

    Args:
        folder: Folder of the sweep.
        experiment: Shared settings; parts left empty are taken from the folder.
        variants: Variants to add, or to run again with the same settings.
        seeds: Seeds to add; `None` keeps those of the folder, or takes three.
        baseline: Variant to compare with; `None` keeps the one of the folder, or takes the first variant.
        with_baselines: Add the trained baselines that no variant equals to a new sweep. A sweep that was
            begun keeps those it has; False refuses one with baselines.

    Raises:
        InputError: Settings that differ from those in the folder, or no variants.
    """
    kept = SweepPlan.load(folder)
    if kept is None:
        if not variants:
            raise InputError("no variants to compare; name them, as in --variant loop:loss.margin=0.3")
        plan = SweepPlan(experiment, variants, tuple(seeds or _SEEDS), baseline or next(iter(variants)))
        plan = _add_baselines(plan) if with_baselines else plan
    else:
        requested = experiment.completed(kept.experiment)
        if requested != kept.experiment:
            _refuse_change(f"{folder}", kept.experiment.config(), requested.config())
        for name in set(variants) & set(kept.variants):
            before, now = (kept.experiment.config(plan[name]) for plan in (kept.variants, variants))
            _refuse_change(f"{folder}: variant {name}", before, now)
        if with_baselines is False and kept.added:
            names = ", ".join(kept.added)
            raise InputError(
                f"{folder}: begun with {names}; leave --no-baselines out, or choose another --out"
            )
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


def _add_baselines(plan: SweepPlan) -> SweepPlan:
    """Add the trained baselines whose name and settings no variant has."""
    known = list(plan.configs().values())
    added = {
        name: changes
        for name, changes in baseline_changes(plan.experiment.config()).items()
        if name not in plan.variants and plan.experiment.config(changes) not in known
    }
    return replace(plan, variants={**plan.variants, **added}, added=tuple(added))


def _refuse_change(where: str, before: Config, now: Config) -> None:
    changed = settings.differences(before, now)
    if changed:
        what = "; ".join(changed)
        hint = "variants and seeds may be added, the rest stays: choose another name or another --out"
        raise InputError(f"{where}: begun with {what}; {hint}")


# ---- options of the command line


def parse_seeds(text: str, *, least: int = 1) -> tuple[int, ...]:
    """Return the seeds of --seeds: "3" -> 0, 1, 2; "4,7" -> 4, 7; "4," -> 4; at least so many."""
    is_count = "," not in text
    try:
        numbers = [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        numbers = []
    seeds = tuple(range(numbers[0])) if is_count and numbers else tuple(dict.fromkeys(numbers))
    if not numbers or len(seeds) < least or min(seeds, default=0) < 0:
        raise InputError(f"--seeds {text}: expected a count, as in 3, or a list, as in 0,1,2")
    return seeds


def parse_variants(
    texts: Sequence[str],
    file: Path | None = None,
    *,
    option: str = "--variant",
    is_value: Callable[[Any], bool] = lambda value: False,
) -> dict[str, Changes]:
    """Return the variants of --variant and --variants by name; a repeated name adds settings.

    Args:
        texts: Values of --variant: NAME, NAME:key=value, or NAME:key=value;key=value.
        file: YAML file, name -> settings, nested or with dots in their names. A `loss` (or `loss.negatives`
            and the like) with a `name` replaces the experiment's; without one it changes some of its keys.
        option: Option of the texts; the option of the file has an s at the end.
        is_value: Whether a mapping is the value of one setting, not a section of settings.

    Raises:
        InputError: A text or a file that cannot be parsed.
    """
    found = _read_variants(file, option, is_value) if file else {}
    for value in texts:
        name, colon, text = value.partition(":")
        where = f"{option} {value}"
        _check_name(name, where, option)
        parts = [part.strip() for part in _NEXT_SETTING.split(text) if part.strip()]
        for part in parts:
            if not part.partition("=")[0].strip() or "=" not in part:
                raise InputError(f"{where}: expected NAME:key=value, got {part!r} after the name")
        if colon and not parts:
            raise InputError(f"{where}: expected key=value after the colon")
        changes = settings.parse_changes(parts, f"{option} {name}:")
        found[name] = settings.merge_changes(found.get(name, {}), changes)
    return found


def _check_name(name: str, where: str, option: str) -> None:
    if not _NAME.fullmatch(name) or _RESERVED.fullmatch(name):
        what, example = option.removeprefix("--"), f"as in {option} wide:loss.margin=0.3"
        raise InputError(f"{where}: {name!r} cannot name a {what} (letters, digits and . _ + -), {example}")


def _read_variants(file: Path, option: str, is_value: Callable[[Any], bool]) -> dict[str, Changes]:
    where = f"{option}s {file}"
    values = read_yaml(file, where)
    if not isinstance(values, Mapping) or not values:
        raise InputError(f"{where}: expected {option.removeprefix('--')} names, each with its settings")
    found: dict[str, Changes] = {}
    for name, section in values.items():
        _check_name(str(name), where, option)
        if not isinstance(section, Mapping | None):
            example = "as in loss: {margin: 0.3}"
            raise InputError(f"{where}: {name}: expected settings, {example}, got {section!r}")
        found[str(name)] = _flat(section or {}, is_value)
    return found


def _flat(values: Mapping[str, Any], is_value: Callable[[Any], bool]) -> Changes:
    """Return nested settings with dotted names; a section changes only the keys that it names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        names_part = str(key).partition(".")[0] == "loss" and isinstance(value, Mapping) and "name" in value
        if isinstance(value, Mapping) and not names_part and not is_value(value):
            found |= {f"{key}.{inner}": item for inner, item in value.items()}
        else:
            found[str(key)] = value
    return found
