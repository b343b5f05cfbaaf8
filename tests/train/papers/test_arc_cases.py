"""Cases of the closest points of arcs: a grid search, the signs of table 1, and shares counted in a loop."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from retrieval.analysis.embeddings import Embeddings
from retrieval.errors import InputError
from retrieval.reports.figures import render_figure
from tests.conftest import lookalike_here
from train import losses
from train.losses.view import View
from train.papers.arc_cases import CASES, CaseShares, case_shares, draw_case_shares
from train.papers.arc_problems import arc_problem

GRID = np.linspace(0, 1, 501)
CLEAR = 0.02  # of the length of an arc: nearer to an end, the grid cannot decide


def slerp(first: np.ndarray, second: np.ndarray, shares: np.ndarray) -> np.ndarray:
    angle = np.arccos(first @ second)
    weights = np.sin((1 - shares) * angle)[:, None], np.sin(shares * angle)[:, None]
    return np.asarray((weights[0] * first + weights[1] * second) / np.sin(angle))


def by_grid(samples: np.ndarray) -> tuple[int | None, float]:
    """Return the case and the distance of the closest points, by search; no case if it is a close call."""
    x, y = slerp(samples[0], samples[1], GRID), slerp(samples[2], samples[3], GRID)
    cosines = x @ y.T
    places = []
    for index in np.unravel_index(cosines.argmax(), cosines.shape):
        share = GRID[index]
        if share in (0, 1):
            places.append(1 if share == 0 else 2)
        elif CLEAR < share < 1 - CLEAR:
            places.append(0)
        else:
            return None, np.sqrt(2 - 2 * cosines.max())
    return CASES.index((places[0], places[1])), np.sqrt(2 - 2 * cosines.max())


def test_case_is_that_of_a_grid_search() -> None:
    random, seen = np.random.default_rng(0), Counter[int]()
    for number in range(240):
        samples = random.normal(size=(4, (3, 4, 8)[number % 3]))
        samples /= np.linalg.norm(samples, axis=1, keepdims=True)
        problem, (case, distance) = arc_problem(samples), by_grid(samples)
        assert problem.distance <= distance + 1e-9
        assert problem.distance == pytest.approx(distance, abs=0.01)
        if case is not None:
            assert problem.case == case
            seen[case] += 1
    assert min(seen[case] for case in range(9)) >= 3
    assert seen.total() > 200


def test_slopes_at_the_closest_points_have_the_signs_of_table_1() -> None:
    """f = -p1 · p2 does not fall into the arc from an end, and is flat between the ends."""
    random, step = np.random.default_rng(1), 1e-6
    for _ in range(60):
        samples = random.normal(size=(4, 4))
        samples /= np.linalg.norm(samples, axis=1, keepdims=True)
        problem = arc_problem(samples)
        for place, pair, own, other in (
            (CASES[problem.case][0], samples[:2], *problem.points),
            (CASES[problem.case][1], samples[2:], *problem.points[::-1]),
        ):
            tangent = pair[1] - (own @ pair[1]) * own
            if place == 2:
                tangent = own * (own @ pair[0]) - pair[0]
            tangent /= np.linalg.norm(tangent)  # along the arc, away from its first end
            ahead = own * np.cos(step) + tangent * np.sin(step)
            slope = (own @ other - ahead @ other) / step
            if place == 0:
                assert slope == pytest.approx(0, abs=1e-5)
            else:
                assert slope * (1 if place == 1 else -1) > -1e-5


def clusters(seed: int = 0, classes: int = 6, images: int = 5, dim: int = 6) -> Embeddings:
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    vectors = random.normal(size=(classes, dim))[labels] + random.normal(size=(len(labels), dim))
    return Embeddings("clusters", vectors, labels)


def test_shares_of_a_batch_equal_a_loop_over_pairs() -> None:
    batch = clusters()
    pairs = [(rows[i], rows[i + 1]) for rows in np.arange(30).reshape(6, 5) for i in (0, 2)]
    counted, closest = Counter[int](), Counter[int]()
    for p in pairs:
        found = []
        for q in pairs:
            if batch.labels[p[0]] != batch.labels[q[0]]:
                problem = arc_problem(batch.vectors[[*p, *q]])
                counted[problem.case] += 1
                found.append((problem.distance, problem.case))
        closest[min(found)[1]] += 1
    shares = case_shares(batch)
    assert (shares.pairs, shares.combinations) == (12, 12 * 10 // 2)
    np.testing.assert_allclose(shares.every, [counted[case] / 120 for case in range(9)])
    np.testing.assert_allclose(shares.nearest, [closest[case] / 12 for case in range(9)])
    # The combination (p, q) also counts as (q, p), which swaps cases 1 and 2 with 3 and 4.
    assert shares.every[1:3].sum() == pytest.approx(shares.every[3:5].sum())


def test_synthetic_share_is_that_of_the_loss() -> None:
    batch = clusters(3, classes=8, images=4, dim=16)
    loss = losses.build({"name": "triplet", "negatives": "optimal"})
    view = View(torch.from_numpy(batch.vectors).double(), torch.from_numpy(batch.classes), paired=loss.paired)
    loss.evaluate(view)
    kinds = case_shares(batch).by_kind()
    share = kinds["between both ends"][0] + kinds["at one end"][0] / 2  # of the points of all combinations
    assert share == pytest.approx(float(view.report["synthetic_share"]), abs=1e-6)


def test_batches_without_negatives_are_refused() -> None:
    with pytest.raises(InputError, match="no two pairs of different classes"):
        case_shares(clusters(classes=1))


def test_figure_is_reproducible() -> None:
    found: list[CaseShares] = [case_shares(clusters(seed)) for seed in range(2)]
    first, second = (render_figure(partial(draw_case_shares, found), 11, 5) for _ in range(2))
    assert first == second


def test_command_prints_the_shares_of_each_source(tmp_path: Path) -> None:
    clusters(1).save(tmp_path / "one.npz")
    clusters(2).save(tmp_path / "two.npz")
    words = ["analyze", "arc-cases", str(tmp_path / "one.npz"), str(tmp_path / "two.npz")]
    words += ["--classes", "5", "--per-class", "4", "--out", str(tmp_path / "x.svg")]
    facts = json.loads(lookalike_here(*words, "--json").stdout)
    assert [(fact["name"], fact["pairs"], fact["combinations"]) for fact in facts] == [
        ("one", 10, 40),
        ("two", 10, 40),
    ]
    assert sum(facts[0]["all_combinations"]) == pytest.approx(1)
    assert len(lookalike_here(*words).stdout.splitlines()) == 5
