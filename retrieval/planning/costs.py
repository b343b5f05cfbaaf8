"""Costs of an index at any size and dimension, from those measured at one size and some dimensions.

Work is counted in vectors that are compared. A search compares every vector; or the cells and the vectors of
those that it visits; or, in a graph, a number that grows with a power of the vectors, measured between
6 x 10^4 and 10^6, since a graph must look farther to reach the same recall. The number of visited cells is
taken to stay, although it falls from 10^5 to 10^7 vectors, and to be that of the harder of two data sets:
benchmarks/gallery_scale.json visits more cells than benchmarks/index_kinds.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from retrieval.planning.constants import KindCosts, Measured, Search, StoreCosts
from retrieval.search import kinds
from retrieval.search.kinds import AIM

RECALLS = (0.95, 0.99)  # at which searches were measured
HIGHEST = 0.999  # recall up to which their costs are extrapolated
_LEAST_CELLS = 1 << 15  # cells from which a graph finds those to visit
_SCANNED = 1 << 14  # comparisons that the graph over so many cells is worth: see retrieval/search/kinds.py
_TRAINING = 0.75  # of the vectors: k-means in two levels, sample of n cells, 4 sqrt(n) cells
PAGE = 4096  # bytes that a disk reads at least


@dataclass(frozen=True)
class Query:
    """What one search costs.

    Attributes:
        ms: Milliseconds of one core.
        read: Bytes read from disk, if nothing of it is in memory.
        places: Number of places of the disk from which they are read, likewise.
    """

    ms: float
    read: float = 0.0
    places: float = 0.0


def by_dimension(values: Mapping[int, float], dim: int) -> float:
    """Return a value at a dimension: a power law through the values at the two dimensions next to it.

    Values do not fall with the dimension. A single value is taken as proportional to it.
    """
    known = sorted(values)
    if len(known) == 1:
        return values[known[0]] * dim / known[0]
    above = min(max(sum(each < dim for each in known), 1), len(known) - 1)
    low, high = known[above - 1], known[above]
    if not values[low]:
        return values[high]
    power = max(0.0, math.log(values[high] / values[low]) / math.log(high / low))
    return float(values[low] * (dim / low) ** power)


def at_recall(low: float, high: float, recall: float) -> float:
    """Return a cost at a recall, given those at 0.95 and 0.99: it grows with a power of 1 / (1 - recall)."""
    if recall <= RECALLS[0] or not low:
        return low
    power = math.log(high / low) / math.log((1 - RECALLS[0]) / (1 - RECALLS[1]))
    return float(low * ((1 - RECALLS[0]) / (1 - recall)) ** power)


def cells_of(name: str, count: float, dim: int) -> int:
    """Return the number of cells of an index kind; 1 if it has none."""
    return kinds.number_of_cells(int(count), dim) if kinds.APPROXIMATE[name].in_cells else 1


def compared_with_cells(cells: float) -> float:
    """Return the comparisons that find the cells of a vector."""
    return cells if cells < _LEAST_CELLS else _SCANNED * math.log(cells) / math.log(_LEAST_CELLS)


def growth(name: str, effort: int, count: float, dim: int, constants: Measured) -> float:
    """Return the time of a search among `count` vectors, relative to the measured one.

    Args:
        name: Index kind, or "flat".
        effort: Effort of the measured search.
        count: Number of vectors.
        dim: Their dimension.
        constants: Constants; the search was measured among `constants.count` vectors.
    """
    ratio = count / constants.count
    if name == "flat":
        return ratio
    kind = kinds.APPROXIMATE[name]
    if kind.in_graph:
        return math.pow(ratio, constants.growth)
    if not kind.in_cells:
        return ratio

    def work(n: float, visited: int) -> float:
        cells = cells_of(name, n, dim)
        return compared_with_cells(cells) + min(visited, cells) * n / cells

    return work(count, max(effort, constants.effort)) / work(constants.count, effort)


def costs_of(name: str, constants: Measured) -> dict[int, KindCosts]:
    """Return the costs of a kind at each dimension; of the same in memory for one with cells on disk."""
    same = name if not kinds.is_on_disk(name) else kinds.instead_of(name)
    return {dim: of[same] for dim, of in constants.kinds.items() if same in of}


def query(name: str, count: float, dim: int, recall: float, constants: Measured) -> Query | None:
    """Return the cost of a search in an index kind; `None` if it does not reach the recall.

    Args:
        name: Index kind, or "flat".
        count: Number of vectors.
        dim: Their dimension.
        recall: Share of the 10 nearest.
        constants: Constants.
    """
    costs = costs_of(name, constants)
    if not costs:
        return None
    nearest = min(costs, key=lambda each: abs(math.log(each / dim)))
    found: list[Query | None] = []
    for wanted in RECALLS:
        search = costs[nearest].searches[wanted]
        times = {
            each: one.ms * growth(name, one.effort, count, dim, constants)
            for each, kind in costs.items()
            if (one := kind.searches[wanted])
        }
        reads = None if search is None else _reads(name, search, count, dim, constants.effort)
        found.append(reads and Query(by_dimension(times, dim), *reads))
    low, high = found
    if name == "flat" or low is None or recall <= RECALLS[0]:
        return low
    if high is None or recall > HIGHEST:
        return None
    # A recall never costs less than a lower one, whatever the noise of the measurements.
    pairs = zip(astuple(low), astuple(high), strict=True)
    return Query(*(at_recall(cost, max(cost, more), recall) for cost, more in pairs))


def _reads(name: str, search: Search, count: float, dim: int, effort: int) -> tuple[float, float]:
    """Return the bytes that a search reads from disk, and from how many places: candidates, cells on disk."""
    if name == "flat":
        return 0.0, 0.0  # its vectors are in memory
    places = float(search.oversample * AIM)
    read = places * max(PAGE, 4 * dim)
    if kinds.is_on_disk(name):
        cells = cells_of(name, count, dim)
        visited = min(max(search.effort, effort), cells)
        read += visited * max(PAGE, count / cells * kinds.APPROXIMATE[name].size(dim))
        places += visited
    return read, places


def build_seconds(name: str, count: float, dim: int, constants: Measured) -> float | None:
    """Return the CPU seconds of training an index and adding all vectors; `None` if it was not measured.

    Training grows with the vectors at most: they are read once for the true neighbours of some queries, while
    k-means in two levels grows with the 1.5th power of the cells, up to a sample of 1 GiB. Adding a vector
    compares it with the cells, or follows the graph.
    """
    if name == "flat":
        return 0.0
    kind, costs = kinds.APPROXIMATE[name], costs_of(name, constants)
    if not costs:
        return None
    train = by_dimension({each: one.train_seconds for each, one in costs.items()}, dim)
    add = by_dimension({each: one.add_seconds for each, one in costs.items()}, dim)
    factor = 1.0
    if kind.in_cells:
        ratio = [compared_with_cells(cells_of(name, n, dim)) for n in (count, constants.count)]
        factor = ratio[0] / ratio[1]
    elif kind.in_graph:
        factor = math.log(max(count, math.e)) / math.log(constants.count)
    larger = count / constants.count
    training = train * max(larger, math.pow(larger, _TRAINING))
    return training + add * factor * count / 1e6


def dimension_power(constants: Measured) -> float:
    """Return the power of the dimension by which searches of a graph grow, as measured with FAISS."""
    found = {dim: of["hnsw"].searches[RECALLS[0]] for dim, of in constants.kinds.items() if "hnsw" in of}
    times = {dim: search.ms for dim, search in found.items() if search}
    if len(times) < 2:
        return 1.0
    low, high = min(times), max(times)
    return max(0.0, math.log(times[high] / times[low]) / math.log(high / low))


def store_query(
    store: StoreCosts, count: float, dim: int, recall: float, constants: Measured
) -> float | None:
    """Return the CPU milliseconds of a search in a store's graph; `None` if it does not reach the recall."""
    reached = [ms for _, found, ms in store.searches if found >= recall]
    if not reached or recall > HIGHEST:
        return None
    larger = math.pow(count / store.count, constants.growth)
    return min(reached) * larger * math.pow(dim / store.dim, dimension_power(constants))


def store_build_seconds(store: StoreCosts, count: float, dim: int, constants: Measured) -> float:
    """Return the CPU seconds of inserting and indexing vectors in a store."""
    larger = math.log(max(count, math.e)) / math.log(store.count)
    return store.build_seconds * count * larger * math.pow(dim / store.dim, dimension_power(constants))
