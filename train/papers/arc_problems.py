"""Toy problems of LoOp on the sphere: two pairs, their closest points, and the gradient's update.

The nine cases are figure 2 of the paper and of its supplement, the updates figures 3 and 4 of the supplement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from retrieval.errors import InputError
from retrieval.reports.figures import COLOURS, GREY
from train.losses.arcs import closest_points
from train.losses.view import View, normalize
from train.papers.arc_cases import BETWEEN, CASES, FIRST, winning_cases

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from mpl_toolkits.mplot3d.axes3d import Axes3D

SAMPLES = ("x1", "x2", "y1", "y2")
STEPS, STEP = 3, 0.02

_LOWEST = 0.75  # cosine of a random sample with the pole, which the figure looks at
# Samples by their central projection on the plane that touches the pole, where arcs are straight lines.
_END, _SIDE = ((0.25, 0.0), (0.5, 0.0)), ((0.35, -0.3), (0.35, 0.3))
_CORNER, _OTHER_CORNER = ((-0.35, -0.1), (-0.55, 0.05)), ((0.35, -0.1), (0.55, 0.12))
_CROSSING = (((-0.4, -0.3), (0.4, 0.2)), ((-0.3, 0.3), (0.35, -0.35)))


@dataclass(frozen=True, eq=False)
class ArcProblem:
    """Two pairs of different classes on the sphere and the closest points of their arcs.

    Attributes:
        name: Name in the figure.
        samples: [4, 3] unit vectors: x1 and x2 of one class, y1 and y2 of another.
        case: Case of the closest points, 0..8, as in table 1.
        weights: [4] weights >= 0 of the samples in the closest points: p1 = w0 x1 + w1 x2,
            p2 = w2 y1 + w3 y2, both of unit length.
    """

    name: str
    samples: np.ndarray
    case: int
    weights: np.ndarray

    @property
    def points(self) -> np.ndarray:
        """Closest points p1 and p2, [2, 3]."""
        return _points(torch.from_numpy(self.samples), torch.from_numpy(self.weights)).numpy()

    @property
    def distance(self) -> float:
        """Distance of the closest points."""
        return float(np.linalg.norm(self.points[0] - self.points[1]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "name": self.name,
            "samples": dict(zip(SAMPLES, self.samples.tolist(), strict=True)),
            "case": self.case,
            "p1": self.points[0].tolist(),
            "p2": self.points[1].tolist(),
            "distance": self.distance,
        }


@dataclass(frozen=True, eq=False)
class ArcUpdate:
    """Updated positions of the samples for one choice of p1 and p2.

    Attributes:
        case: Where p1 and p2 are, 0..8, as in table 1.
        points: [2, 3] p1 and p2 before the first step.
        path: [S + 1, 4, 3] unit vectors, the samples before the first and after each step.
    """

    case: int
    points: np.ndarray
    path: np.ndarray

    @property
    def distance(self) -> float:
        """Distance of p1 and p2 before the first step."""
        return float(np.linalg.norm(self.points[0] - self.points[1]))

    @property
    def positive_change(self) -> float:
        """Change of the distance of x1 and x2."""
        return _change(self.path[:, 0] - self.path[:, 1])

    @property
    def negative_change(self) -> float:
        """Change of the distance of y1 and y2."""
        return _change(self.path[:, 2] - self.path[:, 3])

    @property
    def arcs_change(self) -> float:
        """Change of the distance of the closest points of both arcs."""
        first, last = (arc_problem(self.path[step]).distance for step in (0, -1))
        return last - first

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "case": self.case,
            "p1": self.points[0].tolist(),
            "p2": self.points[1].tolist(),
            "distance": self.distance,
            "path": {name: self.path[:, row].tolist() for row, name in enumerate(SAMPLES)},
            "positive_change": self.positive_change,
            "negative_change": self.negative_change,
            "arcs_change": self.arcs_change,
        }


def _change(differences: np.ndarray) -> float:
    lengths = np.linalg.norm(differences, axis=-1)
    return float(lengths[-1] - lengths[0])


def arc_problem(samples: np.ndarray, name: str = "") -> ArcProblem:
    """Find the closest points of two arcs.

    Args:
        samples: [4, D] vectors: x1 and x2 of one class, y1 and y2 of another; scaled to unit length.
        name: Name in the figure.
    """
    unit, _ = normalize(torch.from_numpy(np.asarray(samples, np.float64)))
    tables = View(unit, torch.tensor([0, 0, 1, 1]), paired=True).pair_tables(normalized=True)
    cases, _ = winning_cases(tables)  # [2, 2]: pairs x and y with pairs x and y
    _, *weights = closest_points(tables)
    return ArcProblem(
        name, unit.numpy(), int(cases[0, 1]), np.array([float(weight[0, 1]) for weight in weights])
    )


def problem_of_case(case: int) -> ArcProblem:
    """Return a problem whose closest points are of a case.

    Case 5 stands for figure 3 of the supplement (x1 and y1 are the closest) and case 1 for figure 4 (x1 and
    the middle of y1 and y2). The paper prints no coordinates. In three dimensions two arcs have closest
    points between both ends (case 0) only if they cross; in more dimensions they need not.

    Raises:
        InputError: A case outside 0..8.
    """
    if not 0 <= case < len(CASES):
        raise InputError(f"case {case}: there are cases 0 to {len(CASES) - 1}; choose one of them")
    at_x, at_y = CASES[case]
    if (at_x, at_y) == (BETWEEN, BETWEEN):
        x, y = _CROSSING
    elif at_y == BETWEEN:
        x, y = _mirrored(_END), _SIDE
    elif at_x == BETWEEN:
        x, y = _mirrored(_SIDE), _END
    else:
        x, y = _CORNER, _OTHER_CORNER
    plane = [*_from(x, at_x), *_from(y, at_y)]
    return arc_problem(np.array([(u, v, 1.0) for u, v in plane]), f"case {case}")


_Line = tuple[tuple[float, float], tuple[float, float]]


def _mirrored(line: _Line) -> _Line:
    (a, b), (c, d) = line
    return (-a, b), (-c, d)


def _from(line: _Line, place: int) -> _Line:
    """Return a line that begins with the end nearest to the other line, or ends with it."""
    return line if place in (BETWEEN, FIRST) else line[::-1]


def random_problem(seed: int) -> ArcProblem:
    """Return four random samples within 41 degrees of the pole."""
    random = np.random.default_rng(seed)
    samples: list[np.ndarray] = []
    while len(samples) < len(SAMPLES):
        vector = random.normal(size=3)
        vector /= np.linalg.norm(vector)
        if vector[2] > _LOWEST:
            samples.append(vector)
    return arc_problem(np.stack(samples), f"seed {seed}")


def arc_updates(problem: ArcProblem, *, steps: int = STEPS, size: float = STEP) -> list[ArcUpdate]:
    """Move the samples by gradient descent for each of the nine choices of p1 and p2.

    The loss is |x1 - x2|² - |p1 - p2|² + margin, where it is above 0, as in the gradients of the paper
    (supplement, eqs. 27-30). A point between the ends is the middle of its arc, as in its figures 3 and 4;
    only in the problem's own case are p1 and p2 the closest points, found again in every step. The samples
    return to unit length after each step.

    Args:
        problem: Two pairs.
        steps: Number of steps, at least 1.
        size: Learning rate, above 0.

    Raises:
        InputError: Fewer than one step, or a size that is not above 0.
    """
    if steps < 1:
        raise InputError(f"{steps} steps do not move the samples; take at least 1")
    if not 0 < size < np.inf:
        raise InputError(f"the step is {size:g}; choose a number above 0")
    return [_update(problem, case, steps, size) for case in range(len(CASES))]


def _update(problem: ArcProblem, case: int, steps: int, size: float) -> ArcUpdate:
    samples = torch.from_numpy(problem.samples)
    points, path = _points(samples, _weights(problem, case)), [samples]
    for _ in range(steps):
        weights = _weights(arc_problem(samples.numpy()) if case == problem.case else problem, case)
        leaf = samples.clone().requires_grad_()
        p1, p2 = _points(leaf, weights)
        loss = (leaf[0] - leaf[1]).square().sum() - (p1 - p2).square().sum()
        (gradient,) = torch.autograd.grad(loss, leaf)
        samples, _ = normalize(samples - size * gradient)
        path.append(samples)
    return ArcUpdate(case, points.numpy(), torch.stack(path).numpy())


def _weights(problem: ArcProblem, case: int) -> Tensor:
    """Return the weights [4] of the samples in p1 and p2: of the closest points, or of ends and middles."""
    if case == problem.case:
        return torch.from_numpy(problem.weights)
    shares = {BETWEEN: (1.0, 1.0), FIRST: (1.0, 0.0)}
    parts = [shares.get(place, (0.0, 1.0)) for place in CASES[case]]
    return torch.tensor([*parts[0], *parts[1]], dtype=torch.float64)


def _points(samples: Tensor, weights: Tensor) -> Tensor:
    """Return p1 and p2, [2, 3]: a sample itself, or the combination of both, on the sphere."""
    combined = (weights[:, None] * samples).unflatten(0, (2, 2)).sum(1)
    between = (weights > 0).unflatten(0, (2, 2)).all(1, keepdim=True)
    return torch.where(between, normalize(combined)[0], combined)


# ---- figures


def draw_cases(problems: Sequence[ArcProblem], figure: Figure) -> None:
    """Draw the arcs and their closest points, with one panel for each problem (LoOp, figure 2)."""
    figure.suptitle("Closest points of two arcs: the nine cases of LoOp", fontsize=13)
    for number, problem in enumerate(problems):
        axes = _sphere(figure, number)
        _draw_pairs(axes, problem.samples)
        _draw_points(axes, problem.points)
        axes.set_title(f"case {problem.case}: {_places(problem.case)}", fontsize=10, y=0.94)


def draw_updates(problem: ArcProblem, updates: Sequence[ArcUpdate], figure: Figure) -> None:
    """Draw the samples and their updated positions for each choice of p1 and p2 (LoOp, supp., figs. 3-4)."""
    title = "Updated positions for each choice of $p_1$ and $p_2$"
    figure.suptitle(f"{title}; the closest points are case {problem.case}", fontsize=13)
    for number, update in enumerate(updates):
        axes = _sphere(figure, number)
        _draw_pairs(axes, update.path[0])
        _draw_paths(axes, update.path)
        _draw_points(axes, update.points)
        best = update.case == problem.case
        changes = f"$\\Delta|x|$ {update.positive_change:+z.3f}, $\\Delta|y|$ {update.negative_change:+z.3f}"
        title = f"case {update.case}: {_places(update.case)}\n{changes}{' (closest points)' if best else ''}"
        axes.set_title(title, fontsize=10, fontweight="bold" if best else "normal", y=0.94)


def _places(case: int) -> str:
    if case == 0:
        return "$p_1$ and $p_2$ between"
    names = [("between", "x_1", "x_2"), ("between", "y_1", "y_2")]
    words = [name[place] for name, place in zip(names, CASES[case], strict=True)]
    return ", ".join(
        f"$p_{i}$ {word}" if word == "between" else f"$p_{i} = {word}$" for i, word in enumerate(words, 1)
    )


def _sphere(figure: Figure, number: int) -> Axes3D:
    """Add a panel that shows the part of the sphere around the pole."""
    axes: Axes3D = figure.add_subplot(3, 3, number + 1, projection="3d", computed_zorder=False)
    axes.set_axis_off()
    axes.view_init(elev=68, azim=-90)
    extent = 0.7
    axes.set(xlim=(-extent, extent), ylim=(-extent, extent), zlim=(1 - extent, 1 + extent))
    axes.set_box_aspect((1, 1, 1), zoom=1.6)
    axes.plot(*_graticule(), color="0.85", linewidth=0.6)
    return axes


def _graticule() -> np.ndarray:
    """Return circles and meridians around the pole as one line with gaps, [3, n]."""
    turn, down, gap = np.linspace(0, 2 * np.pi, 73), np.linspace(0, np.radians(40), 9), [np.nan]
    lines = [(angle, around) for angle in down[2::2] for around in [turn]]
    lines += [(down, around) for around in np.radians(np.arange(0, 360, 30))]
    parts = [
        np.stack(
            np.broadcast_arrays(
                np.sin(angle) * np.cos(around), np.sin(angle) * np.sin(around), np.cos(angle) + 0 * around
            )
        )
        for angle, around in lines
    ]
    return np.concatenate([np.column_stack([part, 3 * [gap]]) for part in parts], axis=1)


def _arc(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return points on the arc of two unit vectors, [n, 3]."""
    shares = np.linspace(0, 1, 30)[:, None]
    points = (1 - shares) * first + shares * second
    return np.asarray(points / np.linalg.norm(points, axis=1, keepdims=True))


