"""Families of two pairs (a, b), (c, d) of unit vectors, from generic to degenerate."""

import numpy as np

from .geometry import unit, unit_rows

FAMILIES = (
    "iid",
    "clustered",
    "overlapping",
    "duplicate-one",
    "duplicate-both",
    "shared-point",
    "identical",
    "swapped",
    "axis-aligned",
    "near-duplicate",
    "near-antipodal",
    "antipodal",
    "crossing",
    "parallel",
    "collinear",
)


def draw(family: str, rng: np.random.Generator, dim: int) -> np.ndarray:
    """Rows a, b, c, d [4, D]."""
    a, b, c, d = unit_rows(rng.normal(size=(4, dim)))
    noise = rng.normal(size=dim)
    if family == "clustered":
        b, d = unit(a + 0.3 * (b - a)), unit(c + 0.3 * (d - c))
    if family == "overlapping":
        b, c, d = (unit(a + 0.5 * (v - a)) for v in (b, c, d))
    if family == "duplicate-one":
        b = a.copy()
    if family == "duplicate-both":
        b, d = a.copy(), c.copy()
    if family == "shared-point":
        c = a.copy()
    if family == "identical":
        c, d = a.copy(), b.copy()
    if family == "swapped":
        c, d = b.copy(), a.copy()
    if family == "axis-aligned":
        basis = np.concatenate([np.eye(dim), -np.eye(dim)])
        a, b, c, d = basis[rng.integers(len(basis), size=4)]
    if family == "near-duplicate":
        b = unit(a + 10.0 ** rng.uniform(-8, -2) * noise)
    if family == "near-antipodal":
        b = unit(-a + 10.0 ** rng.uniform(-4, -2) * noise)
    if family == "antipodal":
        b = -a
    if family == "crossing":  # both arcs pass through one point in their interior
        point = unit(a + b)
        d = unit(2 * (c @ point) * point - c)
        if c @ d < 0:  # keep the short way through the point
            c = unit(c + 2 * point)
            d = unit(2 * (c @ point) * point - c)
    if family == "parallel":  # the same displacement in a direction orthogonal to both
        c = unit(a + 0.5 * noise)
        step = b - (b @ a) * a
        step = step - (step @ c) * c / (c @ c) if dim > 3 else step
        b, d = unit(a + 0.4 * step), unit(c + 0.4 * step)
    if family == "collinear":  # four points of one great circle
        e1, e2 = a, unit(b - (a @ b) * a)
        angles = rng.uniform(0, 1.5, size=4)
        a, b, c, d = (np.cos(t) * e1 + np.sin(t) * e2 for t in angles)
    return np.stack([a, b, c, d])
