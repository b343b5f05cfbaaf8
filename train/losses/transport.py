"""Entropic optimal transport (the Sinkhorn problem) between each class and all other samples of a batch.

For every class the plan between its n samples (weights 1/n) and the other m (weights 1/m) minimises
<T, D> + epsilon KL(T | uniform). All plans are stored in one [B, B] table whose row i holds the share of
sample i in the plan of its class, so that shapes depend on the batch size alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_START = 1.0  # epsilon of the first stage; costs are in [0, 2]
_SHRINK = 0.4  # factor on epsilon once a class is close to its marginals
_GATE = 0.1  # L1 marginal error that counts as close
_RIDGE = {torch.float32: 1e-6, torch.float64: 1e-12}  # of the marginals: a deterministic plan is singular


class Marginals(NamedTuple):
    """Marginals of the plans of all classes."""

    same: Tensor  # [B, B] 1 for samples of one class, the sample itself included
    other: Tensor  # [B, B] bool, samples of other classes
    some: Tensor  # [B] bool, the batch has other classes
    row: Tensor  # [B] 1 / n of the sample's class
    column: Tensor  # [B, 1] 1 / m of the sample's class
    first: Tensor  # [B] the first sample of the sample's class

    def over_class(self, x: Tensor) -> Tensor:
        """Return the sums of the rows of [B, B] over each class, repeated for every sample of the class."""
        return torch.zeros_like(x).index_add_(0, self.first, x)[self.first]


class Plans(NamedTuple):
    """Plans of all classes with their convergence."""

    plan: Tensor  # [B, B]
    cost: Tensor  # [B] the sample's share of <T, D> + epsilon KL, from the dual problem
    error: Tensor  # the largest L1 error of a row marginal over the classes; columns are exact
    iterations: Tensor
    system: Tensor  # [B, B] the Schur complement diag(row sums) - T diag(1 / columns) Tᵀ, regularised


def marginals(labels: Tensor, dtype: torch.dtype) -> Marginals:
    """Return the uniform marginals of every class and of its complement."""
    equal = labels[:, None] == labels[None, :]  # [B, B]
    same = equal.to(dtype)
    size = same.sum(1)
    rest = len(labels) - size
    column = 1 / rest.clamp(min=1)[:, None]
    return Marginals(same, ~equal, rest > 0, 1 / size, column, same.argmax(1))


def solve_transport(
    cost: Tensor, m: Marginals, epsilon: float, tolerance: float, max_iterations: int
) -> Plans:
    """Solve for the plans by Newton's method on the log-domain semi-dual, with decreasing epsilon.

    Column potentials are eliminated exactly (a Sinkhorn half step). The remaining problem is concave in the n
    row potentials of a class; a Newton step solves an n x n system and is damped by log(1 + r) / r, r the
    largest change of a centred potential, because the potentials enter through exponentials. Each class
    lowers its own epsilon as soon as it is close to its marginals. This takes about 15 steps where Sinkhorn
    iterations take hundreds to thousands.

    Runs without gradient. On the CPU it stops when every class is within `tolerance`; elsewhere, and in
    compiled code, it runs all iterations, because testing for convergence would synchronise with the device;
    converged classes do not change.

    Args:
        cost: [B, B] in [0, 2].
        m: Marginals, see `marginals`.
        epsilon: Regularisation strength, above 0.
        tolerance: L1 error of the row marginal of a class at which it has converged.
        max_iterations: Newton steps at most.
    """
    with torch.no_grad():
        may_stop = cost.device.type == "cpu" and not torch.compiler.is_compiling()
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
            share, columns = share / total, columns - total.log()  # column marginals are exact
            plan = share * m.column
            sums = plan.sum(1)
            residual = target - sums
            error = m.same @ residual.abs()  # [B] of the sample's class
            done = (error < tolerance) & (eps[:, 0] <= epsilon)
            system = rank_one - (share @ plan.T) * m.same
            system.diagonal().add_(sums + _RIDGE[cost.dtype] * m.row)
            if step == max_iterations or (may_stop and bool(done.all())):
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
    """Return the [B, B] derivative of the plans with respect to epsilon, by the implicit function theorem.

    T = exp(f + g - D / epsilon) keeps its marginals, so that dT = T (f' + g' + D / epsilon²) with the f' and
    g' for which rows and columns of dT sum to 0: one linear system like that of a Newton step.
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
    """Solve for the plans of every class and of its complement with themselves, summed over the classes.

    The kernel exp(-D / epsilon) of a set with itself has a diagonal of ones, so nothing underflows; the
    averaged symmetric Sinkhorn iteration at least halves the error.

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
