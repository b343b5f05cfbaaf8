"""Verdict: does one model find more than another? Paired differences of the metrics, and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from retrieval.metrics.statistics import bootstrap_intervals, class_intervals, mean_of_parts
from retrieval.metrics.table import metric_columns

DECIDING = ("recall_at_1", "map_at_r")  # metrics that decide: the first hit, and all of them
Outcome = Literal["same", "more", "less", "mixed", "open"]


@dataclass(frozen=True)
class Change:
    """Difference of a metric between two models on the same queries.

    Attributes:
        difference: Mean of the paired differences, ours - theirs, as a share.
        interval: 95% confidence interval for other queries of these classes, by the bootstrap over queries;
            for other products, over these.
        class_interval: That for other classes like these, by the bootstrap over classes; `None` with fewer
            than `retrieval.metrics.statistics.LEAST_CLASSES` classes.
    """

    difference: float
    interval: tuple[float, float]
    class_interval: tuple[float, float] | None

    @property
    def deciding(self) -> tuple[float, float]:
        """The interval that decides: that for other classes, if there is one."""
        return self.class_interval or self.interval

    @property
    def sign(self) -> int:
        """1 for a certain gain, -1 for a certain loss, else 0."""
        low, high = self.deciding
        return (low > 0) - (high < 0)


@dataclass(frozen=True)
class Verdict:
    """Which of two models finds more, on the same queries.

    Attributes:
        ours: Name of our model.
        theirs: Name of the other one.
        queries: Number of queries that both can answer.
        classes: Number of their classes.
        outcome: "more" or "less" if a metric that decides certainly gains or loses, "mixed" if one gains and
            another loses, "open" if none is certain, "same" if no query differs.
        sentence: All of it in words.
        changes: Key of the metric -> its change.
    """

    ours: str
    theirs: str
    queries: int
    classes: int
    outcome: Outcome
    sentence: str
    changes: dict[str, Change]

    @property
    def loses(self) -> bool:
        """Whether a metric certainly loses."""
        return self.outcome in ("less", "mixed")

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Verdict:
        """Inverse of `dataclasses.asdict`, also after a round trip through JSON."""
        changes = {
            key: Change(
                change["difference"],
                (change["interval"][0], change["interval"][1]),
                None if (over := change["class_interval"]) is None else (over[0], over[1]),
            )
            for key, change in fields["changes"].items()
        }
        return cls(**{**fields, "changes": changes})


def judge(
    ours: str,
    theirs: str,
    our_values: Mapping[str, np.ndarray],
    their_values: Mapping[str, np.ndarray],
    classes: np.ndarray,
    *,
    products: np.ndarray | None = None,
    strata: np.ndarray | None = None,
    deciding: Sequence[str] = DECIDING,
    beside: Mapping[str, Change] | None = None,
) -> Verdict:
    """Compare two models query by query.

    Args:
        ours: Name of our model.
        theirs: Name of the other one.
        our_values: Key of the metric -> values of the queries, float [N], as in
            `retrieval.evaluation.score.Evaluation`, "recall_at_1" among them.
        their_values: Those of the other model, for the same queries; keys that one of them lacks are left
            out.
        classes: Class of each query, [N].
        products: Product of each query, [N], whose queries are resampled together; `None` for none.
        strata: Part of the data of each query, [N], if the mean of the means of all parts counts.
        deciding: Metrics that decide.
        beside: Changes of metrics that are no means over queries.
    """
    keys = [key for key in our_values if key in their_values]
    differences = np.stack([our_values[key] - their_values[key] for key in keys], 1)  # [N, keys]
    answered = ~np.isnan(differences).any(1)
    differences, classes = differences[answered], classes[answered]
    strata = None if strata is None else strata[answered]
    units = None if products is None else products[answered]
    over_queries = bootstrap_intervals(differences, units, strata=strata).tolist()
    over = class_intervals(differences, classes, strata)
    over_classes = [None] * len(keys) if over is None else [(low, high) for low, high in over.tolist()]
    changes = {
        key: Change(mean, (low, high), others)
        for key, mean, (low, high), others in zip(
            keys, mean_of_parts(differences, strata).tolist(), over_queries, over_classes, strict=True
        )
    }
    changes |= beside or {}
    decisive = {key: changes[key] for key in deciding if key in changes}
    is_same = not differences.any() and not any(one.difference for one in (beside or {}).values())
    outcome: Outcome = "same" if is_same else _outcome(decisive)
    count = len(np.unique(classes))
    sentence = _sentence(ours, theirs, outcome, decisive, count)
    return Verdict(ours, theirs, len(differences), count, outcome, sentence, changes)


def _outcome(changes: Mapping[str, Change]) -> Outcome:
    signs = {change.sign for change in changes.values()} - {0}
    if len(signs) == 2:
        return "mixed"
    return "open" if not signs else "more" if signs == {1} else "less"


def _sentence(ours: str, theirs: str, outcome: Outcome, changes: Mapping[str, Change], classes: int) -> str:
    if outcome == "same":
        return f"{ours} and {theirs} find the same for every query."
    deciding = {c.title: changes[c.key] for c in metric_columns(changes)}
    certain = ", ".join(_words(title, change) for title, change in deciding.items() if change.sign)
    open_ = ", ".join(_words(title, change) for title, change in deciding.items() if not change.sign)
    scope = "with 95% confidence for other classes like these"
    if any(change.class_interval is None for change in deciding.values()):
        scope = f"with 95% confidence for these {classes} classes, too few to speak for others"
    if outcome == "open":
        return f"No certain difference between {ours} and {theirs}: {open_} {scope}."
    if outcome == "mixed":
        return f"{' and '.join(deciding)} disagree on {ours} and {theirs}: {certain} {scope}."
    rest = f"; {open_} is not certain" if open_ else ""
    return f"{ours} finds {outcome} than {theirs}: {certain} {scope}{rest}."


def _words(title: str, change: Change) -> str:
    low, high = change.deciding
    return f"{title} {100 * change.difference:+z.1f} ({100 * low:+z.1f} to {100 * high:+z.1f})"
