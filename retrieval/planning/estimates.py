"""Estimates: what a setup takes for a need, and what decoding and embedding take."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from retrieval.errors import InputError
from retrieval.planning.constants import Measured, Number, cited, weakest
from retrieval.planning.setups import Setup
from retrieval.planning.sizes import bytes_text, count_text

MOST_IMAGES = 10**11
MOST_MACHINES = 1000  # beyond which a setup counts as too large
_HOUR = 3600


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
        decode_ms: CPU milliseconds to decode an image; `None` for the one measured here.
        embed_ms: The same to embed it.
        gpu_rate: Images per second that a GPU embeds; `None` for a published one.
    """

    images: int
    dim: int
    recall: float
    memory: int
    cores: int = 16
    qps: float = 10.0
    latency: float = 1000.0
    disk_speed: int = 2 * 10**9
    decode_ms: Number | None = None
    embed_ms: Number | None = None
    gpu_rate: float | None = None

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


@dataclass(frozen=True)
class Estimate:
    """What one setup takes. Numbers that are not known are `None`.

    Attributes:
        setup: Its name.
        engine: Its engine.
        memory: Bytes of memory, of all machines together.
        bytes_per_vector: The same per vector.
        disk_vectors: Bytes on disk of vectors and facts about the images.
        disk_index: Bytes on disk of the index.
        build: Core-hours to build the index.
        build_hours: Hours, with the cores of the machines that hold it.
        search_ms: Milliseconds of one core per search, on all machines that share the vectors.
        searches_per_core: Searches per second and core.
        latency: Milliseconds of one search on one core of each machine, with its reads from disk.
        read: Bytes that a search reads from disk, beside what stays in memory.
        machines: Machines for memory, cores and disk reads.
        replicas: Copies of the vectors on them.
        recall: Recall to expect.
        bound: What the number of machines follows from: "memory", "cores" or "disk reads".
        problem: Why it cannot serve the need; "" if it can.
        options: Options of `index build` for it.
        advice: What to do after that.
        is_built: Whether `index build` builds it.
    """

    setup: str
    engine: str
    memory: Number
    bytes_per_vector: Number
    disk_vectors: Number
    disk_index: Number
    build: Number | None
    build_hours: Number | None
    search_ms: Number | None
    searches_per_core: Number | None
    latency: Number | None
    read: Number | None
    machines: Number | None
    recall: Number | None
    bound: str
    problem: str
    options: str
    advice: str
    is_built: bool

    @property
    def fits(self) -> bool:
        """Whether the setup can serve the need."""
        return not self.problem

    @property
    def disk(self) -> float:
        """Bytes on disk."""
        return self.disk_vectors.value + self.disk_index.value


@dataclass(frozen=True)
class Indexing:
    """Decoding and embedding all images.

    Attributes:
        decode_ms: CPU milliseconds per image.
        embed_ms: CPU milliseconds per image.
        core_hours: Hours of one core, for both.
        machine_hours: Hours of one machine.
        gpu_rate: Images per second of one GPU.
        gpu_hours: Hours of one GPU.
        decoding_cores: Cores that decode as fast as one GPU embeds.
        query_cores: Cores that decode and embed the query images.
    """

    decode_ms: Number
    embed_ms: Number
    core_hours: Number
    machine_hours: Number
    gpu_rate: Number
    gpu_hours: Number
    decoding_cores: Number
    query_cores: Number


