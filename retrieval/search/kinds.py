"""The kinds of index there are: how FAISS builds each, and what can be turned when it is searched."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from retrieval.errors import InputError, did_you_mean
from retrieval.search.vectors import bitmap

AIM = 10  # neighbours for which parameters are chosen and recall is stated
_TRAINED_ON = 64  # vectors for each cell
_LINKS = 32  # of an HNSW node on each level, twice as many on the lowest
_NUMBER = 8  # bytes of a row's number


@dataclass(frozen=True)
class Kind:
    """A way to find candidates without looking at every vector; the stored vectors decide among these.

    Attributes:
        name: what users call it.
        factory: (dimension, cells) -> the string that FAISS's `index_factory` takes.
        size: dimension -> bytes that a vector takes in it.
        oversample: candidates per neighbour wanted, fewest first.
        efforts: how hard to search, weakest first: cells visited, or HNSW's `efSearch`.
        growth: time per query grows with the number of vectors to this power.
    """

    name: str
    factory: Callable[[int, int], str]
    size: Callable[[int], int]
    oversample: tuple[int, ...]
    efforts: tuple[int, ...] = (1,)
    growth: float = 1.0

    @property
    def in_cells(self) -> bool:
        """Whether vectors lie in cells, of which a search visits some."""
        return self.name.startswith("ivf")


def _product(d: int, cells: int) -> str:
    # Four bits for each part, which FAISS compares within registers. With exact scores afterwards this was
    # faster than RaBitQ at equal memory (60,000 x 512, FAISS 1.15.1); OPQ takes minutes to train.
    return f"IVF{cells},PQ{_subspaces(d)}x4fs"


def _product_size(d: int) -> int:
    return (_subspaces(d) + 1) // 2 + _NUMBER


_CELLS = tuple(2**i for i in range(15))
_ALL = (
    # Every vector, one byte a dimension.
    Kind("sq8", lambda d, _: "IDMap,SQ8", lambda d: d + _NUMBER, (1, 2, 4, 10)),
    # Every vector, one byte for eight dimensions. In one cell: FAISS's index without cells takes no filter.
    Kind("pq", lambda d, _: _product(d, 1), _product_size, (2, 5, 10, 20, 40)),
    # Vectors in cells: as they are, one byte a dimension, one byte for eight.
    Kind("ivf-flat", lambda d, n: f"IVF{n},Flat", lambda d: 4 * d + _NUMBER, (1,), _CELLS, 0.5),
    Kind("ivf-sq8", lambda d, n: f"IVF{n},SQ8", lambda d: d + _NUMBER, (2, 10), _CELLS, 0.5),
    Kind("ivf-pq", _product, _product_size, (5, 10, 20, 40), _CELLS, 0.5),
    # A graph of neighbours, one byte a dimension.
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
    """The name of a kind, or an `InputError` that says which there are."""
    if name not in NAMES:
        hint = did_you_mean(name, NAMES, f"there are: {', '.join(NAMES)}")
        raise InputError(f"unknown index kind {name!r}; {hint}")
    return name


def memory_needed(name: str, dim: int, count: int) -> int:
    """Bytes that must be in memory for a kind, or `flat`, to be fast with `count` vectors."""
    if name == "flat":
        return 4 * dim * count
    kind = APPROXIMATE[name]
    return kind.size(dim) * count + (4 * dim * cells(count) if kind.in_cells else 0)


def growth(name: str) -> float:
    """Time per query of a kind grows with the number of vectors to this power."""
    return 1.0 if name == "flat" else APPROXIMATE[name].growth


def trained(kind: Kind, sample: np.ndarray, count: int, centroids: np.ndarray | None = None) -> faiss.Index:
    """An empty index of a kind for `count` vectors, trained on a sample float32 [n, D].

    Args:
        centroids: of the cells, float32 [cells, D], where they are known already.
    """
    index = faiss.index_factory(
        sample.shape[1], kind.factory(sample.shape[1], cells(count)), faiss.METRIC_INNER_PRODUCT
    )
    # With too few to train on, FAISS would warn or refuse; the same ones several times do no harm.
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
    """The centres of the cells, float32 [cells, D]."""
    return faiss.downcast_index(index.quantizer).reconstruct_n(0, index.nlist)


def cells(count: int) -> int:
    """Cells for so many vectors: the power of two next to 4 sqrt(n), and 40 vectors in each at least."""
    wanted = round(math.log2(4 * math.sqrt(max(1, count))))
    return 2 ** min(wanted, int(math.log2(max(1, count / 40))), len(_CELLS) - 1)


def trained_on(count: int) -> int:
    """Vectors that training takes when there are `count`."""
    return min(count, max(_TRAINED_ON * cells(count), 65_536))


def efforts(kind: Kind, index: faiss.Index) -> list[int]:
    """How hard an index of a kind can be searched, weakest first."""
    most = index.nlist if kind.in_cells else kind.efforts[-1]
    return [effort for effort in kind.efforts if effort <= most]


def candidates(
    index: faiss.Index,
    queries: np.ndarray,
    k: int,
    effort: int,
    oversample: int,
    allowed: np.ndarray | None = None,
    widen: float = 1.0,
) -> np.ndarray:
    """Rows that may be among the k best of the allowed ones, int64 [N, m]; -1 for none.

    More neighbours than parameters were chosen for take more effort.

    Args:
        queries: float32 [N, D].
        allowed: bool [rows].
        widen: how much harder to look than without a filter.
    """
    count = min(max(k, AIM) * oversample, index.ntotal)
    more = max(1.0, k / AIM)
    selector: Any = bitmap(allowed)  # FAISS keeps only a pointer to it
    if isinstance(index, faiss.IndexIVF):
        visited = min(math.ceil(effort * widen * math.sqrt(more)), index.nlist)
        parameters = faiss.SearchParametersIVF(nprobe=visited, sel=selector)
    elif isinstance(faiss.downcast_index(index.index), faiss.IndexHNSW):
        reach = max(math.ceil(effort * widen * more), count)
        parameters = faiss.SearchParametersHNSW(efSearch=reach, sel=selector)
    else:
        parameters = faiss.SearchParameters(sel=selector)
    # `faiss.contrib.torch_utils`, which other libraries import, puts a search without `params` in this place.
    search_arrays = getattr(index, "search_numpy", index.search)
    return search_arrays(queries, count, params=parameters)[1]


def _subspaces(dim: int) -> int:
    """Parts that product quantisation cuts a vector into: of four dimensions, or of fewer if it must be."""
    return next(parts for parts in range(math.ceil(dim / 4), dim + 1) if dim % parts == 0)
