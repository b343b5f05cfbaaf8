"""The option --store, and `lookalike index connect`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from retrieval.cli import json_option, print_result, print_status
from retrieval.commands.device_options import runtime_options
from retrieval.gallery import DatabaseGallery
from retrieval.model.embedder import Embedder
from retrieval.model.runtime import Runtime
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
    target = DatabaseGallery.connect(gallery, Embedder.open(model, runtime), store)
    explain_password(store)
    facts = {"gallery": str(gallery), "store": target.address, "images": len(target)}
    count = pluralize(len(target), "image")
    print_result(facts, as_json, f"{gallery}: connected to {target.address}; {count}")


def explain_password(address: Address) -> None:
    """Print that the password of an address is not stored, unless the environment has it."""
    if address.password and address.password != os.environ.get(PASSWORD):
        print_status(f"the password is not stored; set {PASSWORD} for the next commands and for servers")
