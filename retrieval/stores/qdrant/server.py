"""Items in a Qdrant server, by the package qdrant-client and Qdrant's REST interface."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import httpx
import numpy as np
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from retrieval.errors import InputError, LookalikeError, StoreError
from retrieval.progress import Progress
from retrieval.storage.manifest import Manifest
from retrieval.stores.address import PASSWORD, Address
from retrieval.stores.engine import connection_ended, connection_lost, no_collection, refused
from retrieval.stores.qdrant.payload import FACT_INDEXES, Condition, Payload, PayloadIndex, manifest_facts
from retrieval.stores.qdrant.points import ACORN, Point, PointsEngine

T = TypeVar("T")

_OLDEST = (1, 16)  # version of the server: the first with facts about a collection
_SECONDS = 60  # for an answer
_SECONDS_LONG = 600  # for an exact search or an index of a large collection
_KNOWN_FOR = 5.0  # seconds for which the facts about the collection are not asked for again
_POLL = 0.5  # seconds
_CHANGES = 200  # of payloads in one request
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT = 401, 403, 404, 409


class QdrantEngine(PointsEngine):
    """Items in a collection of a Qdrant server.

    Args:
        address: Address of the collection; the password is the API key.
    """

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._name = address.collection
        self._client = connect(address, _SECONDS)
        self._patient = connect(address, _SECONDS_LONG)
        self._known: Mapping[str, Any] = {}
        self._known_at = -_KNOWN_FOR

    # ---- the collection

    def create(self, manifest: Manifest) -> None:
        self._check(manifest)
        found = self._ask(self._client.info).version
        if tuple(int(part) for part in found.split("-")[0].split(".")[:2]) < _OLDEST:
            oldest = ".".join(map(str, _OLDEST))
            raise InputError(f"{self.address}: Qdrant {found} is too old; update it to {oldest} or later")
        vectors = models.VectorParams(
            size=manifest.dim,
            distance=models.Distance.DOT,
            datatype=models.Datatype(manifest.dtype),
            on_disk=True,
        )

        def create() -> None:
            try:
                self._client.create_collection(
                    self._name, vectors, on_disk_payload=True, metadata=manifest_facts(manifest)
                )
            except UnexpectedResponse as error:
                if error.status_code != _CONFLICT:  # another process was faster
                    raise

        if self.manifest() is None:
            self._ask(create)
            if self.manifest() is None:
                raise StoreError(f"{self.address}: the collection was removed meanwhile; try again")
        self._index(FACT_INDEXES)

    def drop(self) -> None:
        self._ask(lambda: self._client.delete_collection(self._name))

    def close(self) -> None:
        self._client.close()
        self._patient.close()

    def facts(self) -> dict[str, Any]:
        info = self._ask(lambda: self._client.get_collection(self._name))
        search = (info.config.metadata or {}).get("search", {})
        return {
            "database": "Qdrant",
            "version": self._ask(self._client.info).version,
            "index": "hnsw" if info.indexed_vectors_count else "flat",
            "points": info.points_count,
            "points in the index": info.indexed_vectors_count,
            "segments": info.segments_count,
            "status": str(info.status.value),
            **search,
        }

    # ---- operations of Qdrant

    def _ask(self, operation: Callable[[], T]) -> T:
        """Run an operation; once more if the connection was lost, since the server may have restarted."""
        try:
            return self._once(operation)
        except ResponseHandlingException as error:
            answered = not _refuses_connections(error)
        time.sleep(_POLL)
        try:
            return self._once(operation)
        except ResponseHandlingException as error:
            raise self._failed(error, answered=answered) from error

    def _failed(self, error: ResponseHandlingException, *, answered: bool) -> StoreError:
        """Return our error; `answered` tells whether the server has taken a connection before."""
        reason = " ".join(str(error).split())[:200] or type(error.source).__name__
        if _refuses_connections(error):
            if answered:
                return connection_lost(self.address, reason)
            what = f"cannot be reached ({reason})"
            return StoreError(f"{self.address}: {what}; start the server or correct the address")
        if isinstance(error.source, httpx.TimeoutException):
            return StoreError(f"{self.address}: no answer in time ({reason}); see the log of the server")
        if isinstance(error.source, httpx.TransportError):
            return connection_ended(self.address, reason)
        return StoreError(
            f"{self.address}: an answer cannot be read ({reason}); check that it is a Qdrant server"
        )

    def _once(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except UnexpectedResponse as error:
            raise self._refused(error) from error

    def _refused(self, error: UnexpectedResponse) -> LookalikeError:
        if error.status_code in (_UNAUTHORIZED, _FORBIDDEN):
            return InputError(f"{self.address}: the API key is refused; set ${PASSWORD} to the right one")
        if error.status_code == _NOT_FOUND:
            return no_collection(self.address)
        try:
            reason = json.loads(error.content)["status"]["error"]
        except (ValueError, KeyError, TypeError):
            reason = error.reason_phrase
        reason = " ".join(str(reason).split())[:300]
        return refused(self.address, reason)

    def _facts(self) -> Mapping[str, Any]:
        if time.monotonic() > self._known_at + _KNOWN_FOR:
            return self._fresh_facts()
        return self._known

    def _fresh_facts(self) -> Mapping[str, Any]:
        def read() -> Mapping[str, Any] | None:
            try:
                return self._client.get_collection(self._name).config.metadata or {}
            except UnexpectedResponse as error:
                if error.status_code == _NOT_FOUND:
                    return None
                raise

        found = self._ask(read)
        self._known = {} if found is None else {"collection": self._name, **found}
        self._known_at = time.monotonic()
        return self._known

    def _state(self, facts: Mapping[str, Any]) -> None:
        self._ask(lambda: self._client.update_collection(self._name, metadata=dict(facts)))
        self._known_at = -_KNOWN_FOR

    def _index(self, fields: Mapping[str, PayloadIndex]) -> None:
        known = self._ask(lambda: self._client.get_collection(self._name)).payload_schema
        for field, index in fields.items():
            if field not in known:
                schema = _schema(index)
                self._ask(
                    lambda field=field, schema=schema: self._patient.create_payload_index(  # type: ignore[misc]
                        self._name, field, schema, wait=True, ordering=models.WriteOrdering.STRONG
                    )
                )

    def _upsert(self, ids: Sequence[int], vectors: np.ndarray, payloads: Sequence[Payload]) -> None:
        batch = models.Batch(ids=[*ids], vectors=vectors.tolist(), payloads=[*payloads])
        self._ask(
            lambda: self._client.upsert(self._name, batch, wait=True, ordering=models.WriteOrdering.STRONG)
        )

    def _set(self, changes: Sequence[tuple[Sequence[int], Payload]]) -> None:
        operations = [
            models.SetPayloadOperation(set_payload=models.SetPayload(payload=payload, points=[*ids]))
            for ids, payload in changes
        ]
        for n in range(0, len(operations), _CHANGES):
            some = operations[n : n + _CHANGES]
            self._ask(
                lambda some=some: self._client.batch_update_points(  # type: ignore[misc]
                    self._name, some, wait=True, ordering=models.WriteOrdering.STRONG
                )
            )

    def _delete(self, ids: Sequence[int]) -> None:
        chosen = models.PointIdsList(points=[*ids])
        self._ask(
            lambda: self._client.delete(self._name, chosen, wait=True, ordering=models.WriteOrdering.STRONG)
        )

    def _retrieve(self, ids: Sequence[int], *, payload: bool, vectors: bool) -> list[Point]:
        found = self._ask(
            lambda: self._client.retrieve(self._name, [*ids], with_payload=payload, with_vectors=vectors)
        )
        return [*map(_point, found)]

    def _scroll(
        self, condition: Condition | None, first: int, limit: int, fields: Sequence[str] | None
    ) -> list[Point]:
        found, _ = self._ask(
            lambda: self._client.scroll(
                self._name,
                _filter(condition),
                limit,
                offset=first,
                with_payload=True if fields is None else [*fields],
            )
        )
        return [*map(_point, found)]

    def _count(self, condition: Condition | None, *, exact: bool) -> int:
        found = self._ask(lambda: self._client.count(self._name, _filter(condition), exact=exact))
        return int(found.count)

    def _search(
        self, queries: np.ndarray, k: int, condition: Condition | None, ef: int | None
    ) -> list[list[tuple[int, float]]]:
        among = _filter(condition)
        acorn = models.AcornSearchParams(enable=among is not None, max_selectivity=ACORN)
        params = models.SearchParams(hnsw_ef=ef and max(ef, k), exact=ef is None, acorn=acorn)
        requests = [
            models.QueryRequest(query=query, limit=k, filter=among, params=params)
            for query in queries.tolist()
        ]
        client, seconds = (self._client, _SECONDS) if ef else (self._patient, _SECONDS_LONG)
        found = self._ask(lambda: client.query_batch_points(self._name, requests, timeout=seconds))
        return [[(int(hit.id), hit.score) for hit in row.points] for row in found]

    def _sample(self, count: int) -> list[int]:
        query = models.SampleQuery(sample=models.Sample.RANDOM)
        found = self._ask(
            lambda: self._client.query_points(self._name, query, limit=count, with_payload=False)
        )
        return [int(hit.id) for hit in found.points]

    def _facet(self, field: str, limit: int) -> list[tuple[str, int]]:
        hits = self._ask(lambda: self._client.facet(self._name, field, limit=limit, exact=True)).hits
        return [(str(hit.value), hit.count) for hit in hits]

    def _build(self, *, show_progress: bool) -> None:
        done = 0
        with Progress("indexing", None, "images", show=show_progress) as progress:
            while True:
                info = self._ask(lambda: self._client.get_collection(self._name))
                indexed = info.indexed_vectors_count or 0
                progress.update(max(0, indexed - done))
                done = max(done, indexed)
                if info.status == models.CollectionStatus.GREEN:
                    return
                if info.status == models.CollectionStatus.RED:
                    reason = str(info.optimizer_status)[:300]
                    raise StoreError(
                        f"{self.address}: the index cannot be built ({reason}); see the log of the server"
                    )
                if info.status == models.CollectionStatus.GREY:
                    self._resume()
                time.sleep(_POLL)

    def _resume(self) -> None:
        """Let the server build graphs in the background; after a restart it waits for a change."""
        nothing = models.OptimizersConfigDiff()
        self._ask(lambda: self._patient.update_collection(self._name, optimizers_config=nothing))


def _refuses_connections(error: ResponseHandlingException) -> bool:
    return isinstance(error.source, httpx.ConnectError | httpx.ConnectTimeout)


def connect(address: Address, seconds: int) -> QdrantClient:
    """Return a client of a server, which waits some seconds for an answer. It connects when it is used."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    url = f"{'https' if address.secure else 'http'}://{host}:{address.port}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an API key without TLS, within a private network
        return QdrantClient(
            url=url, api_key=address.password or None, timeout=seconds, check_compatibility=False
        )


def _schema(index: PayloadIndex) -> Any:
    if index.kind == "keyword":
        return models.KeywordIndexParams(
            type=models.KeywordIndexType.KEYWORD,
            on_disk=index.selective,
            enable_hnsw=not index.selective,
        )
    return models.FloatIndexParams(
        type=models.FloatIndexType.FLOAT, on_disk=index.selective, enable_hnsw=not index.selective
    )


def _point(record: models.Record) -> Point:
    vector = None if record.vector is None else np.array(record.vector, np.float32)
    return Point(int(record.id), record.payload or {}, vector)


def _filter(condition: Condition | None) -> models.Filter | None:
    return None if condition is None else models.Filter.model_validate(condition)
