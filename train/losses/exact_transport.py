"""Exact optimal transport (DCDL, eq. 10) between each class and all other samples of a batch.

A linear program for every class, solved by SciPy on the CPU. Unlike the rest of the losses it waits for the
device, loops over the classes, and breaks the graph of torch.compile: it is for comparisons with the entropic
plans of `train.losses.transport`, not for speed.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch._compile import _disable_dynamo

_LARGEST_ASSIGNMENT = 256  # rows; above it the linear program is faster (measured, 3 x 125 to 10 x 190)


@_disable_dynamo  # torch.compiler.disable would import the compiler, which takes 1.5 s, with this module
def solve_exact_transport(cost: Tensor, labels: Tensor) -> Tensor:
    """Return the optimal plans of all classes in one [B, B] table, without gradient.

    Row i holds the share of sample i in the plan of its class: the rows of a class sum to 1 / n, its columns
    of other classes to 1 / m.

    Args:
        cost: [B, B] finite costs.
        labels: [B] integers.
    """
    costs, classes = cost.detach().double().cpu().numpy(), labels.cpu().numpy()
    plan = np.zeros_like(costs)
    for label in np.unique(classes):
        inside, outside = np.flatnonzero(classes == label), np.flatnonzero(classes != label)
        if len(outside):
            block = np.ix_(inside, outside)
            plan[block] = _solve(costs[block])
    return torch.from_numpy(plan).to(cost)


def _solve(cost: np.ndarray) -> np.ndarray:
    """Return the [n, m] plan of least cost with rows of 1 / n and columns of 1 / m."""
    size = math.lcm(*cost.shape)
    return _by_assignment(cost, size) if size <= _LARGEST_ASSIGNMENT else _by_linear_program(cost)


def _by_assignment(cost: np.ndarray, size: int) -> np.ndarray:
    """Split all masses into equal parts of 1 / size, of which an optimal plan moves each as a whole."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    rows, columns = (np.repeat(np.arange(n), size // n) for n in cost.shape)
    of_row, of_column = linear_sum_assignment(cost[np.ix_(rows, columns)])
    plan = np.zeros_like(cost)
    np.add.at(plan, (rows[of_row], columns[of_column]), 1 / size)
    return plan


def _by_linear_program(cost: np.ndarray) -> np.ndarray:
    from scipy import sparse
    from scipy.optimize import linprog  # slow to import

    n, m = cost.shape
    sums = sparse.vstack([sparse.kron(sparse.eye(n), np.ones(m)), sparse.kron(np.ones(n), sparse.eye(m))])
    masses = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    found = linprog(cost.ravel(), A_eq=sums.tocsc(), b_eq=masses, method="highs")
    if found.x is None:  # cannot happen with finite costs: the uniform plan is feasible
        raise RuntimeError(f"the linear program of the transport plan failed: {found.message}")
    plan: np.ndarray = found.x.reshape(n, m)
    return plan
