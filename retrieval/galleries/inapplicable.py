"""What a gallery in a database does not have, and what to do instead: the one list of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from retrieval.errors import InputError
from retrieval.stores.address import Address


class Inapplicable(NamedTuple):
    """An operation or option that has no meaning for a gallery in a database.

    Attributes:
        where: Option in question; empty for an operation on the gallery.
        reason: Why, as the end of a sentence.
        remedy: What to do instead.
    """

    where: str
    reason: str
    remedy: str


_OWN_INDEX = "the database has an index of its own"
_RECALL = "give --recall alone"
INAPPLICABLE = {
    "snapshot": Inapplicable("", "which has backups of its own", "BACKUP, and copy the folder as it is"),
    "compact": Inapplicable("", "which frees the space of removed images itself", "there is nothing to do"),
    "bridge": Inapplicable(
        "--bridge",
        "a database does not record which model a vector is of",
        "omit it: the old collection is searched until the new one is complete",
    ),
    "kind": Inapplicable("--kind", _OWN_INDEX, _RECALL),
    "memory": Inapplicable("--memory", _OWN_INDEX, _RECALL),
    "dim": Inapplicable("--index-dim", _OWN_INDEX, _RECALL),
    "ray": Inapplicable(
        "--engine ray",
        "workers on Ray write vectors for galleries in files",
        "with a database, run `lookalike index add` on several machines, each with its own folders",
    ),
    "exact": Inapplicable("--exact", "needs the vectors in files", "omit it, the database finds the pairs"),
    "order": Inapplicable(
        "order",
        "a gallery in a database lists its images by ascending id only",  # the others would read all items
        "leave the order out",
    ),
}
# How each database is backed up, by the kind of its address.
_BACKUPS = {
    "postgresql": "use `pg_dump` of the database",
    "qdrant": "use a snapshot of the collection, `POST /collections/NAME/snapshots` of Qdrant",
    "milvus": "use `milvus-backup create`",
}


def inapplicable(name: str, folder: Path, address: Address | None = None) -> InputError:
    """Return the error for an operation or option that a gallery in a database does not have.

    Args:
        name: Its name in `INAPPLICABLE`.
        folder: Gallery folder.
        address: Address of the collection.
    """
    where, reason, remedy = INAPPLICABLE[name]
    backup = "use the backup of the database"
    if address is not None and address.embedded:
        backup = f"copy {address.database} while no process has it open"
    elif address is not None:
        backup = _BACKUPS.get(address.kind, backup)
    problem = f"{where}: {reason}" if where else f"{folder}: its images are in a database, {reason}"
    return InputError(f"{problem}; {remedy.replace('BACKUP', backup)}")
