"""Tails of Student's t, of fair coins and of draws, without SciPy: a third of the base installation."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np

_TINY = 1e-300  # in place of a zero denominator
_STOP = 1e-15  # relative change that ends an iteration
_NODES = 128  # of the quadrature
_REACH = 9.0  # standard deviations that it covers


def normal_cdf(x: float) -> float:
    """Return the probability that a standard normal variable is at most x."""
    return math.erfc(-x / math.sqrt(2)) / 2


def incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b) (DLMF 8.17), for a and b above 0.

    `rest` is 1 - x, which callers may know more exactly than it can be computed from x.

    By its continued fraction (DLMF 8.17.22) with Lentz's method. The relative error grows with a + b:
    below 1e-13 at 100 and 1e-9 at 100,000.
    """
    if x <= 0 or rest <= 0:
        return float(x > 0)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - incomplete_beta(b, a, rest, x)
    factor = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    )
    upper, lower = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    fraction, m, change = lower, 0, 0.0
    while abs(change - 1) > _STOP:
        m += 1
        change = 1.0
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            lower = 1 / _nonzero(1 + term * lower)
            upper = _nonzero(1 + term / upper)
            change *= upper * lower
            fraction *= upper * lower
    return factor * fraction / a


def t_tail(t: float, df: float) -> float:
    """Return the probability that Student's t with df degrees of freedom exceeds t."""
    outside = incomplete_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t))
    return outside / 2 if t >= 0 else 1 - outside / 2


def t_quantile(tail: float, df: float) -> float:
    """Return the t that Student's t exceeds with a probability below 0.5.

    By Newton's method: the tail is convex there, and the normal quantile is below that of t, so that every
    step goes up and none too far.
    """
    constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    t, step = NormalDist().inv_cdf(1 - tail), math.inf
    while step > 4 * _STOP * t:
        density = math.exp(constant - (df + 1) / 2 * math.log1p(t * t / df))
        step = (t_tail(t, df) - tail) / density
        t += max(step, 0.0)
    return t


def t_power(level: float, df: int, shift: float) -> float:
    """Return the power of a two-sided t-test at a level: of the noncentral t, by its shift.

    An integral over the estimated standard deviation, whose distribution is that of chi / sqrt(df).
    """
    critical, width = t_quantile(level / 2, df), _REACH / math.sqrt(2 * df)
    low, high = max(0.0, 1 - width), 1 + width
    at, weights = _quadrature()
    s = low + (high - low) * (at + 1) / 2
    density = np.exp(
        math.log(2) + df / 2 * math.log(df / 2) - math.lgamma(df / 2) + (df - 1) * np.log(s) - df * s * s / 2
    )
    found = [normal_cdf(shift - critical * x) + normal_cdf(-shift - critical * x) for x in s.tolist()]
    return float((high - low) / 2 * (weights * density) @ np.array(found))


@cache
def _quadrature() -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes of Gauss-Legendre quadrature from -1 to 1, and their weights."""
    return np.polynomial.legendre.leggauss(_NODES)


def coin_tail(heads: int, throws: int) -> float:
    """Return the probability that a fair coin shows at most so many heads."""
    return 1.0 if heads >= throws else incomplete_beta(throws - heads, heads + 1, 0.5, 0.5)


def draws_tail(drawn: int, draws: int, marked: int, count: int) -> float:
    """Return the probability to draw at least so many marked ones, without replacement (hypergeometric).

    Args:
        drawn: Number of marked ones that were drawn.
        draws: Number of draws.
        marked: Number of marked ones among all.
        count: Number of all.
    """

    def ways(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    low, high = max(drawn, draws + marked - count, 0), min(draws, marked)
    logs = (ways(marked, x) + ways(count - marked, draws - x) for x in range(low, high + 1))
    return min(1.0, math.fsum(math.exp(one - ways(count, draws)) for one in logs))


def _nonzero(x: float) -> float:
    return x if abs(x) > _TINY else _TINY
