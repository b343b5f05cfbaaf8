"""Qdrant's engine in this process, over a folder, by the package qdrant-edge-py.

    FOLDER/lookalike.json  facts about the collection; written last when it is created
    FOLDER/shard/          points, indexes and write-ahead log, in Qdrant's format
    FOLDER/lock            held by the one process that has the folder open, with its number

A folder is open in one process at a time, also for reading; its threads and engines share it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np
import qdrant_edge as edge

from retrieval.errors import InputError, LockedError, LookalikeError, StoreError
from retrieval.files import atomic_write, file_lock
from retrieval.progress import Progress
from retrieval.storage.manifest import Manifest
from retrieval.stores.address import Address
from retrieval.stores.engine import no_collection
from retrieval.stores.qdrant.payload import FACT_INDEXES, Condition, Payload, PayloadIndex, manifest_facts
from retrieval.stores.qdrant.points import ACORN, Point, PointsEngine
from retrieval.system import fsync_folder

_FACTS, _SHARD, _LOCK = "lookalike.json", "shard", "lock"
_LOGGED = 20_000  # changes of points after which the segments are flushed and the log is cut
_OPERATION = edge.UpdateOperation


class _OpenFolder:
    """A folder that this process has open, shared by all engines over it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writing = Lock()
        self._held = ExitStack()
        with ExitStack() as opening:
            lock = opening.enter_context(file_lock(folder / _LOCK, _refuse(folder)))
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            self.facts: dict[str, Any] = json.loads((folder / _FACTS).read_text())
            self.shard = edge.EdgeShard.load(str(folder / _SHARD))
            self._held = opening.pop_all()
        self.users = 0
        self._unflushed = 0

    def update(self, operations: Sequence[edge.UpdateOperation], changes: int) -> None:
        """Change points and indexes; returns when the write-ahead log is on disk, also for a loss of power.

        The log alone survives the end of this process, and the engine repeats it when it opens the folder.
        """
        for operation in operations:
            self.shard.update(operation)
        log = self._folder / _SHARD / "wal"
        for file in log.iterdir():
            with suppress(FileNotFoundError), file.open("rb") as stream:
                os.fsync(stream.fileno())
        fsync_folder(log)
        with self._writing:
            self._unflushed += changes
            if flush := self._unflushed >= _LOGGED:
                self._unflushed = 0
        if flush:
            self.shard.flush()

    def state(self, facts: Mapping[str, Any]) -> None:
        """Store facts about the collection; others keep their value."""
        with self._writing:
            changed = {**self.facts, **facts}
            _write_facts(self._folder, changed)
            self.facts = changed

    def close(self) -> None:
        """Release the folder."""
        with self._held:
            self.shard.flush()
            self.shard.close()


_open: dict[Path, _OpenFolder] = {}
_opening = Lock()


