"""Points, arcs, segments and synthetic points, one pair at a time."""

import math
from collections.abc import Callable, Iterable

import numpy as np

Vector = np.ndarray
# Sine of an arc's angle below which the great circle through two opposite points is undefined.
ANTIPODAL = 1e-7


def unit(v: Vector) -> Vector:
    """v / ‖v‖."""
    return v / math.sqrt(float(v @ v))


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Every row at unit length."""
    return np.stack([unit(row) for row in x])


def distance(u: Vector, v: Vector) -> float:
    """‖u − v‖."""
    return math.sqrt(float((u - v) @ (u - v)))


def arc_frame(a: Vector, b: Vector) -> tuple[Vector, Vector, float]:
    """Orthonormal (e1, e2) and the angle ω with arc(a, b) = {cos t·e1 + sin t·e2, 0 ≤ t ≤ ω}."""
    rest = b - (a @ b) * a
    rest = rest - (a @ rest) * a  # twice is enough: orthogonal to rounding also for nearly parallel a, b
    length = math.sqrt(float(rest @ rest))
    angle = math.atan2(length, float(a @ b))
    return a, (rest / length if length > 0 else np.zeros_like(a)), angle


def is_antipodal(a: Vector, b: Vector) -> bool:
    """Whether a and b are opposite points, between which no shortest arc is singled out."""
    _, _, angle = arc_frame(a, b)
    return a @ b < 0 and math.sin(angle) < ANTIPODAL


def point_to_arc(p: Vector, a: Vector, b: Vector) -> float:
    """Distance from p to the shortest arc from a to b (to these two alone if they are opposite)."""
    ends = min(distance(p, a), distance(p, b))
    e1, e2, angle = arc_frame(a, b)
    if is_antipodal(a, b):
        return ends
    t = math.atan2(float(p @ e2), float(p @ e1))
    if not 0 <= t <= angle:
        return ends
    return min(ends, distance(p, unit(math.cos(t) * e1 + math.sin(t) * e2)))


def arc_distance(a: Vector, b: Vector, c: Vector, d: Vector) -> float:
    """LoOp eq. 1: the distance between arc(a, b) and arc(c, d), all unit vectors.

    The nearest points are an end point of one arc and a point of the other, or are inside both, and are then
    the first principal vectors of the two planes (the first singular pair of the product of their bases).
    """
    best = min(point_to_arc(a, c, d), point_to_arc(b, c, d), point_to_arc(c, a, b), point_to_arc(d, a, b))
    if is_antipodal(a, b) or is_antipodal(c, d):
        return best
    e1, e2, first = arc_frame(a, b)
    f1, f2, second = arc_frame(c, d)
    left, _, right = np.linalg.svd(np.array([[e1 @ f1, e1 @ f2], [e2 @ f1, e2 @ f2]]))
    for sign in (1.0, -1.0):
        u, v = sign * left[:, 0], sign * right[0]
        alpha, beta = math.atan2(u[1], u[0]), math.atan2(v[1], v[0])
        if 0 <= alpha <= first and 0 <= beta <= second:
            best = min(best, distance(unit(u[0] * e1 + u[1] * e2), unit(v[0] * f1 + v[1] * f2)))
    return best


def point_to_segment(p: Vector, a: Vector, b: Vector) -> float:
    """Distance from p to the segment from a to b."""
    along = b - a
    length = float(along @ along)
    t = 0.0 if length == 0 else min(1.0, max(0.0, float((p - a) @ along) / length))
    return distance(p, a + t * along)


def segment_distance(a: Vector, b: Vector, c: Vector, d: Vector) -> float:
    """LoOp eq. 17: the distance between the segments ab and cd, which need not have unit length.

    An end point of one is nearest, or the common perpendicular of the two lines falls inside both.
    """
    best = min(
        point_to_segment(a, c, d),
        point_to_segment(b, c, d),
        point_to_segment(c, a, b),
        point_to_segment(d, a, b),
    )
    lines = np.stack([b - a, c - d], axis=1)
    if np.linalg.matrix_rank(lines) == 2:
        s, t = np.linalg.lstsq(lines, c - a, rcond=None)[0]
        if 0 <= s <= 1 and 0 <= t <= 1:
            best = min(best, distance(a + s * (b - a), c + t * (d - c)))
    return best


def dense_minimum(
    first: Callable[[np.ndarray], np.ndarray],
    second: Callable[[np.ndarray], np.ndarray],
    grid: int = 65,
    starts: int = 6,
    levels: int = 40,
) -> float:
    """min over s, t in [0, 1] of ‖first(s) − second(t)‖ by a grid and a zoom into its best local minima."""
    s = np.linspace(0, 1, grid)
    u, v = first(s), second(s)
    table = np.stack([((row - v) ** 2).sum(axis=1) for row in u])
    padded = np.pad(table, 1, constant_values=np.inf)
    shifts = [(i, j) for i in (0, 1, 2) for j in (0, 1, 2) if (i, j) != (1, 1)]
    local = np.all([table <= padded[i : i + grid, j : j + grid] for i, j in shifts], axis=0)
    rows, columns = np.nonzero(local)
    order = np.argsort(table[rows, columns])[:starts]
    best = math.inf
    for row, column in zip(rows[order], columns[order], strict=True):
        centre, width = np.array([s[row], s[column]]), 1 / (grid - 1)
        for _ in range(levels):
            ticks = np.linspace(-width, width, 9)
            s1, s2 = np.clip(centre[0] + ticks, 0, 1), np.clip(centre[1] + ticks, 0, 1)
            u, v = first(s1), second(s2)
            values = ((u[:, None] - v[None]) ** 2).sum(axis=2)
            i, j = np.unravel_index(values.argmin(), values.shape)
            centre, width = np.array([s1[i], s2[j]]), width * 0.5
            best = min(best, float(values.min()))
    return math.sqrt(best)


def dense_arc_distance(a: Vector, b: Vector, c: Vector, d: Vector) -> float:
    """LoOp eq. 1 by search alone: no calculus at all."""

    def points(a: Vector, b: Vector) -> Callable[[np.ndarray], np.ndarray]:
        e1, e2, angle = arc_frame(a, b)
        if is_antipodal(a, b):
            return lambda t: np.where(t[:, None] < 0.5, a, b)
        return lambda t: unit_rows(np.cos(t * angle)[:, None] * e1 + np.sin(t * angle)[:, None] * e2)

    return dense_minimum(points(a, b), points(c, d))


def dense_segment_distance(a: Vector, b: Vector, c: Vector, d: Vector) -> float:
    """LoOp eq. 17 by search alone."""
    return dense_minimum(lambda t: a + t[:, None] * (b - a), lambda t: c + t[:, None] * (d - c))


def mirror(x: Vector, axis: Vector) -> Vector:
    """Symm eqs. 1–2 with α = 2, β = 1: the image of x in the line through `axis`."""
    u = unit(axis)
    return 2 * (x @ u) * u - x


def with_mirrors(a: Vector, b: Vector) -> list[Vector]:
    """Symm section 3.2: the two points of a pair and the mirror image of each in the other."""
    return [a, b, mirror(a, b), mirror(b, a)]


def with_interpolated(a: Vector, b: Vector, points: int, normalize: bool = True) -> list[Vector]:
    """Embedding expansion (Ko & Gu 2020, eq. 1): a pair and `points` points that divide it evenly."""
    n = points
    inner = [(k * a + (n + 1 - k) * b) / (n + 1) for k in range(1, n + 1)]
    return [a, b, *([unit(p) for p in inner] if normalize else inner)]


def nearest(first: Iterable[Vector], second: Iterable[Vector]) -> float:
    """The smallest distance between two sets of points."""
    second = list(second)
    return min(distance(u, v) for u in first for v in second)
