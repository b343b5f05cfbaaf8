"""Verdicts over divisions of the classes, by a rule that is fixed before the results are known.

A unit is a division of the classes of one data set: the difference of two methods in it is the mean over
seeds and backbones. The data sets are strata of equal weight, so that the spread is that of divisions within
their set. A division counts once all its backbones are measured. The text of the table has the rule in full.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.experiments.catalogue import Claim, Table, division_name
from benchmarks.experiments.verdicts import LEVEL, values_of, word_of
from retrieval.metrics.distributions import t_quantile, t_tail
from retrieval.metrics.statistics import holm

METRICS = ("recall_at_1", "map_at_r")  # that a claim on Recall@1 is tested with


@dataclass(frozen=True)
class Stratified:
    """Differences of two methods, ours - theirs, by data set and division.

    Attributes:
        of_set: Data set -> difference in each measured division.
        difference: Mean of the means of the sets.
        low: Lower end of its 95% interval (Student's t). This and the following are `None` if no set has two
            divisions, or without spread.
        high: Upper end of that interval.
        p: p-value, two-sided, of the hypothesis that the difference is 0.
    """

    of_set: Mapping[str, Sequence[float]]
    difference: float
    low: float | None = None
    high: float | None = None
    p: float | None = None

    @property
    def units(self) -> list[float]:
        """The differences of all divisions."""
        return [value for values in self.of_set.values() for value in values]

    @property
    def wins(self) -> int:
        """Number of divisions in which ours is better."""
        return sum(value > 0 for value in self.units)


@dataclass(frozen=True)
class DivisionVerdict:
    """A claim tested with one metric.

    Attributes:
        claim: The claim.
        metric: Key of the metric.
        found: The differences; p is corrected for all tests of the table.
        word: confirmed, refuted or undecided.
    """

    claim: Claim
    metric: str
    found: Stratified
    word: str


def measured(table: Table, results: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the divisions of each data set in which all its backbones are measured."""
    return {
        title: [
            number
            for number in range(table.divisions)
            if all(division_name(setup, number) in results["setups"] for setup in setups)
        ]
        for title, setups in table.sets.items()
    }


def level(table: Table, results: Mapping[str, Any], method: str, metric: str) -> dict[str, list[float]]:
    """Return a metric of a method, the mean over seeds and backbones, by data set and division.

    A division in which all runs of the method failed with some backbone is left out.
    """
    found: dict[str, list[float]] = {}
    for title, numbers in measured(table, results).items():
        values = [_values(table, results, title, number, method, metric) for number in numbers]
        found[title] = [float(np.mean(np.array(each, float))) for each in values if None not in each]
    return found


def compare(
    table: Table, results: Mapping[str, Any], ours: str, theirs: str, metric: str
) -> Stratified | None:
    """Compare two methods in the divisions that have both; `None` without any.

    Args:
        table: A table with divisions.
        results: Its results.
        ours: A variant, or a baseline without training.
        theirs: The one that it is compared with.
        metric: Key of a metric, or of a diagnostic of training.
    """
    of_set: dict[str, list[float]] = {}
    for title, numbers in measured(table, results).items():
        pairs = [
            [_values(table, results, title, number, name, metric) for name in (ours, theirs)]
            for number in numbers
        ]
        both = [np.array(pair, float) for pair in pairs if None not in pair[0] + pair[1]]
        if both:
            of_set[title] = [float((pair[0] - pair[1]).mean()) for pair in both]
    return stratified(of_set) if of_set else None


def stratified(of_set: Mapping[str, Sequence[float]]) -> Stratified:
    """Test that the mean of the means of sets is 0, by the pooled variance within the sets.

    Args:
        of_set: Set -> differences, at least one.
    """
    sets = [np.array(values, float) for values in of_set.values()]
    mean = float(np.mean([values.mean() for values in sets]))
    freedom = sum(len(values) - 1 for values in sets)
    within = sum(float(((values - values.mean()) ** 2).sum()) for values in sets)
    if not freedom or within < 1e-24:
        return Stratified(of_set, mean)
    error = math.sqrt(within / freedom * sum(1 / len(values) for values in sets)) / len(sets)
    half = t_quantile(LEVEL / 2, freedom) * error
    return Stratified(of_set, mean, mean - half, mean + half, 2 * t_tail(abs(mean) / error, freedom))


def best(table: Table, results: Mapping[str, Any], names: Sequence[str], metric: str) -> dict[str, int]:
    """Return on how many of the divisions that have all methods each is the best."""
    counts = dict.fromkeys(names, 0)
    levels = [level(table, results, name, metric) for name in names]
    for title in table.sets:
        rows = [values[title] for values in levels]
        if len({len(row) for row in rows}) == 1:
            for values in zip(*rows, strict=True):
                counts[names[int(np.argmax(values))]] += 1
    return counts


def judge(table: Table, results: Mapping[str, Any]) -> list[DivisionVerdict]:
    """Return the verdicts on the claims of a table, as far as they are measured."""
    found = [
        (claim, metric, one)
        for claim in table.claims
        for metric in (METRICS if claim.metric in METRICS else (claim.metric,))
        if (one := compare(table, results, claim.better, claim.than, metric))
    ]
    corrected = holm([1.0 if one.p is None else one.p for *_, one in found])
    return [
        DivisionVerdict(
            claim,
            metric,
            replace(one, p=None if one.p is None else p),
            word_of(p, one.difference, lower=claim.lower),
        )
        for (claim, metric, one), p in zip(found, corrected, strict=True)
    ]


def _values(
    table: Table, results: Mapping[str, Any], title: str, division: int, method: str, metric: str
) -> list[float | None]:
    """Return the mean over the seeds with each backbone; `None` where all runs failed."""
    cells = [results["setups"][division_name(setup, division)] for setup in table.sets[title]]
    return [_value(cell, method, metric) for cell in cells]


def _value(cell: Mapping[str, Any], method: str, metric: str) -> float | None:
    if method in cell["variants"]:
        values = values_of(cell["variants"][method], metric)
        return float(np.mean(values)) if values else None
    found: float | None = cell["untrained"].get(method, {}).get(metric)
    return found
