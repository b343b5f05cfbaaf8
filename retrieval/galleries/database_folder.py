"""Folder of a gallery whose items are in a database: the model, and the address of the collection.

    store.json         address without password, uuid of the collection, checksum of the probe vectors
    model/             model file and probes.npy, as in every gallery; empty for an external embedding
    pictures/          uploaded image files, if any
    calibration.json   how probable hits are, if that was learned
    detector.onnx      finds the parts of pictures that are items, if a detector does
    decisions.jsonl    decisions made by hand through this folder; see `retrieval.storage.decisions`

The folder is small, so each machine that adds images or serves has its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from retrieval.errors import InputError, LookalikeError
from retrieval.files import write_texts
from retrieval.model.embedder import Embedder
from retrieval.storage.identity import keep_model, probe_pixels
from retrieval.storage.store import new_folder
from retrieval.stores.address import Address
from retrieval.stores.opening import parse_address

NAME = "store.json"
_FORMAT = 1


@dataclass(frozen=True)
class StoreFolder:
    """Contents of `store.json`.

    Attributes:
        address: Address of the collection; its password comes from the environment.
        uuid: Random id of the collection, from its manifest.
        probes_sha256: SHA-256 of the file with the vectors of the probe images; `None` without a model.
    """

    address: Address
    uuid: str
    probes_sha256: str | None


def is_store(folder: Path) -> bool:
    """Return whether a folder is that of a gallery whose items are in a database."""
    return (folder / NAME).is_file()


def is_gallery(folder: Path) -> bool:
    """Return whether a folder is a gallery, in files or in a database."""
    return is_store(folder) or (folder / "gallery.db").exists()


def create_folder(folder: Path, address: Address, collection: str, model: Embedder | None) -> StoreFolder:
    """Create the folder of a gallery; it appears under its name complete or not at all.

    Args:
        folder: Gallery folder, which must be empty or not exist.
        address: Address of the collection.
        collection: uuid of the collection.
        model: Model of the vectors, whose file is copied; `None` for an external embedding.
    """
    probes = None
    with new_folder(folder) as draft:
        (draft / "model").mkdir()
        if model is not None:
            probes = keep_model(draft, model.path, model.embed_pixels(probe_pixels(model)))
        facts = {
            "format": _FORMAT,
            "address": str(address),
            "collection_uuid": collection,
            "probes_sha256": probes,
        }
        write_texts(draft, {NAME: json.dumps(facts, indent=2)})
    return StoreFolder(address, collection, probes)


def address_of(folder: Path, other: Address) -> Address:
    """Return the address of the collection of a folder, with the password of another one."""
    return replace(read_folder(folder).address, password=other.password)


def read_folder(folder: Path) -> StoreFolder:
    """Read the folder of a gallery.

    Raises:
        InputError: It is not the folder of a gallery in a database, or of another format.
        LookalikeError: `store.json` is damaged.
    """
    file = folder / NAME
    if not file.is_file():
        raise InputError(f"{folder}: not a gallery; create one with `lookalike index build`")
    try:
        facts = json.loads(file.read_text())
        version, address = int(facts["format"]), str(facts["address"])
        collection, probes = str(facts["collection_uuid"]), facts.get("probes_sha256")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LookalikeError(f"{file}: damaged; create it again with `lookalike index connect`") from error
    if version != _FORMAT:
        raise InputError(f"{file}: format {version} is not supported; update lookalike")
    return StoreFolder(parse_address(address), collection, probes)
