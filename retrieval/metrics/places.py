"""From the places of the right images in a ranking to precision averaged over them."""

from __future__ import annotations

import numpy as np


def average_precision(
    queries: np.ndarray, places: np.ndarray, to_find: np.ndarray, within: np.ndarray | None = None
) -> np.ndarray:
    """Sum of the precision at every right image, over how many there are to find.

    With `within` = `to_find` this is MAP@R of a query (Musgrave et al. 2020), without it average precision.

    Args:
        queries: int [P], the query of each right image, ascending.
        places: int [P], its place in the ranking, from 1, ascending for each query.
        to_find: int [N].
        within: int [N], images further down count as not found.

    Returns:
        float64 [N]; nan where there is nothing to find.
    """
    begin = np.searchsorted(queries, np.arange(len(to_find)))
    precision = (np.arange(1, len(queries) + 1) - begin[queries]) / places
    if within is not None:
        precision[places > within[queries]] = 0.0
    return _share(np.bincount(queries, precision, len(to_find)), to_find)


def r_precision(queries: np.ndarray, places: np.ndarray, to_find: np.ndarray) -> np.ndarray:
    """Share of right images among the R nearest, R being how many there are to find; as above."""
    return _share(np.bincount(queries[places <= to_find[queries]], minlength=len(to_find)), to_find)


def _share(found: np.ndarray, to_find: np.ndarray) -> np.ndarray:
    return np.divide(found, to_find, out=np.full(len(to_find), np.nan), where=to_find > 0)
