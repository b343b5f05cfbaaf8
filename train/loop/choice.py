"""Choice of the best epoch by a score on held-out images, or its refusal if the score is unfit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from retrieval.metrics.statistics import class_intervals
from train.config import Config

# The standard error of Recall@1 over n queries is sqrt(p (1 - p) / n), at most 0.029 for 300: as much as good
# epochs differ by. The images of a class are found or missed together, so that classes count too: if Recall@1
# of single classes has a standard deviation of 0.2, the mean over 20 has a standard error of 0.045.
FEWEST_QUERIES, FEWEST_CLASSES = 300, 20
SATURATED = 0.95  # before training: what is left to gain is mostly wrong labels and near-duplicates
_HALVES = 2  # of the held-out classes: each chooses an epoch for the other
_FROM_CEILING = 2  # standard errors below 1: for Recall@1, fewer than 4 wrong answers

TITLES: Mapping[str, str] = {
    "recall_at_1": "Recall@1",
    "map_at_r": "MAP@R",
    "auc": "AUC",
    "spearman": "Spearman's correlation",
}


@dataclass(frozen=True)
class Score:
    """Metrics of a network on held-out images.

    Attributes:
        metric: The metric that chooses, a key of `values`.
        values: Metric -> mean over the queries, in 0..1; always with Recall@1. Of pairs the metric with the
            ends of its interval, METRIC_low and METRIC_high.
        standard_error: Standard error of the metric that chooses, of a mean over independent queries; for
            Recall@1 the binomial one.
        queries: Held-out images with another one of their class, or pairs of held-out images.
        classes: Classes of these queries, or images of these pairs.
        distractors: Training images that are searched, too.
        found: What the queries should find, as the beginning of a phrase; empty for others of their class.
        unit: What the queries are, in the plural: images or pairs.
        of_classes: Sums of the metric that chooses over the queries of each class, float64 [classes], and
            numbers of these queries; `None` for pairs.
    """

    metric: str
    values: Mapping[str, float]
    standard_error: float
    queries: int
    classes: int
    distractors: int
    found: str = ""
    unit: Literal["images", "pairs"] = "images"
    of_classes: tuple[np.ndarray, np.ndarray] | None = field(default=None, compare=False)

    @property
    def value(self) -> float:
        """The metric that chooses."""
        return self.values[self.metric]

    def record(self) -> dict[str, float]:
        """Return the numbers for metrics.jsonl."""
        return {
            **self.values,
            "standard_error": self.standard_error,
            "queries": self.queries,
            "distractors": self.distractors,
        }

    def __str__(self) -> str:
        among = f" among {self.distractors:,} distractors" if self.distractors else ""
        value = f"{TITLES[self.metric]} {self.value:.4f} ± {self.standard_error:.4f}"
        if self.unit == "pairs":
            low, high = (self.values[f"{self.metric}_{end}"] for end in ("low", "high"))
            value = f"{TITLES[self.metric]} {self.value:.4f} [{low:.4f}, {high:.4f}]"
        elif self.metric != "recall_at_1":
            value += f", Recall@1 {self.values['recall_at_1']:.4f},"
        return f"{value} of {self.found}{self.queries:,} held-out {self.unit}{among}"


@dataclass(frozen=True)
class Gain:
    """What training gains on held-out classes by epochs that were not chosen by them.

    Attributes:
        before, after: Mean of the metric that chooses, before training and after the epochs.
        low, high: 95% interval of the difference, for other classes like these; `None` for fewer than eight.
    """

    before: float
    after: float
    low: float | None
    high: float | None


class _Halves:
    """Epochs that one half of the held-out classes chooses, measured on the other half.

    The best of many epochs looks better on the classes that chose it than on others.
    """

    def __init__(self) -> None:
        self._start: np.ndarray | None = None
        self._sizes = self._last = self._chosen = np.empty(0)
        self._best = [-1.0, -1.0]

    def add(self, sums: np.ndarray, sizes: np.ndarray) -> None:
        """Take the sums of the metric over the queries of each class, and their numbers, after an epoch."""
        if self._start is None:
            self._start, self._sizes, self._chosen = sums, sizes, sums.copy()
        self._last = sums
        second = self._second
        for number, half in enumerate((~second, second)):
            if (value := float(sums[half].sum() / max(sizes[half].sum(), 1))) > self._best[number]:
                self._best[number] = value
                self._chosen[~half] = sums[~half]

    def gain(self, *, chosen: bool) -> Gain | None:
        """Return the gain of the chosen epochs, or of the last one; `None` if there is nothing to compare."""
        if self._start is None or len(self._start) < _HALVES:
            return None
        end, count = self._chosen if chosen else self._last, self._sizes.sum()
        means = np.repeat((end - self._start) / self._sizes, self._sizes.astype(np.int64))
        classes = np.repeat(np.arange(len(self._sizes)), self._sizes.astype(np.int64))
        found = class_intervals(means[:, None], classes)
        low, high = (None, None) if found is None else found[0].tolist()
        return Gain(float(self._start.sum() / count), float(end.sum() / count), low, high)

    def state(self) -> dict[str, Any] | None:
        """Return the state for a checkpoint, JSON values."""
        if self._start is None:
            return None
        arrays = {"start": self._start, "sizes": self._sizes, "last": self._last, "chosen": self._chosen}
        return {name: array.tolist() for name, array in arrays.items()} | {"best": self._best}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the state of a checkpoint."""
        self._start, self._sizes, self._last, self._chosen = (
            np.array(state[name], float) for name in ("start", "sizes", "last", "chosen")
        )
        self._best = [*state["best"]]

    @property
    def _second(self) -> np.ndarray:
        """Which classes are in the second half, at random, bool [classes]."""
        order = np.random.default_rng(0).permutation(len(self._sizes))
        return np.asarray(order % _HALVES == 1)


