"""`lookalike index`."""

from __future__ import annotations

import click

from retrieval.commands import building, upkeep


@click.group()
def index() -> None:
    """Build a gallery from images, and keep it right."""


for command in (
    building.build,
    building.add,
    building.update,
    building.sync,
    building.rebuild,
    upkeep.remove,
    upkeep.info,
    upkeep.verify,
    upkeep.compact,
    upkeep.export_vectors,
    upkeep.import_,
):
    index.add_command(command)
