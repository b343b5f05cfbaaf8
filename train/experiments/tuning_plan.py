"""Plan of a hyper-parameter search: methods with their search spaces, the budget, the held-out classes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from retrieval.errors import InputError, did_you_mean
from train import settings
from train.config import CheckpointsConfig, Config, SplitConfig, WatchConfig
from train.data import LabelledImage
from train.experiments.experiment import Experiment, load_plan, option_words, save_plan, seed_words
from train.experiments.search_space import (
    Space,
    add_common_spaces,
    default_values,
    fill_spaces,
    find_spaces,
    parse_space,
)
from train.experiments.sweep_plan import SweepPlan
from train.settings import Changes
from train.yaml_files import to_line

PLAN = "tune.yaml"
DEFAULT_TRIALS, DEFAULT_SEEDS = 20, 10
DEFAULT_METRIC = "map_at_r"
_HELD_OUT, _MOST_HELD_OUT = 0.25, 0.5
_BUDGET = ("trials", "metric", "seed", "folds")
_RATES = {"low": 1e-4, "high": 1e-2, "log": True}
_SHARED = {"seed": "use --seed", "data": "use --data", "split": "use --set, for all methods"}


@dataclass(frozen=True)
class TuningPlan:
    """A search and the final runs after it.

    Attributes:
        experiment: Settings that all methods share.
        methods: Name -> settings that the method changes, some with a search space in place of the value.
        common: Spaces by setting that apply to every method that does not set this value itself.
        trials: Trials of each method.
        seeds: Seeds of the final runs.
        metric: Metric on the held-out images that the search maximizes.
        seed: Seed of the search: of the sampler, the held-out classes and the training of the trials.
        folds: Folds of the cross-validation; 0 for one set of held-out classes.
        baseline: Method that the others are compared with.
        held_out: Share of the classes to hold out in the search, if the experiment does not say.
    """

    experiment: Experiment
    methods: Mapping[str, Changes]
    common: Changes
    trials: int
    seeds: tuple[int, ...]
    metric: str
    seed: int
    folds: int
    baseline: str
    held_out: float = _HELD_OUT

    @cached_property
    def split(self) -> SplitConfig:
        """Held-out classes of the search."""
        stated = self.experiment.config().split.model_copy(update={"refit": False})
        if self.folds:
            return stated.model_copy(update={"folds": self.folds, **stated.choice_of_papers})
        if self._holds_out_in_final:
            return stated
        return stated.model_copy(update={"validation": self.held_out, **stated.choice_of_papers})

    @cached_property
    def _holds_out_in_final(self) -> bool:
        stated = self.experiment.config().split
        given = stated.model_fields_set
        validates = "validation" in given and stated.validation
        return bool(stated.folds or self.folds or stated.refit or validates)

    @property
    def epoch(self) -> str:
        """Epoch that is measured, in the search as in the final runs.

        "best", on the held-out images, if the final runs hold out classes too, otherwise "last".
        """
        return "best" if self._holds_out_in_final else "last"

    def changes(self, method: str) -> Changes:
        """Return the changes of a method, with its own spaces and the common ones."""
        return add_common_spaces(self.methods[method], self.common)

    def spaces(self, method: str) -> dict[str, Space]:
        """Return the spaces of a method by setting."""
        return find_spaces(self.changes(method), f"method {method}: ")

    def first_values(self, method: str) -> dict[str, Any]:
        """Return the values of a method's first trial."""
        return default_values(self.experiment, self.changes(method), self.spaces(method))

    def trial_configs(self, method: str, values: Mapping[str, Any]) -> list[Config]:
        """Return the settings of a trial's runs: one, or one for each fold.

        Raises:
            InputError: A setting that does not exist or does not accept its value.
        """
        try:
            config = self.experiment.config(fill_spaces(self.changes(method), values))
        except InputError as error:
            raise InputError(f"method {method}: {error}") from error
        # Test images are never watched, nothing but the metrics is kept.
        quiet = {
            "seed": self.seed,
            "watch": WatchConfig(),
            "checkpoints": CheckpointsConfig(),
            "linear_probe": None,
            "wandb": None,
            "published": None,
        }
        folds = range(self.folds) if self.folds else [self.split.fold]
        return [
            config.model_copy(update={**quiet, "split": self.split.model_copy(update={"fold": fold})})
            for fold in folds
        ]

    def final_sweep(self, chosen: Mapping[str, Changes]) -> SweepPlan:
        """Return the plan of the final runs.

        Args:
            chosen: Changes of each method, with the values that the search has chosen.
        """
        overrides = self.experiment.overrides
        if not self._holds_out_in_final:
            overrides = settings.merge_changes(overrides, {"split.validation": 0.0})
        experiment = replace(self.experiment, overrides=overrides)
        baseline = self.baseline if self.baseline in chosen else next(iter(chosen))
        return SweepPlan(experiment, chosen, self.seeds, baseline)

    def fitted(self, images: Sequence[LabelledImage]) -> TuningPlan:
        """Return the plan for these training images: of few classes, at least two are held out."""
        classes = len({image.label for image in images})
        share = _HELD_OUT if self.split.by == "images" else max(_HELD_OUT, 2 / max(classes, 2))
        return replace(self, held_out=min(share, _MOST_HELD_OUT))

    def check_settings(self) -> None:
        """Check the settings of every method at the ends of its spaces.

        Raises:
            InputError: A setting that does not exist, does not accept a value of its space, or must be the
                same for all methods.
        """
        if "seed" in self.experiment.overrides:
            raise InputError("--set seed: a search sets the seed of every run; use --seed and --seeds")
        for name in self.methods:
            for key in self.changes(name):
                hint = _SHARED.get(key.partition(".")[0])
                if hint is not None:
                    raise InputError(f"method {name}: {key}: cannot differ between methods; {hint}")
            for values in self.extreme_values(name):
                self.trial_configs(name, values)
        if self.folds and self.experiment.config().split.refit:
            raise InputError(
                "split.refit: the final runs of --folds hold out a fold each; leave one of them out"
            )
        if self.experiment.config().patience and self.epoch == "last":
            hint = "set split.validation for the final runs too, or leave out patience"
            raise InputError(f"patience: the final runs hold out no classes for early stopping; {hint}")

    def extreme_values(self, method: str) -> list[dict[str, Any]]:
        """Return the first trial's values, and those with one value replaced by an end of its space."""
        first = self.first_values(method)
        spaces = self.spaces(method)
        return [first, *({**first, key: end} for key, space in spaces.items() for end in space.extremes)]

    def command(self, folder: Path) -> str:
        """Return the command line that runs the search and the final runs."""
        words = ["lookalike", "tune", *self.experiment.words(), *option_words("--space", self.common)]
        for name, changes in self.methods.items():
            texts = "; ".join(settings.format_changes(changes))
            words += ["--method", f"{name}:{texts}" if texts else name]
        words += ["--trials", f"{self.trials}", "--metric", self.metric, "--seed", f"{self.seed}"]
        words += ["--folds", f"{self.folds}"] if self.folds else []
        words += ["--baseline", self.baseline, *seed_words(self.seeds)]
        return shlex.join([*words, "--out", str(folder)])

    def save(self, folder: Path) -> None:
        """Write tune.yaml, with each change as `key=value` like on the command line."""
        values = {
            **self.experiment.to_dict(),
            "space": list(settings.format_changes(self.common)),
            "methods": {name: list(settings.format_changes(c)) for name, c in self.methods.items()},
            "seeds": list(self.seeds),
            "baseline": self.baseline,
            **{key: getattr(self, key) for key in _BUDGET},
        }
        save_plan(folder / PLAN, values)

    @classmethod
    def load(cls, folder: Path) -> TuningPlan | None:
        """Read tune.yaml; `None` if the folder has none."""

        def parse(values: Mapping[str, Any]) -> TuningPlan:
            return cls(
                experiment=Experiment.from_dict(values),
                methods={str(name): settings.parse_changes(c) for name, c in values["methods"].items()},
                common=settings.parse_changes(values["space"]),
                seeds=tuple(map(int, values["seeds"])),
                baseline=values["baseline"],
                **{key: values[key] for key in _BUDGET},
            )

        return load_plan(folder / PLAN, "search", parse)


