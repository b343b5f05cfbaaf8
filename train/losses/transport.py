"""Entropic optimal transport between each class of a batch and all other samples, for all classes at once.

For every class the plan between its n samples (weights 1/n) and the other m (weights 1/m) minimises
<T, D> + epsilon KL(T | uniform). All plans live in one [B, B] table, row i holding the share of sample i in
the plan of its class, so that shapes depend on the batch size alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_START = 1.0  # epsilon of the first stage; costs lie in [0, 2]
_SHRINK = 0.4  # of epsilon, once a class is close to its marginals
_GATE = 0.1  # L1 marginal error that counts as close
_RIDGE = {torch.float32: 1e-6, torch.float64: 1e-12}  # of the marginals: a deterministic plan is singular


class Marginals(NamedTuple):
    """Who takes part in which plan."""

    same: Tensor  # [B, B] 1 for samples of one class, the sample itself included
    other: Tensor  # [B, B] bool, other classes
    some: Tensor  # [B] bool, there are others
    row: Tensor  # [B] 1 / n of the sample's class
    column: Tensor  # [B, 1] 1 / m of the sample's class
    first: Tensor  # [B] the first sample of the sample's class

    def over_class(self, x: Tensor) -> Tensor:
        """Sums of the rows of [B, B] over each class, handed to every sample of it."""
        return torch.zeros_like(x).index_add_(0, self.first, x)[self.first]


class Plans(NamedTuple):
    """The plans of all classes and how well they were reached."""

    plan: Tensor  # [B, B]
    cost: Tensor  # [B] the sample's share of <T, D> + epsilon KL, from the dual problem
    error: Tensor  # the largest L1 error of a row marginal over the classes; columns are exact
    iterations: Tensor
    system: Tensor  # [B, B] the Schur complement diag(row sums) - T diag(1 / columns) Tᵀ, regularised


def marginals(labels: Tensor, dtype: torch.dtype) -> Marginals:
    """Uniform weights of every class and of its complement."""
    equal = labels[:, None] == labels[None, :]  # [B, B]
    same = equal.to(dtype)
    size = same.sum(1)
    rest = len(labels) - size
    column = 1 / rest.clamp(min=1)[:, None]
    return Marginals(same, ~equal, rest > 0, 1 / size, column, same.argmax(1))


def solve_transport(
    cost: Tensor, m: Marginals, epsilon: float, tolerance: float, max_iterations: int
) -> Plans:
    """The plans at `epsilon`, by Newton's method on the log-domain semi-dual while epsilon decreases.

    Column potentials are eliminated exactly (a Sinkhorn half step). What remains is concave in the n row
    potentials of a class; a Newton step solves an n x n system and is damped by log(1 + r) / r, r the
    largest change it makes to a centred potential, as befits sums of exponentials. Each class lowers its own
    epsilon as soon as it is close to its marginals. Sinkhorn's own iteration needs hundreds to thousands of
    steps where this needs about fifteen.

    Runs without gradient. On the CPU it stops when every class is within `tolerance`; elsewhere, and in
    compiled code, it runs all iterations, for asking would stop the queue; converged classes do not move.

    Args:
        cost: [B, B] in [0, 2].
        m: see `marginals`.
        epsilon: regularisation, above 0.
        tolerance: L1 error of the row marginal of a class at which it has converged.
        max_iterations: Newton steps in all.
    """
    with torch.no_grad():
        ask = cost.device.type == "cpu" and not torch.compiler.is_compiling()
        blocked = torch.where(m.other, cost, torch.inf)
        rank_one = m.same * m.row * m.row[:, None]  # fixes the free constant of the potentials of a class
        target = torch.where(m.some, m.row, 0.0)
        eps = torch.full_like(m.column, _START)  # [B, 1]
        rows = torch.zeros_like(m.row)  # [B] potential over epsilon
        columns = torch.zeros_like(cost)  # [B, B] potential over epsilon
        used = torch.zeros((), dtype=cost.dtype, device=cost.device)
        for step in range(max_iterations + 1):
            share = (rows[:, None] + columns - blocked / eps).exp_()
            total = m.over_class(share).clamp_(min=torch.finfo(cost.dtype).tiny)
            share, columns = share / total, columns - total.log()  # columns are met exactly
            plan = share * m.column
            sums = plan.sum(1)
            residual = target - sums
            error = m.same @ residual.abs()  # [B] of the sample's class
            done = (error < tolerance) & (eps[:, 0] <= epsilon)
            system = rank_one - (share @ plan.T) * m.same
            system.diagonal().add_(sums + _RIDGE[cost.dtype] * m.row)
            if step == max_iterations or (ask and bool(done.all())):
                break
            used = used + (~done.all()).to(cost.dtype)
            newton = _solve_spd(system, residual)
            newton = newton - m.row * (m.same @ newton)  # centred
            reach = (m.same * newton.abs()).amax(1)
            damping = torch.where(reach > 1e-6, torch.log1p(reach) / reach.clamp(min=1e-6), 1.0)
            rows = torch.where(done, rows, rows + damping * newton)
            lower = torch.where(error[:, None] < _GATE, (eps * _SHRINK).clamp(min=epsilon), eps)
            rows, columns, eps = rows * (eps / lower)[:, 0], columns * (eps / lower), lower
        dual = epsilon * m.row * (rows - m.row.log() + (m.column * m.other * columns).sum(1))
        return Plans(plan, torch.where(m.some, dual, 0.0), error.max(), used, system)


def _solve_spd(system: Tensor, right: Tensor) -> Tensor:
    factor, _ = torch.linalg.cholesky_ex(system)
    return torch.cholesky_solve(right[:, None], factor)[:, 0]


def epsilon_derivative(cost: Tensor, m: Marginals, plans: Plans, epsilon: float) -> Tensor:
    """[B, B] derivative of the plans with respect to epsilon, by the implicit function theorem.

    T = exp(f + g - D / epsilon) keeps its marginals, so that dT = T (f' + g' + D / epsilon²) with the f'
    and g' for which rows and columns of dT sum to 0. One system of the kind of a Newton step.
    """
    with torch.no_grad():
        pull = plans.plan * cost / epsilon**2
        pull_columns = m.over_class(pull) / m.column  # [B, B]
        rows = _solve_spd(plans.system, (plans.plan * pull_columns).sum(1) - pull.sum(1))
        columns = -pull_columns - m.over_class(plans.plan * rows[:, None]) / m.column
        return pull + plans.plan * (rows[:, None] + columns)


def solve_self_transport(
    cost: Tensor, m: Marginals, epsilon: float, iterations: int
) -> tuple[Tensor, Tensor]:
    """Plans of every class with itself and of its complement with itself, added over the classes.

    The kernel exp(-D / epsilon) of a set with itself has a diagonal of ones, so nothing underflows; the
    averaged symmetric iteration halves the error at least.

    Returns:
        [B, B] sum of the plans, and the sum of their costs <T, D> + epsilon KL over all classes.
    """
    with torch.no_grad():
        kernel = (-cost / epsilon).exp()
        kernel.fill_diagonal_(1.0)
        own = kernel * m.same * m.row  # [B, B]
        u, v = torch.ones_like(m.row), torch.ones_like(kernel)  # v: a row for each sample's complement
        weight = m.column * m.other
        for _ in range(iterations):
            u = (u / (own @ u)).sqrt()
            v = torch.where(
                m.other, v / ((v * weight) @ kernel).clamp(min=torch.finfo(v.dtype).tiny), 1.0
            ).sqrt()
        plan = own * u * u[:, None] * m.row[:, None]
        share = v * weight  # [B, B]
        plan = plan + kernel * ((share * m.row[:, None]).T @ share)
        value = (
            2 * epsilon * torch.where(m.some, m.row * u.log() + m.row * (weight * v.log()).sum(1), 0.0).sum()
        )
        return plan, value
