"""LoOp: closest points of two great-circle arcs and of two segments, from dot products alone.

A point of the arc or segment between two embeddings is a combination of them with weights >= 0, so every
function here works on tables of dot products: nothing of size [P, Q, D] exists. The weights of the minimum
are found without gradient; the value is then evaluated at these weights held constant. This gives the exact
gradient, because the weights (re-normalised onto the sphere for arcs) describe a feasible set that does not
move with the embeddings (envelope theorem).
"""

from __future__ import annotations

import torch
from torch import Tensor

from train.losses.view import Members, PairTables


def closest_on_arcs(t: PairTables) -> tuple[Tensor, Tensor]:
    """Return the cosine of the closest points of the shortest arcs i-j and k-l (LoOp, section 3.2).

    The maximum of the cosine over two arcs is an interior stationary point, which is the top singular pair of
    the 2 x 2 matrix between the planes of the arcs; or the projection of one end on the other arc; or a pair
    of ends. Duplicate members reduce an arc to a point, antipodal ones leave it undefined: then only ends
    count.

    Args:
        t: Dot products of unit vectors, preferably float64: a distance has half the digits of a cosine.

    Returns:
        [P, Q] cosines, with the distance sqrt(2 - 2 cosine); and [P, Q] int64, how many of the two closest
        points are not samples.
    """
    with torch.no_grad():
        cosine, wi, wj, wk, wl = closest_points(t)
        synthetic = (wi * wj > 0).long() + (wk * wl > 0).long()
    moving = wi * wk * t.ik + wi * wl * t.il + wj * wk * t.jk + wj * wl * t.jl
    # Both combinations have length 1 in value; their change with the cosine inside each pair counts too.
    moving = moving - cosine * (wi * wj * t.p.cross + wk * wl * t.q.cross)
    return cosine + (moving - moving.detach()), synthetic


def closest_points(t: PairTables) -> tuple[Tensor, ...]:
    """Return [P, Q] the largest cosine and the weights >= 0 of i, j, k and l in the unit vectors with it."""
    p, q = _axes(t.p), _axes(t.q)
    one, zero = torch.ones_like(t.ik), torch.zeros_like(t.ik)
    cosine, wk, wl = _foot(t.ik, t.il, *q)
    wi, wj = one, zero
    found, a, b = _foot(t.jk, t.jl, *q)
    better = found > cosine
    cosine = torch.where(better, found, cosine)
    wi, wj = torch.where(better, zero, wi), torch.where(better, one, wj)
    wk, wl = torch.where(better, a, wk), torch.where(better, b, wl)
    for gi, gj, k_end, l_end in ((t.ik, t.jk, one, zero), (t.il, t.jl, zero, one)):
        found, a, b = _foot(gi, gj, *p)
        better = found > cosine
        cosine = torch.where(better, found, cosine)
        wi, wj = torch.where(better, a, wi), torch.where(better, b, wj)
        wk, wl = torch.where(better, k_end, wk), torch.where(better, l_end, wl)
    inside, *interior = _interior(t, p, q)
    edge = (cosine, wi, wj, wk, wl)
    return tuple(torch.where(inside, x, y) for x, y in zip(interior, edge, strict=True))


def _axes(pair: Members) -> tuple[Tensor, Tensor]:
    """Return 1 / |first + second| and 1 / |first - second|, both 0 if the pair spans no arc.

    The arc is symmetric about its bisector; in these axes no digits are lost when the members are nearly
    equal or nearly antipodal.
    """
    tiny = 64 * torch.finfo(pair.cross.dtype).eps
    spans = (pair.total > tiny) & (pair.gap > tiny)
    total, gap = torch.where(spans, pair.total, 1.0).rsqrt(), torch.where(spans, pair.gap, 1.0).rsqrt()
    return torch.where(spans, total, 0.0), torch.where(spans, gap, 0.0)


