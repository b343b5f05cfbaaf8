"""`lookalike index`: the group of commands over a gallery's contents."""

from __future__ import annotations

import click

from retrieval.commands import ingest, optimize, stores, transfer, upkeep


@click.group()
def index() -> None:
    """Build and maintain a gallery.

    \b
      lookalike index build shop.gallery photos --model model.onnx
      lookalike index sync shop.gallery photos
      lookalike index info shop.gallery

    An interrupted command leaves the gallery in its last committed state; run it again to continue.
    """


for command in (
    ingest.build,
    stores.connect,
    ingest.add,
    ingest.update,
    ingest.sync,
    ingest.watch,
    ingest.rebuild,
    upkeep.remove,
    upkeep.info,
    upkeep.verify,
    upkeep.compact,
    optimize.optimize,
    upkeep.snapshot,
    transfer.export_,
    transfer.import_,
):
    index.add_command(command)
