"""Commands over galleries whose items are in a database: --store, `index connect`, and refusals."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.device_options import runtime_options
from retrieval.errors import InputError, LookalikeError
from retrieval.galleries.database import RECALL, StoreGallery
from retrieval.galleries.database_folder import is_store, read_folder
from retrieval.galleries.files import Gallery
from retrieval.ingest.indexing import BadFilePolicy, IngestResult, refuse_empty
from retrieval.ingest.sources import Sources
from retrieval.ingest.store_indexing import add_to_store
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
from retrieval.storage.identity import check_storage
from retrieval.storage.records import IndexSpec
from retrieval.stores.address import PASSWORD, Address
from retrieval.stores.opening import address_forms, parse_address
from retrieval.text import pluralize

_FILE = click.Path(path_type=Path)
_FORMS = ", ".join(address_forms())


def store_option(help_text: str, *, required: bool = False) -> Callable[[Any], Any]:
    """Return the option --store, an address."""
    return click.option(
        "--store",
        metavar="ADDRESS",
        required=required,
        callback=lambda _ctx, _param, value: None if value is None else parse_address(value),
        help=f"{help_text}: {_FORMS}.",
    )


def open_files(folder: Path, remedy: str, runtime: Runtime | None = None) -> Gallery:
    """Open a gallery in files for a command that a database does not need, or has a way of its own for.

    Args:
        folder: Gallery folder.
        remedy: What to do instead with a gallery in a database.
        runtime: Runtime of the gallery's model.

    Raises:
        InputError: The folder is not a gallery, or its items are in a database.
    """
    refuse_store(folder, remedy)
    return Gallery(folder, runtime=runtime)


def refuse_store(folder: Path, remedy: str) -> None:
    """Raise an `InputError` with a remedy if the items of a gallery are in a database."""
    if is_store(folder):
        raise InputError(
            f"{folder}: its images are in a database, where this command does not apply; {remedy}"
        )


def check_index(index: IndexSpec) -> float | None:
    """Return the recall that is asked for; raise an `InputError` for options that a database lacks."""
    for option in ("kind", "memory", "dim"):
        if getattr(index, option) is not None:
            name = "--index-dim" if option == "dim" else f"--{option}"
            raise InputError(f"{name}: the database has an index of its own; give --recall alone")
    return index.recall


def build_in_store(
    folder: Path,
    embedder: Embedder,
    address: Address | None,
    sources: Sources,
    *,
    index: IndexSpec,
    storage: str | None,
    policy: BadFilePolicy,
    ignore_decisions: bool,
) -> tuple[StoreGallery, IngestResult]:
    """Create a gallery in a database, unless it is there, and index images; an interrupted build continues.

    Args:
        folder: Gallery folder.
        embedder: Model of the vectors.
        address: Address of the collection; `None` for that in the folder.
        sources: Images and metadata.
        index: Recall of the index.
        storage: Type of the stored numbers; `None` for any.
        policy: Treatment of unusable files.
        ignore_decisions: Add images that were removed by hand.

    Raises:
        InputError: An option or source is invalid, or the folder is that of another gallery.
        LookalikeError: The database fails, or too many files are unusable.
    """
    recall = check_index(index)
    new = not is_store(folder)
    if new:
        assert address is not None
        if (folder / "gallery.db").exists():
            raise InputError(f"{folder}: a gallery in files; choose another name, or omit --store")
        target = StoreGallery.create(folder, embedder, address, storage=storage or "float32")
    else:
        known = read_folder(folder).address
        if address is not None and str(address) != str(known):
            raise InputError(f"{folder}: its images are at {known}; omit --store, or choose another name")
        target = StoreGallery(folder, runtime=embedder.runtime, address=address)
        target.use_model(embedder)
        check_storage(folder, target.manifest, storage)
    if address is not None:
        explain_password(address)
    try:
        result = add_to_store(
            target,
            sources,
            recall=RECALL if recall is None else recall,
            policy=policy,
            ignore_decisions=ignore_decisions,
            show_progress=True,
        )
        if new:
            refuse_empty(target, result)
    except LookalikeError:
        if new and not target.engine.count():  # unusable sources leave no empty gallery
            shutil.rmtree(folder)
        raise
    return target, result


@click.command()
@click.argument("gallery", type=_FILE)
@store_option("Database and collection", required=True)
@click.option("--model", required=True, type=_FILE, help="Model file that the collection was built with.")
@runtime_options
@json_option
def connect(gallery: Path, store: Address, model: Path, runtime: Runtime, as_json: bool) -> None:
    """Create the folder GALLERY for a collection that exists, for example on a second server.

    The folder has the address and the model; all commands then take it as a gallery. It is refused if the
    model is not the one that the vectors come from, by the fingerprint in the collection.

    \b
      lookalike index connect shop.gallery --store postgresql://me@db.example/shop --model model.onnx
      lookalike index connect shop.gallery --store qdrant://db.example:6333/shop --model model.onnx

    The password is read from $LOOKALIKE_STORE_PASSWORD, or from the address, which other users of the machine
    can see in the list of processes. It is not stored.
    """
    target = StoreGallery.connect(gallery, Embedder.open(model, runtime), store)
    explain_password(store)
    facts = {"gallery": str(gallery), "store": target.address, "images": len(target)}
    count = pluralize(len(target), "image")
    print_result(facts, as_json, f"{gallery}: connected to {target.address}; {count}")


def explain_password(address: Address) -> None:
    """Print that the password of an address is not stored, unless the environment has it."""
    if address.password and address.password != os.environ.get(PASSWORD):
        print_status(f"the password is not stored; set {PASSWORD} for the next commands and for servers")
