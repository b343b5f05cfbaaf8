"""Mirrored points: lengths, the k-th hardest, l2_reg and the share of synthetic points, point by point."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from train import losses

from .oracle import geometry
from .oracle.batches import BATCHES, Batch, make_batch
from .oracle.pairs import Pair, alternate, rivals
from .oracle.sources import embeddings_for, pair_distance
from .oracle.symmetrical import angular, log_one_plus, n_pair

BATCH = make_batch(7, (4, 3, 2, 4), dim=5, spread=0.8, raw=True)


def image(x: np.ndarray, axis: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    """Eq. 2 with the length of x restored before beta (text of Fig. 4)."""
    foot = (x @ axis) / (axis @ axis) * axis
    moved = alpha * (foot - x) + x
    return beta * np.linalg.norm(x) / np.linalg.norm(moved) * moved


def points(x: np.ndarray, p: Pair, alpha: float = 2.0, beta: float = 1.0) -> list[np.ndarray]:
    i, j = x[p[0]], x[p[1]]
    return [i, j, image(i, j, alpha, beta), image(j, i, alpha, beta)]


def evaluate(spec: dict[str, Any], batch: Batch = BATCH) -> tuple[float, dict[str, float]]:
    loss = losses.build(spec)
    value = loss(torch.tensor(batch.x), torch.tensor(batch.y))
    return float(value), {name: float(number) for name, number in loss.diagnostics.items()}


def n_pair_by_points(x: np.ndarray, y: tuple[int, ...], top_k: int = 1, **shape: float) -> float:
    """Symm eq. 8, the k-th largest of the 16 products."""
    total = 0.0
    for p in alternate(y):
        near = x[p[0]] @ x[p[1]]
        exponents = []
        for q in rivals(y, p):
            products = [u @ v for u in points(x, p, **shape) for v in points(x, q, **shape)]
            exponents.append(sorted(products)[-top_k] - near)
        total += log_one_plus(exponents)
    return total / len(alternate(y))


def triplet_by_points(x: np.ndarray, y: tuple[int, ...], top_k: int = 1, **shape: float) -> float:
    """Symm eq. 4, the k-th smallest of the 16 squared distances."""
    total = 0.0
    for p in alternate(y):
        near = geometry.distance(x[p[0]], x[p[1]]) ** 2
        for q in rivals(y, p):
            ours, theirs = points(x, p, **shape), points(x, q, **shape)
            far = sorted(geometry.distance(u, v) ** 2 for u in ours for v in theirs)
            total += max(0.0, near - far[top_k - 1] + 0.2)
    return total / len(alternate(y))


def test_a_point_has_the_length_of_its_original() -> None:
    """A member 2 long, 30 degrees from its axis, moves to atan(1.5 tan 30) on the other side of it."""
    third = math.radians(30)
    x = np.array([[3 * math.cos(third), 3 * math.sin(third)], [2.0, 0.0], [0.0, 5.0], [0.0, 5.0]])
    hardest = 5 * 2 * math.sin(third + math.atan(1.5 * math.tan(third)))
    expected = sum(math.log1p(math.exp(hardest - near)) for near in (6 * math.cos(third), 25)) / 2
    value, _ = evaluate({"name": "n-pair", "negatives": "symmetric", "alpha": 2.5}, Batch(x, (0, 0, 1, 1)))
    assert value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("beta", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 1.5, 2.0, 2.5])
def test_raw_points_of_any_angle_and_length(alpha: float, beta: float) -> None:
    shape = {"alpha": alpha, "beta": beta}
    for batch in (BATCH, BATCHES["irregular-iid-raw"]):
        raw, _ = evaluate({"name": "n-pair", "negatives": {"name": "symmetric", **shape}}, batch)
        assert raw == pytest.approx(n_pair_by_points(*batch, **shape), rel=1e-9)
        spec = {"name": "triplet", "squared": True, "normalize": False, "negatives": "symmetric", **shape}
        assert evaluate(spec, batch)[0] == pytest.approx(triplet_by_points(*batch, **shape), rel=1e-9)


def test_alpha_and_beta_change_the_loss() -> None:
    """All settings of Fig. 4 differ; with alpha 0 and beta 1 every point is its original."""
    settings = [(2.0, 1.0), (1.5, 1.0), (2.5, 1.0), (2.0, 0.5), (2.0, 1.5)]
    found = {
        evaluate({"name": "n-pair", "negatives": "symmetric", "alpha": a, "beta": b})[0] for a, b in settings
    }
    assert len(found) == len(settings)
    assert evaluate({"name": "n-pair", "negatives": "symmetric", "alpha": 0.0})[0] == pytest.approx(
        n_pair_by_points(*BATCH, alpha=0.0)
    )


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.5])
def test_points_of_unit_vectors_are_unit_vectors(alpha: float) -> None:
    value, _ = evaluate({"name": "triplet", "squared": True, "negatives": "symmetric", "alpha": alpha})
    expected = triplet_by_points(geometry.unit_rows(BATCH.x), BATCH.y, alpha=alpha)
    assert value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["triplet", "lifted", "raw", "triplet-nca"])
def test_beta_of_unit_vectors_is_refused(name: str) -> None:
    source = {"name": "symmetric", "beta": 0.5}  # beside the name it would be the slope of `raw`
    with pytest.raises(ValueError, match=r"beta is 0\.5, but this loss compares unit vectors"):
        losses.build({"name": name, "negatives": source})
    if name in ("triplet", "lifted"):
        losses.build({"name": name, "negatives": "symmetric", "beta": 0.5, "normalize": False})


@pytest.mark.parametrize("options", [{"alpha": 1.5}, {"beta": 0.5}, {"top_k": 5}], ids=str)
@pytest.mark.parametrize("name", ["n-pair", "angular"])
def test_gradient_flows_through_the_points(name: str, options: dict[str, float]) -> None:
    loss = losses.build({"name": name, "negatives": "symmetric", **options})
    batch = make_batch(8, (2, 2, 2), dim=3, spread=0.8, raw=True)
    x, y = torch.tensor(0.5 * batch.x, requires_grad=True), torch.tensor(batch.y)
    assert torch.autograd.gradcheck(lambda x: loss(x, y), (x,), eps=1e-6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_zero_and_orthogonal_members_have_finite_gradients(alpha: float) -> None:
    """A zero vector has no axis; with alpha 1 the foot of an orthogonal member is the origin."""
    x = torch.tensor([[1.0, 0, 0], [0, 2, 0], [0, 0, 0], [0, 0, 1], [1, 1, 1], [1, 1, 1]])
    x = x.double().requires_grad_()
    for normalize in (False, True):
        spec = {"name": "n-pair", "negatives": "symmetric", "alpha": alpha, "normalize": normalize}
        losses.build(spec)(x, torch.tensor([0, 0, 1, 1, 2, 2])).backward()
        assert x.grad is not None
        assert x.grad.isfinite().all()


# The k-th hardest combination (Fig. 5).


@pytest.mark.parametrize("top_k", [2, 3, 8, 16])
def test_the_kth_hardest_pair(top_k: int) -> None:
    value, _ = evaluate({"name": "n-pair", "negatives": "symmetric", "top_k": top_k})
    assert value == pytest.approx(n_pair_by_points(*BATCH, top_k=top_k), rel=1e-9)
    spec = {"name": "triplet", "squared": True, "negatives": "symmetric", "top_k": top_k}
    expected = triplet_by_points(geometry.unit_rows(BATCH.x), BATCH.y, top_k=top_k)
    assert evaluate(spec)[0] == pytest.approx(expected, rel=1e-9)


def test_every_loss_takes_top_k() -> None:
    """An easier combination lowers every loss that takes the source, never raises it."""
    taking = [name for name, entry in losses.names().items() if "symmetric" in entry.negatives]
    assert {"n-pair", "angular", "angular-n-pair", "lifted", "raw", "sct"} <= set(taking)
    for name in taking:
        if name == "sct":  # not monotone
            continue
        spec = {"name": name, "negatives": "symmetric"}
        values = [evaluate({**spec, "top_k": k})[0] for k in (1, 4, 16)]
        assert values[0] >= values[1] >= values[2], name
        assert values[0] > values[2], name


@pytest.mark.parametrize("top_k", [0, 17, -1])
def test_top_k_out_of_range_is_refused(top_k: int) -> None:
    with pytest.raises(ValueError, match=f"top_k is {top_k}; it must be 1 to 16"):
        losses.build({"name": "n-pair", "negatives": "symmetric", "top_k": top_k})


@pytest.mark.parametrize("name", ["n-pair", "angular"])
def test_top_k_of_the_released_combinations_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="top_k is 2, but the released combinations"):
        losses.build({"name": name, "negatives": "symmetric", "combinations": "released", "top_k": 2})


# Share of synthetic points (Fig. 7).

Selection = tuple[int, ...]  # types of the selected points: 0 and 1 are members, 2 and 3 mirrored


def selected(
    x: np.ndarray, y: tuple[int, ...], value: Callable[[Any, Any, Selection], float], types: Sequence[Any]
) -> list[Selection]:
    """Return the hardest combination of every pair with every rival."""
    found = []
    for p in alternate(y):
        for q in rivals(y, p):
            ours, theirs = points(x, p), points(x, q)
            found.append(max(types, key=lambda t: value(ours, theirs, t)))
    return found


def share(found: Sequence[Selection]) -> float:
    flat = [t for combination in found for t in combination]
    return sum(t > 1 for t in flat) / len(flat)


SIXTEEN = list(itertools.product(range(4), repeat=2))
TWENTY_FOUR = [(u, v, n) for u, v in itertools.combinations(range(4), 2) for n in range(4)]


def pair_product(ours: Any, theirs: Any, t: Selection) -> float:
    return float(ours[t[0]] @ theirs[t[1]])


def triplet_product(ours: Any, theirs: Any, t: Selection) -> float:
    return float((ours[t[0]] + ours[t[1]]) @ theirs[t[2]])


@pytest.mark.parametrize(
    ("spec", "value", "types"),
    [
        ({"name": "n-pair"}, pair_product, SIXTEEN),
        ({"name": "angular"}, triplet_product, TWENTY_FOUR),
        (
            {"name": "n-pair", "combinations": "released"},
            pair_product,
            list(itertools.combinations(range(4), 2)),
        ),
        (
            {"name": "angular", "combinations": "released"},
            triplet_product,
            [(u, v, v) for u, v in itertools.permutations(range(4), 2)],
        ),
    ],
    ids=["n-pair", "angular", "n-pair-released", "angular-released"],
)
def test_share_counts_points(spec: dict[str, Any], value: Any, types: Any) -> None:
    for batch in (BATCH, BATCHES["irregular-iid-raw"]):
        found = evaluate({**spec, "negatives": "symmetric"}, batch)[1]["synthetic_share"]
        expected = share(selected(*batch, value, types))
        assert 0 < expected < 1
        assert found == pytest.approx(expected, abs=1e-6)


def test_share_of_both_terms_of_angular_n_pair() -> None:
    both = selected(*BATCH, pair_product, SIXTEEN) + selected(*BATCH, triplet_product, TWENTY_FOUR)
    found = evaluate({"name": "angular-n-pair", "negatives": "symmetric"})[1]["synthetic_share"]
    assert found == pytest.approx(share(both), abs=1e-6)


def test_share_of_leftover_samples_is_that_of_their_pair() -> None:
    """A left-over sample has no points but itself, so only the other pair's point can be synthetic."""
    x = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.6, 0.8]], dtype=torch.float64)
    for name, expected in {"triplet": 1 / 2, "n-pair": 1 / 2, "angular": 1 / 3}.items():
        loss = losses.build({"name": name, "negatives": "symmetric", "leftover": "degenerate"})
        loss(x, torch.tensor([0, 0, 1]))
        # Nearest to the sample: the second member mirrored in the first, then the first itself.
        assert float(loss.diagnostics["synthetic_share"]) == pytest.approx(expected)


