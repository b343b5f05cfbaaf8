"""Constants of the planner, each with its source: measured by a benchmark here, or published by others."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

Basis = Literal["given", "measured", "computed", "cited", "extrapolated"]
_STRENGTH: tuple[Basis, ...] = ("given", "measured", "computed", "cited", "extrapolated")
_HERE = Path(__file__).parent
MEASURED, CITED = _HERE / "measured.json", _HERE / "cited.toml"


@dataclass(frozen=True)
class Number:
    """A number with its unit and where it comes from.

    Attributes:
        value: Number, in `unit`.
        unit: Unit in words, such as "bytes" or "ms of one core".
        basis: "given" by the user; "measured" here; "computed" from a file format; "cited" from others;
            "extrapolated" from one of these to another size.
        source: File, address or formula.
    """

    value: float
    unit: str
    basis: Basis
    source: str


@dataclass(frozen=True)
class Search:
    """Least measured cost of a search that reaches a recall.

    Attributes:
        effort: Visited cells or `efSearch`.
        oversample: Candidates per neighbour, which are compared exactly.
        ms: Milliseconds of one core.
    """

    effort: int
    oversample: int
    ms: float


@dataclass(frozen=True)
class KindCosts:
    """What an index kind of FAISS cost at one dimension, with `Measured.count` vectors.

    Attributes:
        train_seconds: CPU seconds for sample, cells and quantiser.
        add_seconds: CPU seconds to add a million vectors.
        searches: Recall -> its search, or `None` if no parameters reached it.
    """

    train_seconds: float
    add_seconds: float
    searches: Mapping[float, Search | None]


@dataclass(frozen=True)
class StoreCosts:
    """What a store cost, with `count` vectors of dimension `dim`.

    Attributes:
        count: Number of vectors.
        dim: Their dimension.
        build_seconds: CPU seconds per vector, to insert and to index.
        searches: (efSearch, recall, milliseconds of one core), ascending.
        index_bytes: Dimension -> bytes per vector of its index or graph.
        disk_bytes: Dimension -> bytes per vector on disk, with the index.
    """

    count: int
    dim: int
    build_seconds: float
    searches: tuple[tuple[int, float, float], ...]
    index_bytes: Mapping[int, float]
    disk_bytes: Mapping[int, float]


@dataclass(frozen=True)
class Measured:
    """Results of the benchmarks here.

    Attributes:
        count: Number of vectors of `kinds`.
        kinds: Dimension -> index kind -> its costs.
        growth: Power of the number of vectors by which searches of a graph grow.
        stored_bytes: Bytes of a stored vector beside its numbers.
        fact_bytes: Bytes of an image's facts in the database.
        facts_ms: CPU milliseconds of a search beside its index: facts about the hits, exact scores.
        effort: Cells that a search visits in the largest gallery that was measured.
        place_ms: Milliseconds to read a candidate from a place of the disk that is not in memory.
        stores: "postgres vector" and others -> their costs.
        decode_ms: CPU milliseconds to decode and scale an image.
        embed_ms: CPU milliseconds of the model for an image.
        sources: Name of each part -> file, machine and commit.
    """

    count: int
    kinds: Mapping[int, Mapping[str, KindCosts]]
    growth: float
    stored_bytes: float
    fact_bytes: float
    facts_ms: float
    effort: int
    place_ms: float
    stores: Mapping[str, StoreCosts]
    decode_ms: float
    embed_ms: float
    sources: Mapping[str, str]


@cache
def measured() -> Measured:
    """Return the constants that were measured here."""
    return parse(json.loads(MEASURED.read_text()))


def parse(data: Mapping[str, Any]) -> Measured:
    """Return the constants of a file that `benchmarks.plan_constants` has written."""

    def search(found: Mapping[str, Any] | None) -> Search | None:
        return Search(found["effort"], found["oversample"], found["ms"]) if found else None

    kinds = {
        int(dim): {
            name: KindCosts(
                costs["train_seconds"],
                costs["add_seconds"],
                {float(recall): search(found) for recall, found in costs["search"].items()},
            )
            for name, costs in of.items()
        }
        for dim, of in data["kinds"]["dims"].items()
    }
    stores = {
        name: StoreCosts(
            of["count"],
            of["dim"],
            of["build_seconds"],
            tuple((row["ef"], row["recall"], row["cpu_ms"]) for row in of["search"]),
            {int(dim): value for dim, value in of["index_bytes"].items()},
            {int(dim): value for dim, value in of["disk_bytes"].items()},
        )
        for name, of in data["stores"]["cases"].items()
    }
    gallery, images = data["gallery"], data["images"]
    return Measured(
        count=data["kinds"]["count"],
        kinds=kinds,
        growth=data["kinds"]["growth"],
        stored_bytes=data["kinds"]["stored_bytes"],
        fact_bytes=gallery["fact_bytes"],
        facts_ms=gallery["facts_ms"],
        effort=gallery["effort"],
        place_ms=gallery["place_ms"],
        stores=stores,
        decode_ms=images["decode_ms"],
        embed_ms=images["embed_ms"],
        sources={part: data[part]["source"] for part in data},
    )


@cache
def cited(name: str) -> Number:
    """Return a published constant by its name in cited.toml."""
    entry = tomllib.loads(CITED.read_text())[name]
    return Number(entry["value"], entry["unit"], "cited", entry["source"])


def weakest(*bases: Basis) -> Basis:
    """Return the least certain basis of several numbers, which their sum or product has."""
    return max(bases, key=_STRENGTH.index)
