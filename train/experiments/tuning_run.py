"""Tuning: a search of each method on held-out classes, then one evaluation on the test split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from retrieval.errors import InputError, LookalikeError
from retrieval.files import file_lock, write_texts
from retrieval.machine.devices import Device
from train import data, settings
from train.config import Config
from train.data import DataSet
from train.data.dataset import check_test_split
from train.data.splits import hold_out
from train.experiments.cross_validation import run_cross_validation
from train.experiments.linear_probe import check_closed_set
from train.experiments.recipe_fit import check_recipe_fits
from train.experiments.search_space import fill_spaces
from train.experiments.sweep import run_sweep
from train.experiments.sweep_plan import SweepPlan, make_sweep_plan
from train.experiments.sweep_results import SweepResults
from train.experiments.tuning_plan import TuningPlan
from train.experiments.tuning_results import MethodResult, TuningResult, search_figure
from train.experiments.tuning_search import Search, best_trial
from train.loop.run_folder import initial_loss, initial_model
from train.settings import Changes

TEST = "test"  # folder of the final runs, an ordinary sweep


def run_tuning(
    folder: Path,
    plan: TuningPlan,
    log: Callable[[str], None],
    *,
    device: Device | None = None,
    show_progress: bool = False,
) -> tuple[TuningResult, SweepResults | None]:
    """Search the settings of every method, then train the chosen ones and measure them on the test split.

    Finished trials and runs are kept; the next call continues. tune.json, tune.md and a figure of each method
    are written after every search, the results of the final runs into the folder `test`.

    Args:
        folder: Folder of the search.
        plan: Methods and budget.
        log: Receives a message after each trial and before each final run.
        device: Device of all runs; `None` for that of their settings.
        show_progress: Show the progress of each run on stderr.

    Returns:
        The searches, and the comparison on the test split; `None` without seeds, or if every trial of every
        method has failed.

    Raises:
        InputError: Settings that cannot be used; all are checked before the first trial.
        LookalikeError: Another process runs this search.
    """
    plan.check_settings()
    dataset = data.load(plan.experiment.config().data)
    plan = plan.fitted(dataset.train)
    training = _training_images_only(dataset, plan)
    searches = [_search(folder, plan, name, device) for name in plan.methods]
    _check(plan, searches, dataset)
    if any(plan.experiment.config(fill_spaces(plan.changes(s.name), s.first)).linear_probe for s in searches):
        check_closed_set(dataset)
    folder.mkdir(parents=True, exist_ok=True)

    def refuse(_: object) -> NoReturn:
        raise LookalikeError(f"{folder}: another process is running this; wait for it to finish") from None

    with file_lock(folder / "LOCK", refuse):
        plan.save(folder)
        for search in searches:
            search.run(training, log, show_progress=show_progress)
            result = _result(folder, plan, searches, training)
            result.save(folder)
            if next(method for method in result.methods if method.name == search.name).drawn:
                write_texts(folder, {f"{search.name}.svg": search_figure(search.study(), plan.metric)})
        chosen, final = _chosen(plan, searches)
        if not (chosen and plan.seeds):
            return _result(folder, plan, searches, training), None
        comparison = _run_final(folder, plan, plan.final_sweep(chosen), log, device, show_progress)
    result = _result(folder, plan, searches, training, final)
    result.save(folder, comparison)
    return result, comparison


def _run_final(
    folder: Path,
    plan: TuningPlan,
    wanted: SweepPlan,
    log: Callable[[str], None],
    device: Device | None,
    show_progress: bool,
) -> SweepResults:
    """Train the chosen settings with every seed and measure them on the test split."""
    test = folder / TEST
    if plan.folds:
        command = plan.command(folder)
        return run_cross_validation(
            test, wanted, plan.folds, command, log, device=device, show_progress=show_progress
        )
    final = make_sweep_plan(test, wanted.experiment, wanted.variants, wanted.seeds, wanted.baseline)
    return run_sweep(test, final, log, device=device, show_progress=show_progress)


def _training_images_only(dataset: DataSet, plan: TuningPlan) -> DataSet:
    """Return the data set without test images, so that no trial can load one."""
    check_test_split(dataset)
    training = replace(dataset, test=[], gallery=None)
    _, held_out = hold_out(training.train, plan.split, plan.seed)
    if not held_out:
        raise InputError("split: holds out fewer than two classes to choose on; raise split.validation")
    return training


def _search(folder: Path, plan: TuningPlan, name: str, device: Device | None) -> Search:
    return Search(
        name=name,
        folder=folder,
        spaces=plan.spaces(name),
        first=plan.first_values(name),
        budget=plan.trials,
        seed=plan.seed,
        epoch=plan.epoch,
        metric=plan.metric,
        configs=lambda values: [
            settings.placed(config, device) for config in plan.trial_configs(name, values)
        ],
    )


def _check(plan: TuningPlan, searches: list[Search], dataset: DataSet) -> None:
    """Build the loss of every method at the ends of its spaces, and each network once."""
    networks: list[object] = []
    for search in searches:
        if len(search.finished()) == search.trials:
            continue
        for values in plan.extreme_values(search.name):
            for config in plan.trial_configs(search.name, values)[:1]:
                kept, _ = hold_out(dataset.train, config.split, config.seed)
                try:
                    check_recipe_fits(plan.experiment.recipe, config, dataset)
                    initial_loss(config, len({image.label for image in kept}))
                    network = (config.model, config.preprocess)
                    if network not in networks:
                        initial_model(config)
                        networks.append(network)
                except LookalikeError as error:
                    at = ", ".join(settings.format_changes(values))
                    raise InputError(f"method {search.name}{f' at {at}' if at else ''}: {error}") from error


def _chosen(plan: TuningPlan, searches: list[Search]) -> tuple[dict[str, Changes], dict[str, str]]:
    """Return the settings of the final runs by name, and the name of those of each successful search.

    Searches that have chosen equal settings share the final runs of the first one.
    """
    chosen: dict[str, Changes] = {}
    final: dict[str, str] = {}
    configs: dict[str, Config] = {}
    for search in searches:
        if best_trial(search.finished()) is None:
            continue
        changes = _final_changes(plan, search)
        config = plan.experiment.config(changes)
        final[search.name] = next((n for n, other in configs.items() if other == config), search.name)
        if final[search.name] == search.name:
            chosen[search.name], configs[search.name] = changes, config
    return chosen, final


def _final_changes(plan: TuningPlan, search: Search) -> Changes:
    """Return the chosen settings of a method, with as many steps in an epoch as the search had."""
    best = best_trial(search.finished())
    assert best is not None
    changes = fill_spaces(plan.changes(search.name), best.settings)
    if plan.experiment.config(changes).batch.per_epoch is None:
        changes = settings.merge_changes(changes, {"batch.per_epoch": best.steps_per_epoch})
    return changes


def _result(
    folder: Path,
    plan: TuningPlan,
    searches: list[Search],
    training: DataSet,
    final: Mapping[str, str] | None = None,
) -> TuningResult:
    kept, held_out = hold_out(training.train, plan.split, plan.seed)
    methods = [
        MethodResult(
            name=search.name,
            changes=settings.format_changes(plan.methods[search.name]),
            spaces=search.spaces,
            budget=search.trials,
            trials=search.finished(),
            final=(final or {}).get(search.name),
        )
        for search in searches
    ]
    return TuningResult(plan, training.name, plan.command(folder), kept, held_out, methods)
