"""`lookalike index optimize`: bring the index of a gallery up to what is asked for."""

from __future__ import annotations

from pathlib import Path

import click

from retrieval.cli import json_option, print_result
from retrieval.commands.device_options import search_device_option
from retrieval.commands.options import index_options
from retrieval.devices import Device
from retrieval.files import now
from retrieval.gallery import Gallery
from retrieval.inference.runtime import Runtime
from retrieval.storage.records import IndexSpec
from retrieval.text import printable


@click.command(short_help="Build or extend the search index.")
@click.argument("gallery", type=click.Path(path_type=Path))
@index_options
@search_device_option
@json_option
def optimize(
    gallery: Path, kind: str | None, recall: float | None, memory: int | None, device: Device, as_json: bool
) -> None:
    """Bring the search index of GALLERY up to what is asked for, and say what was done and why.

    The index is extended by new vectors. It is built again if --kind, --recall or --memory are not those that
    it was built for, if the gallery has outgrown the memory limit or four times the size that the kind was
    chosen for, if more than 30 % of its vectors belong to removed images, or if it is damaged. The values are
    stored, and `add`, `sync`, `update` and `import` keep to them from then on. Searches go on meanwhile.

    The memory needed is that of the index plus up to 1.6 GB; vectors are read from disk in blocks.

    \b
      lookalike index optimize shop.gallery
      lookalike index optimize shop.gallery --kind hnsw
      lookalike index optimize shop.gallery --kind auto --recall 0.95 --memory 500MB
    """
    target, started = Gallery(gallery, runtime=Runtime(device)), now()
    with target.store.writing():
        work = target.optimize_index(IndexSpec(kind, recall, memory), show_progress=True)
        if work.done != "nothing":
            target.store.record_run("optimize", started, {"indexed": len(target)})
            target.store.clear_leftovers()
    card = None if target.index is None else target.index.card
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
        f"{card['bytes_per_vector']} bytes a vector"
    )
    what = "nothing to do" if work.done == "nothing" else f"index {work.done}, since {work.reason}"
    print_result(facts, as_json, printable(f"{gallery}: {what}; {now_is}"))
