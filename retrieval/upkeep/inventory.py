"""What a gallery holds, in numbers: for `lookalike index info` and for whoever asks from Python."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from retrieval.files import folder_size

if TYPE_CHECKING:
    from retrieval.gallery import Gallery

_PARTS = ("segments", "indexes", "model", "reports", "pictures", "quarantine")
_RUNS = 5


def inventory(gallery: Gallery) -> dict[str, Any]:
    """Plain values: counts of the state last committed, the index, the model, places, bytes on the disk."""
    store, folder = gallery.store, gallery.folder
    state = store.state()
    stored = sum(segment.n for segment in state.segments)
    covered = state.index.n if state.index else 0
    waiting = "SELECT count(*) FROM items WHERE deleted_at IS NULL AND seg IS NULL"
    roots = (
        "SELECT root, count(*) FROM items WHERE deleted_at IS NULL AND path != '' GROUP BY root ORDER BY root"
    )
    bytes_of = {part: folder_size(folder / part) for part in _PARTS if (folder / part).is_dir()}
    return {
        "gallery": str(folder),
        "images": stored - len(state.removed),
        "removed": len(state.removed),
        "waiting": store.rows(waiting)[0][0],
        "bad_files": store.rows("SELECT count(*) FROM bad")[0][0],
        "segments": len(state.segments),
        "index": _index(gallery, covered),
        "outside_index": stored - covered,
        "dim": store.manifest.dim,
        "fingerprint": gallery.fingerprint,
        "roots": {str(folder / root): count for root, count in store.rows(roots)},
        "columns": store.columns(),
        "bytes": {"database": (folder / "gallery.db").stat().st_size, **bytes_of, "all": folder_size(folder)},
        "format": store.manifest.format_version,
        "runs": _runs(gallery),
    }


def _index(gallery: Gallery, covered: int) -> dict[str, Any]:
    index = gallery.index
    if index is None:
        return {"kind": "flat", "recall": 1.0, "vectors": 0}
    card = index.card
    return {"vectors": covered, **{name: value for name, value in card.items() if name != "tried"}}


def _runs(gallery: Gallery) -> list[dict[str, Any]]:
    """The last runs, newest first."""
    query = f"SELECT command, started, ended, counts, versions FROM runs ORDER BY run DESC LIMIT {_RUNS}"
    names = ("command", "started", "ended", "counts", "versions")
    rows = [dict(zip(names, row, strict=True)) for row in gallery.store.rows(query)]
    return [
        {**row, "counts": json.loads(row["counts"]), "versions": json.loads(row["versions"])} for row in rows
    ]
