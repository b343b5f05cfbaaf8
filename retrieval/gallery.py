"""A gallery: pictures, their vectors and the model that made them, searchable."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np

from retrieval import index as vector_index
from retrieval.embedder import Embedder
from retrieval.errors import InputError, LookalikeError
from retrieval.images import DECODE_POLICY, ImageSource
from retrieval.store import BadFile, Store

if TYPE_CHECKING:
    from retrieval.indexing import Outcome


@dataclass(frozen=True)
class Item:
    """A picture in a gallery."""

    id: int
    path: str
    label: str | None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hit(Item):
    """A picture found, with its cosine similarity to the query."""

    score: float = 0.0


@dataclass(frozen=True)
class _Snapshot:
    """One committed state, held in memory; rows count through all segments, oldest first."""

    ids: np.ndarray  # int64 [rows], the item of each row, 0 where none is alive
    index: faiss.Index | None  # over the first `covered` rows
    covered: int
    tail: faiss.Index | None  # exact, over the rest

    @property
    def size(self) -> int:
        return int(np.count_nonzero(self.ids))


class Gallery:
    """Open an existing gallery, for searching and adding.

    A gallery shows the state it was opened in until `refresh()`; another process may write meanwhile.

    Raises:
        InputError: the folder is no gallery, or one of a newer format.
    """

    def __init__(self, folder: str | Path) -> None:
        self.store = Store(Path(folder))
        self._snapshot = self._load()

    @classmethod
    def open(cls, folder: str | Path) -> Gallery:
        """The same as `Gallery(folder)`."""
        return cls(folder)

    @classmethod
    def create(cls, folder: str | Path, model: Embedder | str | Path) -> Gallery:
        """Make an empty gallery for one model, which is copied into it."""
        embedder = model if isinstance(model, Embedder) else Embedder(model)
        meta = {
            "fingerprint": embedder.fingerprint,
            "dim": embedder.dim,
            "metric": "cosine",
            "dtype": "float32",
            "decode_policy": DECODE_POLICY,
        }
        Store.create(Path(folder), meta, embedder.path, embedder.embed_pixels(_probe_pixels(embedder)))
        return cls(folder)

    def __len__(self) -> int:
        return self._snapshot.size

    @property
    def outside_index(self) -> int:
        """Vectors that the index does not cover; searches scan them one by one."""
        return len(self._snapshot.ids) - self._snapshot.covered

    @property
    def folder(self) -> Path:
        return self.store.folder

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model file whose vectors this gallery holds."""
        return str(self.store.meta["fingerprint"])

    @cached_property
    def embedder(self) -> Embedder:
        """The gallery's own model, checked against the vectors stored when the gallery was made."""
        embedder = Embedder(self.folder / "model" / "model.onnx")
        self.check_model(embedder)
        stored = np.load(self.folder / "model" / "probes.npy", allow_pickle=False)
        cosine = float((embedder.embed_pixels(_probe_pixels(embedder)) * stored).sum(1).min())
        if cosine < 0.999:
            detail = (
                f"the model gives other vectors here than where the gallery was made (cosine {cosine:.4f})"
            )
            raise LookalikeError(f"{self.folder}: {detail}; rebuild the gallery on this machine")
        return embedder

    def check_model(self, embedder: Embedder) -> None:
        """Refuse a model whose vectors would not belong here."""
        if embedder.fingerprint != self.fingerprint:
            ours, theirs = self.fingerprint[:12], embedder.fingerprint[:12]
            detail = f"it was built with model {ours}, {embedder.path} is model {theirs}"
            raise InputError(f"{self.folder}: {detail}; use the same model, or build a new gallery")

    def refresh(self) -> None:
        """Take up what has been committed since."""
        self._snapshot = self._load()

    # ---- adding

    def add(self, paths: Iterable[str | Path], **options: Any) -> Outcome:
        """Embed and add files and folders; see `retrieval.indexing.add_images` for the options."""
        from retrieval.indexing import add_images  # indexing builds on Gallery

        return add_images(self, paths, **options)

    def build_index(self, kind: str = "auto") -> None:
        """Index everything committed and put the index to use. Call it inside `store.writing()`."""
        kind = vector_index.resolve_kind(kind)
        segments = self.store.segments()
        if segments:
            built = vector_index.build(self._vectors([file for _, file, _ in segments]), kind)
            folder, digest = vector_index.write(built, self.folder / "indexes", kind)
            self.store.activate_index(folder, digest, kind, segments[-1][0], built.ntotal)
        self.refresh()

    # ---- searching

    def search(self, image: ImageSource, k: int = 10) -> list[Hit]:
        """The k pictures most like this one, best first; ties by id.

        Args:
            image: a path, the bytes of a file, a Pillow image or an array uint8 [H, W, 3].

        Raises:
            ImageError: the picture cannot be read.
        """
        return self.search_vectors(self.embedder.embed([image]), k)[0]

    def search_id(self, item: int, k: int = 10) -> list[Hit]:
        """The k pictures most like an item of the gallery, without the item itself."""
        vector = self.vector(item)
        return [hit for hit in self.search_vectors(vector[None], k + 1)[0] if hit.id != item][:k]

    def search_vectors(self, queries: np.ndarray, k: int = 10) -> list[list[Hit]]:
        """Search by vectors of this gallery's model, float32 [N, D] of unit length -> N lists of hits."""
        scores, ids = self.nearest(queries, k)
        found = self.items(np.unique(ids[ids > 0]).tolist())
        return [
            [Hit(**vars(found[i]), score=score) for score, i in zip(*row, strict=True) if i in found]
            for row in zip(scores.tolist(), ids.tolist(), strict=True)
        ]

    def nearest(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores float32 [N, k'] and item ids int64 [N, k'], best first, ties by id; k' = min(k, size).

        Raises:
            InputError: k below 1, or queries of another shape or with values that are not finite.
        """
        state = self._snapshot
        dim = self.store.meta["dim"]
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}")
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != dim or not np.isfinite(queries).all():
            raise InputError(f"queries must be finite [N, {dim}], got {list(queries.shape)}")
        k = min(k, state.size)
        scores, rows = np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        for part, start in ((state.index, 0), (state.tail, state.covered)):
            if part is None or k == 0:
                continue
            alive = state.ids[start : start + part.ntotal] > 0
            s, r = vector_index.search(part, queries, k, alive)
            scores = np.concatenate([scores, np.where(r < 0, -np.inf, s)], 1)
            rows = np.concatenate([rows, np.where(r < 0, r, r + start)], 1)
        order = np.lexsort((rows, -scores))[:, :k]  # rows are in the order of the ids
        return np.take_along_axis(scores, order, 1), state.ids[np.take_along_axis(rows, order, 1)]

    def items(self, ids: Sequence[int]) -> dict[int, Item]:
        """Items by id; an id that is unknown or removed is left out."""
        found: dict[int, Item] = {}
        for start in range(0, len(ids), 500):  # below SQLite's limit on parameters
            chunk = ids[start : start + 500]
            marks = ",".join("?" * len(chunk))
            query = (
                f"SELECT id, root, path, label, meta FROM items WHERE deleted_at IS NULL AND id IN ({marks})"
            )
            for i, root, path, label, meta in self.store.rows(query, chunk):
                found[i] = Item(i, str(Path(root, path)), label, json.loads(meta))
        return found

    def item(self, item: int) -> Item:
        """One item by id; an `InputError` where there is none."""
        found = self.items([item])
        if item not in found:
            raise InputError(f"{self.folder}: no item {item}")
        return found[item]

    def vector(self, item: int) -> np.ndarray:
        """The stored vector of one item, float32 [D]."""
        query = "SELECT file, row FROM items JOIN segments USING (seg) WHERE id = ? AND deleted_at IS NULL"
        rows = self.store.rows(query, (item,))
        if not rows:
            raise InputError(f"{self.folder}: no item {item}")
        file, row = rows[0]
        return np.array(self.store.vectors(file)[row])

    def labelled_vectors(self) -> tuple[np.ndarray, list[str | None], list[str], list[int]]:
        """Everything alive, by id: vectors float32 [N, D], labels, SHA-256 of each file's bytes, ids."""
        query = "SELECT id, label, content_sha256, seg, row FROM items WHERE deleted_at IS NULL ORDER BY id"
        rows = self.store.rows(query)
        segments = self.store.segments()
        starts = _starts(segments)
        vectors = self._vectors([file for _, file, _ in segments])
        at = [starts[seg] + row for _, _, _, seg, row in rows]
        return vectors[at], [r[1] for r in rows], [r[2] for r in rows], [r[0] for r in rows]

    def info(self) -> dict[str, Any]:
        """What the gallery holds, as plain values."""
        index = self.store.rows("SELECT kind, n FROM indexes WHERE active = 1")
        return {
            "gallery": str(self.folder),
            "images": len(self),
            "bad_files": len(self.store.bad_files()),
            "dim": self.store.meta["dim"],
            "fingerprint": self.fingerprint,
            "index": {"kind": index[0][0], "vectors": index[0][1]} if index else None,
            "outside_index": self.outside_index,
        }

    def bad_files(self) -> list[BadFile]:
        """Files that could not be used when they were last tried."""
        return self.store.bad_files()

    # ---- the state on disk, in memory

    def _load(self) -> _Snapshot:
        segments, live, active = self.store.state()
        starts = _starts(segments)
        ids = np.zeros(sum(n for _, _, n in segments), np.int64)
        for item, seg, row in live:
            ids[starts[seg] + row] = item
        index, covered, upto = None, 0, 0
        if active:
            folder, digest, upto, covered = active[0]
            index = vector_index.read(self.folder / "indexes" / folder, digest)
        rest = [file for seg, file, _ in segments if seg > upto]
        tail = vector_index.build(self._vectors(rest), "flat") if rest else None
        return _Snapshot(ids, index, covered, tail)

    def _vectors(self, files: Sequence[str]) -> np.ndarray:
        parts = [self.store.vectors(file) for file in files]
        return np.concatenate(parts) if parts else np.empty((0, self.store.meta["dim"]), np.float32)


def _starts(segments: Sequence[tuple[int, str, int]]) -> dict[int, int]:
    """Number of a segment -> its first row, counted through all segments."""
    first = np.cumsum([0, *(n for _, _, n in segments)]).tolist()
    return {seg: start for (seg, _, _), start in zip(segments, first, strict=False)}


def _probe_pixels(embedder: Embedder) -> np.ndarray:
    """Four fixed pictures uint8 [4, S, S, 3], whose vectors show whether a model still does what it did."""
    side = embedder.preprocess.size
    y, x = np.mgrid[0:side, 0:side] / side
    waves = [np.sin(2 * np.pi * (a * x + b * y))[..., None] for a, b in ((1, 0), (0, 3), (5, 2), (11, 7))]
    tint = np.array([1.0, 0.6, 0.3])
    return np.stack([127.5 + 127.5 * wave * np.roll(tint, i) for i, wave in enumerate(waves)]).astype(
        np.uint8
    )
