"""Sweep: train every variant with every seed, measure it on the test split, compare; resumable."""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from retrieval import text
from retrieval.errors import InputError, LookalikeError
from retrieval.evaluation.report import REPORT_FILE, Report
from retrieval.evaluation.score import Result
from retrieval.files import atomic_write, file_lock
from retrieval.machine.devices import Device
from train import data, settings
from train.config import FITTED_INITS, Config
from train.data import DataSet
from train.data.dataset import check_test_split
from train.data.label_noise import noise_note
from train.experiments.curves import learning_curves
from train.experiments.evaluation import evaluate_opened
from train.experiments.isolation import run_isolated
from train.experiments.linear_probe import check_closed_set
from train.experiments.memory import PeakMemory
from train.experiments.recipe_fit import check_recipe_fits
from train.experiments.references import Reference, find_references
from train.experiments.sweep_comparison import Outcome, compare_variants
from train.experiments.sweep_plan import PLAN, SweepPlan
from train.experiments.sweep_results import SweepResults
from train.experiments.targets import AFTER, BEFORE, BEST_EPOCH, LAST_EPOCH, open_run
from train.loop.process_group import find_device
from train.loop.refit import train_run
from train.loop.run_folder import Run, initial_loss, initial_model
from train.recipes import column_title, percents_by_key

_FAILURE = "failure.txt"
_SAVING_SHARE = 30  # the results are saved after 30 times as long as saving takes
_PEAK_MEMORY = "peak_memory"  # key in metrics.jsonl


@dataclass(frozen=True)
class SweepTrial:
    """One run of a sweep.

    Attributes:
        variant: Name of the variant.
        seed: Seed of the run.
        folder: Folder of the run.
        config: Settings of the run.
    """

    variant: str
    seed: int
    folder: Path
    config: Config

    def __str__(self) -> str:
        return f"{self.variant}, seed {self.seed}"

    @property
    def is_finished(self) -> bool:
        """Whether the run has a report.json, which is written last."""
        return (self.folder / REPORT_FILE).is_file()

    def report(self) -> Report | None:
        """Return the report without the mistakes of the network; `None` if the run is unfinished."""
        return _finished(self.folder).report if self.is_finished else None

    def results(self) -> list[Result]:
        """Return the results of the best epoch on held-out images, or else of the last, by all labels."""
        report = self.report()
        found = report.results if report is not None else []
        names = {result.name for result in found}
        return [result for result in found if result.name == (BEST_EPOCH if BEST_EPOCH in names else AFTER)]

    def records(self) -> Sequence[Mapping[str, Any]]:
        """Return the records of metrics.jsonl that learning curves show, so far."""
        return _finished(self.folder).records if self.is_finished else _records(Run(self.folder))

    def outcome(self) -> Outcome:
        """Read the outcome from the folder of the run."""
        if not self.is_finished:
            failure = self.folder / _FAILURE
            error = failure.read_text().partition("\n")[0] if failure.is_file() else None
            return Outcome(self.variant, self.seed, error=error)
        found = _finished(self.folder)
        return Outcome(
            self.variant,
            self.seed,
            found.scores,
            seconds_per_step=found.seconds_per_step,
            peak_memory=found.peak_memory,
        )


@dataclass(frozen=True)
class _Finished:
    """What a sweep reads from the folder of a finished run; see `Outcome`.

    Attributes:
        report: Report without findings, which are large.
        records: Records of learning curves.
    """

    report: Report
    records: Sequence[Mapping[str, Any]]
    scores: Mapping[str, Result]
    seconds_per_step: float | None
    peak_memory: int | None


def _finished(folder: Path) -> _Finished:
    """Read a finished run, once for all calls until its report is replaced."""
    return _read_finished(folder, (folder / REPORT_FILE).stat().st_mtime_ns)


@functools.cache
def _read_finished(folder: Path, changed: int) -> _Finished:
    report, run = dataclasses.replace(Report.load(folder), findings=None), Run(folder)
    metrics, watched = run.metrics(), run.watched()
    rows = {result.name: result for result in report.results if result.by is None}
    held_out = run.checkpoint_state("best")["recall_at_1"]
    tested = [record["recall_at_1"] for record in watched if record["watched"] == "test"]
    results = {
        "before": rows.get(BEFORE),
        "last": rows.get(LAST_EPOCH) or rows[AFTER],
        "best": (rows.get(BEST_EPOCH) or rows[AFTER]) if held_out is not None else None,
        "validation": None if held_out is None else Result("validation", {"recall_at_1": held_out}),
        "oracle": Result("oracle", {"recall_at_1": max(tested)}) if tested else None,
    }
    times = [record["seconds_per_step"] for record in metrics if "seconds_per_step" in record]
    steady = times[1:] or times  # the first steps warm up caches and kernels
    peaks = [record[_PEAK_MEMORY] for record in metrics if record.get(_PEAK_MEMORY)]
    return _Finished(
        report=report,
        records=_records(run),
        scores={which: result for which, result in results.items() if result is not None},
        seconds_per_step=statistics.median(steady) if steady else None,
        peak_memory=max(peaks, default=None),
    )


