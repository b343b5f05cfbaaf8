"""Constants of the planner: measured by benchmarks on one core of an AMD EPYC, or published by others.

`tests/retrieval/planning/test_constants.py` compares those that were measured with benchmarks/*.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Search(NamedTuple):
    """Least measured cost of a search that reaches a recall.

    Attributes:
        effort: Visited cells or `efSearch`.
        oversample: Candidates per neighbour, which are compared exactly.
        ms: Milliseconds of one core.
    """

    effort: int
    oversample: int
    ms: float


class KindCosts(NamedTuple):
    """What an index kind of FAISS costs with `MEASURED` vectors.

    Attributes:
        train_seconds: CPU seconds for sample, cells and quantiser.
        add_seconds: CPU seconds to add a million vectors.
        searches: One for each of `RECALLS`; `None` if no parameters reached it.
    """

    train_seconds: float
    add_seconds: float
    searches: tuple[Search | None, Search | None]


class StoreCosts(NamedTuple):
    """What a store costs with `STORE_MEASURED` vectors of dimension `STORE_DIM`.

    Attributes:
        build_seconds: CPU seconds per vector, to insert and to index.
        searches: (recall, CPU milliseconds), ascending.
        row_bytes: Dimension -> bytes per vector on disk beside the index.
    """

    build_seconds: float
    searches: tuple[tuple[float, float], ...]
    row_bytes: Mapping[int, float]


# benchmarks/index_kinds.json: dimension -> index kind; with cells on disk as with the same in memory.
MEASURED = 1_000_000
RECALLS = (0.95, 0.99)
KINDS: dict[int, dict[str, KindCosts]] = {
    128: {
        "flat": KindCosts(0.0, 0.0, (Search(0, 1, 17.65), Search(0, 1, 17.65))),
        "sq8": KindCosts(0.157, 0.5252, (Search(1, 1, 13.6), Search(1, 2, 13.64))),
        "pq": KindCosts(0.2113, 1.948, (Search(1, 20, 1.62), Search(1, 40, 2.076))),
        "ivf-flat": KindCosts(6.379, 15.28, (Search(2, 1, 0.1089), Search(3, 1, 0.1213))),
        "ivf-sq8": KindCosts(7.337, 13.95, (Search(2, 2, 0.1179), Search(3, 2, 0.1242))),
        "ivf-sq4": KindCosts(7.475, 15.11, (Search(3, 2, 0.1255), Search(3, 5, 0.1505))),
        "ivf-pq": KindCosts(6.564, 15.09, (Search(2, 20, 0.2412), Search(3, 40, 0.338))),
        "hnsw": KindCosts(0.02561, 144.3, (Search(128, 2, 0.3994), None)),
        "ivf-rabitq": KindCosts(7.353, 15.49, (Search(2, 10, 0.2045), Search(3, 10, 0.2166))),
        "hnsw-rabitq": KindCosts(0.02688, 136.6, (Search(16, 20, 0.6248), Search(2048, 40, 6.275))),
    },
    512: {
        "flat": KindCosts(0.0, 0.0, (Search(0, 1, 72.19), Search(0, 1, 72.19))),
        "sq8": KindCosts(0.8881, 1.906, (Search(1, 1, 41.17), Search(1, 2, 41.83))),
        "pq": KindCosts(0.9989, 8.199, (Search(1, 10, 3.188), Search(1, 10, 3.685))),
        "ivf-flat": KindCosts(24.09, 53.05, (Search(3, 1, 0.3482), Search(4, 1, 0.2899))),
        "ivf-sq8": KindCosts(27.22, 52.37, (Search(3, 2, 0.4479), Search(4, 2, 0.2648))),
        "ivf-sq4": KindCosts(27.05, 46.89, (Search(3, 2, 0.3841), Search(4, 2, 0.3377))),
        "ivf-pq": KindCosts(24.51, 56.75, (Search(3, 10, 0.4103), Search(6, 10, 0.537))),
        "hnsw": KindCosts(0.4127, 256.2, (Search(256, 2, 0.5674), None)),
        "ivf-rabitq": KindCosts(26.72, 52.67, (Search(3, 10, 0.3625), Search(4, 10, 0.37))),
        "hnsw-rabitq": KindCosts(0.4462, 148.4, (Search(512, 10, 0.8873), None)),
    },
}
# Power of the number of vectors by which searches of a graph grow, from index_kinds_small.json on.
GRAPH_GROWTH = 0.4201

# benchmarks/gallery_scale.json, 10^7 vectors.
ITEM_BYTES = 123.4  # of an image beside the numbers of its vector: facts, vector number, checksum
FACTS_MS = 0.5853  # CPU time of a search beside its index: facts about the hits, exact scores
EFFORT = 24  # visited cells
PLACE_MS = 0.0703  # to read a candidate from a place of the disk that is not in memory

# benchmarks/indexing.json: CPU time of an image, with a ResNet-18.
DECODE_MS = 3.781
EMBED_MS = 36.57

# benchmarks/stores.json.
STORE_MEASURED = 100_000
STORE_DIM = 128
STORES = {
    "postgres vector": StoreCosts(
        0.000592,
        ((0.9885, 0.65), (0.9955, 0.775), (0.99975, 1.15), (1.0, 2.1)),
        {64: 339.1, 128: 608.3, 256: 1206.0, 512: 2880.0, 1024: 5633.0},
    ),
    "postgres halfvec": StoreCosts(
        0.0006245,
        ((0.985, 0.75), (0.99425, 0.95), (0.99975, 1.3), (1.0, 2.225)),
        {64: 209.7, 128: 326.5, 256: 621.0, 512: 1206.0, 1024: 2880.0},
    ),
    "qdrant float32": StoreCosts(
        0.0004719,
        ((0.95125, 0.06552), (0.99525, 0.08673), (0.99925, 0.1327), (1.0, 0.2451)),
        {64: 290.8, 128: 533.9, 256: 1059.0, 512: 2083.0, 1024: 4131.0},
    ),
    "qdrant int8": StoreCosts(
        0.0001967,
        ((0.994, 0.08068), (0.99925, 0.124), (1.0, 0.1788)),
        {64: 361.3, 128: 666.0, 256: 1321.0, 512: 2601.0, 1024: 5161.0},
    ),
}
QDRANT_LINK_BYTES = 55.1  # of the links of a vector

# Published.
USABLE_MEMORY = 0.9  # share of a machine's: https://milvus.io/docs/limitations.md
QDRANT_MEMORY = 1.5  # bytes per byte of vectors: https://qdrant.tech/documentation/capacity-planning/
# Most dimensions, bytes per number: https://github.com/pgvector/pgvector#hnsw
PGVECTOR = {"vector": (2000, 4), "halfvec": (4000, 2)}
# An element does not span two pages; bytes that a page has for elements, and of one beside its numbers with
# 16 links a node: https://github.com/pgvector/pgvector/blob/master/src/hnsw.h
POSTGRES_PAGE, POSTGRES_USABLE, PGVECTOR_ELEMENT = 8192, 8192 - 32, 288
# Bytes of memory of a vector with HNSW: https://zilliz.com/sizing-tool and zilliz.com/ai-faq
MILVUS_MEMORY = {128: 1181.0, 768: 4800.0}
