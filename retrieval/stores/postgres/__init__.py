"""PostgreSQL with pgvector: its addresses. `engine` is imported when one is opened."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import SplitResult, parse_qsl

from retrieval.stores.address import COLLECTION, Address
from retrieval.stores.engine import Driver, Engine


class PostgresDriver(Driver):
    """postgresql://USER[:PASSWORD]@HOST[:5432]/DATABASE[?collection=NAME&sslmode=require]"""

    form = "postgresql://USER@HOST/DATABASE?collection=NAME"
    port = 5432
    extra = "postgres"

    @classmethod
    def parse(cls, parts: SplitResult) -> Address:
        """Return an address, whose parameters are those of libpq except `collection`."""
        if "+" in parts.scheme:
            raise ValueError
        found = super().parse(parts._replace(scheme="postgresql", query=""))
        options = dict(parse_qsl(parts.query))
        collection = options.pop("collection", COLLECTION)
        return replace(
            found, database=found.collection, collection=collection, options=tuple(options.items())
        )

    @classmethod
    def open(cls, address: Address) -> Engine:
        """Connect to the database of an address."""
        from retrieval.stores.postgres.engine import PostgresEngine

        return PostgresEngine(address)
