"""Addresses of stores, such as `postgresql://me@db.example/shop` or `qdrant://host:6333/shop`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode

PASSWORD = "LOOKALIKE_STORE_PASSWORD"
MOST = 48  # characters of the name of a collection
COLLECTION = "lookalike"  # where the address has a database and names none


@dataclass(frozen=True)
class Address:
    """Address of a collection in a database.

    Attributes:
        kind: Kind of database: the scheme, which names a driver.
        host: Host name; empty for an embedded database.
        port: Port; 0 for an embedded database.
        user: User name; empty for none.
        password: Password, API key or token, from the address or $LOOKALIKE_STORE_PASSWORD; empty for none.
        database: Database, or the folder of an embedded one; empty where a server has collections alone.
        collection: Name of the collection: letters, digits and underscores.
        secure: Whether to connect by TLS: a scheme that ends in "+https".
        options: Further parameters, such as `sslmode`, of a database that takes some.
    """

    kind: str
    host: str
    port: int
    user: str
    password: str
    database: str
    collection: str
    secure: bool = False
    options: tuple[tuple[str, str], ...] = ()

    @property
    def embedded(self) -> bool:
        """Whether the database runs in this process."""
        return not self.host

    def sibling(self, name: str) -> Address:
        """Return the address of another collection beside this one, whose name is longer by a suffix.

        Args:
            name: Letters and digits.
        """
        if self.embedded:
            return replace(self, database=f"{self.database.rstrip('/')}-{name}")
        return replace(self, collection=f"{self.collection[: MOST - 1 - len(name)]}_{name}")

    def __str__(self) -> str:
        """The address without the password."""
        if self.embedded:
            return f"{self.kind}://{quote(self.database)}"
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        base = f"{self.kind}{'+https' if self.secure else ''}://{user}{host}:{self.port}"
        if not self.database:
            return f"{base}/{self.collection}"
        query = urlencode([*self.options, ("collection", self.collection)])
        return f"{base}/{quote(self.database, safe='')}?{query}"

    def __repr__(self) -> str:
        return f"Address({self})"
