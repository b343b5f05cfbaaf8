"""Every accepted option changes the result; one that cannot, given the others, is refused with a reason."""

import itertools
import typing
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch

from train import losses
from train.losses.registry import Parameter

from .oracle.batches import Batch, make_batch
from .oracle.matrix import CLASSES, DIM, RANDOM

Spec = dict[str, Any]

HARD = {"positive": "all", "negative": "hard"}
INERT: list[tuple[Spec, str, str]] = [
    ({"name": "triplet", "pairs": "ordered", "negatives": "optimal"}, "pairs", "alternate pairs"),
    *(
        ({"name": name, "guard": 0.1, "mining": {"negative": "semi-hard"}}, "guard", "semi-hard")
        for name in ("supcon", "info-nce")
    ),
    (
        {"name": "recall-at-k", "form": "released", "rank_temperature": 2.0},
        "rank_temperature",
        "form: released",
    ),
    ({"name": "triplet", "pairs": "unordered", "negatives": "symmetric"}, "pairs", "alternate pairs"),
    ({"name": "triplet", "pairs": "ordered", "mining": HARD}, "pairs", "every sample is an anchor"),
    ({"name": "triplet", "pairs": "alternate", "mining": HARD}, "pairs", "every sample is an anchor"),
    (
        {"name": "triplet", "pairs": "alternate", "mining": {"name": "rand-disjoint"}},
        "pairs",
        "every sample is an anchor",
    ),
    ({"name": "triplet", "negative_reduction": "mean", "mining": HARD}, "negative_reduction", "mining"),
    ({"name": "triplet", "negative_reduction": "sum", "mining": HARD}, "negative_reduction", "mining"),
    (
        {"name": "triplet", "negatives": "optimal", "negative_reduction": "min", "mining": {}},
        "negative_reduction",
        "mining",
    ),
    (
        {"name": "triplet", "negative_reduction": "mean", "reduction": "sum"},
        "negative_reduction",
        "reduction sum",
    ),
    (
        {"name": "triplet", "negative_reduction": "mean", "reduction": "mean-active"},
        "negative_reduction",
        "reduction",
    ),
    ({"name": "triplet", "mining": {**HARD, "fallback": "farthest"}}, "fallback", "semi-hard"),
    ({"name": "raw", "mining": {"negative": "random", "fallback": "drop"}}, "fallback", "semi-hard"),
    (
        {"name": "sct", "negatives": "optimal", "mining": {"duplicate_above": 0.9}},
        "duplicate_above",
        "other member",
    ),
    (
        {"name": "triplet", "normalize": False, "mining": {"duplicate_above": 0.9}},
        "duplicate_above",
        "cosine",
    ),
    ({"name": "raw", "positive_rule": "batch"}, "positive_rule", "source of negatives"),
    (
        {"name": "raw", "negatives": "optimal", "positive_rule": "batch", "mining": None},
        "positive_rule",
        "vthm",
    ),
    (
        {"name": "raw", "negatives": "optimal", "positive_rule": "batch", "mining": HARD},
        "positive_rule",
        "vthm",
    ),
    ({"name": "sct", "base": "margin", "temperature": 0.1}, "temperature", "base margin"),
    ({"name": "sct", "margin": 0.1}, "margin", "base nca"),
    ({"name": "sct", "weight": 0.1, "mining": {"negative": "semi-hard"}}, "weight", "semi-hard"),
    ({"name": "normalized-softmax", "margin_type": "angle"}, "margin_type", "margin 0"),
    ({"name": "soft-triple", "centers": 1, "gamma": 0.2}, "gamma", "one center"),
    ({"name": "triplet", "negatives": {"name": "batch", "points": 3}}, "points", "batch"),
]


@pytest.mark.parametrize(
    ("spec", "parameter", "reason"), INERT, ids=lambda v: str(v) if isinstance(v, dict) else ""
)
def test_option_without_effect_is_refused(spec: Spec, parameter: str, reason: str) -> None:
    with pytest.raises(ValueError, match=parameter) as refusal:
        build(spec)
    message = str(refusal.value)
    assert reason in message
    assert "leave" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "triplet", "pairs": "alternate", "negatives": "optimal"},
        {"name": "triplet", "negative_reduction": "sum", "reduction": "sum"},
        {"name": "triplet", "negative_reduction": "min", "reduction": "sum"},
        {"name": "triplet", "normalize": True, "negatives": "optimal"},
        {"name": "raw", "negatives": "optimal", "positive_rule": "optimal"},
        {"name": "sct", "weight": 0.1, "mining": {"negative": "semi-hard", "fallback": "farthest"}},
        {"name": "sct", "weight": 0.1, "gate": 0.8, "mining": {"negative": "semi-hard"}},
        {"name": "normalized-softmax", "margin": 0.2, "margin_type": "cosine"},
        {"name": "raw", "mining": {"negative": "hard", "duplicate_above": 0.9}},
    ],
    ids=str,
)
def test_option_that_states_what_happens_is_accepted(spec: Spec) -> None:
    build(spec)