class EpochChoice:
    """Choice of the best epoch, one score after the other.

    With `split.choice: auto` it is refused once the score proves unable to tell epochs apart: then the last
    epoch counts as the best, and there is no early stopping.

    Args:
        config: Configuration of the run.
        metric: The metric that chooses; `None` for that of the settings.

    Attributes:
        best: Highest score so far, -1 before the first.
        since_best: Epochs since then.
        refusal: Why the choice was refused; `None` if it was not.
    """

    def __init__(self, config: Config, metric: str | None = None) -> None:
        self._config, self.metric = config, metric or config.split.metric
        self.best, self.since_best = -1.0, 0
        self.refusal: str | None = None
        self._halves: _Halves | None = _Halves()

    def add(self, score: Score | None, epoch: int) -> bool:
        """Take the score after an epoch; return whether its network counts as the best so far.

        Args:
            score: Score of the network; `None` without held-out images.
            epoch: Number of epochs done.
        """
        if score is None:
            return True
        if self._halves is not None and score.of_classes is not None:
            self._halves.add(*score.of_classes)
        if self.refusal is None and self._config.split.choice == "auto":
            self.refusal = self._refusal(score, epoch)
        is_best = self.refusal is not None or score.value > self.best
        self.since_best = 0 if is_best else self.since_best + 1
        self.best = max(self.best, score.value)
        return is_best

    @property
    def stops(self) -> bool:
        """Whether training stops early."""
        patience = self._config.patience
        return patience is not None and self.refusal is None and self.since_best >= patience

    def best_record(self, records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
        """Return the record of the best epoch among those of all scores so far; `None` if there are none."""
        if self.refusal is not None or not records:
            return records[-1] if records else None
        return max(records, key=lambda record: float(record[self.metric]))

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, JSON values."""
        halves = None if self._halves is None else self._halves.state()
        own = {"best": self.best, "since_best": self.since_best, "refusal": self.refusal}
        return own | {"halves_of_classes": halves}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the state of a checkpoint."""
        self.best, self.since_best = state["best"], state["since_best"]
        self.refusal = state.get("refusal")  # missing in runs of older versions
        halves = state.get("halves_of_classes")  # likewise; then the start is unknown
        if halves is None:
            self._halves = None
        elif self._halves is not None:
            self._halves.restore(halves)

    @property
    def gain(self) -> Gain | None:
        """What training gains on classes that have not chosen the epoch; `None` if it is not known."""
        return None if self._halves is None else self._halves.gain(chosen=self.refusal is None)

    def _refusal(self, score: Score, epoch: int) -> str | None:
        title, value = TITLES[score.metric], f"{score.value:.3f}"
        few = score.queries < FEWEST_QUERIES or score.classes < FEWEST_CLASSES
        if few:
            problem = (
                f"{title} rests on {score.queries} held-out {score.unit} of {score.classes} "
                f"{'images' if score.unit == 'pairs' else 'classes'}, and needs {FEWEST_QUERIES} of "
                f"{FEWEST_CLASSES} to tell epochs apart"
            )
        elif epoch == 0 and score.value > SATURATED:
            problem = f"{title} of the held-out {score.unit} is saturated: {value} before training"
        elif 1 - score.value <= _FROM_CEILING * score.standard_error:
            problem = f"{title} of the held-out {score.unit} is at its ceiling: {value} after epoch {epoch}"
        else:
            return None
        counts = "the moving average after the last epoch" if self._config.ema else "the last epoch"
        stopping = ", without early stopping" if self._config.patience is not None else ""
        what = "hold out more (split.validation)" if few else "choose by split.metric=map_at_r"
        if not few and score.metric == "map_at_r":
            what = "search among more distractors (split.distractors)"
        elif not few and score.unit == "pairs":
            what = "hold out pairs that are harder to tell apart"
        return (
            f"split: {problem}; {counts} counts as the best{stopping}: {what}, or none (split.validation=0)"
        )