@pytest.mark.parametrize("source", ["optimal", "optimal-segment", "symmetric", "interpolated"])
def test_share_of_every_source(source: str) -> None:
    """A point is synthetic if the pairs are farther apart without those of its pair that are no samples."""
    batch = BATCHES["irregular-iid-raw"]
    between = pair_distance(embeddings_for(batch.x, source), source)
    counts = []
    for p in alternate(batch.y):
        for q in rivals(batch.y, p):
            nearest = between(p, q) + 1e-12
            counts.append(all(between((i, i), q) > nearest for i in p))
            counts.append(all(between(p, (k, k)) > nearest for k in q))
    found = evaluate({"name": "triplet", "negatives": source}, batch)[1]["synthetic_share"]
    assert found == pytest.approx(np.mean(counts), abs=1e-6)


# Regularization of lengths.


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("anchors", ["first", "both"])
def test_l2_reg(anchors: str, normalize: bool) -> None:
    """Symm: l2_reg / 4 times the mean squared lengths of first and second members; once for both terms."""
    pairs = alternate(BATCH.y)
    squares = sum(BATCH.x[i] @ BATCH.x[i] for pair in pairs for i in pair) / len(pairs)
    options: dict[str, Any] = {"normalize": normalize, "anchors": anchors}
    plain = {
        "n-pair": n_pair(*BATCH, **options),
        "angular": angular(*BATCH, **options),
    }
    plain["angular-n-pair"] = plain["n-pair"] + 2.0 * plain["angular"]
    for name, expected in plain.items():
        value, _ = evaluate({"name": name, "l2_reg": 0.02, **options})
        assert value == pytest.approx(expected + 0.25 * 0.02 * squares, rel=1e-9), name


def test_l2_reg_with_mirrored_points() -> None:
    for name in ("n-pair", "angular", "angular-n-pair"):
        spec = {"name": name, "negatives": "symmetric"}
        by = [evaluate({**spec, "l2_reg": weight})[0] for weight in (0.0, 0.01, 0.03)]
        assert by[2] - by[0] == pytest.approx(3 * (by[1] - by[0]), rel=1e-6)
        assert by[1] > by[0]
        with pytest.raises(ValueError, match="l2_reg is -1; it must be 0 or more"):
            losses.build({**spec, "l2_reg": -1})
