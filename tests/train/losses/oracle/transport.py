"""Class-wise discrepancies between a class and the rest of the batch (DCDL), with their minus sign."""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import linprog  # type: ignore[import-untyped]

from .geometry import distance, unit_rows
from .pairs import Labels

EPSILON = 2.5e-3
SIGMA = 0.05


def costs(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """D = ½‖u − v‖² of every couple."""
    return np.array([[0.5 * distance(a, b) ** 2 for b in v] for a in u])


def transport_plan(cost: np.ndarray, epsilon: float = EPSILON, error: float = 1e-11) -> np.ndarray:
    """The entropic plan T with uniform marginals (DCDL eq. 11), its marginals exact to `error` in L1.

    Log-domain scaling down a ladder of ε finds the neighbourhood, and Newton's method on the concave dual
    finishes there: scaling alone needs 10⁵ iterations and more where the sharp plan is almost tied.
    """
    n, m = cost.shape
    f, g = np.zeros(n), np.zeros(m)
    for eps in [2.0**k * epsilon for k in range(9, -1, -1)]:
        for _ in range(300 if eps == epsilon else 20):
            f = -eps * (np.logaddexp.reduce((g - cost) / eps, axis=1) + math.log(n))
            g = -eps * (np.logaddexp.reduce((f[:, None] - cost) / eps, axis=0) + math.log(m))
    for _ in range(200):
        plan = np.exp((f[:, None] + g - cost) / epsilon)
        rows, columns = plan.sum(axis=1), plan.sum(axis=0)
        residual = np.concatenate([1 / n - rows, 1 / m - columns])
        if np.abs(residual).sum() < error:
            return plan
        hessian = np.block([[np.diag(rows), plan], [plan.T, np.diag(columns)]]) / epsilon
        step = np.linalg.lstsq(hessian, residual, rcond=1e-13)[0]
        step *= min(1.0, 10 * epsilon / np.abs(step).max())
        f, g = f + step[:n], g + step[n:]
    raise AssertionError("the reference plan did not converge")


def exact_transport(u: np.ndarray, v: np.ndarray) -> float:
    """min ⟨T, D⟩ (DCDL eq. 10) through the dual linear program: max mean f + mean g with f_i + g_j ≤ D_ij."""
    cost = costs(u, v)
    n, m = cost.shape
    pairs = np.zeros((n * m, n + m))
    for i in range(n):
        for j in range(m):
            pairs[i * m + j, i] = pairs[i * m + j, n + j] = 1
    gain = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    found = linprog(-gain, A_ub=pairs, b_ub=cost.ravel(), bounds=(None, None))
    return float(-found.fun)


def transport(u: np.ndarray, v: np.ndarray, form: str = "kl", epsilon: float = EPSILON) -> float:
    """W_ε: `sharp` ⟨T, D⟩; `entropic` + ε Σ T(ln T − 1) (eq. 11); `kl` + ε KL(T ‖ w⊗w̃)."""
    cost = costs(u, v)
    plan = transport_plan(cost, epsilon)
    n, m = cost.shape
    value = 0.0
    for i in range(n):
        for j in range(m):
            t = plan[i, j]
            log_t = math.log(t) if t > 0 else 0.0
            value += t * cost[i, j]
            if form == "entropic":
                value += epsilon * t * (log_t - 1)
            if form == "kl":
                value += epsilon * t * (log_t + math.log(n * m))
    return value


def debiased_transport(u: np.ndarray, v: np.ndarray, form: str = "kl", epsilon: float = EPSILON) -> float:
    """W(U, V) − ½ W(U, U) − ½ W(V, V) (DCDL eq. 13)."""

    def w(a: np.ndarray, b: np.ndarray) -> float:
        return transport(a, b, form, epsilon)

    return w(u, v) - 0.5 * w(u, u) - 0.5 * w(v, v)


def mean_over(u: np.ndarray, v: np.ndarray, kernel: Callable[[float], float]) -> float:
    """The mean of kernel(‖a − b‖) over all couples, equal points included (V-statistic)."""
    return sum(kernel(distance(a, b)) for a in u for b in v) / (len(u) * len(v))


def mmd(u: np.ndarray, v: np.ndarray, kernel: Callable[[float], float]) -> float:
    """MMD² (DCDL eq. 15), without GeomLoss's factor ½."""
    return mean_over(u, u, kernel) - 2 * mean_over(u, v, kernel) + mean_over(v, v, kernel)


def mmd_laplacian(u: np.ndarray, v: np.ndarray, sigma: float = SIGMA) -> float:
    """MMD² with exp(−d/σ)."""
    return mmd(u, v, lambda d: math.exp(-d / sigma))


def mmd_of_widths(u: np.ndarray, v: np.ndarray, sigmas: list[float], power: int) -> float:
    """MMD² with the mean of exp(−d/σ) or exp(−d²/2σ²) over several widths: the mean of their MMD²."""
    one = mmd_laplacian if power == 1 else mmd_gaussian
    return sum(one(u, v, sigma) for sigma in sigmas) / len(sigmas)


def mmd_gaussian(u: np.ndarray, v: np.ndarray, sigma: float = SIGMA) -> float:
    """MMD² with exp(−d²/2σ²) (DCDL eq. 16)."""
    return mmd(u, v, lambda d: math.exp(-d * d / (2 * sigma * sigma)))


def energy(u: np.ndarray, v: np.ndarray, power: int = 2) -> float:
    """⟨ww̃ᵀ, D⟩ − ½⟨wwᵀ, D⟩ − ½⟨w̃w̃ᵀ, D⟩ with D = ½‖u − v‖², or ‖u − v‖ for power 1 (DCDL eq. 14)."""

    def cost(d: float) -> float:
        return 0.5 * d * d if power == 2 else d

    return mean_over(u, v, cost) - 0.5 * mean_over(u, u, cost) - 0.5 * mean_over(v, v, cost)


def classwise(
    x: np.ndarray, y: Labels, phi: Callable[[np.ndarray, np.ndarray], float], reduction: str = "sum"
) -> float:
    """L^φ = −Σ_k φ(Z_k^+, Z_k^-) over the classes that have a negative (DCDL eq. 2)."""
    z = unit_rows(x)
    values = []
    for c in sorted(set(y)):
        inside = [i for i in range(len(y)) if y[i] == c]
        outside = [i for i in range(len(y)) if y[i] != c]
        if outside:
            values.append(phi(z[inside], z[outside]))
    return -sum(values) / (len(values) if reduction == "mean" and values else 1)
