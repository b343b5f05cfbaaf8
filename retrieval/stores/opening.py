"""Stores by the scheme of an address: a driver for each is an entry point of the group `lookalike.stores`.

A package that is installed beside this one adds a database by such an entry point; see docs/plugins.md.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from retrieval.errors import InputError, did_you_mean
from retrieval.machine.extras import needs
from retrieval.plugins import find_plugin, plugin_names
from retrieval.stores.address import MOST, Address
from retrieval.stores.engine import Driver, Engine

_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{MOST - 1}}}")


def find_driver(scheme: str) -> type[Driver]:
    """Return the driver of a scheme, such as "postgresql" or "qdrant+https".

    Raises:
        InputError: There is none; the message names the nearest known one, or all of them.
        LookalikeError: It cannot be imported.
    """
    kind = scheme.lower().partition("+")[0]
    driver: type[Driver] | None = find_plugin("stores", kind)
    if driver is None:
        known = plugin_names("stores")
        hint = did_you_mean(kind, known, f"known: {', '.join(known) or 'none, install lookalike again'}")
        raise InputError(f"store {scheme}://...: unknown kind of store; {hint}")
    return driver


def address_forms() -> list[str]:
    """Return the forms of addresses; of stores of plug-ins, which are not imported, only the scheme."""
    every = plugin_names("stores").items()
    ours = [find_driver(kind).form for kind, origin in every if origin.startswith("lookalike ")]
    others = [f"{kind}://..." for kind, origin in every if not origin.startswith("lookalike ")]
    return list(dict.fromkeys([*ours, *others]))


def parse_address(text: str) -> Address:
    """Parse an address.

    Raises:
        InputError: It is none; the message shows the form and never a password.
    """
    driver = find_driver(text.partition("://")[0])
    try:
        address = driver.parse(urlsplit(text))
    except ValueError:
        kind = driver.form.partition("://")[0]
        raise InputError(f"store: not an address of {kind}; write {driver.form}") from None
    if not _NAME.fullmatch(address.collection):
        what = f"collection {address.collection!r}: use letters, digits and underscores, at most {MOST}"
        raise InputError(f"store: {what}, no digit first")
    return address


def open_engine(address: Address) -> Engine:
    """Connect to the database of an address.

    Raises:
        InputError: The client library is not installed.
        StoreError: The database cannot be reached; the message has the address and the reason.
    """
    driver = find_driver(address.kind)
    try:
        return driver.open(address)
    except ModuleNotFoundError as error:
        missing = error.name or str(error)
        remedy = needs(missing, driver.extra) if driver.extra else f"needs {missing}; install it"
        raise InputError(f"store {address}: {remedy}") from error
