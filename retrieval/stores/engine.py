"""Interface of a store: a database that keeps the items of a gallery with their vectors, and searches them.

A folder of this room, or another package, implements it for each database; `retrieval.stores.opening` finds
it by the scheme of an address. `retrieval.galleries.database` has what is the same for all of them: ids,
checks of columns and types, excluded items, groups, re-ranking, duplicates.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self
from urllib.parse import SplitResult, unquote

import numpy as np

from retrieval.errors import InputError, StoreError
from retrieval.storage.conditions import Filter
from retrieval.storage.manifest import Manifest
from retrieval.storage.records import StoredItem, Value
from retrieval.storage.schema import ColumnType
from retrieval.stores.address import PASSWORD, Address


@dataclass(frozen=True)
class Neighbours:
    """Nearest items of a query, best first; equal scores by id.

    Attributes:
        ids: Item ids, int64 [n].
        scores: Cosine similarities, float32 [n].
    """

    ids: np.ndarray
    scores: np.ndarray

    def __getitem__(self, which: slice | np.ndarray) -> Neighbours:
        return Neighbours(self.ids[which], self.scores[which])


@dataclass(frozen=True)
class NearestGroups(Neighbours):
    """The nearest item of each of some groups, best first.

    Attributes:
        counts: Number of all items of each group that fulfil the filter, int64 [n].
    """

    counts: np.ndarray


@dataclass(frozen=True)
class Amendment:
    """New values of one item, whose vector stays. What is not named keeps its value.

    Attributes:
        id: Item id.
        facts: Values of `label`, `root`, `path`, `size` and `mtime_ns`, by name.
        metadata: Values by metadata column; `None` removes a value.
    """

    id: int
    facts: Mapping[str, Value] = field(default_factory=dict)
    metadata: Mapping[str, Value] = field(default_factory=dict)


class Driver(ABC):
    """A kind of database: the form of its addresses, and its engine. Entry points name a subclass.

    An engine is a driver, too. A driver of its own serves where importing the engine needs an optional
    package: addresses are read, and listed by --help, without it.

    Attributes:
        form: Form of the addresses, for messages.
        port: Port where the address has none.
        extra: Extra of this package that has the client library; empty for none.
    """

    form: ClassVar[str]
    port: ClassVar[int] = 0
    extra: ClassVar[str] = ""

    @classmethod
    def parse(cls, parts: SplitResult) -> Address:
        """Return an address, here of the form SCHEME[+https]://[USER[:PASSWORD]@]HOST[:PORT]/COLLECTION.

        Raises:
            ValueError: It has another form; the caller tells the right one.
        """
        kind, _, tls = parts.scheme.partition("+")
        name = unquote(parts.path).strip("/")
        if not parts.hostname or not name or "/" in name or parts.query or tls not in ("", "https"):
            raise ValueError
        password = unquote(parts.password or "") or os.environ.get(PASSWORD, "")
        port, user = parts.port or cls.port, unquote(parts.username or "")
        return Address(kind, parts.hostname, port, user, password, "", name, bool(tls))

    @classmethod
    @abstractmethod
    def open(cls, address: Address) -> Engine:
        """Connect to the database of an address.

        Raises:
            ModuleNotFoundError: The client library is not installed.
            StoreError: The database cannot be reached; the message has the address and the reason.
        """


class Engine(Driver):
    """Items of one collection in a database. Thread-safe: a server searches from several threads.

    A write returns when the database has it on disk: nothing acknowledged is lost if the database or this
    process is killed. It is visible to every later read, also of other processes. Writing the same items
    again has no further effect, so that an interrupted load is repeated.

    Every method raises a `StoreError` with the address, the problem and the remedy in one line if the
    database cannot be reached or refuses the operation; no error shows the password.

    Attributes:
        address: Address of the collection, without the password.

    Args:
        address: Address of the collection.
    """

    address: str

    def __init__(self, address: Address) -> None:
        self.address = str(address)

    @classmethod
    def open(cls, address: Address) -> Self:
        """Connect to the database of an address; see `Driver.open`."""
        return cls(address)

    # ---- the collection

    @abstractmethod
    def manifest(self) -> Manifest | None:
        """Return the facts about the collection; `None` if there is none.

        Raises:
            InputError: There is something else under its name.
        """

    @abstractmethod
    def create(self, manifest: Manifest) -> None:
        """Create the collection with its facts, in one step; another process may have done so meanwhile.

        Raises:
            InputError: The database cannot hold it, such as vectors of too many dimensions.
        """

    def use_manifest(self, manifest: Manifest) -> None:
        """Replace the facts about the collection, of the same model and dimension.

        Raises:
            InputError: The database cannot change them.
        """
        raise InputError(f"{self.address}: this database cannot change the facts about a collection")

    @abstractmethod
    def drop(self) -> None:
        """Delete the collection with its items, if there is one."""

    @abstractmethod
    def close(self) -> None:
        """Close all connections."""

    # ---- writing

    @abstractmethod
    def add_columns(self, columns: Mapping[str, ColumnType]) -> None:
        """Add metadata columns, unless they are there already."""

    @abstractmethod
    def put(self, items: Sequence[StoredItem], vectors: np.ndarray) -> None:
        """Write items with their vectors in one batch; an item replaces all of the one with the same id.

        Args:
            items: Items with different ids; all columns of their metadata are there. Their field `vector` is
                not used.
            vectors: float32 [n, D], unit length.
        """

    @abstractmethod
    def amend(self, amendments: Sequence[Amendment]) -> None:
        """Change values of items; unknown ids are left out."""

    @abstractmethod
    def remove(self, ids: Sequence[int]) -> int:
        """Remove items, and return how many there were."""

    @abstractmethod
    def optimize(self, recall: float, *, show_progress: bool = False) -> None:
        """Build or complete the index, and wait for it. Called after many items were written.

        Args:
            recall: Share of the 10 nearest neighbours that `nearest` must find, also with filters; kept for
                later searches. 1 for exact search.
            show_progress: Report progress on stderr.
        """

    # ---- reading

    @abstractmethod
    def columns(self) -> dict[str, ColumnType]:
        """Return the metadata columns with their types, in the order in which they were added."""

    @abstractmethod
    def count(self, condition: Filter | None = None) -> int:
        """Return the number of items that fulfil a filter. Without one, fast: it may be an estimate above
        one million."""

    @abstractmethod
    def items(self, ids: Sequence[int]) -> list[StoredItem]:
        """Return items by id, in any order; unknown ids are left out."""

    @abstractmethod
    def vectors(self, ids: Sequence[int]) -> dict[int, np.ndarray]:
        """Return vectors by id, float32 [D] each; unknown ids are left out."""

    @abstractmethod
    def ids_by(self, column: Literal["key", "content_sha256"], values: Sequence[str]) -> dict[str, int]:
        """Return the lowest id for each value of a fact; values without an item are left out."""

    @abstractmethod
    def scan(self, condition: Filter | None, after: int, limit: int) -> list[StoredItem]:
        """Return the first items that fulfil a filter and have an id above `after`, by ascending id."""

    @abstractmethod
    def nearest(self, queries: np.ndarray, k: int, condition: Filter | None = None) -> list[Neighbours]:
        """Return the nearest items of each query that fulfil a filter.

        The recall is that of `optimize` for filters that select many or few items: the database is asked
        for more candidates, or searches exactly.

        Args:
            queries: float32 [N, D], unit length.
            k: Number of items; fewer if there are no more.
            condition: Filter; `None` for all items.
        """

    def nearest_groups(
        self, query: np.ndarray, k: int, condition: Filter | None, column: str
    ) -> NearestGroups | None:
        """Return the nearest item of each of the k nearest groups, or `None`.

        For databases that find exactly these in one request; of others, `nearest` is asked again and again.

        Args:
            query: float32 [D], unit length.
            k: Number of groups; fewer if there are no more.
            condition: Filter; `None` for all items.
            column: Column whose equal values are a group; an item without a value is one of its own.
        """
        return None

    @abstractmethod
    def value_counts(self, column: str, limit: int) -> list[tuple[Value, int]]:
        """Return the most frequent values of a column with the number of items that have it.

        Args:
            column: Metadata column, or "label".
            limit: Largest number of values, most frequent first; equal counts by value.
        """

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return facts about the database for people, as plain values: version, index, bytes if known."""


def no_collection(address: str) -> InputError:
    """Return the error for a collection that is not there."""
    hint = "create it with `lookalike index build --store`"
    return InputError(f"{address}: there is no such collection; {hint}")


def connection_ended(address: str, reason: str) -> StoreError:
    """Return the error for a database that runs, but ends the connection in the middle of each attempt."""
    what = f"the database ended the connection in the middle of an operation ({reason})"
    return StoreError(
        f"{address}: {what}; its log tells whether it crashed, was stopped or ran out of memory"
    )


def connection_lost(address: str, reason: str) -> StoreError:
    """Return the error for a database that answered before and does not any more."""
    what = f"the database ended the connection and answers no more ({reason})"
    return StoreError(f"{address}: {what}; its log tells why it ended, start it again")


def refused(address: str, reason: str) -> StoreError:
    """Return the error for an operation that the database refuses, without the operation's text."""
    return StoreError(f"{address}: the database refused an operation ({reason}); see its log")
