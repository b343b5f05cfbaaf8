"""Variants of a sweep over their seeds, and their paired differences to a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from retrieval.evaluation.comparison import TESTED, summarize_results, values_of
from retrieval.evaluation.score import Result
from retrieval.metrics.statistics import Paired, Summary, holm, paired, summarize

PROBE = "linear_probe"
PAIRED_METRICS = (TESTED, "map_at_r", "nmi", PROBE)
_KINDS = ("before", "best", "last", "validation", "oracle")


@dataclass(frozen=True)
class Outcome:
    """Outcome of one run.

    Attributes:
        variant: Name of the variant.
        seed: Seed of the run.
        scores: Results on the test split of the network "before" training, after its "last" epoch and, if it
            was selected on held-out images, after its "best" one. "validation" is Recall@1 of the held-out
            images after the best epoch, "oracle" the highest Recall@1 of test images that were watched
            during training. Empty until the run is done.
        error: Message of a failed run.
        seconds_per_step: Median time of a training step; `None` if it was not recorded.
        peak_memory: Most memory in use during training, in bytes; `None` if it was not recorded.
    """

    variant: str
    seed: int
    scores: Mapping[str, Result] = field(default_factory=dict)
    error: str | None = None
    seconds_per_step: float | None = None
    peak_memory: int | None = None

    @property
    def status(self) -> str:
        """ "done", "failed" or "waiting"."""
        return "done" if self.scores else "failed" if self.error else "waiting"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "variant": self.variant,
            "seed": self.seed,
            "status": self.status,
            "scores": {which: result.values for which, result in self.scores.items()},
            "error": self.error,
            "seconds_per_step": self.seconds_per_step,
            "peak_memory": self.peak_memory,
        }


@dataclass(frozen=True)
class VariantSummary:
    """One variant over its seeds.

    Attributes:
        name: Name of the variant.
        changes: Settings that differ from the experiment.
        runs: Number of runs, finished or not.
        checkpoint: Checkpoint that is compared: "best" if all runs have it, otherwise "last"; `None` without
            finished runs.
        recalls: Recall@1 of this checkpoint in each finished run.
        scores: "before", "best", "last", "validation" and "oracle", as in `Outcome` -> metric key -> summary
            over the runs; those that some run has.
        paired: Metric key -> differences to the runs of the baseline with the same seeds, p corrected for the
            number of variants; empty for the baseline itself, and without shared finished seeds.
        seconds_per_step: Time of a training step over the runs, in seconds; `None` if it was not recorded.
        peak_memory: Largest peak memory of the runs, in bytes; `None` if it was not recorded.
    """

    name: str
    changes: tuple[str, ...]
    runs: int
    checkpoint: str | None
    recalls: list[float]
    scores: dict[str, dict[str, Summary]]
    paired: dict[str, Paired]
    seconds_per_step: Summary | None = None
    peak_memory: int | None = None

    def summary(self, metric: str, which: str | None = None) -> Summary | None:
        """Return a metric over the runs, of the compared checkpoint or of another."""
        return self.scores.get(which or self.checkpoint or "", {}).get(metric)


def compare_variants(
    variants: Mapping[str, tuple[str, ...]], baseline: str, outcomes: Sequence[Outcome]
) -> list[VariantSummary]:
    """Summarize the finished runs of each variant and compare them with those of the baseline, seed by seed.

    Args:
        variants: Name of each variant and the settings that it changes.
        baseline: Name of the variant to compare with.
        outcomes: Outcomes of all runs.
    """
    own = {name: [o for o in outcomes if o.variant == name] for name in variants}
    compared = {name: _compared_results(found) for name, found in own.items()}
    rows = [
        _summarize(name, changes, own[name], compared[name], {} if name == baseline else compared[baseline])
        for name, changes in variants.items()
    ]
    return _correct(rows)


def _summarize(
    name: str,
    changes: tuple[str, ...],
    outcomes: Sequence[Outcome],
    results: Mapping[int, Result],
    reference: Mapping[int, Result],
) -> VariantSummary:
    times = [o.seconds_per_step for o in outcomes if o.seconds_per_step]
    scores = {
        which: summarize_results([o.scores[which] for o in outcomes if which in o.scores]) for which in _KINDS
    }
    differences = {metric: _paired_runs(results, reference, metric) for metric in PAIRED_METRICS}
    return VariantSummary(
        name=name,
        changes=changes,
        runs=len(outcomes),
        checkpoint=_compared_checkpoint(outcomes) if results else None,
        recalls=values_of(results.values()),
        scores={which: summaries for which, summaries in scores.items() if summaries},
        paired={metric: found for metric, found in differences.items() if found is not None},
        seconds_per_step=summarize(times) if times else None,
        peak_memory=max((o.peak_memory for o in outcomes if o.peak_memory), default=None),
    )


def _compared_checkpoint(outcomes: Iterable[Outcome]) -> str:
    return "best" if all("best" in o.scores for o in outcomes if o.scores) else "last"


def _compared_results(outcomes: Sequence[Outcome]) -> dict[int, Result]:
    """Return the result of the compared checkpoint of each finished run, by seed."""
    checkpoint = _compared_checkpoint(outcomes)
    return {o.seed: o.scores[checkpoint] for o in outcomes if o.scores}


def _paired_runs(ours: Mapping[int, Result], theirs: Mapping[int, Result], metric: str) -> Paired | None:
    """Compare a metric over the seeds for which both have it; `None` if there are none."""
    pairs = [
        (ours[seed].values[metric], theirs[seed].values[metric])
        for seed in ours
        if seed in theirs and metric in ours[seed].values and metric in theirs[seed].values
    ]
    return paired(*zip(*pairs, strict=True)) if pairs else None


def _correct(rows: Sequence[VariantSummary]) -> list[VariantSummary]:
    """Add the p-values corrected for the number of variants that are tested, by Holm's method."""
    corrected: dict[str, dict[str, Paired]] = {row.name: dict(row.paired) for row in rows}
    for metric in PAIRED_METRICS:
        tested = [
            (row.name, found, found.p)
            for row in rows
            if (found := row.paired.get(metric)) is not None and found.p is not None
        ]
        for (name, found, _), p in zip(tested, holm([p for _, _, p in tested]), strict=True):
            corrected[name][metric] = replace(found, p_holm=p)
    return [replace(row, paired=corrected[row.name]) for row in rows]
