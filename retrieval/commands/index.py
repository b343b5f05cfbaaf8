"""`lookalike index`: the group of commands over a gallery's contents."""

from __future__ import annotations

import click

from retrieval.cli import LazyGroup

_INGEST, _UPKEEP, _TRANSFER = (f"retrieval.commands.{name}" for name in ("ingest", "upkeep", "transfer"))
# Each line says when to use the command.
_TOPICS = {
    "Images come and go": {
        "build": (f"{_INGEST}:build", "Begin here: make a gallery of images."),
        "add": (f"{_INGEST}:add", "More images came: add them, and leave the others as they are."),
        "sync": (
            f"{_INGEST}:sync",
            "Files changed: make the gallery as a folder is, once or with --watch until you stop it.",
        ),
        "remove": (f"{_UPKEEP}:remove", "Some images do not belong: remove them by id or by a condition."),
    },
    "Another model, more speed, less space": {
        "rebuild": (f"{_INGEST}:rebuild", "You have a better model: embed all images again with it."),
        "optimize": (
            "retrieval.commands.optimize:optimize",
            "Searches are slow, or the disk is full: renew the index, and free space with --compact.",
        ),
    },
    "Look and be safe": {
        "info": (f"{_UPKEEP}:info", "See what a gallery has: images, index, model, columns, last runs."),
        "verify": (f"{_UPKEEP}:verify", "A disk or a machine failed: verify every checksum, and repair."),
        "snapshot": (f"{_UPKEEP}:snapshot", "You want a backup: copy a gallery while it is in use."),
    },
    "Other programs and databases": {
        "export": (f"{_TRANSFER}:export_", "Another program needs the vectors: write them to a file."),
        "import": (f"{_TRANSFER}:import_", "You have vectors already: make a gallery of them."),
        "connect": (
            "retrieval.commands.stores:connect",
            "The images are in a database: use them from this machine, too.",
        ),
    },
}


@click.group(
    cls=LazyGroup,
    lazy={name: place for commands in _TOPICS.values() for name, place in commands.items()},
    topics=_TOPICS,
)
def index() -> None:
    """Build a gallery of your images, and keep it up to date.

    \b
      lookalike index build shop.gallery photos --model model.onnx
      lookalike index sync shop.gallery photos
      lookalike index info shop.gallery

    An interrupted command leaves the gallery in its last committed state; run it again to continue.
    """