def _records(run: Run) -> Sequence[Mapping[str, Any]]:
    """Return step, loss and Recall@1 of the records of a run that have one of them."""
    shown = ("loss", "recall_at_1")
    return [
        {key: record[key] for key in ("step", "watched", *shown) if key in record}
        for record in (*run.metrics(), *run.watched())
        if any(key in record for key in shown)
    ]


def run_sweep(
    folder: Path,
    plan: SweepPlan,
    log: Callable[[str], None],
    *,
    device: Device | None = None,
    show_progress: bool = False,
) -> SweepResults:
    """Execute the unfinished runs of a sweep, one after the other, seed by seed.

    A failed run is recorded and does not stop the others; the next call retries it. results.json, results.md
    and the figures are updated as runs finish.

    Args:
        folder: Folder of the sweep.
        plan: Runs of the sweep.
        log: Receives a message when a run starts or fails.
        device: Device of all runs; `None` for that of their settings.
        show_progress: Show the progress of each run on stderr.

    Raises:
        InputError: Settings that cannot be used; all are checked before the first run.
        LookalikeError: Another process runs this sweep.
    """
    configs = {name: settings.placed(config, device) for name, config in plan.configs().items()}
    trials = [
        SweepTrial(
            name, seed, folder / name / f"seed-{seed}", configs[name].model_copy(update={"seed": seed})
        )
        for seed in plan.seeds
        for name in plan.variants
    ]
    dataset = data.load(plan.experiment.config().data)
    for config in configs.values():
        check_recipe_fits(plan.experiment.recipe, config, dataset)

    references: list[Reference] = []

    def prepare() -> None:
        references.extend(find_references(folder, configs, dataset, show_progress=show_progress))

    def compare() -> SweepResults:
        return dataclasses.replace(_compare(folder, plan, trials), references=references)

    def save() -> None:
        plan.save(folder)
        compare().save(folder)

    if plan.added and not (folder / PLAN).exists():
        log(f"added as baselines: {', '.join(plan.added)}; --no-baselines leaves them out")
    run_trials(folder, trials, dataset, save, log, prepare=prepare, show_progress=show_progress)
    return compare()


def run_trials(
    folder: Path,
    trials: Sequence[SweepTrial],
    dataset: DataSet,
    save: Callable[[], None],
    log: Callable[[str], None],
    *,
    prepare: Callable[[], None] = lambda: None,
    show_progress: bool = False,
) -> None:
    """Execute the unfinished trials, one after the other, each in a process of its own.

    A failed trial does not stop the others, also if its process is killed or has ruined its CUDA context.

    Args:
        folder: Folder that all trials are in; locked meanwhile.
        trials: Trials of one data set.
        dataset: Data set of the trials.
        save: Saves the results so far; called before the first trial, at the end, and in between.
        log: Receives a message when a run starts or fails.
        prepare: Called once the settings are checked and the folder is locked.
        show_progress: Show the progress of each run on stderr.

    Raises:
        InputError: Settings that cannot be used; all are checked before the first run.
        LookalikeError: Another process runs these trials.
    """
    waiting = [trial for trial in trials if not trial.is_finished]
    _check(trials, waiting, dataset)
    folder.mkdir(parents=True, exist_ok=True)

    def refuse(_: object) -> NoReturn:
        raise LookalikeError(f"{folder}: another process is running this; wait for it to finish") from None

    for note in dict.fromkeys(noise_note(dataset, trial.config.noise) for trial in waiting):
        if note is not None:
            log(note)
    with file_lock(folder / "LOCK", refuse):
        prepare()
        with _saving(save) as save_if_due:
            _execute(trials, waiting, dataset, save_if_due, log, show_progress)


def _execute(
    trials: Sequence[SweepTrial],
    waiting: Sequence[SweepTrial],
    dataset: DataSet,
    save_if_due: Callable[[], None],
    log: Callable[[str], None],
    show_progress: bool,
) -> None:
    began = time.monotonic()
    for count, trial in enumerate(waiting):
        number = len(trials) - len(waiting) + count + 1
        left = (time.monotonic() - began) / count * (len(waiting) - count) if count else None
        log(f"run {number} of {len(trials)}: {trial}{_remaining_time(left)}")
        try:
            run_isolated(_run, trial, _untrained(trial, trials), dataset, show_progress)
        except KeyboardInterrupt as error:
            detail = "interrupted; repeat the command to resume"
            raise KeyboardInterrupt(f"{trial.folder}: {detail}") from error
        except Exception as error:
            log(f"  failed: {_record_failure(trial, error)}")
        save_if_due()


