"""Entropic optimal transport (the Sinkhorn problem) between each class and all other samples of a batch.

For every class the plan between its n samples (weights 1/n) and the other m (weights 1/m) minimises
<T, D> + epsilon KL(T | uniform). The problems of all G classes are solved together, in [G, n, B] tables with
one [n, n] system per class (`train.losses.class_groups`); plans are returned in one [B, B] table whose row i
holds the share of sample i in the plan of its class.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from train.losses.class_groups import ClassGroups

_START = 0.5  # epsilon of the first stage; costs are in [0, 2]
_SHRINK = 0.3  # factor on epsilon once a class is close to its marginals
_GATE = 0.2  # L1 marginal error that counts as close
_RIDGE = {torch.float32: 1e-6, torch.float64: 1e-12}  # of the marginals: a deterministic plan is singular
_UNROLLED = 8  # samples of a class up to which compiled code solves its system in plain arithmetic
_UNSTOPPED = 16  # steps where convergence cannot be tested: all batches of many dimensions converge


class Plans(NamedTuple):
    """Plans of all classes with their convergence."""

    plan: Tensor  # [B, B]
    value: Tensor  # the sum over the classes of <T, D> + epsilon KL, from the dual problem
    error: Tensor  # the largest L1 error of a row marginal over the classes; columns are exact
    iterations: Tensor
    grouped: Tensor  # [G, n, B] the plans by class


def solve_transport(
    cost: Tensor, groups: ClassGroups, epsilon: float, tolerance: float, max_iterations: int | None = None
) -> Plans:
    """Solve for the plans by Newton's method on the log-domain semi-dual, with decreasing epsilon.

    Column potentials are eliminated exactly (a Sinkhorn half step). The remaining problem is concave in the n
    row potentials of a class; a Newton step solves an n x n system and is damped by log(1 + r) / r, r the
    largest change of a centred potential, because the potentials enter through exponentials. Each class
    lowers its own epsilon as soon as it is close to its marginals. This takes about 8 to 12 steps where
    Sinkhorn iterations take hundreds to thousands.

    Runs without gradient. On the CPU it stops when every class is within `tolerance`; elsewhere, and in
    compiled code, it takes all steps, because testing for convergence would synchronise with the device;
    converged classes do not change.

    Args:
        cost: [B, B] in [0, 2].
        groups: The classes of the batch.
        epsilon: Regularisation strength, above 0.
        tolerance: L1 error of the row marginal of a class at which it has converged.
        max_iterations: Newton steps at most; None for 30 where they stop at convergence and 16 elsewhere.
    """
    with torch.no_grad():
        may_stop = cost.device.type == "cpu" and not torch.compiler.is_compiling()
        last = max_iterations or (30 if may_stop else _UNSTOPPED)
        cost = groups.gather(cost)  # [G, n, B]
        absent = groups.padding(-torch.finfo(cost.dtype).max / 4)
        sharpness = torch.ones_like(groups.total(groups.row)) / _START  # [G, 1] 1 / epsilon
        rows = torch.zeros_like(groups.row)  # [G, n] potential over epsilon
        root = groups.column.sqrt()  # of the weights of the columns
        constant = _constant_part(groups)
        used = torch.zeros_like(cost[0, 0, 0])
        if torch.compiler.is_compiling() and groups.same is None and cost.shape[1] <= _UNROLLED:
            rows, sharpness, used = _unrolled_steps(cost, groups, epsilon, tolerance, last)
            last = 0
        for step in range(last + 1):
            logits = torch.addcmul((rows + absent)[:, :, None], cost, sharpness[:, :, None], value=-1)
            root_plan = groups.softmax(logits).mul_(root)  # column marginals are exact
            sums = (root_plan @ root.mT)[..., 0] if groups.same is None else (root_plan * root).sum(2)
            residual = groups.row - sums
            error = groups.total(residual.abs())  # [G, 1]
            active = (error >= tolerance) | (sharpness < 1 / epsilon)
            if step == last or (may_stop and not active.any()):
                break
            used += active.any()
            newton = _solve(_system(groups, constant, root_plan, sums), residual)
            newton = newton - groups.total(newton * groups.each)  # centred
            reach = groups.largest(newton.abs())
            damping = reach.log1p() / reach.clamp(min=1e-30)
            sharper = (sharpness * (1 + (1 / _SHRINK - 1) * (error < _GATE))).clamp(max=1 / epsilon)
            # The system of a converged class may be singular.
            rows = torch.where(active, torch.addcmul(rows, damping, newton) * (sharper / sharpness), rows)
            sharpness = sharper
        entropy = torch.special.entr(groups.row) + groups.row * rows
        value = entropy.sum() - (groups.row * (groups.column * groups.logsumexp(logits)).sum(2)).sum()
        plan = root_plan * root
        return Plans(groups.scatter(plan), epsilon * value, error.max(), used, plan)


def _constant_part(groups: ClassGroups) -> Tensor:
    """Return [G, n, n] what is added to every system: a rank-one term, a ridge, and 1 in padded rows.

    The rank-one term fixes the free constant of the potentials of a class.
    """
    diagonal = _RIDGE[groups.each.dtype] * groups.each + groups.padding(1.0)
    return groups.outer(groups.each) + torch.diag_embed(diagonal)


def _system(groups: ClassGroups, constant: Tensor, root_plan: Tensor, sums: Tensor) -> Tensor:
    """Return [G, n, n] the Schur complements diag(row sums) - T diag(1 / columns) Tᵀ, regularised.

    Args:
        groups: The classes of the batch.
        constant: [G, n, n], see `_constant_part`.
        root_plan: [G, n, B] T diag(columns)^(-1/2).
        sums: [G, n] row sums of T.
    """
    system = constant - groups.products(root_plan)
    system.diagonal(dim1=1, dim2=2).add_(sums)
    return system


def _solve(system: Tensor, right: Tensor) -> Tensor:
    """Return [G, n] the solutions of positive definite systems."""
    factor, _ = torch.linalg.cholesky_ex(system)
    return torch.cholesky_solve(right[:, :, None], factor)[:, :, 0]


def _unrolled_steps(
    cost: Tensor, groups: ClassGroups, epsilon: float, tolerance: float, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Take the steps of `solve_transport` with a tensor for each row of a group, for a compiler.

    A step becomes two or three kernels: the sums over the batch share one pass, and the small systems are
    solved in plain arithmetic on [G] tensors. With products of matrices they are a dozen.

    Returns:
        Row potentials over epsilon [G, n], 1 / epsilon [G, 1], and the most steps that a class took.
    """
    rows = torch.zeros_like(groups.row)
    sharpness = torch.full_like(rows[:, 0], 1 / _START)
    taken = torch.zeros_like(sharpness)
    for _ in range(steps):
        rows, sharpness, taken = _unrolled_step(
            rows, sharpness, taken, cost, groups.column[:, 0], groups.row, groups.each, epsilon, tolerance
        )
    return rows, sharpness[:, None], taken.max()  # a class that has converged stays so


