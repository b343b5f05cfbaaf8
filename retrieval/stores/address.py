"""Addresses of stores, such as `postgresql://me@db.example/shop` or `qdrant://host:6333/shop`.

postgresql://USER[:PASSWORD]@HOST[:5432]/DATABASE[?collection=NAME&sslmode=require]
qdrant://HOST[:6333]/COLLECTION        qdrant+https://HOST/COLLECTION
qdrant:///FOLDER                       embedded: the engine runs in this process
milvus://HOST[:19530]/COLLECTION       milvus+https://HOST/COLLECTION
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from retrieval.errors import InputError, did_you_mean

PASSWORD = "LOOKALIKE_STORE_PASSWORD"
COLLECTION = "lookalike"  # of a PostgreSQL database, if the address names none
FORMS = {
    "postgresql": "postgresql://USER@HOST/DATABASE?collection=NAME",
    "qdrant": "qdrant://HOST:6333/COLLECTION or qdrant:///FOLDER",
    "milvus": "milvus://HOST:19530/COLLECTION",
}
_PORTS = {"postgresql": 5432, "qdrant": 6333, "milvus": 19530}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,47}")


@dataclass(frozen=True)
class Address:
    """Address of a collection in a database.

    Attributes:
        kind: "postgresql", "qdrant" or "milvus".
        host: Host name; empty for an embedded database.
        port: Port; 0 for an embedded database.
        user: User name; empty for none.
        password: Password, API key or token, from the address or $LOOKALIKE_STORE_PASSWORD; empty for none.
        database: Database, or the folder of an embedded one.
        collection: Name of the collection: letters, digits and underscores.
        secure: Whether to connect by TLS (Qdrant, Milvus).
        options: Further parameters, such as `sslmode` of PostgreSQL.
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

    def __str__(self) -> str:
        """The address without the password."""
        if self.embedded:
            return f"{self.kind}://{quote(self.database)}"
        user = f"{quote(self.user, safe='')}@" if self.user else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        base = f"{self.kind}{'+https' if self.secure else ''}://{user}{host}:{self.port}"
        if self.kind != "postgresql":
            return f"{base}/{self.collection}"
        query = urlencode([*self.options, ("collection", self.collection)])
        return f"{base}/{quote(self.database, safe='')}?{query}"

    def __repr__(self) -> str:
        return f"Address({self})"


def parse_address(text: str) -> Address:
    """Parse an address.

    Raises:
        InputError: It is none; the message shows the form and never a password.
    """
    scheme, _, rest = text.partition("://")
    kind, _, tls = scheme.lower().partition("+")
    kind = {"postgres": "postgresql"}.get(kind, kind)
    if kind not in FORMS or tls not in ("", "https") or (tls and kind == "postgresql"):
        hint = did_you_mean(kind, FORMS, f"known: {', '.join(FORMS)}")
        raise InputError(f"store {scheme}://...: unknown kind of store; {hint}")
    try:
        parts = urlsplit(f"{kind}://{rest}")
        port = parts.port or _PORTS[kind]
    except ValueError:
        raise _invalid(kind) from None
    path = unquote(parts.path)
    options = dict(parse_qsl(parts.query))
    password = unquote(parts.password or "") or os.environ.get(PASSWORD, "")
    if not parts.hostname:
        if kind != "qdrant" or len(path) < 2:
            raise _invalid(kind)
        return Address(kind, "", 0, "", "", path, COLLECTION)
    name = path.strip("/")
    database = name if kind == "postgresql" else ""
    collection = options.pop("collection", COLLECTION) if kind == "postgresql" else name
    if not name or "/" in name or (options and kind != "postgresql"):
        raise _invalid(kind)
    if not _NAME.fullmatch(collection):
        what = f"collection {collection!r}: use letters, digits and underscores, at most 48, no digit first"
        raise InputError(f"store: {what}")
    user = unquote(parts.username or "")
    return Address(
        kind, parts.hostname, port, user, password, database, collection, bool(tls), tuple(options.items())
    )


def _invalid(kind: str) -> InputError:
    return InputError(f"store: not an address of {kind}; write {FORMS[kind]}")
