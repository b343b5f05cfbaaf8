"""Setups that can serve a gallery: each index kind of FAISS in one process, and stores with their indexes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from retrieval.planning import costs
from retrieval.planning.constants import Basis, Measured, Number, StoreCosts, cited
from retrieval.search import kinds
from retrieval.search.kinds import AIM

ENGINES = ("embedded", "on disk", "postgres", "qdrant", "milvus")  # from the simplest to run
# Qdrant's own request; without it a collection keeps float32 vectors only.
QUANTIZED = (
    "then, in Qdrant: PATCH /collections/COLLECTION "
    '{"quantization_config": {"scalar": {"type": "int8", "always_ram": true}}}'
)
_FORMAT = "retrieval/search/kinds.py"


@dataclass(frozen=True)
class Setup:
    """A way to serve vectors; every function takes the number of vectors and their dimension.

    Attributes:
        name: Name for users.
        engine: One of `ENGINES`.
        spans: Whether several machines share the vectors.
        memory: Returns the bytes of memory that searches need to be fast.
        index: Returns the bytes of the index on disk, beside the vectors.
        vectors: Returns the bytes of the vectors on disk, with the facts about the images.
        build: Returns the CPU seconds that build the index; `None` if it is not known.
        search: Of the recall as well; returns the cost of a search, `None` if the recall is not reached.
        is_timed: Whether the time of a search is known.
        limit: Returns why it cannot hold vectors of this dimension; "" if it can.
        options: Options of `index build`, beside those of the engine.
        advice: What to do after `index build`; "" for nothing.
        is_built: Whether `index build` builds it; others are shown for comparison.
    """

    name: str
    engine: str
    spans: bool
    memory: Callable[[float, int], Number]
    index: Callable[[float, int], Number]
    vectors: Callable[[float, int], Number]
    build: Callable[[float, int], Number | None]
    search: Callable[[float, int, float], costs.Query | None]
    search_source: tuple[Basis, str]
    is_timed: bool = True
    limit: Callable[[float, int], str] = lambda count, dim: ""
    options: str = ""
    advice: str = ""
    is_built: bool = True


def setups(constants: Measured) -> Iterator[Setup]:
    """Yield all setups, from the simplest engine."""
    names = [*kinds.APPROXIMATE]
    yield from (_faiss(name, constants) for name in ("flat", *sorted(names, key=kinds.is_on_disk)))
    yield from (_postgres(name, constants) for name in ("vector", "halfvec"))
    yield from (_qdrant(name, constants) for name in ("float32", "int8"))
    yield _milvus_hnsw(constants)
    yield _milvus_diskann()


# ---- one process with FAISS


def _faiss(name: str, constants: Measured) -> Setup:
    on_disk = kinds.is_on_disk(name)

    def memory(count: float, dim: int) -> Number:
        return Number(kinds.memory_needed(name, dim, int(count)), "bytes", "computed", _FORMAT)

    def index(count: float, dim: int) -> Number:
        size = 0 if name == "flat" else kinds.memory_needed(name, dim, int(count))
        size += kinds.disk_needed(name, dim, int(count)) if on_disk else 0
        return Number(size, "bytes", "computed", _FORMAT)

    def vectors(count: float, dim: int) -> Number:
        size = 4 * dim + constants.stored_bytes + constants.fact_bytes
        return Number(count * size, "bytes", "measured", constants.sources["gallery"])

    def build(count: float, dim: int) -> Number | None:
        seconds = costs.build_seconds(name, count, dim, constants)
        source = constants.sources["kinds"]
        return None if seconds is None else Number(seconds, "CPU seconds", "extrapolated", source)

    def search(count: float, dim: int, recall: float) -> costs.Query | None:
        found = costs.query(name, count, dim, recall, constants)
        return found and replace(found, ms=found.ms + constants.facts_ms)

    source: tuple[Basis, str] = ("extrapolated", constants.sources["kinds"])
    engine = "on disk" if on_disk else "embedded"
    return Setup(name, engine, False, memory, index, vectors, build, search, source)


# ---- stores


def _store_vectors(store: StoreCosts, count: float, dim: int, source: str) -> Number:
    """Return the bytes on disk beside the index."""
    size = costs.by_dimension(store.disk_bytes, dim) - costs.by_dimension(store.index_bytes, dim)
    return Number(count * max(size, 0), "bytes", "measured", source)


def _postgres(type_: str, constants: Measured) -> Setup:
    store, source = constants.stores[f"postgres {type_}"], constants.sources["stores"]
    number = 4 if type_ == "vector" else 2  # bytes
    most = int(cited("pgvector_dims" if type_ == "vector" else "pgvector_half_dims").value)
    page, header, beside = map(cited, ("postgres_page", "postgres_page_header", "pgvector_element"))

    def index(count: float, dim: int) -> Number:
        elements = max(1, (page.value - header.value) // (beside.value + number * dim))
        return Number(count * page.value / elements, "bytes", "computed", beside.source)

    def build(count: float, dim: int) -> Number:
        seconds = costs.store_build_seconds(store, count, dim, constants)
        return Number(seconds, "CPU seconds", "extrapolated", source)

    def search(count: float, dim: int, recall: float) -> costs.Query | None:
        ms = costs.store_query(store, count, dim, recall, constants)
        return None if ms is None else costs.Query(ms, AIM * costs.PAGE, AIM)  # rows of the table

    def limit(_: float, dim: int) -> str:
        return f"pgvector indexes up to {most:,} dimensions as {type_}" if dim > most else ""

    return Setup(
        f"postgres {type_}",
        "postgres",
        False,
        index,
        index,
        lambda count, dim: _store_vectors(store, count, dim, source),
        build,
        search,
        ("extrapolated", source),
        limit=limit,
        options="--storage float16" if type_ == "halfvec" else "",
    )


def _qdrant(type_: str, constants: Measured) -> Setup:
    store, source = constants.stores[f"qdrant {type_}"], constants.sources["stores"]
    factor = cited("qdrant_memory")
    number = 4 if type_ == "float32" else 1  # bytes

    def links(count: float) -> float:
        """Return the bytes of a node's links, whose numbers are packed into as few bits as they need."""
        return store.index_bytes[store.dim] * math.log(max(count, 2)) / math.log(store.count)

    def memory(count: float, dim: int) -> Number:
        size = factor.value * number * dim
        if type_ == "int8":  # the published factor includes the links, but is for float32
            size += links(count)
        return Number(count * size, "bytes", "cited", factor.source)

    def index(count: float, dim: int) -> Number:
        return Number(count * links(count), "bytes", "extrapolated", source)

    def build(count: float, dim: int) -> Number:
        seconds = costs.store_build_seconds(store, count, dim, constants)
        return Number(seconds, "CPU seconds", "extrapolated", source)

    def search(count: float, dim: int, recall: float) -> costs.Query | None:
        ms = costs.store_query(store, count, dim, recall, constants)
        places = 0 if type_ == "float32" else 2 * AIM  # candidates, compared in float32
        return None if ms is None else costs.Query(ms, places * max(costs.PAGE, 4 * dim), places)

    return Setup(
        f"qdrant {type_}",
        "qdrant",
        True,
        memory,
        index,
        lambda count, dim: _store_vectors(store, count, dim, source),
        build,
        search,
        ("extrapolated", source),
        advice=QUANTIZED if type_ == "int8" else "",
    )


