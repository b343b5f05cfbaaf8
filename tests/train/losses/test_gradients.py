"""Gradients of every variant: gradcheck, and central differences of references and of independent minima."""

from collections.abc import Callable
from functools import cache
from unittest import mock

import numpy as np
import pytest
import torch

from train import losses
from train.losses import ops

from .oracle import contrast
from .oracle.batches import Batch, make_batch
from .oracle.combinations import COMBINATIONS
from .oracle.families import FAMILIES, draw
from .oracle.geometry import arc_distance, segment_distance, unit, unit_rows
from .oracle.registry import TRANSPORT, VARIANTS, Variant

FLAT = {"gen_lifted_printed_0.5"}  # 0 on every ordinary batch in its printed form
WEIGHTED = {"circle", "circle_options", "circle_vthm"}  # with weights that have no gradient
BY_LABEL = {v.label: v for v in [*VARIANTS, *COMBINATIONS] if v.label not in FLAT | WEIGHTED}
LABELS = torch.tensor([0, 0, 1, 1])


def differences(function: Callable[[np.ndarray], float], x: np.ndarray, along: np.ndarray, h: float) -> float:
    """Return the central difference of `function` at x in direction `along`."""
    return (function(x + h * along) - function(x - h * along)) / (2 * h)


@cache
def generic_batch(label: str) -> Batch:
    """The first of a series of random batches on which the reference is smooth.

    At a kink (a hinge about to open, a tie between negatives, a pair at the miner's threshold) central
    differences with two step sizes disagree in almost every direction, so the batches at which they agree
    in three directions, and at which the loss is not flat, are the generic ones.
    """
    reference = BY_LABEL[label].function
    for seed in range(40):
        batch = make_batch(seed, (3, 2, 2, 1), dim=4, spread=1.2, raw=True)
        along = np.random.default_rng(seed).normal(size=(3, *batch.x.shape))

        def at(x: np.ndarray, y: tuple[int, ...] = batch.y) -> float:
            return reference(x, y)

        fine = np.array([differences(at, batch.x, a, 1e-6) for a in along])
        coarse = np.array([differences(at, batch.x, a, 1e-4) for a in along])
        if np.abs(fine).max() > 1e-3 and np.allclose(fine, coarse, rtol=1e-3, atol=1e-4):
            return batch
    raise AssertionError(f"no generic batch for {label}")


