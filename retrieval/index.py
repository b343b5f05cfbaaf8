"""FAISS indexes over rows of vectors: build, keep on disk, search."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.store import replacing, sha256_of


def _flat(vectors: np.ndarray) -> faiss.Index:
    """Exact: every query is compared with every vector."""
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    return index


_BUILDERS: dict[str, Callable[[np.ndarray], faiss.Index]] = {"flat": _flat}
KINDS = ("auto", *_BUILDERS)


def resolve_kind(kind: str) -> str:
    """The index kind behind a wish: `auto` is the exact one."""
    if kind not in KINDS:
        raise InputError(f"unknown index kind {kind!r}; there are: {', '.join(KINDS)}")
    return "flat" if kind == "auto" else kind


def build(vectors: np.ndarray, kind: str) -> faiss.Index:
    """Build an index of a kind (not `auto`) over float32 [N, D]."""
    return _BUILDERS[kind](np.ascontiguousarray(vectors, np.float32))


def write(index: faiss.Index, parent: Path, kind: str) -> tuple[str, str]:
    """Keep an index in a new folder under `parent` -> (folder name, SHA-256 of the file)."""
    folder = parent / uuid.uuid4().hex
    folder.mkdir()
    with replacing(folder / "index.faiss") as draft:
        faiss.write_index(index, str(draft))
    digest = sha256_of(folder / "index.faiss")
    card = {"kind": kind, "vectors": index.ntotal, "dim": index.d, "metric": "cosine", "sha256": digest}
    with replacing(folder / "card.json") as draft:
        draft.write_text(json.dumps(card, indent=2))
    return folder.name, digest


def read(folder: Path, sha256: str) -> faiss.Index:
    """Open an index read-only, memory-mapped where FAISS can.

    Raises:
        LookalikeError: the file is missing or not the one that was written. FAISS itself would load
            flipped bytes without complaint.
    """
    path = folder / "index.faiss"
    if not path.is_file() or sha256_of(path) != sha256:
        raise LookalikeError(f"{path}: missing or damaged; rebuild it with `lookalike index build`")
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)


def search(
    index: faiss.Index, queries: np.ndarray, k: int, alive: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The k best of the rows that are alive.

    Args:
        queries: float32 [N, D].
        alive: bool [index.ntotal].

    Returns:
        scores float32 [N, k] and rows int64 [N, k], best first; row -1 where there are fewer than k.
    """
    # The selector must outlive the call: FAISS keeps only a pointer to it.
    selector = None if alive.all() else faiss.IDSelectorBitmap(np.packbits(alive, bitorder="little"))
    # `faiss.contrib.torch_utils`, which other libraries import, puts a search without `params` in this place.
    search_arrays = getattr(index, "search_numpy", index.search)
    return search_arrays(queries, k, params=faiss.SearchParameters(sel=selector) if selector else None)
