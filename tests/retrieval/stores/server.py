"""What the tests of stores need of a database that they start."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod


class Server(ABC):
    """A database started for tests, on 127.0.0.1.

    Attributes:
        address: Address without the collection, such as `postgresql://user@127.0.0.1:1/db`.
        embedded: Whether the engine runs in the process that opens it, so that there is no server to kill.
        password_address: The address with a wrong password; `None` if the server asks for none.
    """

    address: str
    embedded: bool = False
    password_address: str | None = None

    def collection(self, name: str, address: str | None = None) -> str:
        """Return the address of a collection; `address` is another than that of the server."""
        address = address or self.address
        return f"{address}?collection={name}" if address.startswith("postgresql://") else f"{address}/{name}"

    @abstractmethod
    def kill(self) -> None:
        """End the engine's process by SIGKILL."""

    @abstractmethod
    def start(self) -> None:
        """Start it again with the same data, and wait until it answers."""


class EmbeddedServer(Server):
    """An engine in the process of the test, with the address of its collections."""

    embedded = True

    def __init__(self, address: str) -> None:
        self.address = address

    def kill(self) -> None:
        """Do nothing: there is no server."""

    def start(self) -> None:
        """Do nothing."""


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
