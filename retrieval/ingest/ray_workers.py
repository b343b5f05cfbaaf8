"""Workers on Ray: a pool of actors that embed blocks of files and write each block as one vector shard.

A block is a row group of a Parquet file in the folder of the shards, so that neither paths nor pixels go
through Ray's object store: Ray Data distributes the numbers of the blocks, and only the model file is an
object. An actor that dies is started again, and its block is done again; a block that was written is not.
"""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import socket
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np

from retrieval.errors import ImageError, InputError, LookalikeError
from retrieval.images.load import DECODE_POLICY
from retrieval.images.location import locate
from retrieval.ingest.pipeline import Embedded, embed_ahead
from retrieval.ingest.vector_shards import ShardOrigin, VectorShards, shard_table
from retrieval.machine.devices import Device
from retrieval.machine.extras import needs
from retrieval.machine.resources import cores
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.model.sessions import CPU
from retrieval.text import pluralize

_MOST_THREADS = 8  # cores of one worker without a GPU: more threads per session scale badly
_MOST_ATTEMPTS = 5  # at a block: an image that crashes the worker must not start it for ever
_OBJECT_STORE = 128 * 2**20  # bytes in a local Ray, besides two copies of the model
_CONNECT_SECONDS = 10
_CAUSE = re.compile(r"[\w.]+(Error|Exception): ")  # a line of a traceback
# "No cluster across machines": a local Ray listens on 127.0.0.1 only. It works on every system.
LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def check_ray() -> None:
    """Raise an `InputError` if Ray is not installed."""
    for module in ("ray", "pyarrow"):
        if find_spec(module) is None:
            raise InputError(f"--engine ray: {needs(module, 'ray')}")


@dataclass(frozen=True)
class Job:
    """What the workers of a run have to know.

    Attributes:
        shards: Folder of the shards, an absolute path or a URI.
        origin: Model and decoding policy of the driver.
        runtime: Device, provider and batch size of the sessions.
        run: Name of the run, later ones after earlier ones.
    """

    shards: str
    origin: ShardOrigin
    runtime: Runtime
    run: str

    @property
    def blocks(self) -> str:
        """Name of the file of blocks, which is not a shard."""
        return f"{self.run}.blocks"

    def shard(self, block: int) -> str:
        """Name of the shard of a block."""
        return f"{self.run}-{block:07d}.parquet"

    def attempt(self, block: int, attempt: int) -> str:
        """Name of the file that marks an attempt at a block."""
        return f"{self.run}-{block:07d}.attempt-{attempt}"


