"""Sources of synthetic negatives: optimal hard negatives (LoOp), symmetric and interpolated points.

Every source turns two pairs into two small sets of points and returns, for each positive pair p and each pair
q of another class, the similarity of the closest points of the two. Gradients flow through the synthetic
points.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from train.losses.arcs import closest_on_arcs, closest_on_segments
from train.losses.ops import row_blocks, stack
from train.losses.registry import register, require
from train.losses.view import Measure, Members, PairTables, View

Leftover = Literal["drop", "degenerate"]
Select = Callable[[Tensor], tuple[Tensor, Tensor]]


class NegativeSource:
    """Base class of sources of negatives.

    Args:
        leftover: What the odd sample of a class, which has no pair, does: it is ignored (drop), or joins the
            negatives as a pair of two equal members (degenerate).

    Attributes:
        wide: Compute in float64.
        prefers: Similarity measures that the source works on; the first one that the loss offers is used (if
            empty, the loss chooses).
        only_preferred: The specification can only choose among these.
    """

    wide = False
    prefers: tuple[Measure, ...] = ()
    only_preferred = False

    def __init__(self, leftover: Leftover = "drop") -> None:
        self.leftover = leftover

    def tables(self, view: View, *, normalized: bool) -> list[tuple[PairTables, Tensor]]:
        """Return dot products of pairs p with pairs q and the mask of q of another class.

        With `leftover: degenerate`, a second item holds the same for left-over samples.
        """
        tables = [(view.pair_tables(normalized=normalized), view.pair_negative)]
        if self.leftover == "degenerate":
            tables.append((view.leftover_tables(normalized=normalized), view.leftover_negative))
        return tables

    def check(self, measure: Measure) -> None:
        """Raise ValueError if a parameter has no effect on a loss with this similarity measure."""

    def closest(self, view: View, measure: Measure) -> tuple[Tensor, Tensor]:
        """Return [P, Q] similarities of the closest points of pairs p and q and the mask of negatives."""
        tables = self.tables(view, normalized=measure == "cosine")
        parts = [(*self._closest(table, measure), negative) for table, negative in tables]
        similarity, synthetic, negative = (torch.cat(part, 1) for part in zip(*parts, strict=True))
        view.count_points(synthetic, 2, negative)
        return similarity, negative

    def _closest(self, t: PairTables, measure: Measure) -> tuple[Tensor, Tensor]:
        """Return [P, Q] similarities and how many of the two closest points are synthetic: 0, 1 or 2."""
        raise NotImplementedError


@register(
    "negatives",
    "optimal",
    source="LoOp (ICCV 2021), section 3.2",
    formula=(
        r"d_{pq} = \min \lVert u - v \rVert, \quad u \in \operatorname{arc}(z_i, z_j), \; v \in"
        r" \operatorname{arc}(z_k, z_l)"
    ),
)
class OptimalArcs(NegativeSource):
    """The closest points of the two great-circle arcs between the members of each pair."""

    wide = True
    prefers = ("cosine",)
    only_preferred = True

    def _closest(self, t: PairTables, measure: Measure) -> tuple[Tensor, Tensor]:
        return closest_on_arcs(t)


@register(
    "negatives",
    "optimal-segment",
    source="LoOp (ICCV 2021), section 4.2, eqs. 17-21",
    formula=(
        r"d_{pq} = \underset{0 \leq s, t \leq 1}{\min}"
        r" \lVert (1 - s) x_i + s x_j - (1 - t) x_k - t x_l \rVert"
    ),
)
class OptimalSegments(NegativeSource):
    """The closest points of the two straight segments between the members, which are not brought back to the
    sphere.

    The paper frees the points from the sphere and does not say whether the embeddings are normalised. Losses
    on distances take the segments between the raw embeddings by default, and with `normalize: true` the
    chords between unit vectors; the distance of the positive pair is then that of the unit vectors, too.
    Losses on cosines take the chords, whose closest points at distance d count as a cosine of 1 - d² / 2.
    """

    wide = True
    prefers = ("distance", "cosine")
    only_preferred = True

    def _closest(self, t: PairTables, measure: Measure) -> tuple[Tensor, Tensor]:
        half_square, synthetic = closest_on_segments(t)
        return (1 + half_square if measure == "cosine" else half_square), synthetic


class _Hardest(torch.autograd.Function):
    """The selected one of the similarities of all points of p with all points of q, and its place.

    Of the [m * m, P, Q] similarities only a block of rows exists at a time; the backward pass takes the
    weights of the selected points.
    """

    @staticmethod
    def forward(
        select: Select,
        ik: Tensor,
        il: Tensor,
        jk: Tensor,
        jl: Tensor,
        pi: Tensor,
        pj: Tensor,
        qk: Tensor,
        ql: Tensor,
        p_part: Tensor | None,
        q_part: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        found = []
        for rows in row_blocks(ik):
            first, second = pi[:, rows], pj[:, rows]  # [m, r, 1]
            with_k = (first * ik[rows]).addcmul_(second, jk[rows])  # [m, r, Q]
            with_l = (first * il[rows]).addcmul_(second, jl[rows])
            similarity = (with_k[:, None] * qk).addcmul_(with_l[:, None], ql)  # [m, m, r, Q]
            if p_part is not None and q_part is not None:
                similarity += p_part[:, None, rows]
                similarity += q_part
            found.append(select(similarity.flatten(0, 1)))
        best, which = zip(*found, strict=True)
        return torch.cat(best), torch.cat(which)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], *inputs[1:9])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        which, ik, il, jk, jl, pi, pj, qk, ql = ctx.saved_tensors
        count = len(pi)
        of_p, of_q = which // count, which % count  # [P, Q]
        first, second = (x[..., 0].T.gather(1, of_p) for x in (pi, pj))
        third, fourth = (x[:, 0].gather(0, of_q) for x in (qk, ql))
        from_i, from_j, to_k, to_l = grad * first, grad * second, grad * third, grad * fourth
        tables = (from_i * third, from_i * fourth, from_j * third, from_j * fourth)

        def of_points(value: Tensor, place: Tensor, dim: int) -> Tensor:
            return torch.stack([(value * (place == x)).sum(dim, keepdim=True) for x in range(count)])

        weights = (
            of_points(to_k * ik + to_l * il, of_p, 1),
            of_points(to_k * jk + to_l * jl, of_p, 1),
            of_points(from_i * ik + from_j * jk, of_q, 0),
            of_points(from_i * il + from_j * jl, of_q, 0),
        )
        if not ctx.needs_input_grad[9]:
            return None, *tables, *weights, None, None
        return None, *tables, *weights, of_points(grad, of_p, 1), of_points(grad, of_q, 0)


class _PointCloud(NegativeSource):
    """Source with finitely many points per pair, each a combination of its two members."""

    def weights(self, pair: Members, *, normalized: bool) -> tuple[Tensor, Tensor]:
        """Return weights of the first and of the second member, each [points, ...], the members first."""
        raise NotImplementedError

    def similarities(self, t: PairTables, *, normalized: bool) -> Tensor:
        """Return [m, m, P, Q] dot products of all points of p with all points of q."""
        pi, pj = self.weights(t.p, normalized=normalized)  # [m, P, 1]
        qk, ql = self.weights(t.q, normalized=normalized)  # [m, 1, Q]
        with_k, with_l = pi * t.ik + pj * t.jk, pi * t.il + pj * t.jl  # [m, P, Q]
        return with_k[:, None] * qk + with_l[:, None] * ql

    def _closest(self, t: PairTables, measure: Measure) -> tuple[Tensor, Tensor]:
        normalized = measure == "cosine"
        pi, pj = self.weights(t.p, normalized=normalized)
        qk, ql = self.weights(t.q, normalized=normalized)
        p_part = q_part = None
        if measure == "distance":
            p_part = -0.5 * (pi * pi * t.p.first + pj * pj * t.p.second + 2 * pi * pj * t.p.cross)
            q_part = -0.5 * (qk * qk * t.q.first + ql * ql * t.q.second + 2 * qk * ql * t.q.cross)
        best, which = _Hardest.apply(self.hardest, *t[:4], pi, pj, qk, ql, p_part, q_part)
        count = len(pi)
        of_p, of_q = (which // count > 1) & (t.p.gap > 0), (which % count > 1) & (t.q.gap > 0)
        return best, of_p.to(torch.uint8) + of_q

    def hardest(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Return [P, Q] the similarity selected among candidates [n, P, Q], and its place among them."""
        best, which = candidates.max(0)
        return best, which


