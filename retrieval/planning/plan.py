"""Capacity planning: memory, disk, time and machines of each index kind and store, before they are built.

Bytes follow from file formats and from what stores publish. Times are extrapolated from measurements: work
is counted in vectors that are compared. A search compares every vector; or the cells and the vectors of those
that it visits; or, in a graph, a number that grows with a power of the vectors. The number of visited cells
is taken to stay, and to be that of the harder of two data sets: benchmarks/gallery_scale.json visits more
cells than benchmarks/index_kinds.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from retrieval.errors import InputError
from retrieval.planning.constants import (
    DECODE_MS,
    EFFORT,
    EMBED_MS,
    FACTS_MS,
    GRAPH_GROWTH,
    ITEM_BYTES,
    KINDS,
    MEASURED,
    MILVUS_MEMORY,
    PGVECTOR,
    PGVECTOR_ELEMENT,
    PLACE_MS,
    POSTGRES_PAGE,
    POSTGRES_USABLE,
    QDRANT_LINK_BYTES,
    QDRANT_MEMORY,
    RECALLS,
    STORE_DIM,
    STORE_MEASURED,
    STORES,
    USABLE_MEMORY,
    KindCosts,
    Search,
)
from retrieval.planning.sizes import bytes_text, count_text
from retrieval.search import kinds
from retrieval.search.kinds import AIM

ENGINES = ("embedded", "on disk", "postgres", "qdrant", "milvus")  # from the simplest to run
HIGHEST = 0.999  # recall up to which costs are extrapolated
MOST_IMAGES = 10**11
_MOST_MACHINES = 1000  # beyond which a setup counts as too large
_WORTH = 2  # times the fewest machines that a simpler engine may need
_ABOUT_EQUAL = 1.25  # ratio of times below which the smaller index is preferred, as `index build` does
_LEAST_CELLS = 1 << 15  # cells from which a graph finds those to visit
_SCANNED = 1 << 14  # comparisons that the graph over so many cells is worth: see retrieval/search/kinds.py
_TRAINING = 0.75  # of the vectors: k-means in two levels, sample of n cells, 4 sqrt(n) cells
_PAGE = 4096  # bytes that a disk reads at least
_Bytes = Callable[[float, int], float]  # of so many vectors of a dimension
# Qdrant's own request; without it a collection keeps float32 vectors only.
_QUANTIZED = (
    "then, in Qdrant: PATCH /collections/COLLECTION "
    '{"quantization_config": {"scalar": {"type": "int8", "always_ram": true}}}'
)


@dataclass(frozen=True)
class Need:
    """What is asked for.

    Attributes:
        images: Number of images.
        dim: Dimension of their vectors.
        recall: Share of the 10 nearest that a search must find.
        memory: Bytes of memory of a machine.
        cores: Cores of a machine.
        qps: Searches per second, of all clients together.
        latency: Most milliseconds that a search may take, without the network.
        disk_speed: Bytes that the disk of a machine reads in a second.
    """

    images: int
    dim: int
    recall: float
    memory: int
    cores: int = 16
    qps: float = 10.0
    latency: float = 1000.0
    disk_speed: int = 2 * 10**9

    def __post_init__(self) -> None:
        if not 1 <= self.images <= MOST_IMAGES:
            raise InputError(
                f"--images: {count_text(self.images)} is not between 1 and {count_text(MOST_IMAGES)}, for "
                "which the formulas hold; plan a part of the images and multiply"
            )
        if not 1 <= self.dim <= 32768:
            raise InputError(f"--dim: {self.dim} is not between 1 and 32,768, the most that any store takes")
        if not 0 < self.recall <= 1:
            raise InputError(f"--recall: {self.recall:g} is not above 0 and at most 1; try 0.95")

    @property
    def embedding_hours(self) -> float:
        """Hours of one core to decode and embed the images with a ResNet-18."""
        return self.images * (DECODE_MS + EMBED_MS) / 3.6e6


class Query(NamedTuple):
    """What one search costs.

    Attributes:
        ms: Milliseconds of one core.
        read: Bytes read from disk, if nothing of it is in memory.
        places: Number of places of the disk from which they are read, likewise.
    """

    ms: float
    read: float = 0.0
    places: float = 0.0


@dataclass(frozen=True)
class Setup:
    """A way to serve vectors; every function takes the number of vectors and their dimension.

    Attributes:
        name: Name for users.
        engine: One of `ENGINES`.
        memory: Returns the bytes of memory that searches need to be fast.
        index: Returns the bytes of the index on disk, beside the vectors.
        vectors: Returns the bytes of the vectors on disk, with the facts about the images.
        build: Returns the CPU seconds that build the index.
        search: Of the recall as well; returns the cost of a search, `None` if the recall is not reached.
        spans: Whether several machines share the vectors.
        most_dims: Most dimensions that it can index.
        options: Options of `index build`, beside those of the engine.
        advice: What to do after `index build`; "" for nothing.
    """

    name: str
    engine: str
    memory: _Bytes
    index: _Bytes
    vectors: _Bytes
    build: Callable[[float, int], float]
    search: Callable[[float, int, float], Query | None]
    spans: bool = False
    most_dims: float = math.inf
    options: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Estimate:
    """What one setup takes.

    Attributes:
        setup: The setup.
        memory: Bytes of memory, of all machines together.
        disk_vectors: Bytes on disk of vectors and facts about the images.
        disk_index: Bytes on disk of the index.
        build_hours: Hours of one core to build the index.
        search_ms: Milliseconds of one core per search, on all machines that share the vectors.
        latency_ms: Milliseconds of one search on one core of each machine, with its reads from disk.
        machines: Machines for memory, cores and disk reads; 0 if the recall is not reached.
        bound: What the number of machines follows from: "memory", "cores" or "disk reads".
        problem: Why it cannot serve the need; "" if it can.
    """

    setup: Setup
    memory: float
    disk_vectors: float
    disk_index: float
    build_hours: float
    search_ms: float
    latency_ms: float
    machines: int
    bound: str
    problem: str

    @property
    def disk(self) -> float:
        """Bytes on disk."""
        return self.disk_vectors + self.disk_index


# ---- costs of an index kind of FAISS


def by_dimension(values: Mapping[int, float], dim: int) -> float:
    """Return a value at a dimension: a power law through the values at the two dimensions next to it.

    Values do not fall with the dimension. A single value is taken as proportional to it.
    """
    known = sorted(values)
    if len(known) == 1:
        return values[known[0]] * dim / known[0]
    above = min(max(sum(each < dim for each in known), 1), len(known) - 1)
    low, high = known[above - 1], known[above]
    power = math.log(values[high] / values[low]) / math.log(high / low) if values[low] else 0.0
    return float((values[low] or values[high]) * (dim / low) ** max(0.0, power))


def _at_recall(low: float, high: float, recall: float) -> float:
    """Return a cost at a recall above 0.95: it grows with a power of 1 / (1 - recall)."""
    if not low:
        return low
    # A recall never costs less than a lower one, whatever the noise of the measurements.
    power = math.log(max(low, high) / low) / math.log((1 - RECALLS[0]) / (1 - RECALLS[1]))
    return float(low * ((1 - RECALLS[0]) / (1 - recall)) ** power)


def _costs_of(name: str) -> dict[int, KindCosts]:
    """Return the costs of a kind at each dimension; of the same in memory for one with cells on disk."""
    same = kinds.instead_of(name) if kinds.is_on_disk(name) else name
    return {dim: of[same] for dim, of in KINDS.items()}


def _cells_compared(cells: float) -> float:
    """Return the comparisons that find the cells of a vector."""
    return cells if cells < _LEAST_CELLS else _SCANNED * math.log(cells) / math.log(_LEAST_CELLS)


def _growth(name: str, effort: int, count: float, dim: int) -> float:
    """Return the time of a search among `count` vectors, relative to the measured one."""
    if name != "flat" and kinds.APPROXIMATE[name].in_graph:
        return math.pow(count / MEASURED, GRAPH_GROWTH)
    if name == "flat" or not kinds.APPROXIMATE[name].in_cells:
        return count / MEASURED

    def work(n: float, visited: int) -> float:
        cells = kinds.number_of_cells(int(n), dim)
        return _cells_compared(cells) + min(visited, cells) * n / cells

    return work(count, max(effort, EFFORT)) / work(MEASURED, effort)


def _kind_query(name: str, count: float, dim: int, recall: float) -> Query | None:
    costs = _costs_of(name)
    nearest = costs[min(costs, key=lambda each: abs(math.log(each / dim)))]
    found = []
    for place, search in enumerate(nearest.searches):
        times = {
            each: one.ms * _growth(name, one.effort, count, dim)
            for each, kind in costs.items()
            if (one := kind.searches[place])
        }
        found.append(search and Query(by_dimension(times, dim), *_reads(name, search, count, dim)))
    low, high = found
    if name == "flat" or low is None or recall <= RECALLS[0]:
        return low
    if high is None or recall > HIGHEST:
        return None
    return Query(*(_at_recall(*pair, recall) for pair in zip(low, high, strict=True)))


def _reads(name: str, search: Search, count: float, dim: int) -> tuple[float, float]:
    """Return the bytes that a search reads from disk, and from how many places: candidates, cells on disk."""
    if name == "flat":
        return 0.0, 0.0  # its vectors are in memory
    places = float(search.oversample * AIM)
    read = places * max(_PAGE, 4 * dim)
    if kinds.is_on_disk(name):
        cells = kinds.number_of_cells(int(count), dim)
        visited = min(max(search.effort, EFFORT), cells)
        read += visited * max(_PAGE, count / cells * kinds.APPROXIMATE[name].size(dim))
        places += visited
    return read, places


def _kind_build(name: str, count: float, dim: int) -> float:
    """Return the CPU seconds of training an index and adding all vectors.

    Training grows with the vectors at most: they are read once for the true neighbours of some queries, while
    k-means in two levels grows with the 1.5th power of the cells, up to a sample of 1 GiB. Adding a vector
    compares it with the cells, or follows the graph.
    """
    if name == "flat":
        return 0.0
    kind, costs = kinds.APPROXIMATE[name], _costs_of(name)
    train = by_dimension({each: one.train_seconds for each, one in costs.items()}, dim)
    add = by_dimension({each: one.add_seconds for each, one in costs.items()}, dim)
    if kind.in_cells:
        here, measured = (_cells_compared(kinds.number_of_cells(int(n), dim)) for n in (count, MEASURED))
        add *= here / measured
    elif kind.in_graph:
        add *= math.log(max(count, math.e)) / math.log(MEASURED)
    larger = count / MEASURED
    return train * max(larger, math.pow(larger, _TRAINING)) + add * count / 1e6


# ---- setups


def _faiss(name: str) -> Setup:
    on_disk = kinds.is_on_disk(name)

    def memory(count: float, dim: int) -> float:
        return kinds.memory_needed(name, dim, int(count))

    def index(count: float, dim: int) -> float:
        on_disk_too = kinds.disk_needed(name, dim, int(count)) if on_disk else 0
        return 0 if name == "flat" else memory(count, dim) + on_disk_too

    def search(count: float, dim: int, recall: float) -> Query | None:
        found = _kind_query(name, count, dim, recall)
        return found and found._replace(ms=found.ms + FACTS_MS)

    return Setup(
        name,
        "on disk" if on_disk else "embedded",
        memory,
        index,
        lambda count, dim: count * (4 * dim + ITEM_BYTES),
        lambda count, dim: _kind_build(name, count, dim),
        search,
    )


def _store(name: str, places: int, memory: _Bytes, index: _Bytes) -> Setup:
    """Return a setup of a store that was measured; a search reads so many places of its disk."""
    costs = STORES[name]
    times = {dim: of["hnsw"].searches[0].ms for dim, of in KINDS.items() if of["hnsw"].searches[0]}

    def larger_dim(dim: int) -> float:
        return by_dimension(times, dim) / by_dimension(times, STORE_DIM)

    def build(count: float, dim: int) -> float:
        larger = math.log(max(count, math.e)) / math.log(STORE_MEASURED)
        return costs.build_seconds * count * larger * larger_dim(dim)

    def search(count: float, dim: int, recall: float) -> Query | None:
        reached = [ms for found, ms in costs.searches if found >= recall]
        if not reached or recall > HIGHEST:
            return None
        ms = reached[0] * math.pow(count / STORE_MEASURED, GRAPH_GROWTH) * larger_dim(dim)
        return Query(ms, places * max(_PAGE, 4 * dim), places)

    def rows(count: float, dim: int) -> float:
        return count * by_dimension(costs.row_bytes, dim)

    return Setup(name, name.split()[0], memory, index, rows, build, search)


def _postgres(type_: str) -> Setup:
    most, number = PGVECTOR[type_]

    def index(count: float, dim: int) -> float:
        return count * POSTGRES_PAGE / max(1, POSTGRES_USABLE // (PGVECTOR_ELEMENT + number * dim))

    options = "--storage float16" if type_ == "halfvec" else ""
    # The rows of the hits come from the table.
    return replace(_store(f"postgres {type_}", AIM, index, index), most_dims=most, options=options)


def _qdrant(type_: str) -> Setup:
    def links(count: float, _: int) -> float:
        """Return the bytes of the links, whose numbers are packed into as few bits as they need."""
        return count * QDRANT_LINK_BYTES * math.log(max(count, 2)) / math.log(STORE_MEASURED)

    def memory(count: float, dim: int) -> float:
        if type_ == "float32":
            return count * QDRANT_MEMORY * 4 * dim
        return count * QDRANT_MEMORY * dim + links(count, dim)  # the published factor is for float32

    whole = type_ == "float32"
    places = 0 if whole else 2 * AIM  # candidates, compared in float32
    advice = "" if whole else _QUANTIZED
    return replace(_store(f"qdrant {type_}", places, memory, links), spans=True, advice=advice)


def _milvus() -> Setup:
    """Return Milvus with HNSW, at the speed of FAISS's: the same algorithm; its server was not measured."""
    (small, low), (large, high) = MILVUS_MEMORY.items()
    slope = (high - low) / (large - small)

    def memory(count: float, dim: int) -> float:
        return count * max(low + slope * (dim - small), 4 * dim)

    def search(count: float, dim: int, recall: float) -> Query | None:
        found = _kind_query("hnsw", count, dim, recall)
        return found and Query(found.ms)

    return Setup(
        "milvus hnsw",
        "milvus",
        memory,
        memory,
        lambda count, dim: count * 4 * dim,
        lambda count, dim: _kind_build("hnsw", count, dim),
        search,
        spans=True,
    )


