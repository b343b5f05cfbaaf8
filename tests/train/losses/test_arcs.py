"""LoOp: the distance of two arcs or segments is the global minimum, with the published properties."""

import functools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from train import losses

from .oracle import geometry
from .oracle.batches import make_batch
from .oracle.families import FAMILIES, draw
from .oracle.geometry import arc_distance, dense_arc_distance, dense_segment_distance, segment_distance

DIMENSIONS = (2, 3, 8, 512)
PROBLEMS = 4  # of every family and dimension
LABELS = torch.tensor([0, 0, 1, 1])
SOURCES = ("batch", "optimal", "optimal-segment", "symmetric", "interpolated")
REFERENCE = {"optimal": arc_distance, "optimal-segment": segment_distance}
DENSE = {"optimal": dense_arc_distance, "optimal-segment": dense_segment_distance}


@functools.cache
def triplet(source: str, margin: float) -> losses.Objective:
    """Return the loss with the source that the JSON text states; to build it takes longer than to call it."""
    return losses.build({"name": "triplet", "negatives": json.loads(source), "margin": margin})


def pair_distance(
    points: np.ndarray, source: str | dict[str, Any], dtype: torch.dtype = torch.float64
) -> float:
    """Return d_pq of rows (0, 1) and (2, 3), from a loss whose large margin keeps every hinge active."""
    margin = 8.0 * max(1.0, np.abs(points).max())
    loss = triplet(json.dumps(source), margin)
    x = torch.tensor(points, dtype=dtype)
    within = [x[i].double() / (x[i].double().norm() if source == "optimal" else 1.0) for i in range(4)]
    positive = ((within[0] - within[1]).norm() + (within[2] - within[3]).norm()) / 2
    return float(positive) + margin - float(loss(x, LABELS))


def problems(family: str, dim: int) -> list[np.ndarray]:
    """Return a few fixed problems."""
    rng = np.random.default_rng([FAMILIES.index(family), dim])
    return [draw(family, rng, dim) for _ in range(PROBLEMS)]


@pytest.mark.parametrize("source", ["optimal", "optimal-segment"])
@pytest.mark.parametrize("family", FAMILIES)
def test_reference_is_dense_minimum(family: str, source: str) -> None:
    """The exact references agree with a dense grid search."""
    for dim in (2, 3, 8, 64):
        for points in problems(family, dim)[:2]:
            exact, dense = REFERENCE[source](*points), DENSE[source](*points)
            # The optimum may be on a ridge that the grid misses; the grid is never better than exact.
            assert exact <= dense + 1e-9
            assert dense == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("dim", DIMENSIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_arc_distance_is_global_minimum(family: str, dim: int) -> None:
    for points in problems(family, dim):
        expected = arc_distance(*points)
        assert pair_distance(points, "optimal") == pytest.approx(expected, abs=1e-6)
        rounded = points.astype(np.float32).astype(np.float64)
        if family == "antipodal":  # rounding may open the arc, so the problem itself would be another one
            continue
        expected = arc_distance(*geometry.unit_rows(rounded))
        assert pair_distance(rounded, "optimal", torch.float32) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("dim", DIMENSIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_segment_distance_is_global_minimum(family: str, dim: int) -> None:
    scales = np.random.default_rng(dim).uniform(0.5, 2.0, size=(4, 1))
    for points in problems(family, dim):
        for chosen in (points, points * scales):
            assert pair_distance(chosen, "optimal-segment") == pytest.approx(
                segment_distance(*chosen), abs=1e-6
            )
            rounded = chosen.astype(np.float32).astype(np.float64)
            expected = segment_distance(*rounded)
            assert pair_distance(rounded, "optimal-segment", torch.float32) == pytest.approx(
                expected, abs=2e-4
            )


@pytest.mark.parametrize("name", ["triplet", "hphn-triplet", "lifted-hard"])
@pytest.mark.parametrize("normalize", [False, True])
def test_segment_losses_equal_sampled_segments(name: str, normalize: bool) -> None:
    """Two classes of two: d_ij + margin minus the smallest distance of any two sampled points, for each pair.

    With `normalize` the ends are unit vectors; the points between them stay inside the sphere.
    """
    for seed in range(6):
        x = make_batch(seed, (2, 2), dim=3 + seed, raw=True, shuffle=False).x
        ends = geometry.unit_rows(x) if normalize else x
        share = np.linspace(0, 1, 401)[:, None]
        p, q = (ends[i] * (1 - share) + ends[i + 1] * share for i in (0, 2))
        least = np.sqrt(((p[:, None] - q[None]) ** 2).sum(2).min())
        within = [geometry.distance(ends[i], ends[i + 1]) for i in (0, 2)]
        spec = {"name": name, "negatives": "optimal-segment", "normalize": normalize, "margin": 5.0}
        loss = losses.build(spec)(torch.tensor(x), LABELS)
        assert float(loss) == pytest.approx(np.mean(within) + 5 - least, abs=2e-3)
        assert float(loss) >= np.mean(within) + 5 - least - 1e-9  # no sampled point is nearer


@pytest.mark.parametrize("name", ["triplet", "hphn-triplet", "lifted-hard", "lifted"])
def test_chords_do_not_depend_on_the_lengths(name: str) -> None:
    """Raw segments do; the default is raw."""
    batch = make_batch(3, (2, 4, 2), dim=5)
    y = torch.tensor(batch.y)
    lengths = np.random.default_rng(0).uniform(0.5, 2.0, size=(len(y), 1))
    x, longer = torch.tensor(batch.x), torch.tensor(batch.x * lengths)
    base = {"name": name, "negatives": "optimal-segment"}
    chord, raw, default = (
        losses.build(spec) for spec in ({**base, "normalize": True}, {**base, "normalize": False}, base)
    )
    assert float(chord(longer, y)) == pytest.approx(float(chord(x, y)), rel=1e-9)
    assert float(default(longer, y)) == float(raw(longer, y)) != pytest.approx(float(raw(x, y)), rel=1e-3)


@pytest.mark.parametrize("source", SOURCES[1:])
@pytest.mark.parametrize("family", FAMILIES)
def test_symmetric_in_pairs_and_members(family: str, source: str) -> None:
    """d(p, q) = d(q, p), and the order of members does not matter."""
    for dim in (2, 8):
        for points in problems(family, dim)[:2]:
            expected = pair_distance(points, source)
            for order in ([2, 3, 0, 1], [1, 0, 2, 3], [0, 1, 3, 2]):
                assert pair_distance(points[order], source) == pytest.approx(expected, abs=1e-7)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 5]), st.sampled_from(FAMILIES))