def estimate_indexing(need: Need, constants: Measured) -> Indexing:
    """Return what decoding and embedding take."""
    source = constants.sources["images"]
    unit = "ms of one core per image"
    decode = need.decode_ms or Number(constants.decode_ms, unit, "measured", source)
    embed = need.embed_ms or Number(constants.embed_ms, unit, "measured", source)
    rate = cited("gpu_images_per_second")
    if need.gpu_rate is not None:
        rate = Number(need.gpu_rate, rate.unit, "given", "--gpu-images-per-second")
    each = (decode.value + embed.value) / 1000  # CPU seconds
    by_core = decode.source if decode.source == embed.source else f"{decode.source}; {embed.source}"
    by_core, by_gpu = f"images x ({by_core})", f"images / ({rate.source})"
    core_hours = need.images * each / _HOUR
    return Indexing(
        decode,
        embed,
        Number(core_hours, "hours of one core", "extrapolated", by_core),
        Number(core_hours / need.cores, "hours of one machine", "extrapolated", by_core),
        rate,
        Number(
            need.images / rate.value / _HOUR, "hours of one GPU", weakest(rate.basis, "extrapolated"), by_gpu
        ),
        Number(rate.value * decode.value / 1000, "cores", weakest(rate.basis, decode.basis), by_gpu),
        Number(need.qps * each, "cores", weakest(decode.basis, embed.basis), by_core),
    )


def estimate(setup: Setup, need: Need, constants: Measured) -> Estimate:
    """Return what a setup takes for a need."""
    count, dim = need.images, need.dim
    memory, vectors, index = (of(count, dim) for of in (setup.memory, setup.vectors, setup.index))
    usable = cited("usable_memory").value * need.memory
    shards = max(1, math.ceil(memory.value / usable))
    problem = setup.limit(count, dim)
    if not problem and shards > 1 and not setup.spans:
        problem = f"needs one machine of {bytes_text(memory.value / cited('usable_memory').value)}"
    held = shards if setup.spans else 1
    found = setup.search(count / held, dim, need.recall)
    if found is None:
        problem = problem or f"recall {need.recall:g} is not reached"
    build = setup.build(count, dim)
    ms = searches = latency = read = machines = None
    bound = "memory"
    if found is not None:
        # What of the disk is not in the memory that is left.
        left = max(0.0, usable * held - memory.value)
        cold = max(0.0, 1 - left / (vectors.value + index.value))
        found = replace(found, read=cold * found.read, places=cold * found.places)
        basis, source = setup.search_source
        cores = need.qps * held * found.ms / 1000
        by_cores, by_disk = (
            math.ceil(cores / need.cores),
            math.ceil(need.qps * held * found.read / need.disk_speed),
        )
        wanted = {"memory": held, "cores": by_cores, "disk reads": by_disk}
        bound = max(wanted, key=lambda name: wanted[name])
        total = max(wanted.values())
        if setup.is_timed:
            reading = 1000 * found.read / need.disk_speed + found.places * constants.place_ms
            slow = found.ms + reading
            ms = Number(held * found.ms, "ms of one core per search", basis, source)
            if slow > need.latency:
                problem = problem or f"a search takes longer than {need.latency:g} ms"
            searches = Number(1000 / (held * found.ms), "searches per second and core", basis, source)
            latency = Number(slow, "ms per search", weakest(basis, "extrapolated"), f"{source}; --disk-speed")
            read = Number(held * found.read, "bytes per search", basis, source)
        machines = Number(
            total, "machines", weakest(memory.basis, "extrapolated"), "memory, cores, disk reads"
        )
        if total > MOST_MACHINES:
            problem = problem or f"needs {total:,} machines, for {bound}"
    hours = None
    if build is not None:
        build = Number(build.value / _HOUR, "core-hours", build.basis, build.source)
        hours = Number(build.value / need.cores / held, "hours", build.basis, build.source)
    exact = setup.name == "flat"
    recall = (
        "every vector is compared" if exact else "asked for, and measured when an index is built or tuned"
    )
    return Estimate(
        setup.name,
        setup.engine,
        memory,
        replace(memory, value=memory.value / count, unit="bytes per vector"),
        vectors,
        index,
        build,
        hours,
        ms,
        searches,
        latency,
        read,
        machines,
        Number(
            1.0 if exact else need.recall,
            "share of the 10 nearest",
            "computed" if exact else "extrapolated",
            recall,
        )
        if found
        else None,
        bound,
        problem,
        setup.options,
        setup.advice,
        setup.is_built,
    )
