"""Combinations of loss, source and miner, generated from losses.names(), so that new losses are included.

All losses share one triplet miner, with 20 pairs of rules. In MATRIX a loss of triplets and a loss of pairs
have all of them; each other loss has every rule for positives, every rule for negatives and every source.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from train import losses

CLASSES = 4
DIM = 6
TRIPLET_NEGATIVES = ("hard", "semi-hard", "all", "random", "distance-weighted")
TRIPLET_POSITIVES = ("easy", "hard", "all", "random")
EVERY_RULE = ("triplet", "raw")  # losses that are combined with every pair of rules
RANDOM = {"random", "distance-weighted", "rand-disjoint"}
# Without a miner these pair the samples of a class in batch order, whatever the source of negatives.
ALTERNATE = {"triplet", "hphn-triplet", "lifted-hard", "n-pair", "angular", "angular-n-pair"}
# These have terms of positives or of negatives alone: not 0 on a batch that lacks the others.
ONE_SIDED = {"contrastive", "binomial-deviance", "raw", "multi-similarity", "equal-weight", "siglip"}


class Combination(NamedTuple):
    """A specification and what it implies."""

    spec: dict[str, Any]
    random: bool
    alternate: bool
    one_sided: bool

    @property
    def label(self) -> str:
        """Name, source and miner."""
        spec = self.spec
        mining = spec.get("mining", "default")
        words = mining.values() if isinstance(mining, dict) else [mining]
        return " ".join([spec["name"], spec["negatives"], *map(str, words)])


def _miners(kinds: tuple[str, ...], source: str) -> Iterator[dict[str, Any] | None]:
    if "triplet" in kinds and source == "batch":
        for positive in TRIPLET_POSITIVES:
            for negative in TRIPLET_NEGATIVES:
                yield {"positive": positive, "negative": negative}
    elif "triplet" in kinds:
        for negative in TRIPLET_NEGATIVES:
            yield {"negative": negative}
    if "rand-disjoint" in kinds and source == "batch":
        yield {"name": "rand-disjoint"}
    if "triplet" in kinds:
        yield {"negative": "semi-hard", "fallback": "farthest"}
    if "vthm" in kinds:
        yield {"name": "vthm", "margin": 0.1}
        yield None


def advertised() -> Iterator[Combination]:
    """Name × source × miner, as listed by losses.names(); of a second name of a loss its default alone."""
    known: set[type] = set()
    for name, entry in losses.names().items():
        second = entry.cls in known
        known.add(entry.cls)
        for source in ("batch",) if second else entry.negatives:
            spec = {"name": name, "negatives": source}
            default_random = name == "margin"  # draws distance-weighted negatives by default
            pairs = source != "batch" or name in ALTERNATE
            one_sided = name in ONE_SIDED
            mines_nothing = name in ("contrastive", "binomial-deviance", "siglip")
            yield Combination(spec, default_random, pairs, one_sided and mines_nothing)
            for mining in () if second else _miners(entry.mining, source):
                drawn = mining is not None and bool(RANDOM & set(mining.values()))
                mined = {**spec, "mining": mining}
                yield Combination(mined, drawn, source != "batch", one_sided and mining is None)


def build(spec: dict[str, Any]) -> Any:
    """A module for batches of CLASSES classes in DIM dimensions, in float64."""
    return losses.build(spec, num_classes=CLASSES, embedding_dim=DIM).double()


def refused_at(combination: Combination) -> str | None:
    """When a combination is refused with a reason: by `build`, by the first `call`, or not at all."""
    try:
        module = build(combination.spec)
    except ValueError:
        return "build"
    try:
        module(torch.eye(DIM, dtype=torch.float64), torch.arange(DIM) // 2)
    except ValueError:
        return "call"
    return None


def is_chosen(combination: Combination) -> bool:
    """Whether a combination is in MATRIX: a Latin square of the miner's rules, shifted from loss to loss."""
    spec = combination.spec
    mining = spec.get("mining") or {}
    if spec["name"] in EVERY_RULE or "negative" not in mining or "fallback" in mining:
        return True
    names, sources = list(losses.names()), ["batch", *losses.names("negatives")]
    shift = TRIPLET_NEGATIVES.index(mining["negative"]) + names.index(spec["name"])
    if "positive" in mining:
        return (shift + TRIPLET_POSITIVES.index(mining["positive"])) % len(TRIPLET_POSITIVES) == 0
    return (shift + sources.index(spec["negatives"])) % (len(sources) - 1) == 0


ADVERTISED = list(advertised())
REFUSED = {c.label: when for c in ADVERTISED if (when := refused_at(c))}
MATRIX = [c for c in ADVERTISED if c.label not in REFUSED and is_chosen(c)]


def has_parameters(module: nn.Module) -> bool:
    """Whether the loss learns something itself."""
    return any(True for _ in module.parameters())
