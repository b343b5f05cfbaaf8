"""Engine of an address; its client library is imported only here, and is an extra of its own."""

from __future__ import annotations

from importlib import import_module

from retrieval.errors import InputError
from retrieval.machine.extras import needs
from retrieval.stores.address import Address
from retrieval.stores.engine import Engine


def open_engine(address: Address) -> Engine:
    """Connect to the database of an address.

    Raises:
        InputError: The client library is not installed.
        StoreError: The database cannot be reached; the message has the address and the reason.
    """
    module, name, extra = {
        ("postgresql", False): ("postgres.engine", "PostgresEngine", "postgres"),
        ("qdrant", False): ("qdrant.server", "QdrantEngine", "qdrant"),
        ("qdrant", True): ("qdrant.embedded", "QdrantEdgeEngine", "qdrant"),
        ("milvus", False): ("milvus.engine", "MilvusEngine", "milvus"),
    }[address.kind, address.embedded]
    try:
        found = import_module(f"retrieval.stores.{module}")
    except ModuleNotFoundError as error:
        missing = needs(error.name or module, extra)
        raise InputError(f"store {address}: {missing}") from error
    engine: Engine = getattr(found, name)(address)
    return engine