def _draw_pairs(axes: Axes3D, samples: np.ndarray) -> None:
    pairs = samples.reshape(2, 2, 3)
    for pair, other, colour, name in zip(pairs, pairs[::-1], COLOURS, "xy", strict=False):
        axes.plot(*_arc(*pair).T, color=colour, linewidth=2, zorder=3)
        axes.plot(*pair.T, "o", color=colour, markersize=6, zorder=4)
        aside = np.cross(*pair)  # beside the arc, away from the other
        aside *= (-0.07 if aside @ other.sum(0) > 0 else 0.07) / np.linalg.norm(aside)
        along = pair - pair[::-1]
        along *= 0.07 / np.linalg.norm(along[0])
        for number, place in enumerate(pair + along + aside, 1):
            look = {"color": colour, "fontsize": 10, "ha": "center", "va": "center", "zorder": 6}
            axes.text(*place, f"${name}_{number}$", **look)


def _draw_points(axes: Axes3D, points: np.ndarray) -> None:
    axes.plot(*points.T, "--", color="black", linewidth=1, zorder=5)
    axes.plot(*points.T, "D", color="black", markersize=4, zorder=7)


def _draw_paths(axes: Axes3D, path: np.ndarray) -> None:
    for rows, colour in ((slice(0, 2), COLOURS[0]), (slice(2, 4), COLOURS[1])):
        pair = path[-1, rows]
        axes.plot(*_arc(*pair).T, color=colour, linewidth=1.2, linestyle=":", zorder=3)
        axes.plot(*pair.T, "o", color=colour, markersize=6, markerfacecolor="white", zorder=5)
        for one in path[:, rows].swapaxes(0, 1):
            axes.plot(*one.T, color=GREY, linewidth=1, zorder=4)
