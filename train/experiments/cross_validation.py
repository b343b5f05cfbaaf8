"""Cross-validated runs: one network per fold, measured on the test split separately and concatenated.

The protocol of "A Metric Learning Reality Check" (Musgrave et al. 2020): for each seed and fold a network is
trained on the other folds and its best epoch chosen on this fold. "Separate" is the mean of the metrics of
these networks; "concatenated" is one embedding, their unit vectors one after the other, normalized again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from retrieval.errors import InputError
from retrieval.evaluation.report import REPORT_FILE, Report
from retrieval.evaluation.score import Result
from retrieval.machine.devices import Device
from train import data, settings
from train.data import DataSet
from train.experiments.evaluation import evaluate_opened
from train.experiments.sweep import run_sweep
from train.experiments.sweep_comparison import Outcome, compare_variants
from train.experiments.sweep_plan import SweepPlan, make_sweep_plan
from train.experiments.sweep_results import SweepResults
from train.experiments.targets import concatenated, model_candidate, network_target
from train.loop.process_group import find_device
from train.loop.run_folder import Run

CONCATENATED = "concatenated"
_FOLDS = "folds"  # folder of the sweep that trains the networks


def run_cross_validation(
    folder: Path,
    plan: SweepPlan,
    folds: int,
    command: str,
    log: Callable[[str], None],
    *,
    device: Device | None = None,
    show_progress: bool = False,
) -> SweepResults:
    """Train one network per variant, seed and fold, then measure them separately and concatenated.

    The networks are an ordinary sweep in FOLDER/folds, with a variant for each fold; the report of a
    concatenated embedding is in FOLDER/NAME/seed-0. FOLDER/results.json has two rows for each variant: NAME
    for the separate embeddings and NAME-concatenated. Finished runs and reports are kept.

    Args:
        folder: Folder of the results.
        plan: Variants and seeds.
        folds: Number of folds.
        command: Command that runs all this, for the results.
        log: Receives a message when a run starts or fails.
        device: Device of all runs; `None` for that of their settings.
        show_progress: Show the progress of each run on stderr.

    Raises:
        InputError: Settings that cannot be used; all are checked before the first run.
        LookalikeError: Another process runs this.
    """
    wanted = _one_variant_per_fold(plan, folds)
    sweep = folder / _FOLDS
    trained = run_sweep(
        sweep,
        make_sweep_plan(sweep, wanted.experiment, wanted.variants, wanted.seeds, wanted.baseline),
        log,
        device=device,
        show_progress=show_progress,
    )
    dataset = data.load(plan.experiment.config().data)
    of_run = {(outcome.variant, outcome.seed): outcome for outcome in trained.outcomes}
    outcomes = []
    for seed in plan.seeds:
        for name in plan.variants:
            runs = [of_run[_fold_name(name, fold), seed] for fold in range(folds)]
            outcomes.append(_separate(name, runs))
            joined = Outcome(f"{name}-{CONCATENATED}", seed, error=outcomes[-1].error)
            if outcomes[-1].scores:
                log(f"{name}, seed {seed}: concatenating {folds} embeddings")
                folders = [sweep / run.variant / f"seed-{seed}" for run in runs]
                found = _concatenate(folder / name / f"seed-{seed}", folders, dataset, show_progress)
                joined = replace(joined, scores={"best": found})
            outcomes.append(joined)
    changes = plan.variant_settings()
    rows = {each: changes[name] for name in changes for each in (name, f"{name}-{CONCATENATED}")}
    results = replace(
        trained,
        command=command,
        baseline=plan.baseline,
        rows=compare_variants(rows, plan.baseline, outcomes),
        outcomes=outcomes,
        notes=[
            f"Cross-validation: for each seed {folds} networks, each trained without one fold of the classes "
            f"and measured after its best epoch on this fold. NAME is the mean of the {folds} networks, "
            f"NAME-{CONCATENATED} one embedding of all their dimensions; both have one value per seed.",
            *trained.notes,
        ],
        swept=None,
        curves=[],
    )
    results.save(folder)
    return results


def _one_variant_per_fold(plan: SweepPlan, folds: int) -> SweepPlan:
    split = plan.experiment.config().split
    protocol = {f"split.{key}": value for key, value in split.choice_of_papers.items()}
    variants = {
        _fold_name(name, fold): settings.merge_changes(
            {**protocol, **changes}, {"split.folds": folds, "split.fold": fold}
        )
        for name, changes in plan.variants.items()
        for fold in range(folds)
    }
    wanted = SweepPlan(plan.experiment, variants, plan.seeds, _fold_name(plan.baseline, 0))
    if any(config.split.refit for config in wanted.configs().values()):
        raise InputError(
            "split.refit: would train every network of a cross-validation on all folds; leave it out"
        )
    return wanted


def _fold_name(name: str, fold: int) -> str:
    return f"{name}.fold-{fold}"


def _separate(name: str, runs: Sequence[Outcome]) -> Outcome:
    """Return the mean of the runs of all folds; without scores if one of them is missing."""
    errors = [f"{run.variant}: {run.error}" for run in runs if run.error]
    if not all(run.scores for run in runs):
        return Outcome(name, runs[0].seed, error=next(iter(errors), None))
    kinds = [kind for kind in runs[0].scores if all(kind in run.scores for run in runs)]
    times = [run.seconds_per_step for run in runs if run.seconds_per_step is not None]
    return Outcome(
        name,
        runs[0].seed,
        {kind: _mean([run.scores[kind] for run in runs]) for kind in kinds},
        seconds_per_step=statistics.fmean(times) if times else None,
        peak_memory=max((run.peak_memory for run in runs if run.peak_memory), default=None),
    )


def _mean(results: Sequence[Result]) -> Result:
    first, *others = results
    values: dict[str, float | None] = {
        key: statistics.fmean([value, *(other.known[key] for other in others)])
        for key, value in first.known.items()
        if all(key in other.known for other in others)
    }
    return Result(first.name, values, first.by)


def _concatenate(folder: Path, runs: Sequence[Path], dataset: DataSet, show_progress: bool) -> Result:
    """Evaluate the concatenated embedding of some runs, or read the report of it."""
    if (folder / REPORT_FILE).is_file():
        return Report.load(folder).headline
    opened = [Run.open(run) for run in runs]
    device = find_device(opened[0].config.device)
    networks = [
        model_candidate(run.folder.parent.name, run.trained("best"), run.config, device) for run in opened
    ]
    target = network_target([concatenated(CONCATENATED, networks)], opened[0].config, device)
    report = evaluate_opened(target, dataset, show_progress=show_progress)
    folder.mkdir(parents=True, exist_ok=True)
    report.save(folder)
    return report.headline
