"""LoOp: closest points of two great-circle arcs and of two segments, from dot products alone.

A point of the arc or segment between two embeddings is a combination of them with weights >= 0, so every
function here works on tables of dot products: nothing of size [P, Q, D] exists. The weights of the minimum
are found without gradient; the value is then evaluated at these weights held constant. This gives the exact
gradient, because the weights (re-normalised onto the sphere for arcs) describe a feasible set that does not
move with the embeddings (envelope theorem).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from train.losses.ops import row_blocks
from train.losses.view import Members, PairTables

_TABLES = 8  # memory of an entry here, in float64 and with many intermediates, over that of other losses


def closest_on_arcs(t: PairTables) -> tuple[Tensor, Tensor]:
    """Return the cosine of the closest points of the shortest arcs i-j and k-l (LoOp, section 3.2).

    The maximum of the cosine over two arcs is an interior stationary point, which is the top singular pair of
    the 2 x 2 matrix between the planes of the arcs; or the projection of one end on the other arc; or a pair
    of ends. Duplicate members reduce an arc to a point, antipodal ones leave it undefined: then only ends
    count.

    Args:
        t: Dot products of unit vectors, preferably float64: a distance has half the digits of a cosine.

    Returns:
        [P, Q] cosines, with the distance sqrt(2 - 2 cosine); and [P, Q] uint8, how many of the two closest
        points are not samples.
    """
    cosine, synthetic, *_ = _ClosestOnArcs.apply(*t[:4], *t.p, *t.q)
    return cosine, synthetic


class _ClosestOnArcs(torch.autograd.Function):
    """The largest cosine, whose gradient holds the weights constant.

    Both combinations have length 1 in value; their change with the cosine inside each pair counts too.
    """

    @staticmethod
    def forward(ik: Tensor, il: Tensor, jk: Tensor, jl: Tensor, *members: Tensor) -> tuple[Tensor, ...]:
        def block(rows: slice) -> tuple[Tensor, ...]:
            p = Members(*(x[rows] for x in members[:5]))
            t = PairTables(ik[rows], il[rows], jk[rows], jl[rows], p, Members(*members[5:]))
            cosine, wi, wj, wk, wl = closest_points(t)
            synthetic = (wi * wj > 0).to(torch.uint8) + (wk * wl > 0)
            return cosine, synthetic, wi, wj, wk, wl

        return _in_blocks(block, ik)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(output[0], *output[2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        def block(rows: slice) -> tuple[Tensor, ...]:
            part, cosine, wi, wj, wk, wl = (x[rows] for x in (grad, *ctx.saved_tensors))
            of_i, of_j, inside = part * wi, part * wj, -part * cosine
            p_cross = (inside * wi * wj).sum(1, keepdim=True)
            q_cross = (inside * wk * wl).sum(0, keepdim=True)
            return of_i * wk, of_i * wl, of_j * wk, of_j * wl, p_cross, q_cross

        *tables, p_cross, q_cross = _in_blocks(block, grad, shared=1)
        constant = (None, None)
        return *tables, *constant, p_cross, *constant, *constant, q_cross, *constant


def _in_blocks(
    block: Callable[[slice], tuple[Tensor, ...]], table: Tensor, shared: int = 0
) -> tuple[Tensor, ...]:
    """Return tables computed in blocks of the rows of a table, the last `shared` ones sums over the rows."""
    blocks = list(row_blocks(table, _TABLES))
    if len(blocks) == 1:
        return block(blocks[0])
    tables: list[Tensor] = []
    sums = []
    for rows in blocks:
        parts = block(rows)
        split = len(parts) - shared
        tables = tables or [x.new_empty((len(table), x.shape[1])) for x in parts[:split]]
        for whole, part in zip(tables, parts[:split], strict=True):
            whole[rows] = part
        sums.append(parts[split:])
    return *tables, *(torch.stack(x).sum(0) for x in zip(*sums, strict=True))


def closest_points(t: PairTables) -> tuple[Tensor, ...]:
    """Return [P, Q] the largest cosine and the weights >= 0 of i, j, k and l in the unit vectors with it."""
    p, q = _axes(t.p), _axes(t.q)
    one = torch.ones_like(t.ik[:1, :1])
    ends = (one, torch.zeros_like(one))
    cosine, wk, wl = _foot(t.ik, t.il, *q)
    found, a, b = _foot(t.jk, t.jl, *q)
    wj = (found > cosine).to(cosine.dtype)
    cosine, wi = torch.maximum(cosine, found), 1 - wj
    wk, wl = torch.lerp(wk, a, wj), torch.lerp(wl, b, wj)
    for gi, gj, (k_end, l_end) in ((t.ik, t.jk, ends), (t.il, t.jl, ends[::-1])):
        found, a, b = _foot(gi, gj, *p)
        better = (found > cosine).to(cosine.dtype)
        cosine = torch.maximum(cosine, found)
        wi, wj = torch.lerp(wi, a, better), torch.lerp(wj, b, better)
        wk, wl = torch.lerp(wk, k_end, better), torch.lerp(wl, l_end, better)
    inside, *interior = _interior(t, p, q)
    edge = (cosine, wi, wj, wk, wl)
    return tuple(torch.lerp(y, x, inside) for x, y in zip(interior, edge, strict=True))


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
    length = (x * x).addcmul_(y, y).sqrt_()
    x, y = x * along, y * across
    wk, wl = x + y, x - y
    inside = ((torch.minimum(wk, wl) >= 0) & (x > 0)).to(gk.dtype)
    scale = 1 / length.clamp(min=_floor(gk.dtype))
    nearer = (gk >= gl).to(gk.dtype)
    cosine = torch.lerp(torch.maximum(gk, gl), length, inside)
    return cosine, torch.lerp(nearer, wk * scale, inside), torch.lerp(1 - nearer, wl * scale, inside)


def _floor(dtype: torch.dtype) -> float:
    """Return a number whose square is neither 0 nor infinite, nor is that of its reciprocal."""
    return 1e-150 if dtype == torch.float64 else 1e-18


def _interior(t: PairTables, p: tuple[Tensor, Tensor], q: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Return the closest points of the two great circles: 1 if they are on the arcs, cosine, weights.

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
    cosine = (y_cos * y_cos).addcmul_(y_sin, y_sin).sqrt_()
    scale = 1 / cosine.clamp(min=1e-30)
    along, across = x_cos * p[0], x_sin * p[1]
    wi, wj = along + across, along - across
    along, across = y_cos * scale * q[0], y_sin * scale * q[1]
    wk, wl = along + across, along - across
    lowest = torch.minimum(torch.minimum(wi, wj), torch.minimum(wk, wl))
    inside = (lowest >= 0) & (wi + wj > 0) & (wk + wl > 0)  # a degenerate arc has no weights
    return inside.to(cosine.dtype), cosine, wi, wj, wk, wl


def _direction(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the unit vector along (x, y), and (1, 0) for the zero vector."""
    x = x + _floor(x.dtype)
    scale = (x * x).addcmul_(y, y).rsqrt_()
    return x * scale, y * scale


