"""Inventory of a gallery: counts, index, model, folders, sizes on disk and the last runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrieval.files import folder_size
from retrieval.storage.identity import has_text
from retrieval.storage.queries import count_bad_files, count_bridged, count_items, files_by_root, last_runs
from retrieval.storage.store import Store

_PARTS = ("segments", "indexes", "model", "reports", "pictures", "quarantine")
_RUNS = 5


def inventory(store: Store, index_card: Mapping[str, Any] | None, outside_index: int) -> dict[str, Any]:
    """Return facts about the state last committed, as plain values.

    Args:
        store: Gallery store.
        index_card: Card of the index in use, see `retrieval.search.index.BuiltIndex`; `None` for exact
            search.
        outside_index: Number of vectors that the index does not cover.
    """
    folder, state = store.folder, store.state()
    stored = sum(segment.n for segment in state.segments)
    covered = state.index.n if state.index else 0
    index: dict[str, Any] = {"kind": "flat", "recall": 1.0, "vectors": 0}
    if index_card is not None:
        index = {"vectors": covered, **{key: fact for key, fact in index_card.items() if key != "tried"}}
    sizes = {part: folder_size(folder / part) for part in _PARTS if (folder / part).is_dir()}
    return {
        "gallery": str(folder),
        "images": stored - len(state.dead),
        "removed": len(state.dead),
        "waiting": count_items(store).waiting,
        "bridged": count_bridged(store),
        "bad_files": count_bad_files(store),
        "segments": len(state.segments),
        "index": index,
        "outside_index": outside_index,
        "dim": store.manifest.dim,
        "storage": store.manifest.dtype,
        "fingerprint": store.manifest.fingerprint,
        "texts": has_text(folder),
        "provider": store.manifest.provider,
        "precision": store.manifest.precision and store.manifest.precision.as_dict(),
        "roots": {str(folder / root): count for root, count in files_by_root(store).items()},
        "columns": store.columns(),
        "product": store.manifest.product,
        "variant": store.manifest.variant,
        "parts": store.manifest.parts,
        "bytes": {"database": (folder / "gallery.db").stat().st_size, **sizes, "all": folder_size(folder)},
        "format": store.manifest.format_version,
        "runs": last_runs(store, _RUNS),
    }