SETUPS = (
    *map(_faiss, ("flat", *sorted(kinds.APPROXIMATE, key=kinds.is_on_disk))),
    *map(_postgres, PGVECTOR),
    *map(_qdrant, ("float32", "int8")),
    _milvus(),
)


# ---- a need


def estimate(setup: Setup, need: Need) -> Estimate:
    """Return what a setup takes for a need."""
    count, dim = need.images, need.dim
    memory, vectors, index = (of(count, dim) for of in (setup.memory, setup.vectors, setup.index))
    usable = USABLE_MEMORY * need.memory
    held = max(1, math.ceil(memory / usable))
    problem = ""
    if dim > setup.most_dims:
        problem = f"it indexes up to {setup.most_dims:,} dimensions"
    elif held > 1 and not setup.spans:
        problem, held = f"needs one machine of {bytes_text(memory / USABLE_MEMORY)}", 1
    query = setup.search(count / held, dim, need.recall)
    search_ms = latency = 0.0
    machines, bound = 0, "memory"
    if query is None:
        problem = problem or f"recall {need.recall:g} is not reached"
    else:
        # What of the disk is not in the memory that is left.
        cold = max(0.0, 1 - max(0.0, usable * held - memory) / (vectors + index))
        read = cold * query.read
        search_ms = held * query.ms
        latency = query.ms + cold * query.places * PLACE_MS + 1000 * read / need.disk_speed
        wanted = {
            "memory": held,
            "cores": math.ceil(need.qps * search_ms / 1000 / need.cores),
            "disk reads": math.ceil(need.qps * held * read / need.disk_speed),
        }
        bound = max(wanted, key=lambda name: wanted[name])
        machines = wanted[bound]
        if latency > need.latency:
            problem = problem or f"a search takes longer than {need.latency:g} ms"
        elif machines > _MOST_MACHINES:
            problem = problem or f"needs {machines:,} machines, for {bound}"
    hours = setup.build(count, dim) / 3600
    return Estimate(setup, memory, vectors, index, hours, search_ms, latency, machines, bound, problem)


