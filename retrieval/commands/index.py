"""`lookalike index`."""

from __future__ import annotations

import click

from retrieval.commands import ingest, upkeep


@click.group()
def index() -> None:
    """Build a gallery from images, and keep it right."""


for command in (
    ingest.build,
    ingest.add,
    ingest.update,
    ingest.sync,
    ingest.rebuild,
    upkeep.remove,
    upkeep.info,
    upkeep.verify,
    upkeep.compact,
    upkeep.export_vectors,
    upkeep.import_,
):
    index.add_command(command)
