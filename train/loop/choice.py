"""Choice of the best epoch by a score on held-out images, or its refusal if the score is unfit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from train.config import Config

# The standard error of Recall@1 over n queries is sqrt(p (1 - p) / n), at most 0.029 for 300: as much as good
# epochs differ by. The images of a class are found or missed together, so that classes count too: if Recall@1
# of single classes has a standard deviation of 0.2, the mean over 20 has a standard error of 0.045.
FEWEST_QUERIES, FEWEST_CLASSES = 300, 20
SATURATED = 0.95  # before training: what is left to gain is mostly wrong labels and near-duplicates
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
    """

    metric: str
    values: Mapping[str, float]
    standard_error: float
    queries: int
    classes: int
    distractors: int
    found: str = ""
    unit: Literal["images", "pairs"] = "images"

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

    def add(self, score: Score | None, epoch: int) -> bool:
        """Take the score after an epoch; return whether its network counts as the best so far.

        Args:
            score: Score of the network; `None` without held-out images.
            epoch: Number of epochs done.
        """
        if score is None:
            return True
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
        return {"best": self.best, "since_best": self.since_best, "refusal": self.refusal}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the state of a checkpoint."""
        self.best, self.since_best = state["best"], state["since_best"]
        self.refusal = state.get("refusal")  # missing in runs of older versions

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
