"""Toy problems of LoOp: their cases, the gradients of its supplement, and what it says about figures 3, 4."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from retrieval.errors import InputError
from retrieval.reports.figures import render_figure
from tests.conftest import lookalike_here
from train.papers.arc_problems import (
    ArcProblem,
    arc_updates,
    draw_updates,
    problem_of_case,
    random_problem,
)

# Table 1: which end (1, 2) of x1-x2 and of y1-y2 is the closest point, 0 for a point between.
PLACES = ["--", "1-", "2-", "-1", "-2", "11", "12", "21", "22"]


@pytest.mark.parametrize("case", range(9))
def test_problem_of_case_has_its_closest_points_there(case: int) -> None:
    problem = problem_of_case(case)
    assert problem.case == case
    for point, pair, place in zip(
        problem.points, problem.samples.reshape(2, 2, 3), PLACES[case], strict=True
    ):
        if place == "-":
            normal = np.cross(*pair)
            assert point @ normal == pytest.approx(0, abs=1e-12)  # on the great circle, between the ends
            assert min(point @ pair[0], point @ pair[1]) > pair[0] @ pair[1]
        else:
            np.testing.assert_allclose(point, pair[int(place) - 1], atol=1e-15)


def test_figure_4_has_the_middle_of_the_negatives_as_its_closest_point() -> None:
    problem = problem_of_case(1)
    middle = problem.samples[2] + problem.samples[3]
    np.testing.assert_allclose(problem.points[1], middle / np.linalg.norm(middle), atol=1e-12)


def point_and_slopes(first: np.ndarray, second: np.ndarray, place: str) -> tuple[np.ndarray, ...]:
    """Return an end or the middle of an arc, and its derivatives by both ends."""
    one, none = np.eye(3), np.zeros((3, 3))
    if place == "1":
        return first, one, none
    if place == "2":
        return second, none, one
    length = np.linalg.norm(first + second)
    middle = (first + second) / length
    slope = (one - np.outer(middle, middle)) / length
    return middle, slope, slope


@pytest.mark.parametrize("case", range(9))
def test_step_follows_the_gradients_of_the_supplement(case: int) -> None:
    problem, size = problem_of_case(1), 0.03
    x1, x2, y1, y2 = problem.samples
    p1, p1_x1, p1_x2 = point_and_slopes(x1, x2, PLACES[case][0])
    p2, p2_y1, p2_y2 = point_and_slopes(y1, y2, PLACES[case][1])
    gradient = 2 * np.stack(  # eqs. 27-30
        [
            (x1 - x2) - (p1 - p2) @ p1_x1,
            -(x1 - x2) - (p1 - p2) @ p1_x2,
            (p1 - p2) @ p2_y1,
            (p1 - p2) @ p2_y2,
        ]
    )
    expected = problem.samples - size * gradient
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    update = arc_updates(problem, steps=1, size=size)[case]
    np.testing.assert_allclose(update.points, [p1, p2], atol=1e-12)
    np.testing.assert_allclose(update.path[1], expected, atol=1e-12)


@pytest.mark.parametrize(("case", "apart"), [(5, {4, 6, 8}), (1, {3, 4, 5, 6, 7, 8})])
def test_updates_are_as_the_supplement_describes_figures_3_and_4(case: int, apart: set[int]) -> None:
    problem = problem_of_case(case)
    updates = arc_updates(problem)
    assert {update.case for update in updates if update.positive_change >= 0} == {2, 7, 8}
    assert {update.case for update in updates if update.negative_change > 1e-3} == apart
    assert all(abs(update.negative_change) < 1e-3 for update in updates[:3])
    # What remains after these are ruled out: in figure 3 case 5 beats case 3, in figure 4 case 1 beats 0.
    other = {5: 3, 1: 0}[case]
    assert updates[case].positive_change < updates[other].positive_change
    # The closest points push the arcs apart the most.
    assert max(updates, key=lambda update: update.arcs_change).case == case


def test_own_case_follows_the_closest_points() -> None:
    """The middle of the arc is a fixed choice, the closest point moves."""
    problem = next(p for p in map(random_problem, range(50)) if p.case in (1, 2, 3, 4))
    update = arc_updates(problem)[problem.case]
    np.testing.assert_allclose(update.points, problem.points)
    assert update.distance == pytest.approx(problem.distance)
    assert update.arcs_change > 0


def test_random_problems_differ_by_seed() -> None:
    first, again, other = random_problem(0), random_problem(0), random_problem(1)
    np.testing.assert_array_equal(first.samples, again.samples)
    assert not np.allclose(first.samples, other.samples)
    assert (first.samples[:, 2] > 0.75).all()


def test_figure_is_reproducible() -> None:
    problem: ArcProblem = problem_of_case(1)
    draw = partial(draw_updates, problem, arc_updates(problem)[:2])
    assert render_figure(draw, 10, 9) == render_figure(draw, 10, 9)


def test_unusable_steps_and_cases_are_refused() -> None:
    for steps, size, why in ((0, 0.1, "take at least 1"), (1, 0.0, "the step is 0"), (1, -1.0, "-1")):
        with pytest.raises(InputError, match=why):
            arc_updates(problem_of_case(0), steps=steps, size=size)
    with pytest.raises(InputError, match="there are cases 0 to 8"):
        problem_of_case(9)


def test_command(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "arcs.svg"))
    facts = json.loads(lookalike_here("analyze", "arcs", "--json", *out).stdout)
    assert [fact["case"] for fact in facts] == list(range(9))
    facts = json.loads(lookalike_here("analyze", "arcs", "--seed", "7", "--json", *out).stdout)
    assert facts["problem"]["name"] == "seed 7"
    assert len(facts["choices"][0]["path"]["x1"]) == 4
    for words, why in (
        (("--case", "1", "--seed", "1"), "give one of them"),
        (("--steps", "2"), "also give --case or --seed"),
        (("--case", "1", "--step", "0"), "the step is 0"),
    ):
        assert why in lookalike_here("analyze", "arcs", *words, *out, code=2).stderr
