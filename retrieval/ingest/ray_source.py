"""Embedding of the files of a plan on Ray, through vector shards; see `retrieval.ingest.ray_workers`.

Files that are in a shard of an earlier run, with the same size and modification time and of the same model
and decoding policy, are not embedded again. The others are divided into blocks. Shards are read in the order
of the plan as soon as they are written, so that the gallery gets the same ids as from a local run.
"""

from __future__ import annotations

import datetime
import os
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from retrieval.errors import ImageError, InputError, LookalikeError
from retrieval.galleries.searchable import SearchableGallery
from retrieval.images.load import DECODE_POLICY
from retrieval.images.picture import KnownFile
from retrieval.ingest.indexing import PlannedFile
from retrieval.ingest.pipeline import Embedded, EmbeddedBatch
from retrieval.ingest.ray_workers import Job, WorkerPool, connected, embed_blocks
from retrieval.ingest.vector_items import MTIME, SIZE
from retrieval.ingest.vector_shards import (
    OWN_COLUMNS,
    ShardedFiles,
    ShardOrigin,
    VectorShards,
    found_in,
    vectors_of,
)
from retrieval.model.runtime import Runtime
from retrieval.storage.planning import Comparison, ImageFile
from retrieval.text import pluralize, print_notice

_LEAST_BLOCK, _MOST_BLOCK = 256, 4096  # files of a block
_BLOCKS_EACH = 32  # blocks of each worker, unless they get too small or too large
_CHUNK = 4096  # files that are looked up at a time
_CACHED = 4  # shards in memory


@dataclass(frozen=True)
class RaySource:
    """Embeds the files of a plan on Ray; a `BatchSource`.

    Attributes:
        address: Address of the cluster; `None` starts a local Ray.
        shards: Folder of the shards or its URI, which every machine can reach; `None` for GALLERY.shards.
        runtime: Device, provider and batch size of the workers.
        retry: Retry files that are unusable according to a shard.
        show_progress: Print a line about the workers.
    """

    address: str | None = None
    shards: str | None = None
    runtime: Runtime = Runtime()  # noqa: RUF009
    retry: bool = False
    show_progress: bool = False

    def __call__(
        self, gallery: SearchableGallery, plan: Comparison, known: Callable[[str], bool]
    ) -> Generator[tuple[list[PlannedFile], EmbeddedBatch]]:
        """Yield the files to read of the plan with what was found in them, in order."""
        folder = gallery.folder
        shards = VectorShards(self.shards or folder.with_name(f"{folder.name}.shards"))
        policy = gallery.manifest.decode_policy or DECODE_POLICY
        origin = ShardOrigin(gallery.manifest.fingerprint, policy, gallery.manifest.dim)
        started = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%S")
        runtime = replace(self.runtime, tf32=gallery.manifest.allows_tf32)
        job = Job(shards.address, origin, runtime, f"{started}-{uuid.uuid4().hex[:6]}")
        run = _Run(gallery, plan, shards, job, retry=self.retry)
        with ExitStack() as stack:
            done: Iterator[int] = iter(())
            block_rows = 1
            if run.missing:
                model = gallery.embedder.path.read_bytes()
                pool = stack.enter_context(connected(self.address, self.runtime, len(model)))
                if self.show_progress:
                    print_notice(f"{pool}; shards in {shards.address}{run.reused}")
                block_rows = _block_rows(run.missing, pool)
                stack.callback(shards.delete_rest, job.run)
                count = run.write_blocks(block_rows)
                done = stack.enter_context(closing(embed_blocks(job, pool, model, count)))
            yield from run.assemble(done, block_rows, known)