@pytest.mark.parametrize("label", BY_LABEL)
def test_gradient_equals_finite_differences(label: str) -> None:
    """Of the loss, along one random direction; and of the reference, in which no part can be detached."""
    batch = generic_batch(label)
    loss, y = losses.build(BY_LABEL[label].spec, num_classes=4), torch.tensor(batch.y)
    x = torch.tensor(batch.x, requires_grad=True)
    options = {"eps": 1e-6, "atol": 1e-5, "rtol": 1e-4, "fast_mode": True}
    assert torch.autograd.gradcheck(lambda x: loss(x, y), (x,), **options)
    loss(x, y).backward()
    assert x.grad is not None
    for along in np.random.default_rng(0).normal(size=(4, *batch.x.shape)):
        expected = differences(lambda v: BY_LABEL[label].function(v, batch.y), batch.x, along, 1e-6)
        assert float((x.grad.numpy() * along).sum()) == pytest.approx(expected, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(("margin", "scale"), [(0.4, 80.0), (0.25, 16.0)])
def test_circle_gradient_equals_finite_differences_at_fixed_weights(margin: float, scale: float) -> None:
    batch = make_batch(3, (3, 2, 2, 1), dim=4, spread=1.2, raw=True)
    x = torch.tensor(batch.x, requires_grad=True)
    losses.build({"name": "circle", "margin": margin, "scale": scale})(x, torch.tensor(batch.y)).backward()

    def value(v: np.ndarray) -> float:
        return contrast.circle(v, batch.y, margin, scale, weighed_at=batch.x)

    assert x.grad is not None
    for along in np.random.default_rng(0).normal(size=(6, *batch.x.shape)):
        expected = differences(value, batch.x, along, 1e-6)
        assert float((x.grad.numpy() * along).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert abs(expected) > 1e-2


@pytest.mark.parametrize("mining", [None, {"name": "vthm", "margin": 0.1}])
@pytest.mark.parametrize("block", [1 << 18, 20])
def test_gradients_of_scale_and_bias_equal_finite_differences(block: int, mining: dict | None) -> None:
    """In one block of rows and in several."""
    batch = make_batch(4, (3, 2, 2, 4), dim=4, spread=1.2)
    loss = losses.build({"name": "siglip", "scale": 3.0, "bias": -1.0, "mining": mining}).double()
    with mock.patch.object(ops, "_BLOCK", block):
        loss(torch.tensor(batch.x), torch.tensor(batch.y)).backward()
    margin = mining and mining["margin"]
    found = {name: float(p.grad) for name, p in loss.named_parameters() if p.grad is not None}

    def value(growth: float, bias: float) -> float:
        return contrast.siglip(*batch, scale=3 * np.exp(growth), bias=bias, mining=margin)

    at, h = (0.0, -1.0), 1e-6
    by_scale = (value(at[0] + h, at[1]) - value(at[0] - h, at[1])) / (2 * h)
    by_bias = (value(at[0], at[1] + h) - value(at[0], at[1] - h)) / (2 * h)
    assert found == pytest.approx({"term.growth": by_scale, "term.bias": by_bias}, rel=1e-5)


SMOOTH = ["iid", "clustered", "overlapping", "near-antipodal", "duplicate-one"]
MINIMA = {
    "optimal": lambda x: arc_distance(*unit_rows(x)),
    "optimal-segment": lambda x: segment_distance(*x),
}


@pytest.mark.parametrize("source", MINIMA)
@pytest.mark.parametrize("family", SMOOTH)
@pytest.mark.parametrize("dim", [2, 3, 8, 64])
def test_distance_gradient_equals_finite_differences(dim: int, family: str, source: str) -> None:
    """At raw embeddings; touching pairs and ties, where two step sizes disagree, are skipped."""
    rng = np.random.default_rng([dim, SMOOTH.index(family)])
    loss = losses.build({"name": "triplet", "negatives": source, "margin": 9.0})
    checked = 0
    for _ in range(12):
        points = draw(family, rng, dim) * rng.uniform(0.5, 2.0, size=(4, 1))
        minimum = MINIMA[source]
        positive = (lambda x: unit_rows(x)) if source == "optimal" else (lambda x: x)

        def mean_positive(x: np.ndarray, f: Callable[[np.ndarray], np.ndarray] = positive) -> float:
            z = f(x)
            return float(np.linalg.norm(z[0] - z[1]) + np.linalg.norm(z[2] - z[3])) / 2

        def value(
            x: np.ndarray,
            least: Callable[[np.ndarray], float] = minimum,
            near: Callable[[np.ndarray], float] = mean_positive,
        ) -> float:
            return near(x) - least(x)

        along = rng.normal(size=(4, 4, dim))
        if family == "duplicate-one":  # keep the duplicate one: its own distance has a kink there
            along[:, 1] = along[:, 0] * np.linalg.norm(points[1]) / np.linalg.norm(points[0])
        steps = (1e-6, 1e-5) if family != "near-antipodal" else (1e-7, 1e-6)
        fine, coarse = (np.array([differences(value, points, a, h) for a in along]) for h in steps)
        if minimum(points) < 1e-4 or not np.allclose(fine, coarse, rtol=1e-4, atol=1e-5):
            continue
        checked += 1
        x = torch.tensor(points, requires_grad=True)
        loss(x, LABELS).backward()
        assert x.grad is not None
        found = (x.grad.numpy() * along).sum(axis=(1, 2))
        np.testing.assert_allclose(found, fine, rtol=1e-3, atol=1e-4)
    assert checked >= (1 if dim == 2 else 3)  # on a circle most arcs touch


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("source", ["optimal", "optimal-segment", "symmetric", "interpolated"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_is_finite_and_bounded_at_degenerate_pairs(
    family: str, source: str, dtype: torch.dtype
) -> None:
    """A distance of points on the sphere changes by no more than its points do.

    Only between nearly opposite points the arc itself turns fast, by 1 / (π − angle).
    """
    rng = np.random.default_rng(FAMILIES.index(family))
    loss = losses.build({"name": "triplet", "negatives": source, "margin": 9.0})
    for dim in (2, 3, 64):
        for _ in range(3):
            x = torch.tensor(draw(family, rng, dim), dtype=dtype, requires_grad=True)
            value = loss(x, LABELS)
            value.backward()
            assert torch.isfinite(value)
            assert x.grad is not None
            assert torch.isfinite(x.grad).all()
            assert x.grad.abs().max() < 10 or family == "near-antipodal"


@pytest.mark.parametrize("source", ["optimal", "optimal-segment"])
def test_crossing_pairs_have_zero_gradient(source: str) -> None:
    """Where the minimum is 0 its gradient is 0 by convention; only the positive distances pull."""
    rng = np.random.default_rng(3)
    for _ in range(5):
        a, b = unit_rows(rng.normal(size=(2, 3)))
        middle, normal = unit(a + b), unit(np.cross(a, b))
        c, d = (middle + 0.3 * s * normal for s in (1, -1))
        if source == "optimal":
            points = np.stack([a, b, unit(c), unit(d)])
        else:
            scale = 1.0 / float(middle @ a)  # the chord meets the ray through the middle here
            points = np.stack([scale * a, scale * b, c, d])
        x = torch.tensor(points, requires_grad=True)
        losses.build({"name": "triplet", "negatives": source, "margin": 9.0})(x, LABELS).backward()
        plain = torch.tensor(points, requires_grad=True)
        z = plain / plain.norm(dim=1, keepdim=True) if source == "optimal" else plain
        (((z[0] - z[1]).norm() + (z[2] - z[3]).norm()) / 2).backward()
        assert x.grad is not None
        assert plain.grad is not None
        torch.testing.assert_close(x.grad, plain.grad, atol=1e-6, rtol=0)


FORMS = ("dcdl_eq11", "dcdl_kl", "dcdl_sharp", "dcdl_sd")


@pytest.mark.slow
@pytest.mark.parametrize("variant", [v for v in TRANSPORT if v.label in FORMS], ids=lambda v: v.label)
@pytest.mark.parametrize("spread", [0.05, 0.8])
def test_transport_gradient_equals_finite_differences(variant: Variant, spread: float) -> None:
    """The reference is exact to 1e-9, so its differences over 2e-4 carry an error of about 1e-5."""
    batch = make_batch(5, (2, 3, 2), dim=4, spread=spread)
    x = torch.tensor(batch.x, requires_grad=True)
    losses.build(variant.spec)(x, torch.tensor(batch.y)).backward()
    assert x.grad is not None
    for along in unit_rows(np.random.default_rng(0).normal(size=(2, batch.x.size))):
        along = along.reshape(batch.x.shape)
        expected = differences(lambda v: variant.function(v, batch.y), batch.x, along, 1e-4)
        assert float((x.grad.numpy() * along).sum()) == pytest.approx(expected, rel=2e-3, abs=1e-4)