@torch.compiler.nested_compile_region
def _unrolled_step(
    rows: Tensor,
    sharpness: Tensor,
    taken: Tensor,
    cost: Tensor,
    column: Tensor,
    wanted: Tensor,
    share: Tensor,
    epsilon: float,
    tolerance: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Take one step of `_unrolled_steps`, which is compiled once for all of them."""
    costs, root = cost.unbind(1), column.sqrt()  # [G, B] each
    row, each, old = wanted.unbind(1), share.unbind(1), rows.unbind(1)  # [G] each
    ridge = _RIDGE[cost.dtype]
    logits = [r[:, None] - c * sharpness[:, None] for r, c in zip(old, costs, strict=True)]
    peak = functools.reduce(torch.maximum, logits)
    shares = [(value - peak).exp() for value in logits]
    scale = root / sum(shares)
    plan = [value * scale for value in shares]
    sums = [(value * root).sum(1) for value in plan]
    products = [[(a * b).sum(1) for b in plan[: i + 1]] for i, a in enumerate(plan)]
    residual = [target - found for target, found in zip(row, sums, strict=True)]
    error = sum(value.abs() for value in residual)
    active = (error >= tolerance) | (sharpness < 1 / epsilon)
    system = [
        [
            each[i] * each[j] - products[i][j] + (sums[i] + ridge * each[i] if i == j else 0)
            for j in range(i + 1)
        ]
        for i in range(len(old))
    ]
    newton = _solve_unrolled(system, residual)
    centre = sum(value * part for value, part in zip(newton, each, strict=True))
    newton = [value - centre for value in newton]
    reach = functools.reduce(torch.maximum, [value.abs() for value in newton])
    damping = reach.log1p() / reach.clamp(min=1e-30)
    sharper = (sharpness * (1 + (1 / _SHRINK - 1) * (error < _GATE))).clamp(max=1 / epsilon)
    growth = sharper / sharpness
    moved = [
        torch.where(active, (r + damping * value) * growth, r) for r, value in zip(old, newton, strict=True)
    ]
    return torch.stack(moved, 1), sharper, taken + active


def _solve_unrolled(system: list[list[Tensor]], right: list[Tensor]) -> list[Tensor]:
    """Solve symmetric positive definite systems by L D Lᵀ.

    Args:
        system: Lower triangles: row i has the i + 1 entries up to the diagonal, [G] each.
        right: Right sides, n of [G].
    """
    lower: list[list[Tensor]] = []  # L without its diagonal of ones
    pivots: list[Tensor] = []
    solved: list[Tensor] = []  # by L
    for row, wanted in zip(system, right, strict=True):
        scaled: list[Tensor] = []  # the row of L D
        for entry, above in zip(row, lower, strict=False):
            scaled.append(entry - sum(a * b for a, b in zip(scaled, above, strict=True)))
        lower.append([value / pivot for value, pivot in zip(scaled, pivots, strict=True)])
        pivots.append(row[-1] - sum(a * b for a, b in zip(scaled, lower[-1], strict=True)))
        solved.append(wanted - sum(a * b for a, b in zip(lower[-1], solved, strict=True)))
    found = [value / pivot for value, pivot in zip(solved, pivots, strict=True)]
    for i in reversed(range(len(found))):
        for j in range(i):
            found[j] = found[j] - lower[i][j] * found[i]
    return found


def epsilon_derivative(cost: Tensor, groups: ClassGroups, plans: Plans, epsilon: float) -> Tensor:
    """Return the [B, B] derivative of the plans with respect to epsilon, by the implicit function theorem.

    T = exp(f + g - D / epsilon) keeps its marginals, so that dT = T (f' + g' + D / epsilon²) with the f' and
    g' for which rows and columns of dT sum to 0: one linear system like that of a Newton step.
    """
    with torch.no_grad():
        plan = plans.grouped
        weight = torch.where(groups.column > 0, groups.column, 1.0)
        share = plan / weight  # columns sum to 1 over each class
        pull = groups.gather(cost) / epsilon**2
        right = (plan * (groups.total_rows(share * pull) - pull)).sum(2)
        system = _system(groups, _constant_part(groups), plan / weight.sqrt(), plan.sum(2))
        rows = _solve(system, right)
        change = rows[:, :, None] + pull
        return groups.scatter(plan * (change - groups.total_rows(share * change)))


def solve_self_transport(
    cost: Tensor, groups: ClassGroups, epsilon: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """Solve for the plans of every class and of its complement with themselves, summed over the classes.

    The kernel exp(-D / epsilon) of a set with itself has a diagonal of ones, so nothing underflows; the
    averaged symmetric Sinkhorn iteration at least halves the error.

    Returns:
        [B, B] sum of the plans, and the sum of their costs <T, D> + epsilon KL over all classes.
    """
    with torch.no_grad():
        kernel = (-cost / epsilon).exp()
        kernel.fill_diagonal_(1.0)
        own = groups.gather(kernel) * (groups.column == 0) * groups.of_samples(groups.each)  # [G, n, B]
        u = torch.ones_like(groups.each)
        weight = groups.column.flatten(0, 1)  # [G, B], or [B, B] with a row for each sample
        other = weight > 0
        v = torch.ones_like(weight)
        for _ in range(iterations):
            u = (u / (own @ groups.of_samples(u))).sqrt()
            v = torch.where(
                other, v / ((v * weight) @ kernel).clamp(min=torch.finfo(v.dtype).tiny), 1.0
            ).sqrt()
        plan = groups.scatter(own * (u * groups.row)[:, :, None]) * groups.of_samples(u)
        once = groups.row.sum(1, keepdim=True) if groups.same is None else groups.row.mT  # of each class
        share = v * weight
        plan = plan + kernel * ((share * once).T @ share)
        value = (groups.row * u.log()).sum() + (once * (weight * v.log())).sum()
        return plan, 2 * epsilon * value