class QdrantEdgeEngine(PointsEngine):
    """Items in a folder, searched by Qdrant's engine in this process.

    Args:
        address: Address with the folder.
    """

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._path = Path(address.database).resolve()
        self._folder: _OpenFolder | None = None

    # ---- the folder

    def _opened(self) -> _OpenFolder | None:
        """Return the open folder; `None` if there is no collection in it."""
        if self._folder is None:
            with _opening, self._errors():
                if self._folder is None and self._exists():
                    if self._path not in _open:
                        _open[self._path] = _OpenFolder(self._path)
                    _open[self._path].users += 1
                    self._folder = _open[self._path]
        return self._folder

    def _exists(self) -> bool:
        if (self._path / _FACTS).is_file():
            return True
        if self._path.is_dir() and {file.name for file in self._path.iterdir()} <= {_SHARD, _LOCK}:
            return False  # empty, or a creation that was interrupted
        if self._path.exists():
            raise InputError(f"{self.address}: the folder has other files; choose another folder")
        return False

    @property
    def _open_folder(self) -> _OpenFolder:
        if (folder := self._opened()) is None:
            raise no_collection(self.address)
        return folder

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except LookalikeError:
            raise
        except OSError as error:
            what = f"cannot be used ({error.strerror or error})"
            raise StoreError(f"{self.address}: {what}; check the folder and its permissions") from error
        except Exception as error:  # qdrant-edge-py raises no subclasses
            reason = " ".join(str(error).split())[:300]
            hint = "free disk space, or restore the folder from a copy if it is damaged"
            raise StoreError(f"{self.address}: Qdrant failed ({reason}); {hint}") from error

    def create(self, manifest: Manifest) -> None:
        self._check(manifest)
        vectors = edge.EdgeVectorParams(
            size=manifest.dim,
            distance=edge.Distance.Dot,
            datatype=getattr(edge.VectorStorageDatatype, manifest.dtype.capitalize()),
        )
        with self._errors():
            if self._exists():
                return
            self._path.mkdir(parents=True, exist_ok=True)
            with file_lock(self._path / _LOCK, _refuse(self._path)):
                if (self._path / _FACTS).is_file():
                    return
                shutil.rmtree(self._path / _SHARD, ignore_errors=True)
                shard = edge.EdgeShard.create(str(self._path / _SHARD), edge.EdgeConfig(vectors=vectors))
                for pair in _schemas(FACT_INDEXES):
                    shard.update(_OPERATION.create_field_index(*pair))
                shard.flush()
                shard.close()
                _write_facts(self._path, manifest_facts(manifest))
                fsync_folder(self._path.parent)

    def drop(self) -> None:
        self.close()
        with self._errors():
            if self._exists():
                with file_lock(self._path / _LOCK, _refuse(self._path)):
                    (self._path / _FACTS).unlink()  # from here on it is a creation that was interrupted
                    shutil.rmtree(self._path)

    def close(self) -> None:
        with _opening, self._errors():
            folder, self._folder = self._folder, None
            if folder is not None:
                folder.users -= 1
                if not folder.users:
                    del _open[self._path]
                    folder.close()

    def facts(self) -> dict[str, Any]:
        with self._errors():
            info = self._open_folder.shard.info()
            search = self._facts().get("search", {})
            return {
                "database": "Qdrant, embedded",
                "version": version("qdrant-edge-py"),
                "index": "hnsw" if info.indexed_vectors_count else "flat",
                "points": info.points_count,
                "points in the index": info.indexed_vectors_count,
                "segments": info.segments_count,
                # Blocks, since most of the write-ahead log is a hole.
                "bytes": sum(512 * file.stat().st_blocks for file in self._path.rglob("*")),
                **search,
            }

    # ---- operations of Qdrant

    def _facts(self) -> Mapping[str, Any]:
        folder = self._opened()
        return {} if folder is None else folder.facts

    _fresh_facts = _facts

    def _state(self, facts: Mapping[str, Any]) -> None:
        with self._errors():
            self._open_folder.state(facts)

    def _index(self, fields: Mapping[str, PayloadIndex]) -> None:
        with self._errors():
            known = self._open_folder.shard.info().payload_schema
            new = {field: index for field, index in fields.items() if field not in known}
            self._update([_OPERATION.create_field_index(*pair) for pair in _schemas(new)], 0)

    def _update(self, operations: Sequence[edge.UpdateOperation], changes: int) -> None:
        with self._errors():
            self._open_folder.update(operations, changes)

    def _upsert(self, ids: Sequence[int], vectors: np.ndarray, payloads: Sequence[Payload]) -> None:
        points = [edge.Point(*point) for point in zip(ids, vectors.tolist(), payloads, strict=True)]
        self._update([_OPERATION.upsert_points(points)], len(points))

    def _set(self, changes: Sequence[tuple[Sequence[int], Payload]]) -> None:
        operations = [_OPERATION.set_payload([*ids], payload) for ids, payload in changes]
        self._update(operations, len(operations))

    def _delete(self, ids: Sequence[int]) -> None:
        self._update([_OPERATION.delete_points([*ids])], len(ids))

    def _retrieve(self, ids: Sequence[int], *, payload: bool, vectors: bool) -> list[Point]:
        with self._errors():
            return [*map(_point, self._open_folder.shard.retrieve([*ids], payload, vectors))]

    def _scroll(
        self, condition: Condition | None, first: int, limit: int, fields: Sequence[str] | None
    ) -> list[Point]:
        shown = True if fields is None else edge.PayloadSelector.Include([*fields])
        request = edge.ScrollRequest(first, limit, _filter(condition), shown, False)
        with self._errors():
            return [*map(_point, self._open_folder.shard.scroll(request)[0])]

    def _count(self, condition: Condition | None, *, exact: bool) -> int:
        with self._errors():
            return int(
                self._open_folder.shard.count(edge.CountRequest(filter=_filter(condition), exact=exact))
            )

    def _search(
        self, queries: np.ndarray, k: int, condition: Condition | None, ef: int | None
    ) -> list[list[tuple[int, float]]]:
        among = _filter(condition)
        acorn = edge.AcornSearchParams(enable=among is not None, max_selectivity=ACORN)
        params = edge.SearchParams(hnsw_ef=ef and max(ef, k), exact=ef is None, acorn=acorn)
        requests = [
            edge.QueryRequest(
                limit=k,
                query=edge.Query.Nearest(query),
                filter=among,
                params=params,
                with_vector=False,
                with_payload=False,
            )
            for query in queries.tolist()
        ]
        with self._errors():
            found = self._open_folder.shard.query_batch(edge.QueryBatchRequest(requests))
        return [[(int(hit.id), hit.score) for hit in row] for row in found]

    def _sample(self, count: int) -> list[int]:
        request = edge.QueryRequest(
            limit=count, query=edge.Sample.Random, with_vector=False, with_payload=False
        )
        with self._errors():
            return [int(hit.id) for hit in self._open_folder.shard.query(request)]

    def _facet(self, field: str, limit: int) -> list[tuple[str, int]]:
        with self._errors():
            hits = self._open_folder.shard.facet(edge.FacetRequest(field, limit, True)).hits
            return [(str(hit.value), hit.count) for hit in hits]

    def _build(self, *, show_progress: bool) -> None:
        with self._errors(), Progress("indexing", None, "steps", show=show_progress) as progress:
            while self._open_folder.shard.optimize():
                progress.update()
            self._open_folder.shard.flush()