def test_distance_is_a_lower_bound(seed: int, dim: int, family: str) -> None:
    """No two points of the arcs are nearer than the reported distance; the corners bound it from above."""
    rng = np.random.default_rng(seed)
    points = draw(family, rng, dim)
    found = pair_distance(points, "optimal")
    a, b, c, d = points
    assert found <= geometry.nearest([a, b], [c, d]) + 1e-7
    if geometry.is_antipodal(a, b) or geometry.is_antipodal(c, d):
        return
    (e1, e2, first), (f1, f2, second) = geometry.arc_frame(a, b), geometry.arc_frame(c, d)
    for s, t in rng.uniform(size=(20, 2)):
        p = math.cos(s * first) * e1 + math.sin(s * first) * e2
        q = math.cos(t * second) * f1 + math.sin(t * second) * f2
        assert geometry.distance(p, q) >= found - 1e-6


@pytest.mark.parametrize("dim", [3, 16, 128])
def test_interpolation_converges_to_arc_from_above(dim: int) -> None:
    """Embedding expansion with more and more re-normalised points tends to the optimal distance (LoOp)."""
    rng = np.random.default_rng(dim)
    drawn = [draw("overlapping", rng, dim) for _ in range(8)]
    exact = [pair_distance(points, "optimal") for points in drawn]
    excess = []
    for n in (2, 8, 32, 128):
        source = {"name": "interpolated", "points": n}
        gaps = [pair_distance(points, source) - d for points, d in zip(drawn, exact, strict=True)]
        assert min(gaps) > -1e-9
        excess.append(float(np.mean(gaps)))
    corners = float(np.mean([geometry.nearest(p[:2], p[2:]) - d for p, d in zip(drawn, exact, strict=True)]))
    assert all(later < earlier for earlier, later in zip([corners, *excess], excess, strict=False))
    assert excess[-1] < 0.01 * corners


@pytest.mark.parametrize("source", SOURCES)
def test_hphn_is_lifted_hard_with_two_per_class(source: str) -> None:
    x = torch.tensor(make_batch(21, (2, 2, 2, 2, 2), raw=True).x)
    y = torch.tensor(make_batch(21, (2, 2, 2, 2, 2)).y)
    hphn, lifted = (
        losses.build({"name": name, "negatives": source, "margin": 0.9})(x, y)
        for name in ("hphn-triplet", "lifted-hard")
    )
    assert float(hphn) == pytest.approx(float(lifted), rel=1e-12)
    assert float(hphn) > 0


@pytest.mark.parametrize("name", ["hphn-triplet", "lifted-hard"])
@pytest.mark.parametrize("seed", range(5))
def test_optimal_negatives_are_at_least_as_hard(name: str, seed: int) -> None:
    """No sample dropped, the arcs contain the samples: the loss cannot fall (LoOp section 3.3)."""
    batch = make_batch(seed, (4, 2, 2, 4), spread=1.0)
    x, y = torch.tensor(batch.x), torch.tensor(batch.y)
    base, optimal = (
        float(losses.build({"name": name, "negatives": source, "margin": 0.5})(x, y))
        for source in ("batch", "optimal")
    )
    assert optimal >= base - 1e-12


def test_odd_samples_are_dropped_as_negatives() -> None:
    """Dropping the odd sample of a class drops it as a negative too, so the loss may fall below its base."""
    fell = 0
    for seed in range(20):
        batch = make_batch(seed, (3, 2, 4, 1))
        x, y = torch.tensor(batch.x), torch.tensor(batch.y)
        base, optimal = (
            float(losses.build({"name": "lifted-hard", "negatives": source})(x, y))
            for source in ("batch", "optimal")
        )
        fell += optimal < base
    assert fell > 0


@pytest.mark.parametrize("seed", range(5))
def test_symmetric_distance_includes_the_samples(seed: int) -> None:
    """The 16 distances include the four of the samples."""
    points = draw("overlapping", np.random.default_rng(seed), 5)
    assert pair_distance(points, "symmetric") <= geometry.nearest(points[:2], points[2:]) + 1e-12