def closest_on_segments(t: PairTables) -> tuple[Tensor, Tensor]:
    """Return minus half the squared distance of the closest points of two segments (LoOp, eqs. 17-21).

    Args:
        t: Dot products of the end points without normalisation, preferably float64.

    Returns:
        [P, Q] values, with the squared distance -2 times them; and [P, Q] uint8, how many of the two closest
        points are not samples.
    """
    value, synthetic, *_ = _ClosestOnSegments.apply(*t[:4], *t.p[:3], *t.q[:3])
    return value, synthetic


class _ClosestOnSegments(torch.autograd.Function):
    """Minus half the smallest squared distance, whose gradient holds the positions constant."""

    @staticmethod
    def forward(ik: Tensor, il: Tensor, jk: Tensor, jl: Tensor, *members: Tensor) -> tuple[Tensor, ...]:
        k, m, km = members[3:]

        def block(rows: slice) -> tuple[Tensor, ...]:
            i, j, ij = (x[rows] for x in members[:3])
            x, y = _segment_position((ik[rows], il[rows], jk[rows], jl[rows]), (i, j, ij), (k, m, km))
            synthetic = (x * (1 - x) > 0).to(torch.uint8) + (y * (1 - y) > 0)
            p_square = (1 - x) ** 2 * i + x**2 * j + 2 * x * (1 - x) * ij
            q_square = (1 - y) ** 2 * k + y**2 * m + 2 * y * (1 - y) * km
            dot = (1 - x) * ((1 - y) * ik[rows] + y * il[rows]) + x * ((1 - y) * jk[rows] + y * jl[rows])
            return dot - 0.5 * (p_square + q_square), synthetic, x, y

        return _in_blocks(block, ik)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        def block(rows: slice) -> tuple[Tensor, ...]:
            part, x, y = (x[rows] for x in (grad, *ctx.saved_tensors))
            of_j, of_l = part * x, part * y
            of_i, of_k = part - of_j, part - of_l
            jl = of_j * y
            il, jk = of_l - jl, of_j - jl
            p = (of_i * (x - 1), -of_j * x, 2 * of_j * (x - 1))
            q = (of_k * (y - 1), -of_l * y, 2 * of_l * (y - 1))
            p_sums = (0.5 * g.sum(1, keepdim=True) for g in p)
            q_sums = (0.5 * g.sum(0, keepdim=True) for g in q)
            return of_i - il, il, jk, jl, *p_sums, *q_sums

        return _in_blocks(block, grad, shared=3)


def _segment_position(
    tables: tuple[Tensor, ...], p: tuple[Tensor, ...], q: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """Return x and y in [0, 1] with the closest points (1 - x) i + x j and (1 - y) k + y l.

    The squared distance is convex in (x, y): its minimum over the square is the unconstrained one, or is on a
    side, where it is a parabola.
    """
    ik, il, jk, jl = tables
    (i, j, ij), (k, m, km) = p, q  # m: the square of l
    uu, vv = i + j - 2 * ij, k + m - 2 * km  # u = i - j, v = k - l, w = i - k
    u_k, v_i = ik - jk, ik - il  # products of u with k, of v with i
    uv = u_k - il + jl
    uw, vw = i - ij - u_k, v_i - (k - km)
    one = torch.ones_like(uv[:1, :1])
    zero = torch.zeros_like(one)
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
        better = (value < best).to(best.dtype)
        best = torch.minimum(value, best)
        x, y = torch.lerp(x, x_side, better), torch.lerp(y, y_side, better)
    return x, y


def _share(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the quotient clamped to [0, 1]; 0 if the denominator is not positive."""
    some = (denominator > 0).to(denominator.dtype)
    return (numerator / denominator.clamp(min=_floor(numerator.dtype)) * some).clamp_(0, 1)


def _excess(x: Tensor, y: Tensor, uu: Tensor, vv: Tensor, uv: Tensor, uw: Tensor, vw: Tensor) -> Tensor:
    """Return |w - x u + y v|² - |w|²."""
    return x * x * uu + y * y * vv - 2 * x * y * uv - 2 * x * uw + 2 * y * vw
