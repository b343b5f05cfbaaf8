"""Index kinds: how FAISS builds each, its memory, and its search parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrieval.errors import InputError, did_you_mean
from retrieval.machine import lazy_faiss as faiss

AIM = 10  # neighbours for which parameters are chosen and recall is measured
# Cells from which a graph finds those to visit. Of 32,768 x 128 it takes 0.15 ms for 8 cells and 0.30 ms for
# 64, a scan 0.42 and 0.46; of 16,384 it takes 0.10 and 0.17 ms, a scan 0.13 and 0.15.
_GRAPH_OVER_CELLS = 1 << 15
_COARSE_LINKS = 32  # of that graph
_COARSE_REACH = 64  # its least efSearch
_LINKS = 32  # links of an HNSW node on each level, twice as many on the lowest
SAMPLE_BYTES = 1 << 30  # training vectors in memory
_MIN_PER_CELL = 32  # training vectors per cell
OVERSAMPLE_LEADING = (2, 5, 10, 20, 40, 80)  # candidates per neighbour of an index of leading dimensions
_BLOCK = 32  # codes that FAISS's fast scan compares at once
_NUMBER = 8  # bytes of a vector number
_LIST = 128  # bytes of memory for a list on disk


@dataclass(frozen=True)
class Kind:
    """An approximate index, which proposes candidates; exact scores decide among them.

    Attributes:
        name: Name for users.
        factory: Function of (dimension, cells) that returns the string for FAISS's `index_factory`.
        size: Function of the dimension that returns the bytes per vector.
        oversample: Candidates per requested neighbour to try, ascending.
        efforts: Search efforts to try, ascending: visited cells, or HNSW's `efSearch`.
        in_cells: Whether vectors are partitioned into cells (FAISS's IVF), of which a search visits some.
        in_graph: Whether a search follows a graph of neighbours (FAISS's HNSW).
        in_blocks: Whether a cell stores codes in blocks of 32, of which the last is half empty on average.
        on_disk: Whether the cells stay on disk, where they are built as well; memory holds the centroids.
        instead_of: Larger kind that is at least as fast, so that this one is for less memory only.
        metric: FAISS metric; vectors of unit length have the same order by distance as by inner product.
    """

    name: str
    factory: Callable[[int, int], str]
    size: Callable[[int], int]
    oversample: tuple[int, ...]
    efforts: tuple[int, ...] = (1,)
    in_cells: bool = False
    in_graph: bool = False
    in_blocks: bool = False
    on_disk: bool = False
    instead_of: str = ""
    metric: int = faiss.METRIC_INNER_PRODUCT


def _product(d: int, cells: int) -> str:
    # Four bits per subspace, which FAISS compares within registers. OPQ takes minutes to train.
    return _in_cells(f"PQ{_subspaces(d)}x4fs")(d, cells)


def _product_size(d: int) -> int:
    return (_subspaces(d) + 1) // 2 + _NUMBER


def _in_cells(codes: str) -> Callable[[int, int], str]:
    """Return a factory of an index whose cells hold codes, found by a graph if there are many cells."""

    def factory(_: int, cells: int) -> str:
        graph = f"_HNSW{_COARSE_LINKS}" if cells >= _GRAPH_OVER_CELLS else ""
        return f"IVF{cells}{graph},{codes}"

    return factory


def _steps(first: int, last: int) -> tuple[int, ...]:
    """Return the powers of two from `first` to `last`, with 1.5 times each between them."""
    powers = [2**i for i in range(first.bit_length() - 1, last.bit_length())]
    return tuple(sorted({*powers, *(3 * power // 2 for power in powers[1:-1])}))


# Least CPU milliseconds of one query with exact scores at recall 0.99 (AVX-512, FAISS 1.15.1), and bytes a
# vector, on clustered vectors, near noise, and real embeddings of 50,420 crops; "-": not reached.
#
#                 200,000 x 128           60,000 x 512            50,420 x 64
#                 B    clustered  noise   B    clustered  noise   B    real
#   sq8           136  2.29       2.19    520  3.90       4.05    72   0.37
#   pq            24   0.27       -       73   0.22       0.72    16   -
#   rabitq        32   1.22       -       80   0.53       -       24   -
#   ivf-sq8       141  0.07       1.16    555  0.18       0.15    77   0.12
#   ivf-sq4       77   0.08       1.20    299  0.22       0.19    45   0.17
#   ivf-pq        32   0.11       -       124  0.16       0.56    24   -
#   ivf-rabitq    41   0.13       -       133  0.19       0.73    35   0.57
#   4 bits of it  111  0.15       3.85    389  0.36       0.63    82   0.30
#   hnsw          408  0.06       5.36    792  0.09       2.80    344  0.13
#   hnsw 4 bits   344  0.09       4.96    536  0.11       2.80    312  0.27
#   hnsw-rabitq   304  0.15       -       352  0.12       5.88    296  -
#   hnsw, pq      296  0.18       -       345  0.38       -       288  -
#
# So RaBitQ without cells, with more bits, and the graph over product quantisation win nowhere.
_CELLS = _steps(1, 1 << 18)
_ALL = (
    # All vectors, one byte per dimension.
    Kind("sq8", lambda d, _: "IDMap,SQ8", lambda d: d + _NUMBER, (1, 2, 4, 10)),
    # All vectors, one byte per eight dimensions. In one cell: FAISS's index without cells takes no filter.
    Kind("pq", lambda d, _: _product(d, 1), _product_size, (2, 5, 10, 20, 40, 80)),
    # Vectors in cells: unchanged, one byte per dimension, half a byte, one byte per eight dimensions.
    Kind("ivf-flat", _in_cells("Flat"), lambda d: 4 * d + _NUMBER, (1,), _CELLS, in_cells=True),
    Kind("ivf-sq8", _in_cells("SQ8"), lambda d: d + _NUMBER, (2, 10), _CELLS, in_cells=True),
    Kind("ivf-sq4", _in_cells("SQ4"), lambda d: (d + 1) // 2 + _NUMBER, (2, 5, 10), _CELLS, in_cells=True),
    Kind("ivf-pq", _product, _product_size, (5, 10, 20, 40, 80), _CELLS, in_cells=True, in_blocks=True),
    # As `ivf-sq8`, with cells on disk. Smaller codes would save less than their further candidates cost,
    # each of which is read from another place.
    Kind(
        "ivf-disk",
        _in_cells("SQ8"),
        lambda d: d + _NUMBER,
        (2, 10),
        _CELLS,
        in_cells=True,
        on_disk=True,
        instead_of="ivf-sq8",
    ),
    # A graph of neighbours, one byte per dimension.
    Kind(
        "hnsw",
        lambda d, _: f"IDMap,HNSW{_LINKS},SQ8",
        lambda d: d + 8 * _LINKS + 3 * _NUMBER,
        (2, 5),
        _steps(16, 2048),
        in_graph=True,
    ),
    # One bit per dimension and two numbers (RaBitQ), in cells and in a graph.
    Kind(
        "ivf-rabitq",
        _in_cells("RaBitQfs"),
        lambda d: (d + 7) // 8 + 8 + _NUMBER,
        (10, 20, 40, 80),
        _CELLS,
        in_cells=True,
        in_blocks=True,
        instead_of="ivf-sq4",
    ),
    Kind(
        "hnsw-rabitq",
        lambda d, _: f"IDMap,HNSW{_LINKS},RaBitQ",
        lambda d: (d + 7) // 8 + 8 + 8 * _LINKS + 3 * _NUMBER,
        (5, 10, 20, 40),
        _steps(16, 2048),
        in_graph=True,
        instead_of="hnsw",
        metric=faiss.METRIC_L2,
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
    if not kind.in_cells:
        return kind.size(dim) * count
    cells = number_of_cells(count, dim)
    links = 8 * _COARSE_LINKS if cells >= _GRAPH_OVER_CELLS else 0
    if kind.on_disk:
        return (4 * dim + links + _LIST) * cells
    empty = _BLOCK // 2 * (kind.size(dim) - _NUMBER) if kind.in_blocks else 0
    return kind.size(dim) * count + (4 * dim + links + empty) * cells


def instead_of(name: str) -> str:
    """Return the larger kind that a kind is for less memory than, if any."""
    return "" if name == "flat" else APPROXIMATE[name].instead_of


def is_on_disk(name: str) -> bool:
    """Return whether the vectors of a kind stay on disk."""
    return name != "flat" and APPROXIMATE[name].on_disk


def disk_needed(name: str, dim: int, count: int) -> int:
    """Return the bytes of the lists of a kind that stay on disk, without what precedes them in the file."""
    return APPROXIMATE[name].size(dim) * count


def number_of_cells(count: int, dim: int) -> int:
    """Return the number of cells for `count` vectors.

    It is the power of two next to 4 sqrt(n), with 40 vectors each, and at most what a sample of
    `SAMPLE_BYTES` trains with 32 vectors each.
    """
    wanted = round(math.log2(4 * math.sqrt(max(1, count))))
    trained = SAMPLE_BYTES // (4 * dim * _MIN_PER_CELL)
    return int(2 ** min(wanted, int(math.log2(max(1, count / 40))), int(math.log2(max(1, trained)))))


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
        queries: float32 [N, D]; of an index of leading dimensions, these are used.
        k: Number of neighbours.
        effort: Search effort for `AIM` neighbours.
        oversample: Candidates per neighbour.
        selector: FAISS selector of the allowed vector numbers; `None` for all.
        widen: Factor on the effort, for searches with a filter.
    """
    return search(index, queries, *parameters(index, k, effort, oversample, selector, widen))


def parameters(
    index: faiss.Index, k: int, effort: int, oversample: int, selector: Any = None, widen: float = 1.0
) -> tuple[int, Any]:
    """Return the number of candidates of a query, and FAISS's parameters; the arguments: see `candidates`."""
    count = min(max(k, AIM) * oversample, index.ntotal)
    more = max(1.0, k / AIM)
    if isinstance(index, faiss.IndexIVF):
        visited = min(math.ceil(effort * widen * math.sqrt(more)), index.nlist)
        coarse = _coarse_parameters(index, visited)
        return count, faiss.SearchParametersIVF(nprobe=visited, sel=selector, quantizer_params=coarse)
    if isinstance(faiss.downcast_index(index.index), faiss.IndexHNSW):
        reach = max(math.ceil(effort * widen * more), count)
        return count, faiss.SearchParametersHNSW(efSearch=reach, sel=selector)
    return count, faiss.SearchParameters(sel=selector)


def search(index: faiss.Index, queries: np.ndarray, count: int, given: Any) -> np.ndarray:
    """Return the numbers that an index finds, int64 [N, count]; -1 for none.

    It calls FAISS itself: the Python function around it takes as long as a few cells, and
    `faiss.contrib.torch_utils`, which other libraries import, replaces that by one without parameters.

    Args:
        index: FAISS index.
        queries: float32 [N, D]; of an index of leading dimensions, these are used.
        count: Number of candidates.
        given: FAISS's parameters.
    """
    queries = np.ascontiguousarray(leading(queries, index.d), np.float32)
    scores, numbers = np.empty((len(queries), count), np.float32), np.empty((len(queries), count), np.int64)
    found = map(faiss.swig_ptr, (scores, numbers))
    index.search_c(len(queries), faiss.swig_ptr(queries), count, *found, given)
    return numbers


def visited_cells(index: faiss.IndexIVF, queries: np.ndarray, effort: int) -> np.ndarray:
    """Return the cells that a search visits, int64 [N, effort]."""
    coarse = faiss.downcast_index(index.quantizer)
    queries = leading(queries, index.d)
    search_arrays = getattr(coarse, "search_numpy", coarse.search)
    found: np.ndarray = search_arrays(queries, effort, params=_coarse_parameters(index, effort))[1]
    return found


def leading(vectors: np.ndarray, dim: int) -> np.ndarray:
    """Return the leading dimensions of vectors, float32 [N, dim], of unit length again.

    A vector that has nothing in them becomes zero.
    """
    if dim == vectors.shape[1]:
        return vectors
    part = vectors[:, :dim]
    norms = np.linalg.norm(part, axis=1, keepdims=True)
    found: np.ndarray = part / np.maximum(norms, np.finfo(np.float32).tiny)
    return found.astype(np.float32, copy=False)


def _coarse_parameters(index: faiss.IndexIVF, visited: int) -> Any:
    """Return the search parameters of the graph over the cells; `None` if there is no graph."""
    if index.nlist < _GRAPH_OVER_CELLS:
        return None
    return faiss.SearchParametersHNSW(efSearch=max(_COARSE_REACH, 2 * visited))


def _subspaces(dim: int) -> int:
    """Return the number of subspaces of product quantisation: of four dimensions each, or fewer."""
    return next(parts for parts in range(math.ceil(dim / 4), dim + 1) if dim % parts == 0)
