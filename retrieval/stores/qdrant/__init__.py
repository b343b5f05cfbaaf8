"""Qdrant: its addresses. A server, or the engine in this process, is imported when one is opened."""

from __future__ import annotations

from urllib.parse import SplitResult, unquote

from retrieval.stores.address import COLLECTION, Address
from retrieval.stores.engine import Driver, Engine


class QdrantDriver(Driver):
    """qdrant://HOST[:6333]/COLLECTION, qdrant+https://HOST/COLLECTION; qdrant:///FOLDER in this process"""

    form = "qdrant://HOST:6333/COLLECTION or qdrant:///FOLDER"
    port = 6333
    extra = "qdrant"

    @classmethod
    def parse(cls, parts: SplitResult) -> Address:
        """Return an address; without a host, that of a folder."""
        folder = unquote(parts.path)
        if parts.hostname or len(folder) < 2:
            return super().parse(parts)
        return Address("qdrant", "", 0, "", "", folder, COLLECTION)

    @classmethod
    def open(cls, address: Address) -> Engine:
        """Connect to a server, or open a folder."""
        if address.embedded:
            from retrieval.stores.qdrant.embedded import QdrantEdgeEngine

            return QdrantEdgeEngine(address)
        from retrieval.stores.qdrant.server import QdrantEngine

        return QdrantEngine(address)