# Search for options without effect: each option on top of every source, miner and other choice.

BATCHES = [
    make_batch(51, (3, 4, 2, 1), dim=DIM, spread=1.0, raw=True),
    make_batch(52, (5, 2, 3, 4), dim=DIM, spread=0.25, raw=True),
    make_batch(53, (2, 3, 5, 3), dim=DIM, raw=True),
    make_batch(1, (8, 8, 8, 8), dim=DIM, spread=1.5),
    make_batch(54, (9, 2, 1), dim=DIM),  # many positives, few negatives
    make_batch(55, (1, 2, 1, 2), dim=DIM, raw=True),  # many samples without a pair
    Batch(np.concatenate([np.eye(DIM)[:4], -np.eye(DIM)[:4]]) + 0.05, (0, 1, 2, 3) * 2),  # far positives
]
DOCUMENTED = {("angular", "anchors"): "symmetric in both members; named for its pair with n-pair in DCDL"}
MINERS: list[Spec | None] = [
    None,
    {"negative": "hard"},
    {"negative": "semi-hard"},
    {"negative": "all"},
    {"name": "vthm", "margin": 0.1},
]


def build(spec: Spec) -> Any:
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes 1 ms where CUDA is not in use
    return losses.build(spec, num_classes=CLASSES, embedding_dim=DIM).double()


def module_of(spec: Spec) -> Any:
    """Return the built specification, or None if it is refused."""
    try:
        return build(spec)
    except ValueError:
        return None


def value(module: Any, batch: Batch) -> float:
    return float(module(torch.tensor(batch.x), torch.tensor(batch.y)))


def agrees(module: Any, base: list[float]) -> bool:
    """Whether the values on all batches are those of the base."""
    return all(
        np.isclose(value(module, batch), expected, rtol=1e-9, atol=1e-12)
        for batch, expected in zip(BATCHES, base, strict=True)
    )


def alternatives(parameter: Parameter) -> Iterator[Any]:
    """Values other than the default."""
    options = typing.get_args(parameter.annotation) or (parameter.annotation,)
    if typing.get_origin(parameter.annotation) is Literal:
        options = (parameter.annotation,)
    for option in options:
        if typing.get_origin(option) is Literal:
            yield from (value for value in typing.get_args(option) if value != parameter.default)
        elif option is bool:
            yield from (value for value in (False, True) if value != parameter.default)
        elif option is int:
            yield 1 + (parameter.default or 1)
        elif option is float:
            yield 0.6 if parameter.default is None else 1.5 * parameter.default + 0.21


def choices(name: str) -> Iterator[Spec]:
    """Specifications of a loss: sources and miners, and each of its choices alone."""
    entry = losses.names()[name]
    for source, mining in itertools.product(entry.negatives, ["default", *MINERS]):
        yield {"name": name, "negatives": source, **({} if mining == "default" else {"mining": mining})}
    for key, parameter in entry.parameters.items():
        if isinstance(parameter.default, bool | str):
            yield from ({"name": name, key: value} for value in alternatives(parameter))


class Option(NamedTuple):
    """A specification with one more option; free if the option has no fixed default."""

    key: str
    free: bool
    spec: Spec


def options(spec: Spec) -> Iterator[Option]:
    """Each option that the specification does not name, with every other value than its default."""
    for key, parameter in losses.names()[spec["name"]].parameters.items():
        if key not in spec:
            for value in alternatives(parameter):
                yield Option(key, parameter.default is None, {**spec, key: value})
    source = spec.get("negatives", "batch")
    if source != "batch":
        for key, parameter in losses.names("negatives")[source].parameters.items():
            for value in alternatives(parameter):
                changed = {**spec, "negatives": {"name": source, key: value}}
                yield Option(key, parameter.default is None, changed)
    mining = spec.get("mining")
    if isinstance(mining, dict):
        miner = losses.names("mining")[mining.get("name", "triplet")]
        for key, parameter in miner.parameters.items():
            for value in alternatives(parameter):
                if key not in mining and value not in RANDOM:
                    changed = {**spec, "mining": {**mining, key: value}}
                    yield Option(key, parameter.default is None, changed)


@pytest.mark.parametrize("name", [name for name in losses.names() if name != "multi-similarity"])  # raw
def test_every_accepted_option_changes_the_result(name: str) -> None:
    """Of an option that is free by default one value states what happens anyway: not all values do."""
    checked, silent = 0, []
    for spec in choices(name):
        module = module_of(spec)
        if module is None:
            continue
        base = [value(module, batch) for batch in BATCHES]
        for key, group in itertools.groupby(options(spec), key=lambda option: option.key):
            tried = [(option.free, module_of(option.spec)) for option in group]
            same = [changed is not None and agrees(changed, base) for _, changed in tried]
            checked += sum(changed is not None for _, changed in tried)
            if (name, key) not in DOCUMENTED and (all(same) if tried[0][0] else any(same)):
                silent.append((key, spec))
    assert not silent
    assert checked or not losses.names()[name].parameters