def make_tuning_plan(
    folder: Path,
    experiment: Experiment,
    methods: Mapping[str, Changes],
    *,
    common: Changes | None = None,
    trials: int | None = None,
    seeds: Sequence[int] | None = None,
    metric: str | None = None,
    seed: int | None = None,
    folds: int | None = None,
    baseline: str | None = None,
) -> TuningPlan:
    """Combine a requested search with the one that a folder holds: methods and seeds are only added.

    Args:
        folder: Folder of the search.
        experiment: Shared settings; parts left empty are taken from the folder.
        methods: Methods to add, or to continue with the same settings and spaces.
        common: Spaces for all methods; by default of the learning rate.
        trials, metric, seed, folds, baseline: See `TuningPlan`; `None` keeps those of the folder.
        seeds: Seeds to add.

    Raises:
        InputError: Settings that differ from those in the folder, no methods, or a malformed space.
    """
    kept = TuningPlan.load(folder)
    budget = dict(zip(_BUDGET, (trials, metric, seed, folds), strict=True))
    if kept is None:
        if not methods:
            raise InputError(
                "no methods to tune; name them, as in --method triplet:loss.margin={low: 0.05, high: 0.5}"
            )
        plan = TuningPlan(
            experiment,
            methods,
            _default_spaces(experiment) if common is None else common,
            trials or DEFAULT_TRIALS,
            tuple(range(DEFAULT_SEEDS) if seeds is None else seeds),
            metric or DEFAULT_METRIC,
            seed or 0,
            folds or 0,
            baseline or next(iter(methods)),
        )
    else:
        requested = experiment.completed(kept.experiment)
        changed = settings.differences(kept.experiment.config(), requested.config())
        ours = {**budget, "space": None if common is None else dict(common)}
        theirs = {**{key: getattr(kept, key) for key in budget}, "space": dict(kept.common)}
        changed += [
            f"{key} {to_line(theirs[key])}, not {to_line(value)}"
            for key, value in ours.items()
            if value is not None and value != theirs[key]
        ]
        changed += [
            f"other settings of {name}" for name, c in methods.items() if kept.methods.get(name, c) != c
        ]
        if changed:
            hint = "methods and seeds may be added, the rest stays: choose another --out"
            raise InputError(f"{folder}: begun with {'; '.join(changed)}; {hint}")
        plan = replace(
            kept,
            methods={**kept.methods, **methods},
            seeds=tuple(sorted({*kept.seeds, *(seeds or ())})),
            baseline=baseline or kept.baseline,
        )
    for key, space in plan.common.items():
        parse_space(space, f"--space {key}")
    if plan.baseline not in plan.methods:
        others = f"the methods are {', '.join(plan.methods)}"
        raise InputError(f"--baseline {plan.baseline}: {did_you_mean(plan.baseline, plan.methods, others)}")
    return plan


def _default_spaces(experiment: Experiment) -> Changes:
    """Return the space of the learning rate that the embedding layer has in this experiment."""
    rates = experiment.config().optimizer
    return {"optimizer.lr" if rates.head_lr is None else "optimizer.head_lr": _RATES}
