"""Hyper-parameter search of one method: a sampler that continues from saved trials, and the trials."""

from __future__ import annotations

import gc
import math
import shutil
import statistics
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from retrieval.errors import LookalikeError
from train import settings
from train.config import Config
from train.data import DataSet
from train.experiments.isolation import DeadProcessError, run_isolated
from train.experiments.search_space import Space
from train.loop.run_folder import Run
from train.loop.trainer import Trainer

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

STUDIES = "search.log"  # Optuna's journal, with a study for each method
_FEWEST_RANDOM = 3
_MOST_LISTED = 10_000  # combinations of values


class _NoLock:
    """No lock on the file of the studies: that on the folder excludes other processes.

    Optuna's own is a symbolic link, which a killed process leaves behind, and the next one then waits for:
    half a minute, or without end if the folder is given relative to the current one.
    """

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


@dataclass(frozen=True)
class Trial:
    """One trial of a search: the settings, and what became of them.

    Attributes:
        number: Number of the trial, from 0.
        settings: Value of each searched setting.
        value: Metric on the held-out images, in 0..1; `None` if the trial failed.
        error: Reason why it failed.
        seconds: Time of the trial.
        steps: Training steps of a run.
        curves: Recall@1 on the held-out images before training and after each epoch, for each fold.
    """

    number: int
    settings: dict[str, Any]
    value: float | None = None
    error: str | None = None
    seconds: float = 0.0
    steps: int | None = None
    steps_per_epoch: int | None = None
    curves: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class Search:
    """Search of one method.

    Attributes:
        name: Name of the method.
        folder: Folder of the searches of all methods.
        spaces: Space by setting.
        first: Settings of the first trial.
        budget: Number of trials.
        seed: Seed of the sampler.
        epoch: Epoch that is measured, "best" on the held-out images or "last".
        metric: Metric that is maximized.
        configs: Returns the settings of a trial's runs, one for each fold.
    """

    name: str
    folder: Path
    spaces: Mapping[str, Space]
    first: Mapping[str, Any]
    budget: int
    seed: int
    epoch: str
    metric: str
    configs: Callable[[Mapping[str, Any]], Sequence[Config]]

    @property
    def trials(self) -> int:
        """Number of trials: the budget, or that of all settings if these are fewer, one without a space."""
        return int(min(self.budget, self._combinations))

    @property
    def _combinations(self) -> float:
        return math.prod(
            math.inf if space.values is None else len(space.values) for space in self.spaces.values()
        )

    def study(self) -> Study:
        """Return the study of Optuna that keeps the finished trials; begin it if there is none."""
        import optuna  # slow to import
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        backend = JournalFileBackend(str(self.folder / STUDIES), _NoLock())  # type: ignore[arg-type]
        storage = JournalStorage(backend)
        if self.name not in optuna.get_all_study_names(storage):
            optuna.create_study(storage=storage, study_name=self.name, direction="maximize")
        return optuna.load_study(study_name=self.name, storage=storage)

    def finished(self) -> list[Trial]:
        """Return the finished trials."""
        if not (self.folder / STUDIES).is_file():
            return []
        found = self.study().get_trials()
        return [
            Trial(
                number,
                {name: space.decoded(trial.params[name]) for name, space in self.spaces.items()},
                trial.values and trial.value,
                **trial.user_attrs,
            )
            for number, trial in enumerate(found)
        ]

    def next_settings(self, trials: Sequence[Trial]) -> dict[str, Any]:
        """Return the settings of the next trial.

        The first trial has the defaults, the next quarter of the budget is random, then a tree-structured
        Parzen estimator proposes (Bergstra et al. 2011; Optuna's, multivariate). Of a space with few values,
        what was tried already is replaced by a random one of the rest. A failed trial counts as worse than
        all others.

        Each proposal depends on the seed, the number of the trial and the finished trials alone, so that a
        resumed search continues as if it had not been interrupted.
        """
        if not trials:
            return dict(self.first)
        wanted = self._propose(trials)
        tried = [trial.settings for trial in trials]
        if wanted not in tried:
            return wanted
        untried = [settings for settings in self._all_settings() if settings not in tried]
        return untried[self._random_number(trials) % len(untried)] if untried else wanted

    def _all_settings(self) -> list[dict[str, Any]]:
        """Return every combination of values, if there are not too many, otherwise none."""
        if self._combinations > _MOST_LISTED:
            return []
        values = product(*(space.values or () for space in self.spaces.values()))
        return [dict(zip(self.spaces, combination, strict=True)) for combination in values]

    def _random_number(self, trials: Sequence[Trial]) -> int:
        """Return a number that depends on the seed of the search and the number of the next trial."""
        return int(np.random.SeedSequence([self.seed, len(trials)]).generate_state(1)[0])

    def _propose(self, trials: Sequence[Trial]) -> dict[str, Any]:
        """Return a random proposal at the begin, otherwise the estimator's."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(
            seed=self._random_number(trials),
            n_startup_trials=max(_FEWEST_RANDOM, math.ceil(self.budget / 4)),
            multivariate=True,
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.add_trials(map(self.frozen, trials))
        drawn = study.ask({name: space.distribution() for name, space in self.spaces.items()}).params
        return {name: space.decoded(drawn[name]) for name, space in self.spaces.items()}

    def frozen(self, trial: Trial) -> FrozenTrial:
        """Return a trial of Optuna: a failed one as pruned, which its estimator takes for a bad one."""
        from optuna.trial import TrialState, create_trial

        own = ("number", "settings", "value")
        return create_trial(
            state=TrialState.PRUNED if trial.value is None else TrialState.COMPLETE,
            value=trial.value,
            params={name: space.encoded(trial.settings[name]) for name, space in self.spaces.items()},
            distributions={name: space.distribution() for name, space in self.spaces.items()},
            user_attrs={key: value for key, value in asdict(trial).items() if key not in own},
        )

    def run(self, dataset: DataSet, log: Callable[[str], None], *, show_progress: bool = False) -> None:
        """Run the unfinished trials, one after the other; a failed one counts, and the search goes on.

        Args:
            dataset: Data set; only `train` is used.
            log: Receives a message after each trial.
            show_progress: Show the progress of each run on stderr.
        """
        found = self.finished()
        while len(found) < self.trials:
            trial = Trial(len(found), self.next_settings(found))
            trial = self._measure_apart(trial, dataset, show_progress)
            self.study().add_trial(self.frozen(trial))
            shutil.rmtree(self._runs(trial), ignore_errors=True)  # checkpoints would fill the disk
            found.append(trial)
            log(self._message(trial, found))

    def _measure_apart(self, trial: Trial, dataset: DataSet, show_progress: bool) -> Trial:
        """Measure a trial in a process of its own; one that dies is a failed trial."""
        began, configs = time.monotonic(), self.configs(trial.settings)
        what = (trial, configs, self._runs(trial), self.epoch, self.metric)
        try:
            return run_isolated(_measure, *what, dataset, show_progress)
        except DeadProcessError as error:
            return replace(trial, error=str(error), seconds=_since(began))
        except KeyboardInterrupt as error:
            hint = "interrupted; repeat the command to resume"
            raise KeyboardInterrupt(f"{self.name}, trial {trial.number + 1}: {hint}") from error

    def _message(self, trial: Trial, found: Sequence[Trial]) -> str:
        best = best_trial(found)
        words = ", ".join(settings.format_changes(trial.settings)) or "no searched settings"
        outcome = f"failed: {trial.error}" if trial.value is None else f"{100 * trial.value:.2f}"
        leader = f" (best {100 * (best.value or 0):.2f}, trial {best.number + 1})" if best else ""
        count = f"trial {trial.number + 1} of {self.trials}"
        return f"{self.name}, {count}: {words}: {outcome}{leader} [{trial.seconds:.1f} s]"

    def _runs(self, trial: Trial) -> Path:
        return self.folder / "search" / self.name / f"trial-{trial.number:03d}"


def best_trial(trials: Sequence[Trial]) -> Trial | None:
    """Return the trial with the highest value, the first of equal ones; `None` if all have failed."""
    measured = [trial for trial in trials if trial.value is not None]
    return max(measured, key=lambda trial: trial.value or 0.0, default=None)


def _measure(
    trial: Trial,
    configs: Sequence[Config],
    folder: Path,
    epoch: str,
    metric: str,
    dataset: DataSet,
    show_progress: bool,
) -> Trial:
    """Train the runs of a trial, one for each fold, and measure them on the held-out images."""
    began = time.monotonic()
    scores, curves, steps, per_epoch, run = [], [], 0, 0, folder
    try:
        for fold, config in enumerate(configs):
            run = folder / f"fold-{fold}"
            trainer = _train(run, config, dataset, show_progress)
            scores.append(_score(trainer, epoch, metric))
            records = trainer.run.metrics()
            curves.append([record["recall_at_1"] for record in records if "recall_at_1" in record])
            steps, per_epoch = trainer.step, trainer.sampler.per_epoch
            del trainer
            if torch.cuda.is_available():
                gc.collect()  # frees the device memory of this run before the next one starts
    except (OSError, MemoryError):  # of the machine, not of the settings
        raise
    except Exception as error:
        reason = _reason(error).replace(f"{run}: ", "")  # the folder is deleted
        return replace(trial, error=reason, seconds=_since(began))
    return replace(
        trial,
        value=statistics.fmean(scores),
        seconds=_since(began),
        steps=steps,
        steps_per_epoch=per_epoch,
        curves=curves,
    )


def _score(trainer: Trainer, epoch: str, metric: str) -> float:
    """Return the metric on the held-out images after the measured epoch."""
    model = trainer.network.validated_model
    if epoch == "best":
        model = trainer.run.trained("best").to(trainer.group.device)
    score = trainer.validator.score(model, metric)
    assert score is not None  # images are held out
    return score.value


def _train(folder: Path, config: Config, dataset: DataSet, show_progress: bool) -> Trainer:
    """Train a run, or resume the one that an interruption has left."""
    begun = Run(folder).has_checkpoint("last") and not Run.open(folder).differences(config)
    if not begun:
        shutil.rmtree(folder, ignore_errors=True)
    run = Run.open(folder) if begun else Run.start(folder, config)
    if begun:
        run.move_to(config.device)
    trainer = Trainer(run, dataset, show_progress=show_progress)
    trainer.train(resume=begun)
    return trainer


def _reason(error: Exception) -> str:
    """Return the message of an error in one line, of an unexpected one with the place in the code."""
    if isinstance(error, LookalikeError):
        return " ".join(str(error).split())
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return " ".join(f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})".split())


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
