"""Index kinds: how FAISS builds each, its memory, and its search parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from retrieval.errors import InputError, did_you_mean

AIM = 10  # neighbours for which parameters are chosen and recall is measured
_TRAINED_ON = 64  # training vectors per cell
_LINKS = 32  # links of an HNSW node on each level, twice as many on the lowest
_NUMBER = 8  # bytes of a row number


@dataclass(frozen=True)
class Kind:
    """An approximate index, which proposes candidates; exact scores decide among them.

    Attributes:
        name: Name for users.
        factory: Function of (dimension, cells) that returns the string for FAISS's `index_factory`.
        size: Function of the dimension that returns the bytes per vector.
        oversample: Candidates per requested neighbour to try, ascending.
        efforts: Search efforts to try, ascending: visited cells, or HNSW's `efSearch`.
        growth: Exponent with which the time per query grows with the number of vectors.
        in_cells: Whether vectors are partitioned into cells (FAISS's IVF), of which a search visits some.
    """

    name: str
    factory: Callable[[int, int], str]
    size: Callable[[int], int]
    oversample: tuple[int, ...]
    efforts: tuple[int, ...] = (1,)
    growth: float = 1.0
    in_cells: bool = False


def _product(d: int, cells: int) -> str:
    # Four bits per subspace, which FAISS compares within registers. With exact scores afterwards this was
    # faster than RaBitQ at equal memory (60,000 x 512, FAISS 1.15.1); OPQ takes minutes to train.
    return f"IVF{cells},PQ{_subspaces(d)}x4fs"


def _product_size(d: int) -> int:
    return (_subspaces(d) + 1) // 2 + _NUMBER


_CELLS = tuple(2**i for i in range(15))
_ALL = (
    # All vectors, one byte per dimension.
    Kind("sq8", lambda d, _: "IDMap,SQ8", lambda d: d + _NUMBER, (1, 2, 4, 10)),
    # All vectors, one byte per eight dimensions. In one cell: FAISS's index without cells takes no filter.
    Kind("pq", lambda d, _: _product(d, 1), _product_size, (2, 5, 10, 20, 40)),
    # Vectors in cells: unchanged, one byte per dimension, one byte per eight dimensions.
    Kind(
        "ivf-flat", lambda d, n: f"IVF{n},Flat", lambda d: 4 * d + _NUMBER, (1,), _CELLS, 0.5, in_cells=True
    ),
    Kind("ivf-sq8", lambda d, n: f"IVF{n},SQ8", lambda d: d + _NUMBER, (2, 10), _CELLS, 0.5, in_cells=True),
    Kind("ivf-pq", _product, _product_size, (5, 10, 20, 40), _CELLS, 0.5, in_cells=True),
    # A graph of neighbours, one byte per dimension.
    Kind(
        "hnsw",
        lambda d, _: f"IDMap,HNSW{_LINKS},SQ8",
        lambda d: d + 8 * _LINKS + 3 * _NUMBER,
        (2, 5),
        tuple(2**i for i in range(4, 12)),
        0.1,
    ),
)
APPROXIMATE = {kind.name: kind for kind in _ALL}
NAMES = ("auto", "flat", *APPROXIMATE)


def check_name(name: str) -> str:
    """Return the name of a kind unchanged.

    Raises:
        InputError: An unknown kind; the message lists the known ones.
    """
    if name not in NAMES:
        hint = did_you_mean(name, NAMES, f"known: {', '.join(NAMES)}")
        raise InputError(f"unknown index kind {name!r}; {hint}")
    return name


def memory_needed(name: str, dim: int, count: int) -> int:
    """Return the bytes of memory that a kind, or `flat`, needs to be fast with `count` vectors."""
    if name == "flat":
        return 4 * dim * count
    kind = APPROXIMATE[name]
    return kind.size(dim) * count + (4 * dim * cells(count) if kind.in_cells else 0)


def growth(name: str) -> float:
    """Return the exponent with which the time per query grows with the number of vectors."""
    return 1.0 if name == "flat" else APPROXIMATE[name].growth


def train_index(
    kind: Kind, sample: np.ndarray, count: int, centroids: np.ndarray | None = None
) -> faiss.Index:
    """Return an empty, trained index.

    Args:
        kind: Index kind.
        sample: Training vectors, float32 [n, D].
        count: Number of vectors that it will hold.
        centroids: Centroids of the cells, float32 [cells, D], if they are known already.
    """
    index = faiss.index_factory(
        sample.shape[1], kind.factory(sample.shape[1], cells(count)), faiss.METRIC_INNER_PRODUCT
    )
    # With too few training vectors FAISS would warn or refuse; repeated ones do no harm.
    sample = np.resize(sample, (max(len(sample), 64), sample.shape[1]))
    if isinstance(index, faiss.IndexIVFPQFastScan):
        index.pq.cp.min_points_per_centroid = 1
    if isinstance(index, faiss.IndexIVF):
        index.cp.niter = 10
        index.cp.min_points_per_centroid = 1
        index.cp.max_points_per_centroid = _TRAINED_ON
        if centroids is not None and kind.in_cells:
            faiss.downcast_index(index.quantizer).add(centroids)
    index.train(sample)
    return index


def centroids(index: faiss.Index) -> np.ndarray:
    """Return the centroids of the cells, float32 [cells, D]."""
    found: np.ndarray = faiss.downcast_index(index.quantizer).reconstruct_n(0, index.nlist)
    return found


def cells(count: int) -> int:
    """Return the number of cells for `count` vectors: the power of two next to 4 sqrt(n), 40 vectors each."""
    wanted = round(math.log2(4 * math.sqrt(max(1, count))))
    exponent = min(wanted, int(math.log2(max(1, count / 40))), len(_CELLS) - 1)
    return int(2**exponent)


def training_size(count: int) -> int:
    """Return the number of training vectors for an index of `count` vectors."""
    return min(count, max(_TRAINED_ON * cells(count), 65_536))


def efforts(kind: Kind, index: faiss.Index) -> list[int]:
    """Return the efforts with which an index of a kind can be searched, ascending."""
    most = index.nlist if kind.in_cells else kind.efforts[-1]
    return [effort for effort in kind.efforts if effort <= most]


def candidates(
    index: faiss.Index,
    queries: np.ndarray,
    k: int,
    effort: int,
    oversample: int,
    selector: Any = None,
    widen: float = 1.0,
) -> np.ndarray:
    """Return numbers of vectors that may be among the k nearest of the allowed, int64 [N, m]; -1 for none.

    For more neighbours than the parameters were chosen for, the effort grows.

    Args:
        index: FAISS index.
        queries: float32 [N, D].
        k: Number of neighbours.
        effort: Search effort for `AIM` neighbours.
        oversample: Candidates per neighbour.
        selector: FAISS selector of the allowed vector numbers; `None` for all.
        widen: Factor on the effort, for searches with a filter.
    """
    count = min(max(k, AIM) * oversample, index.ntotal)
    more = max(1.0, k / AIM)
    if isinstance(index, faiss.IndexIVF):
        visited = min(math.ceil(effort * widen * math.sqrt(more)), index.nlist)
        parameters = faiss.SearchParametersIVF(nprobe=visited, sel=selector)
    elif isinstance(faiss.downcast_index(index.index), faiss.IndexHNSW):
        reach = max(math.ceil(effort * widen * more), count)
        parameters = faiss.SearchParametersHNSW(efSearch=reach, sel=selector)
    else:
        parameters = faiss.SearchParameters(sel=selector)
    # `faiss.contrib.torch_utils`, which other libraries import, replaces `search` by one without `params`.
    search_arrays = getattr(index, "search_numpy", index.search)
    rows: np.ndarray = search_arrays(queries, count, params=parameters)[1]
    return rows


def _subspaces(dim: int) -> int:
    """Return the number of subspaces of product quantisation: of four dimensions each, or fewer."""
    return next(parts for parts in range(math.ceil(dim / 4), dim + 1) if dim % parts == 0)