@contextmanager
def _saving(save: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Save at the begin and at the end, and in between when called if it costs little of the time since."""

    def save_and_time() -> tuple[float, float]:
        began = time.monotonic()
        save()
        return time.monotonic(), time.monotonic() - began

    saved, cost = save_and_time()

    def save_if_due() -> None:
        nonlocal saved, cost
        if time.monotonic() - saved > _SAVING_SHARE * cost:
            saved, cost = save_and_time()

    try:
        yield save_if_due
    finally:
        save()


def _check(trials: Sequence[SweepTrial], waiting: Sequence[SweepTrial], dataset: DataSet) -> None:
    """Check all settings before the first run, so that none fails late."""
    for trial in trials:
        if Run(trial.folder).is_begun:
            changed = Run.open(trial.folder).differences(trial.config)
            if changed:
                what = "; ".join(changed)
                raise InputError(f"{trial.folder}: trained with {what}; choose another name or another --out")
    if any(trial.config.linear_probe for trial in waiting):
        check_closed_set(dataset)
    if waiting:
        check_test_split(dataset)
    classes = len({image.label for image in dataset.train})
    networks = set()
    for trial in {trial.variant: trial for trial in waiting}.values():
        config, network = trial.config, (trial.config.model, trial.config.preprocess)
        try:
            initial_loss(config, classes)
            if network not in networks:
                initial_model(config)
        except LookalikeError as error:
            raise InputError(f"variant {trial.variant}: {error}") from error
        networks.add(network)


def _run(trial: SweepTrial, untrained: list[Result], dataset: DataSet, show_progress: bool) -> None:
    """Train or resume a run and measure it; a run is finished once it has a report.json."""
    begun = Run(trial.folder).is_begun
    run = Run.open(trial.folder) if begun else Run.start(trial.folder, trial.config)
    if begun:
        run.move_to(trial.config.device)
    (trial.folder / _FAILURE).unlink(missing_ok=True)
    memory = PeakMemory(find_device(trial.config.device))
    trainer, _ = train_run(run, dataset, resume=begun, show_progress=show_progress)
    run.log({"step": trainer.step, _PEAK_MEMORY: memory.read()})
    baselines = [] if untrained else ["untrained"]
    opened = open_run(trial.folder, None, trial.config.device)
    report = evaluate_opened(opened, dataset, baselines, show_progress=show_progress)
    bad = {*report.bad_files, *((bad.source, bad.detail) for bad in trainer.bad_files)}
    results = [*untrained, *report.results]
    dataclasses.replace(report, results=results, bad_files=sorted(bad)).save(trial.folder)


def _untrained(trial: SweepTrial, trials: Sequence[SweepTrial]) -> list[Result]:
    """Return the results of the untrained network, if another run with the same network has them."""
    config = trial.config
    keys = ["model", "preprocess", "seed", "linear_probe"]
    # These decide what the probe and a fitted embedding layer learn from.
    keys += ["split", "noise"] if config.linear_probe or config.model.init in FITTED_INITS else []
    for other in trials:
        same = all(getattr(config, key) == getattr(other.config, key) for key in keys)
        if same and (report := other.report()) is not None:
            return [result for result in report.results if result.name == BEFORE]
    return []


def _record_failure(trial: SweepTrial, error: Exception) -> str:
    """Write message and traceback to failure.txt; return the message."""
    known = isinstance(error, LookalikeError)
    message = " ".join((str(error) if known else f"{type(error).__name__}: {error}").split())
    trial.folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(trial.folder / _FAILURE) as draft:
        draft.write_text("\n".join([message, "", *traceback.format_exception(error)]))
    return message


def _compare(folder: Path, plan: SweepPlan, trials: Sequence[SweepTrial]) -> SweepResults:
    reports = [report for trial in trials if (report := trial.report()) is not None]
    outcomes = [trial.outcome() for trial in trials]
    config = plan.experiment.config()
    notes = dict.fromkeys(note for report in reports for note in report.notes)
    if config.published is not None:
        found = percents_by_key(config.published).items()
        numbers = [f"{column_title(key)} {text.printed(percents)}" for key, percents in found]
        notes[f"For the unchanged recipe, {config.published.source} reports {', '.join(numbers)}."] = None
    return SweepResults(
        data=config.data,
        protocol=f"{reports[0].images} images, {reports[0].protocol}" if reports else "",
        command=plan.command(folder),
        baseline=plan.baseline,
        rows=compare_variants(plan.variant_settings(), plan.baseline, outcomes),
        outcomes=outcomes,
        notes=list(notes),
        bad_files=sorted({bad for report in reports for bad in report.bad_files}),
        swept=plan.swept_number(),
        curves=learning_curves(
            {name: [t.records() for t in trials if t.variant == name] for name in plan.variants}
        ),
    )


def _remaining_time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    hours, minutes = divmod(round(seconds / 60), 60)
    short = f"about {minutes} min" if minutes else "less than a minute"
    return f" ({f'about {hours} h {minutes} min' if hours else short} left)"