def _milvus_vectors(count: float, dim: int) -> Number:
    return Number(count * 4 * dim, "bytes", "computed", "float32 vectors in object storage")


def _milvus_hnsw(constants: Measured) -> Setup:
    small, large = cited("milvus_hnsw_128"), cited("milvus_hnsw_768")
    slope = (large.value - small.value) / (768 - 128)
    same = "FAISS's HNSW here, the algorithm of Milvus; its server was not measured"

    def memory(count: float, dim: int) -> Number:
        size = max(small.value + slope * (dim - 128), 4 * dim)
        return Number(count * size, "bytes", "cited", f"{small.source} and {large.source}")

    def build(count: float, dim: int) -> Number | None:
        seconds = costs.build_seconds("hnsw", count, dim, constants)
        return None if seconds is None else Number(seconds, "CPU seconds", "extrapolated", same)

    def search(count: float, dim: int, recall: float) -> costs.Query | None:
        found = costs.query("hnsw", count, dim, recall, constants)
        return found and costs.Query(found.ms)

    source: tuple[Basis, str] = ("extrapolated", same)
    return Setup("milvus hnsw", "milvus", True, memory, memory, _milvus_vectors, build, search, source)


def _milvus_diskann() -> Setup:
    codes, cache = cited("diskann_codes"), cited("diskann_cache")
    degree, sector = cited("diskann_degree"), cited("diskann_sector")

    def memory(count: float, dim: int) -> Number:
        size = (codes.value + cache.value) * 4 * dim
        return Number(count * size, "bytes", "cited", codes.source)

    def index(count: float, dim: int) -> Number:
        node = 4 * dim + 4 * (degree.value + 1)
        size = sector.value / (sector.value // node) if node <= sector.value else _whole(node, sector.value)
        return Number(count * size, "bytes", "cited", sector.source)

    return Setup(
        "milvus diskann",
        "milvus",
        True,
        memory,
        index,
        _milvus_vectors,
        lambda count, dim: None,
        lambda count, dim, recall: costs.Query(0.0) if recall <= costs.HIGHEST else None,
        ("cited", "https://milvus.io/docs/diskann.md: the recall is tunable; no time was measured here"),
        is_timed=False,
        is_built=False,
    )


def _whole(size: float, part: float) -> float:
    return math.ceil(size / part) * part
