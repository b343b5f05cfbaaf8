"""Verdicts on the claims of the papers, by a rule that is fixed before the results are known.

The runs of two variants share their seeds, so their differences are paired. The p-values of all claims of all
tables without divisions are corrected together (Holm). Confirmed: corrected p below 0.05, with the sign of
the claim. Refuted: below 0.05, and the other sign. Undecided: otherwise. A verdict on Recall@1 is
contradicted if the difference in MAP@R has the other sign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.experiments.catalogue import Claim, Table
from retrieval.metrics.statistics import Paired, holm, paired

LEVEL = 0.05
CONFIRMED, REFUTED, UNDECIDED = "confirmed", "refuted", "undecided"


@dataclass(frozen=True)
class Verdict:
    """A claim on one setup.

    Attributes:
        claim: The claim.
        setup: Name of the setup.
        paired: Paired differences, `better` - `than`.
        p: p corrected for all claims of all tables; `None` without spread.
        word: confirmed, refuted or undecided.
        precision: Paired differences in MAP@R; `None` if it was not measured.
    """

    claim: Claim
    setup: str
    paired: Paired
    p: float | None
    word: str
    precision: Paired | None

    @property
    def contradicted(self) -> bool:
        """Whether it is decided by Recall@1, and MAP@R has the other sign."""
        if self.word == UNDECIDED or self.claim.metric != "recall_at_1" or self.precision is None:
            return False
        return self.paired.difference * self.precision.difference < 0


def judge(tables: Sequence[Table], results: Mapping[str, Any]) -> dict[str, list[Verdict]]:
    """Return the verdicts on the claims of each table, on all setups with results."""
    found = [
        (table.name, claim, setup, one)
        for table in tables
        for claim in table.claims
        for setup in claim.setups
        if (one := compare(results[table.name], setup, claim.better, claim.than, claim.metric))
    ]
    corrected = holm([one.p if one.p is not None else 1.0 for *_, one in found])
    verdicts: dict[str, list[Verdict]] = {table.name: [] for table in tables}
    for (name, claim, setup, one), p in zip(found, corrected, strict=True):
        precision = compare(results[name], setup, claim.better, claim.than, "map_at_r")
        verdicts[name].append(
            Verdict(claim, setup, one, p, word_of(p, one.difference, lower=claim.lower), precision)
        )
    return verdicts


def compare(results: Mapping[str, Any], setup: str, ours: str, theirs: str, metric: str) -> Paired | None:
    """Return the paired differences of two variants over their common seeds; `None` without two of them."""
    variants = results["setups"].get(setup, {}).get("variants", {})
    if ours not in variants or theirs not in variants:
        return None
    by_seed = [_by_seed(variants[name], metric) for name in (ours, theirs)]
    seeds = sorted(by_seed[0].keys() & by_seed[1].keys())
    return paired(*([values[seed] for seed in seeds] for values in by_seed)) if len(seeds) > 1 else None


def values_of(variant: Mapping[str, Any], metric: str) -> list[float]:
    """Return a metric, or a diagnostic of training, of each seed; empty if it was not measured."""
    found: list[float] = variant["last"].get(metric) or variant["diagnostics"].get(metric, [])
    return found


def _by_seed(variant: Mapping[str, Any], metric: str) -> dict[int, float]:
    values = values_of(variant, metric)
    return dict(zip(variant["seeds"], values, strict=True)) if values else {}


def word_of(p: float, difference: float, *, lower: bool) -> str:
    """Return the word for a corrected p and a difference that should be positive, or negative if `lower`."""
    if p >= LEVEL:
        return UNDECIDED
    return CONFIRMED if (difference > 0) != lower else REFUTED