def _foot(gk: Tensor, gl: Tensor, along: Tensor, across: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Project a unit vector with cosines gk and gl to the ends onto an arc; return cosine and weights."""
    x, y = (gk + gl) * along, (gk - gl) * across
    length = torch.hypot(x, y)
    x, y = x * along, y * across
    wk, wl = x + y, x - y
    inside = (torch.minimum(wk, wl) >= 0) & (x > 0)
    scale = torch.where(inside, 1 / length, 0.0)
    nearer = (gk >= gl).to(gk.dtype)
    cosine = torch.where(inside, length, torch.maximum(gk, gl))
    return cosine, torch.where(inside, wk * scale, nearer), torch.where(inside, wl * scale, 1 - nearer)


def _interior(t: PairTables, p: tuple[Tensor, Tensor], q: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Return the closest points of the two great circles: whether they are on the arcs, cosine, weights.

    With one point at angle x from its bisector and the other at y, their cosine is a sinusoid in x + y plus
    one in x - y.
    """
    k_sum, k_gap, l_sum, l_gap = t.ik + t.jk, t.ik - t.jk, t.il + t.jl, t.il - t.jl
    a, b = (k_sum + l_sum) * (p[0] * q[0]), (k_sum - l_sum) * (p[0] * q[1])
    c, d = (k_gap + l_gap) * (p[1] * q[0]), (k_gap - l_gap) * (p[1] * q[1])
    plus_cos, plus_sin = _direction(a - d, b + c)  # of x + y
    minus_cos, minus_sin = _direction(a + d, c - b)  # of x - y
    double_cos = plus_cos * minus_cos - plus_sin * minus_sin
    double_sin = plus_sin * minus_cos + plus_cos * minus_sin
    # x in (-90, 90) degrees: an arc is shorter than half a circle.
    x_cos = ((1 + double_cos) / 2).clamp(min=0).sqrt()
    x_sin = double_sin / (2 * x_cos).clamp(min=1e-30)
    y_cos, y_sin = a * x_cos + c * x_sin, b * x_cos + d * x_sin
    cosine = torch.hypot(y_cos, y_sin)
    scale = 1 / cosine.clamp(min=1e-30)
    along, across = x_cos * p[0], x_sin * p[1]
    wi, wj = along + across, along - across
    along, across = y_cos * scale * q[0], y_sin * scale * q[1]
    wk, wl = along + across, along - across
    lowest = torch.minimum(torch.minimum(wi, wj), torch.minimum(wk, wl))
    inside = (lowest >= 0) & (wi + wj > 0) & (wk + wl > 0)  # a degenerate arc has no weights
    return inside, cosine, wi, wj, wk, wl


def _direction(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit vector along (x, y), and (1, 0) for the zero vector."""
    length = torch.hypot(x, y)
    some = length > 0
    scale = 1 / torch.where(some, length, 1.0)
    return torch.where(some, x * scale, 1.0), y * scale


def closest_on_segments(t: PairTables) -> tuple[Tensor, Tensor]:
    """Return minus half the squared distance of the closest points of two segments (LoOp, eqs. 17-21).

    Args:
        t: Dot products of the end points without normalisation, preferably float64.

    Returns:
        [P, Q] values, with the squared distance -2 times them; and [P, Q] int64, how many of the two closest
        points are not samples.
    """
    with torch.no_grad():
        x, y = _segment_position(t)
        synthetic = (x * (1 - x) > 0).long() + (y * (1 - y) > 0).long()
    p_square = (1 - x) ** 2 * t.p.first + x**2 * t.p.second + 2 * x * (1 - x) * t.p.cross
    q_square = (1 - y) ** 2 * t.q.first + y**2 * t.q.second + 2 * y * (1 - y) * t.q.cross
    dot = (1 - x) * (1 - y) * t.ik + (1 - x) * y * t.il + x * (1 - y) * t.jk + x * y * t.jl
    return dot - 0.5 * (p_square + q_square), synthetic


def _segment_position(t: PairTables) -> tuple[Tensor, Tensor]:
    """Return x and y in [0, 1] with the closest points (1 - x) i + x j and (1 - y) k + y l.

    The squared distance is convex in (x, y): its minimum over the square is the unconstrained one, or is on a
    side, where it is a parabola.
    """
    uu = t.p.first + t.p.second - 2 * t.p.cross  # u = i - j, v = k - l, w = i - k
    vv = t.q.first + t.q.second - 2 * t.q.cross
    uv = t.ik - t.il - t.jk + t.jl
    uw = t.p.first - t.ik - t.p.cross + t.jk
    vw = t.ik - t.q.first - t.il + t.q.cross
    zero, one = torch.zeros_like(uv), torch.ones_like(uv)
    determinant = uu * vv - uv * uv
    x, y = _share(uw * vv - uv * vw, determinant), _share(uv * uw - uu * vw, determinant)
    best = _excess(x, y, uu, vv, uv, uw, vw)
    sides = (
        (zero, _share(-vw, vv)),
        (one, _share(uv - vw, vv)),
        (_share(uw, uu), zero),
        (_share(uw + uv, uu), one),
    )
    for x_side, y_side in sides:
        value = _excess(x_side, y_side, uu, vv, uv, uw, vw)
        better = value < best
        best = torch.where(better, value, best)
        x, y = torch.where(better, x_side, x), torch.where(better, y_side, y)
    return x, y


def _share(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the quotient clamped to [0, 1]; 0 if the denominator is not positive."""
    some = denominator > 0
    return torch.where(some, numerator / torch.where(some, denominator, 1.0), 0.0).clamp(0, 1)


def _excess(x: Tensor, y: Tensor, uu: Tensor, vv: Tensor, uv: Tensor, uw: Tensor, vw: Tensor) -> Tensor:
    """Return |w - x u + y v|² - |w|²."""
    return x * x * uu + y * y * vv - 2 * x * y * uv - 2 * x * uw + 2 * y * vw