@register(
    "negatives",
    "symmetric",
    source="Symm (AAAI 2020), eqs. 1-2",
    formula=(
        r"x_i' = \beta \frac{\lVert x_i \rVert}{\lVert e_i \rVert} e_i,"
        r" \quad e_i = \alpha (r_i - x_i) + x_i, \quad r_i = \frac{x_i \cdot x_j}{\lVert x_j \rVert^2} x_j"
    ),
)
class Symmetric(_PointCloud):
    """The members of each pair and their mirror images in each other's axis: 4 x 4 combinations. Symm's
    triplet loss (eq. 4) is squared: `{name: triplet, squared: true, negatives: symmetric}`.

    x' = beta (|x| / |d|) d with d = alpha (r - x) + x, where r is the projection of x on the axis through
    the other member. alpha 2 mirrors x, and d has its length anyway. Other values change the angle alone:
    the paper restores the length for them (Fig. 4). beta then scales the length; it has no effect on losses
    that compare unit vectors, and these refuse it.

    Args:
        alpha: How far the point is from x: 0 at x, 1 in the direction of the axis, 2 mirrored.
        beta: Length of the point relative to that of x.
        top_k: Which of the combinations counts: the k-th hardest alone (Fig. 5: "the harder the pair
            selected, the higher the performance"; the paper gives no formula). 1 is the hardest.
    """

    def __init__(
        self, alpha: float = 2.0, beta: float = 1.0, top_k: int = 1, leftover: Leftover = "drop"
    ) -> None:
        super().__init__(leftover)
        self.alpha, self.beta, self.top_k = alpha, beta, top_k
        require(beta != 0, "beta", beta, "not 0: every mirrored point would be the origin")
        require(1 <= top_k <= 16, "top_k", top_k, "1 to 16, the number of combinations of two pairs")

    def check(self, measure: Measure) -> None:
        if measure == "cosine" and self.beta != 1:
            raise ValueError(
                f"beta is {self.beta:g}, but this loss compares unit vectors, so the length of a point has "
                "no effect; leave beta out or choose a loss on raw embeddings, as n-pair"
            )

    def weights(self, pair: Members, *, normalized: bool) -> tuple[Tensor, Tensor]:
        one, zero = torch.ones_like(pair.cross), torch.zeros_like(pair.cross)
        own = (1 - self.alpha) * one
        toward_second, toward_first = (self.alpha * x for x in _projections(pair))
        mirrored = [(own, toward_second), (toward_first, own)]
        if self.alpha != 2:
            squares = (pair.first, pair.second)
            mirrored = [_with_length(*w, pair, square) for w, square in zip(mirrored, squares, strict=True)]
        first, second = ([self.beta * w for w in weights] for weights in zip(*mirrored, strict=True))
        return stack([one, zero, *first]), stack([zero, one, *second])  # i, j, i', j'

    def hardest(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        if self.top_k == 1:
            return super().hardest(candidates)
        values, places = candidates.topk(self.top_k, 0)
        return values[-1], places[-1]


@register(
    "negatives",
    "interpolated",
    source="Embedding expansion (CVPR 2020)",
    formula=(
        r"u_l = \frac{(1 - t) z_i + t z_j}{\lVert (1 - t) z_i + t z_j \rVert},"
        r" \quad t = \frac{l}{\text{points} + 1}, \quad l = 0, \dots, \text{points} + 1"
    ),
)
class Interpolated(_PointCloud):
    """The members of each pair and points evenly spaced between them, re-normalised on the sphere.

    Args:
        points: Number of points between the members.
    """

    prefers = ("cosine",)

    def __init__(self, points: int = 2, leftover: Leftover = "drop") -> None:
        super().__init__(leftover)
        require(points >= 0, "points", points, "0 or more")
        self.points = points

    def weights(self, pair: Members, *, normalized: bool) -> tuple[Tensor, Tensor]:
        step = torch.arange(self.points + 2, device=pair.cross.device, dtype=pair.cross.dtype)
        share = torch.cat([step[:1], step[-1:], step[1:-1]])[:, None, None] / (self.points + 1)  # [m, 1, 1]
        first, second = (1 - share).expand(-1, *pair.cross.shape), share.expand(-1, *pair.cross.shape)
        return _with_length(first, second, pair, pair.first) if normalized else (first, second)


def _projections(pair: Members) -> tuple[Tensor, Tensor]:
    """Return cross / |second|² and cross / |first|²; 0 for a zero vector, which has no axis."""
    second, first = (
        torch.where(square > 0, pair.cross / torch.where(square > 0, square, 1.0), 0.0)
        for square in (pair.second, pair.first)
    )
    return second, first


def _with_length(first: Tensor, second: Tensor, pair: Members, square: Tensor) -> tuple[Tensor, Tensor]:
    """Scale combinations of the members to a squared length; those of zero length stay at the origin."""
    own = first * first * pair.first + second * second * pair.second + 2 * first * second * pair.cross
    some = own > 4 * torch.finfo(own.dtype).eps * square
    scale = torch.where(some, torch.where(some, square, 1.0) / torch.where(some, own, 1.0), 1.0).sqrt()
    return torch.where(some, first * scale, 0.0), torch.where(some, second * scale, 0.0)