def recommend(estimates: Sequence[Estimate]) -> Estimate | None:
    """Return the setup to use; `None` if none can serve the need.

    It is of the simplest engine that needs at most twice the machines of the best one. Among the setups of
    this engine with the fewest machines, the fastest wins; of times within a quarter, the smaller one.
    """
    fitting = [each for each in estimates if not each.problem]
    if not fitting:
        return None
    most = _WORTH * min(each.machines for each in fitting)
    engine = min((each.setup.engine for each in fitting if each.machines <= most), key=ENGINES.index)
    fitting = [each for each in fitting if each.setup.engine == engine]
    least = min(each.machines for each in fitting)
    best = [each for each in fitting if each.machines == least]
    fastest = min(each.search_ms for each in best)
    return min(best, key=lambda each: (int(math.log(each.search_ms / fastest, _ABOUT_EQUAL)), each.memory))


def reason(best: Estimate, estimates: Sequence[Estimate]) -> str:
    """Return why a setup is recommended."""
    where = "one machine" if best.machines == 1 else f"{best.machines:,} machines"
    if best.machines > 1 and not best.setup.spans:
        where += ", each with all vectors"
    if best.setup.engine == "embedded":
        fastest = "the fastest that fits" if best.machines == 1 else "the fewest machines"
        return f"{fastest} into {where}; one process and its files, nothing else to run"
    order = ENGINES.index(best.setup.engine)
    simpler = [each for each in estimates if not each.problem and ENGINES.index(each.setup.engine) < order]
    if not simpler:
        return f"{where}; no simpler engine holds so many vectors and is as fast"
    other = min(simpler, key=lambda each: each.machines)
    return (
        f"{where} instead of {other.machines:,} with {other.setup.name}, which needs them for {other.bound}"
    )


def least_memory(need: Need) -> int | None:
    """Return a memory of machines, a power of two in GB, with which some setup serves the need."""
    for size in (10**9 << power for power in range(15)):
        if size > need.memory and recommend([estimate(s, replace(need, memory=size)) for s in SETUPS]):
            return size
    return None