def _refuse(folder: Path) -> Callable[[IO[str]], None]:
    def on_busy(lock: IO[str]) -> None:
        lock.seek(0)
        process = lock.read().strip() or "unknown"
        what = f"{folder}: process {process} has this Qdrant folder open, and one process can at a time"
        raise LockedError(f"{what}; end that process, or run a Qdrant server for several")

    return on_busy


def _write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    with atomic_write(folder / _FACTS) as draft:
        draft.write_text(json.dumps(facts, indent=2))


def _schemas(indexes: Mapping[str, PayloadIndex]) -> Iterator[tuple[str, Any]]:
    """Yield the engine's form of indexes by field."""
    for field, index in indexes.items():
        kind = edge.KeywordIndexParams if index.kind == "keyword" else edge.FloatIndexParams
        memory = edge.Memory.Cold if index.selective else None
        yield field, kind(enable_hnsw=not index.selective, memory=memory)


def _point(record: edge.Record) -> Point:
    vector = None if record.vector is None else np.array(record.vector, np.float32)
    return Point(int(record.id), record.payload or {}, vector)


def _filter(condition: Condition | None) -> edge.Filter | None:
    return None if condition is None else _condition(condition)


def _condition(condition: Condition) -> Any:
    """Return the engine's form of a condition or a filter."""
    if "has_id" in condition:
        return edge.HasIdCondition({*condition["has_id"]})
    if "is_empty" in condition:
        return edge.IsEmptyCondition(condition["is_empty"]["key"])
    if "match" in condition:
        return edge.FieldCondition(condition["key"], match=edge.MatchAny(condition["match"]["any"]))
    if "range" in condition:
        return edge.FieldCondition(condition["key"], range=edge.RangeFloat(**condition["range"]))
    return edge.Filter(
        **{joined: [_condition(term) for term in terms] for joined, terms in condition.items()}
    )
