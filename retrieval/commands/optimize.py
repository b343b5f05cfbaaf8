"""`lookalike index optimize`: bring the index of a gallery up to what is asked for, and free its space."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result
from retrieval.commands.device_options import search_device_option
from retrieval.commands.options import index_options, size_text
from retrieval.gallery import Gallery
from retrieval.machine.devices import Device
from retrieval.model.runtime import Runtime
from retrieval.search.kinds import is_on_disk
from retrieval.storage.records import IndexSpec
from retrieval.text import printable
from retrieval.upkeep.compact import Compaction


@click.command()
@click.argument("gallery", type=click.Path(path_type=Path))
@index_options
@click.option(
    "--compact",
    is_flag=True,
    help="Also free the space of removed images, which then no longer come back with their id and metadata, "
    "and merge small vector files.",
)
@search_device_option
@json_option
def optimize(
    gallery: Path,
    kind: str | None,
    recall: float | None,
    memory: int | None,
    index_dim: int | None,
    compact: bool,
    device: Device,
    as_json: bool,
) -> None:
    """Bring the search index of GALLERY up to what is asked for, and say what was done and why.

    The index is extended by new vectors. It is built again if --kind, --recall, --memory or --index-dim are
    not those that it was built for, if the gallery has outgrown the memory limit or four times the size that
    the kind was chosen for, if more than 30 % of its vectors belong to removed images, or if it is damaged.
    The values are stored, and `add`, `sync` and `import` keep to them from then on. Searches go on
    meanwhile.

    --compact drops removed images for good. It needs temporary disk space for a copy of the vectors that it
    rewrites. Ids do not change.

    In a database, its own index is completed, and built again for another --recall; it frees space itself.

    The memory needed is that of the index plus up to 1.6 GB; vectors are read from disk in blocks. An index
    of kind ivf-disk is built on disk, in parts that take half of --memory and at most 1 GiB, and needs as
    much free disk again meanwhile. If the build is interrupted, the same command continues with its parts.

    \b
      lookalike index optimize shop.gallery
      lookalike index optimize shop.gallery --compact
      lookalike index optimize shop.gallery --kind hnsw
      lookalike index optimize shop.gallery --kind auto --recall 0.95 --memory 500MB
      lookalike index optimize shop.gallery --kind ivf-disk --memory 2GB
      lookalike index optimize shop.gallery --kind ivf-rabitq --index-dim 256
    """
    spec = IndexSpec(kind, recall, memory, index_dim)
    if compact:
        Gallery.kind(gallery).check_has("compact", gallery)
    target = Gallery.open(gallery, runtime=Runtime(device))
    work = target.optimize(spec, show_progress=True)
    if work.done == "completed":
        facts = {"gallery": str(gallery), "done": work.done, "images": len(target), "kind": target.index_kind}
        print_result(facts, as_json, printable(f"{gallery}: index completed; {target.index_kind}"))
        return
    compaction = target.compact(show_progress=True) if compact else None
    card = target.index_card
    facts = {"gallery": str(gallery), "done": work.done, "reason": work.reason, "images": len(target)}
    facts |= (
        {"kind": "flat", "recall": 1.0}
        if card is None
        else {name: card[name] for name in ("kind", "recall", "ms", "bytes_per_vector", "bytes")}
    )
    now_is = (
        "exact search without an index"
        if card is None
        else f"{card['kind']}, recall {card['recall']:.3f} measured, {card['ms']:.2f} ms a query, "
        f"{card['bytes_per_vector']} bytes a vector{_dimensions(card, target)}{_on_disk(card)}"
    )
    what = "nothing to do" if work.done == "nothing" else f"index {work.done}, since {work.reason}"
    lines = [f"{gallery}: {what}; {now_is}"]
    if compaction is not None:
        facts["compaction"] = vars(compaction)
        lines.append(f"{gallery}: {_compacted(compaction)}")
    print_result(facts, as_json, lines)


def _compacted(done: Compaction) -> str:
    (files_before, files), (before, after) = done.segments, map(size_text, done.bytes)
    return (
        f"{done.dropped} removed images dropped; vector files: {files_before} before, {files} after; "
        f"disk space: {before} before, {after} after"
    )


def _dimensions(card: dict[str, Any], gallery: Gallery) -> str:
    """Return how many dimensions of the vectors the index has, unless it is all of them."""
    whole = gallery.manifest.dim
    return "" if card["dim"] == whole else f" of {card['dim']} of {whole} dimensions"


def _on_disk(card: dict[str, Any]) -> str:
    """Return the size of an index whose lists stay on disk, as the end of a sentence."""
    return f" in memory, {card['bytes'] // card['vectors']} on disk" if is_on_disk(card["kind"]) else ""
