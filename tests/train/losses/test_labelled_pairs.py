"""Losses of labelled pairs against plain loops, their gradients, what is ignored, refused or read back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.train.pretend_device import Watch, pretend_device
from train import losses
from train.losses.labelled_pairs import PairObjective

PAIRS, DIM = 9, 5
LABELS = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0]
SCORES = [0.5, -2.0, 3.0, 0.5, 0.0, 7.0, 7.0, 1.0, -2.0]


def cosines(x: Tensor) -> list[float]:
    found = []
    for a, b in zip(x[0::2].tolist(), x[1::2].tolist(), strict=True):
        lengths = math.sqrt(sum(t * t for t in a)) * math.sqrt(sum(t * t for t in b))
        found.append(sum(s * t for s, t in zip(a, b, strict=True)) / lengths)
    return found


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def cosent(s: list[float], values: list[float]) -> float:
    pairs = range(len(s))
    return math.log(
        1 + sum(math.exp(20 * (s[q] - s[p])) for p in pairs for q in pairs if values[p] > values[q])
    )


def mean(terms: list[float]) -> float:
    return sum(terms) / len(terms)


def by_pair(same: Callable[[float], float], different: Callable[[float], float]) -> Callable[..., float]:
    return lambda s, values: mean(
        [same(c) if value else different(c) for c, value in zip(s, values, strict=True)]
    )


REFERENCES: dict[str, Callable[..., float]] = {
    "contrastive": by_pair(lambda s: -s, lambda s: max(s - 0.5, 0)),
    "binomial-deviance": by_pair(lambda s: softplus(2 * (0.5 - s)), lambda s: softplus(50 * (s - 0.5))),
    "siglip": by_pair(lambda s: softplus(10 - 10 * s), lambda s: softplus(10 * s - 10)),
    "cosent": cosent,
}


def batch(values: list[float] = LABELS, **spec: Any) -> tuple[PairObjective, Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(2 * PAIRS, DIM, dtype=torch.float64, requires_grad=True)
    built = losses.build({"name": "cosent", **spec}, embedding_dim=DIM).double()
    module = PairObjective(built, torch.tensor(values, dtype=torch.float64), graded=values is SCORES)
    return module, x, torch.arange(PAIRS).repeat_interleave(2)


@pytest.mark.parametrize("name", REFERENCES)
def test_value_equals_loops_and_the_gradient_differences(name: str) -> None:
    module, x, y = batch(name=name)
    assert module(x, y).item() == pytest.approx(REFERENCES[name](cosines(x), LABELS), rel=1e-10)
    assert torch.autograd.gradcheck(lambda x: module(x, y), x)
    order = torch.tensor([4, 0, 7, 2])  # a batch in another order, of some pairs
    rows = (2 * order[:, None] + torch.arange(2)).flatten()
    chosen = [LABELS[i] for i in order.tolist()]
    assert module(x[rows], y[rows]).item() == pytest.approx(
        REFERENCES[name](cosines(x[rows]), chosen), rel=1e-10
    )


def test_scores_are_compared_by_their_order() -> None:
    module, x, y = batch(SCORES)
    value = module(x, y)
    assert value.item() == pytest.approx(cosent(cosines(x), SCORES), rel=1e-10)
    assert torch.autograd.gradcheck(lambda x: module(x, y), x)
    other, _, _ = batch(SCORES)
    other.values.copy_(torch.tensor(SCORES).exp())
    assert other(x, y).item() == pytest.approx(value.item(), rel=1e-12)


@pytest.mark.parametrize("name", REFERENCES)
def test_pairs_with_an_unreadable_image_do_not_count(name: str) -> None:
    module, x, y = batch(name=name)
    marked = y.clone()
    marked[[3, 10]] = -1  # the second image of pair 1, the first of pair 5
    value = module(x, marked)
    value.backward()
    assert x.grad is not None
    assert not x.grad[[2, 3, 10, 11]].any()
    assert x.grad[[0, 4]].any()
    kept = [i for i in range(PAIRS) if i not in (1, 5)]
    s = cosines(x)
    expected = REFERENCES[name]([s[i] for i in kept], [LABELS[i] for i in kept])
    share = 1 if name == "cosent" else len(kept) / PAIRS  # the others are a mean over the batch
    assert value.item() == pytest.approx(share * expected, rel=1e-10)
    x.grad = None
    nothing = module(x, torch.full_like(y, -1))
    nothing.backward()
    assert nothing.item() == 0
    assert not x.grad.any()


def test_prefixes_are_trained_too() -> None:
    module, x, y = batch(dims=[2])
    expected = (cosent(cosines(x[:, :2]), LABELS) + cosent(cosines(x), LABELS)) / 2
    assert module(x, y).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("spec", "graded", "message"),
    [
        ({"name": "triplet"}, False, "labelled pairs are learned by cosent, contrastive"),
        ({"name": "proxy-anchor"}, False, "labelled pairs are learned by cosent, contrastive"),
        ({"name": "contrastive"}, True, "pairs with scores are learned by cosent; name"),
        ({"name": "contrastive", "mining": {"name": "vthm"}}, False, "mining: needs classes"),
        ({"name": "cosent", "regularizers": [{"name": "energy"}]}, False, "regularizers: needs classes"),
        ({"name": "cosent", "memory": 10}, True, "memory: needs classes"),
    ],
)
def test_what_needs_classes_is_refused(spec: dict[str, Any], graded: bool, message: str) -> None:
    built = losses.build(spec, num_classes=4, embedding_dim=DIM)
    with pytest.raises(ValueError, match=message):
        PairObjective(built, torch.zeros(3), graded=graded)


@pytest.mark.parametrize("name", REFERENCES)
def test_no_read_and_no_copy(name: str) -> None:
    with pretend_device() as device:
        with device:
            module = PairObjective(losses.build({"name": name}), torch.ones(30), graded=False)
            x = torch.randn(40, DIM, requires_grad=True)
            y = torch.arange(20).repeat_interleave(2)
        with Watch() as watch:
            module(x, y).backward()
        assert watch.found == []
        assert all(number.shape == () for number in module.diagnostics.values())
