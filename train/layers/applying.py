"""A layer for a gallery: into its model file and its vectors, at once."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval.cli import print_result
from retrieval.commands.stores import open_files
from retrieval.galleries.files import Gallery
from retrieval.model.embedder import Embedder
from retrieval.model.layer import Layer
from retrieval.text import pluralize
from retrieval.upkeep.reprojection import reproject, undo
from train.layers.folding import append_layer


def apply_layer(
    gallery: Gallery, layer: Layer, note: Mapping[str, Any], counts: Mapping[str, int], *, drop_old: bool
) -> dict[str, Any]:
    """Put a layer into the model file of a gallery and through its vectors.

    Args:
        gallery: Gallery in files.
        layer: Layer of its vectors.
        note: Origin of the layer for the provenance, with the name of the command as `command`.
        counts: Numbers for the gallery's history.
        drop_old: Delete an earlier NAME.old.

    Returns:
        Folder of the old gallery, fingerprint and dimension of the new one.

    Raises:
        InputError, LookalikeError: As for `append_layer` and `reproject`; the gallery is unchanged.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / gallery.embedder.path.name
        append_layer(gallery.embedder.path, layer, file, note)
        model = Embedder.open(file, gallery.embedder.runtime)
        done = reproject(
            gallery,
            layer,
            model,
            command=str(note["command"]),
            counts=counts,
            drop_old=drop_old,
            show_progress=True,
        )
    return {"old": str(done.old), "fingerprint": done.gallery.fingerprint, "dim": done.gallery.manifest.dim}


def print_undo(gallery: Path, in_database: str, as_json: bool) -> None:
    """Restore the state of a gallery before its last layer, and print it.

    Args:
        gallery: Gallery folder.
        in_database: What to do instead for a gallery in a database.
        as_json: Print JSON.
    """
    restored = undo(open_files(gallery, in_database), show_progress=True)
    facts = {"gallery": str(gallery), "images": len(restored), "fingerprint": restored.fingerprint}
    text = f"{gallery}: restored, {pluralize(len(restored), 'image')} with model {restored.fingerprint[:12]}"
    print_result(facts, as_json, text)