class _Run:
    """One run: which files are in which shard.

    Memory use: 8 bytes per file to read, and those of `ShardedFiles`.
    """

    def __init__(
        self, gallery: SearchableGallery, plan: Comparison, shards: VectorShards, job: Job, *, retry: bool
    ) -> None:
        self._folder, self._plan, self._shards, self._job = gallery.folder.absolute(), plan, shards, job
        files = ShardedFiles(shards, job.origin)
        self._names = files.names
        places = [np.empty((0, 2), np.int32)]
        for chunk in _chunks(self._images()):
            paths = [self._path(image) for image in chunk]
            sizes, times = [image.size for image in chunk], [image.mtime_ns for image in chunk]
            found = files.find(paths, sizes, times, retry=retry)
            places.append(found.astype(np.int32))
        self._places = np.concatenate(places)
        self._is_missing = self._places[:, 0] < 0

    @property
    def missing(self) -> int:
        """Number of files that are in no shard."""
        return int(self._is_missing.sum())

    @property
    def reused(self) -> str:
        """Text on the files that are in shards of earlier runs."""
        count = len(self._places) - self.missing
        return f", where {pluralize(count, 'image')} of {len(self._places)} are already" if count else ""

    def write_blocks(self, rows: int) -> int:
        """Write the files that are in no shard in blocks of `rows`; return the number of blocks."""
        missing = (image for image, absent in zip(self._images(), self._is_missing, strict=True) if absent)
        schema = self._schema()
        blocks = iter(lambda: list(islice(missing, rows)), [])
        tables = (self._table(block, schema) for block in blocks)
        return self._shards.write_blocks(self._job.blocks, schema, tables)

    def assemble(
        self, done: Iterator[int], block_rows: int, known: Callable[[str], bool]
    ) -> Generator[tuple[list[PlannedFile], EmbeddedBatch]]:
        """Yield the files of the plan with what is in the shards, in order.

        Args:
            done: Numbers of the blocks of which the shard was written.
            block_rows: Files of a block.
            known: See `retrieval.ingest.indexing.BatchSource`.
        """
        position = np.cumsum(self._is_missing) - 1
        of_block = np.stack([len(self._names) + position // block_rows, position % block_rows], 1)
        places = np.where(self._is_missing[:, None], of_block, self._places)
        written: set[int] = set()

        @lru_cache(_CACHED)
        def read(shard: int) -> Any:
            if shard < len(self._names):
                return self._shards.read(self._names[shard])
            block = shard - len(self._names)
            while block not in written:
                written.add(_next(done))
            return self._shards.read(self._job.shard(block))

        todo = self._plan.todo()
        starts = np.flatnonzero(np.diff(places[:, 0], prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(places)], strict=True):
            files = list(islice(todo, int(end - start)))
            rows = read(int(places[start, 0])).take(places[start:end, 1])
            if rows["path"].to_pylist() != [self._path(image) for image, _ in files]:
                raise LookalikeError(
                    f"{self._shards.address}: a shard has changed during the run; run the same command again"
                )
            yield files, _batch(rows, known)

    def _images(self) -> Iterator[ImageFile]:
        return (image for image, _ in self._plan.todo())

    def _path(self, image: ImageFile) -> str:
        return os.path.join(self._folder, image.root, image.path)

    def _schema(self) -> Any:
        """Return the schema of a block: the columns of a shard that are known before the files are read."""
        import pyarrow as pa

        types: dict[str, set[type]] = {name: set() for name in sorted(self._plan.metadata_names)}
        for _, values in self._plan.metadata():
            for name, value in values.items():
                types[name].add(type(value))
        columns = {**dict.fromkeys(("id", "path", "label"), pa.string())}
        columns |= {name: _arrow_type(found) for name, found in types.items()}
        if clash := {*types} & {*OWN_COLUMNS}:
            raise InputError(
                f"metadata column {min(clash)!r}: vector shards use this name; rename the column"
            )
        return pa.schema({**columns, SIZE: pa.int64(), MTIME: pa.int64()})

    def _table(self, block: Sequence[ImageFile], schema: Any) -> Any:
        import pyarrow as pa

        columns: dict[str, list[Any]] = {
            name: [image.metadata.get(name) for image in block] for name in self._plan.metadata_names
        }
        columns |= {
            "id": [image.id or image.path for image in block],
            "path": [self._path(image) for image in block],
            "label": [image.label for image in block],
            SIZE: [image.size for image in block],
            MTIME: [image.mtime_ns for image in block],
        }
        return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def _batch(rows: Any, known: Callable[[str], bool]) -> EmbeddedBatch:
    """Return the files of some rows of a shard."""
    files: list[Embedded | KnownFile | ImageError] = [
        KnownFile(found.content_sha256)
        if isinstance(found, Embedded) and known(found.content_sha256)
        else found
        for found in found_in(rows)
    ]
    is_new = np.array([isinstance(file, Embedded) for file in files], bool)
    return EmbeddedBatch(files, vectors_of(rows.filter(is_new)))


def _block_rows(count: int, pool: WorkerPool) -> int:
    """Return the number of files of a block, for `count` files in all."""
    return min(max(count // (_BLOCKS_EACH * pool.count), _LEAST_BLOCK), _MOST_BLOCK)


def _next(done: Iterator[int]) -> int:
    block = next(done, None)
    if block is None:
        raise LookalikeError("--engine ray: the workers ended too early; run the same command again")
    return block


def _arrow_type(types: set[type]) -> Any:
    import pyarrow as pa

    if str in types:
        return pa.string()
    return pa.float64() if float in types else pa.int64()


def _chunks(images: Iterator[ImageFile]) -> Iterator[list[ImageFile]]:
    while chunk := list(islice(images, _CHUNK)):
        yield chunk