@dataclass(frozen=True)
class WorkerPool:
    """Workers that fit into a cluster at present.

    Attributes:
        count: Number of workers.
        cpus: CPU cores of each.
        gpus: GPUs of each, 0 or 1.
        address: Address of the cluster; `None` for a local one.
    """

    count: int
    cpus: int
    gpus: int
    address: str | None = None

    @classmethod
    def fitting(cls, nodes: list[Mapping[str, float]], runtime: Runtime, address: str | None) -> WorkerPool:
        """Return the workers that fit into machines with these resources, given as Ray does."""
        with_gpu = [node for node in nodes if node.get("GPU", 0) >= 1]
        wanted = runtime.device.kind == "cuda" or (runtime.device.kind == "auto" and with_gpu)
        if wanted and "cuda" in runtime.accelerators:
            shares = [int(node.get("CPU", 0) // node["GPU"]) for node in with_gpu]
            count = sum(int(node["GPU"]) for node in with_gpu)
            return cls(max(1, count), max(1, min(shares, default=1)), 1, address)
        sizes = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
        smallest = min(sizes, default=1)
        cpus = smallest // math.ceil(smallest / _MOST_THREADS)
        return cls(max(1, sum(size // cpus for size in sizes)), cpus, 0, address)

    def __str__(self) -> str:
        where = "a local Ray" if self.address is None else f"Ray at {self.address}"
        each = "a GPU" if self.gpus else pluralize(self.cpus, "core")
        return f"{where}: {pluralize(self.count, 'worker')}, {each} each"


@contextmanager
def connected(address: str | None, runtime: Runtime, model_bytes: int) -> Iterator[WorkerPool]:
    """Connect to a Ray cluster, or start a local Ray that ends with this context.

    A local Ray listens on 127.0.0.1 only and has no dashboard; no usage statistics are sent. A process that
    is connected already stays connected.

    Args:
        address: HOST:PORT of a cluster, "auto" for the one of this machine or job; `None` for a local Ray.
        runtime: Settings of the sessions.
        model_bytes: Size of the model file, for which the object store needs room.

    Raises:
        InputError: Ray is not installed, or there is no cluster at the address.
    """
    check_ray()
    _quiet(is_local=address is None)
    import ray

    if ray.is_initialized():
        yield WorkerPool.fitting(_resources(ray), runtime, address)
        return
    if address is not None:
        _check_address(address)
    handler = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {
            "address": "local",
            "num_cpus": cores(),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE + 2 * model_bytes,
        }
    try:
        with _silent_stderr():  # Ray's C++ part reports its log level
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # of several kinds, by what is wrong
        where = "a local Ray" if address is None else address
        raise InputError(f"--engine ray: {where} cannot be reached ({brief(error)})") from error
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray replaces it
    try:
        yield WorkerPool.fitting(_resources(ray), runtime, address)
    finally:
        ray.shutdown()


def embed_blocks(job: Job, pool: WorkerPool, model: bytes, count: int) -> Generator[int]:
    """Let the workers embed all blocks; yield the number of each block after its shard was written.

    Args:
        job: The run; its file of blocks exists.
        pool: Workers of the cluster that this process is connected to.
        model: Contents of the model file.
        count: Number of blocks.

    Raises:
        LookalikeError: A worker failed. The shards written so far stay.
    """
    import ray
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # errors are raised as exceptions as well
    stored = ray.put(model)  # once for all workers; this reference keeps it for those that start later
    workers = min(pool.count, count)
    # Two blocks at a time keep a GPU busy while the next block's first images are decoded.
    at_once = 2 if pool.gpus else 1
    strategy = ray.data.ActorPoolStrategy(
        min_size=1,
        initial_size=workers,
        max_size=workers if pool.address is None else count,  # a cluster may grow
        max_tasks_in_flight_per_actor=2 * at_once,
        max_concurrent_calls_per_actor=at_once,
        enable_true_multi_threading=at_once > 1,
    )
    blocks = ray.data.from_items([{"block": block} for block in range(count)], override_num_blocks=count)
    done = blocks.map_batches(
        BlockEmbedder,
        batch_size=1,
        compute=strategy,
        num_cpus=pool.cpus,
        num_gpus=pool.gpus or None,
        fn_constructor_kwargs={
            "job": job,
            "model": [stored],
            "threads": pool.cpus,
            "uses_gpu": pool.gpus > 0,
        },
    )
    try:
        for batch in done.iter_batches(batch_size=None, prefetch_batches=0):
            if error := next(filter(None, batch["error"].tolist()), None):
                raise LookalikeError(error)
            yield from batch["block"].tolist()
    except LookalikeError:
        raise
    except Exception as error:
        raise LookalikeError(
            f"--engine ray: a worker failed ({brief(error)}); finished blocks are in {job.shards}, "
            "run the same command again to continue"
        ) from error


class BlockEmbedder:
    """Actor that embeds blocks with one session of ONNX Runtime.

    Args:
        job: The run.
        model: Reference to the contents of the model file, in a list, so that Ray passes the reference.
        threads: Threads that decode, and threads of a run on a CPU.
        uses_gpu: Ray has assigned a GPU to this actor.
    """

    def __init__(self, job: Job, model: list[Any], threads: int, uses_gpu: bool) -> None:
        self._job, self._threads = job, threads
        self._error = ""  # Ray hides the message of an exception in a long text
        try:
            self._embedder = self._open(model, uses_gpu)
            self._shards = VectorShards(job.shards)
        except LookalikeError as error:
            self._error = str(error)

    def _open(self, model: list[Any], uses_gpu: bool) -> Embedder:
        import ray

        policy = self._job.origin.decode_policy
        if policy > DECODE_POLICY:
            raise InputError(f"{socket.gethostname()}: has another version of Lookalike; install this one")
        device = Device("cuda") if uses_gpu else self._job.runtime.device
        runtime = replace(self._job.runtime, device=device, threads=self._threads)
        with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
            file.write(ray.get(model[0]))
            file.flush()
            embedder = Embedder.open(file.name, runtime)
        if uses_gpu and embedder.provider == CPU:
            raise InputError(
                f"{socket.gethostname()}: ONNX Runtime does not work on the GPU; "
                "install lookalike[gpu] there, or pass --device cpu"
            )
        return embedder.of_policy(policy)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Embed the blocks of the column `block`; return them with the message of an error, or ""."""
        return {"block": batch["block"], "error": np.array([self._try(b) for b in batch["block"].tolist()])}

    def _try(self, block: int) -> str:
        if self._error:
            return self._error
        try:
            if not self._shards.has(self._job.shard(block)):  # an earlier attempt may have written it
                mark = self._mark_attempt(block)
                self._embed(block)
                self._shards.delete(mark)
        except LookalikeError as error:
            return str(error)
        return ""

    def _mark_attempt(self, block: int) -> str:
        """Create a file that is deleted when the block was written, and return its name.

        Raises:
            LookalikeError: Workers died at this block again and again.
        """
        marks = (self._job.attempt(block, attempt) for attempt in range(_MOST_ATTEMPTS))
        mark = next((mark for mark in marks if not self._shards.has(mark)), None)
        if mark is None:
            paths = self._shards.read_block(self._job.blocks, block)["path"]
            raise LookalikeError(
                f"--engine ray: {_MOST_ATTEMPTS} workers died at the {len(paths)} images from {paths[0]} to "
                f"{paths[-1]}; look for the one that crashes `lookalike index build`, or add memory"
            )
        self._shards.mark(mark)
        return mark

    def _embed(self, block: int) -> None:
        files = self._shards.read_block(self._job.blocks, block)
        found: list[Embedded | ImageError] = []
        vectors = [np.empty((0, self._embedder.dim), np.float32)]
        places = map(locate, files["path"].to_pylist())
        with closing(embed_ahead(places, self._embedder, threads=self._threads)) as batches:
            for batch in batches:
                found += (file for file in batch.files if isinstance(file, (Embedded, ImageError)))
                vectors.append(batch.vectors)
        missing = [file for file in found if isinstance(file, ImageError) and file.reason == file.MISSING]
        if len(missing) == len(found):
            raise InputError(
                f"{missing[0].source}: does not exist on {socket.gethostname()}, like all of its block; "
                "mount the folder of the images at the same path on every machine"
            )
        table = shard_table(files, found, np.concatenate(vectors), self._job.origin)
        self._shards.write(self._job.shard(block), table)


def _resources(ray: Any) -> list[Mapping[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _quiet(*, is_local: bool) -> None:
    """Set the environment variables that Ray reads when it is imported, and passes to its processes."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # of what it prints on stderr
    if is_local:
        os.environ[LOCAL_ONLY] = "0"
        os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # no copy of the working folder for `uv run`


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Discard what this process writes to file descriptor 2."""
    saved = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _check_address(address: str) -> None:
    """Raise an `InputError` unless something listens at an address; Ray itself would wait for a minute."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise InputError(
            f"--ray-address {address}: not HOST:PORT or auto; run this command on a machine of the cluster, "
            "for example as a job"
        )
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise InputError(
            f"--ray-address {address}: no cluster there ({error}); `ray status` shows the address"
        ) from error


def brief(error: BaseException) -> str:
    """Return the message of an error in one line; of one of a worker, that of its cause there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if _CAUSE.match(line)]
    return next(iter([*causes, *lines[-1:]]), type(error).__name__)[:300]
