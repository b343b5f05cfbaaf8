"""Milvus: its addresses. `engine` is imported when one is opened."""

from __future__ import annotations

from retrieval.stores.address import Address
from retrieval.stores.engine import Driver, Engine


class MilvusDriver(Driver):
    """milvus://[USER[:PASSWORD]@]HOST[:19530]/COLLECTION, milvus+https://HOST/COLLECTION"""

    form = "milvus://HOST:19530/COLLECTION"
    port = 19530
    extra = "milvus"

    @classmethod
    def open(cls, address: Address) -> Engine:
        """Connect to a server."""
        from retrieval.stores.milvus.engine import MilvusEngine

        return MilvusEngine(address)
