"""Cost of a search of selected vectors: exactly, or by the index with a FAISS selector.

An index visits more vectors the fewer are selected. A graph compares the query with each of them; cells first
ask the selector, which costs little where it nearly always gives the same answer. The constants were measured
on one thread (AVX2, FAISS 1.15, 128 dimensions, 1 % to 50 % of 100,000 and 1,000,000 vectors). The time of a
search without a selection was measured when the index was built. CPU microseconds of one query:

                          1 %             10 %            50 %
                          index   exact   index   exact   index   exact
    hnsw, 100,000         1933    8       266     72      25      660
    hnsw, 1,000,000       70499   69      2314    1729    344     10201
    ivf-sq8, 100,000      324     8       369     62      153     638
    ivf-sq8, 1,000,000    244     68      82      1799    49      10946
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from retrieval.machine import lazy_faiss as faiss
from retrieval.search.kinds import AIM, APPROXIMATE
from retrieval.search.selection import DENSE

_SCAN = 1.2e-7  # milliseconds of an exact search for a dimension of a vector
_VISIT = 9e-8  # of the cells, for a dimension of a vector that is compared
_TEST = 3e-6  # milliseconds in which a selector is asked about a vector
# The same for cells, as a share of a comparison: asked, compared, and guessed wrong by the processor.
_ASKED, _COMPARED, _WRONG = 0.25, 0.75, 3.3


def exact_ms(count: int, total: int, dim: int, *, copied: bool) -> float:
    """Return the milliseconds of an exact search for one query.

    Args:
        count: Number of selected rows.
        total: Number of rows.
        dim: Dimension D.
        copied: Whether a copy of the selected vectors is searched.
    """
    if copied:
        return _SCAN * dim * count
    if count >= DENSE * total:
        return _SCAN * dim * total
    return _SCAN * dim * count + _TEST * total


def index_ms(card: Mapping[str, Any], index: faiss.Index, k: int, count: int) -> float:
    """Return the milliseconds of a search by an index for one query.

    Args:
        card: Facts about the index; see `retrieval.search.index.BuiltIndex`.
        index: FAISS index.
        k: Number of neighbours.
        count: Number of vectors that may be found.
    """
    ms, total = card["ms"], max(card["vectors"], count)
    share, more = count / total, max(1.0, k / AIM)
    kind = APPROXIMATE[card["kind"]]
    if kind.in_graph:
        return float(ms * more / share)
    visited = card["effort"] / index.nlist if kind.in_cells else 1.0
    visiting = min(ms, _VISIT * card["dim"] * visited * total)
    widened = min(math.sqrt(more) / share, 1 / visited)
    compared = _ASKED + _COMPARED * share + _WRONG * share * (1 - share)
    return float(ms - visiting + visiting * widened * compared)
