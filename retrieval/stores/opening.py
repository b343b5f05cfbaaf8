"""Stores by the scheme of an address: a driver for each is an entry point of the group `lookalike.stores`.

A package that is installed beside this one adds a database by such an entry point; see CONTRIBUTING.md.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from urllib.parse import urlsplit

from retrieval.errors import InputError, did_you_mean
from retrieval.machine.extras import needs
from retrieval.stores.address import MOST, Address
from retrieval.stores.engine import Driver, Engine

GROUP = "lookalike.stores"
_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{MOST - 1}}}")


@cache
def _installed() -> dict[str, EntryPoint]:
    return {found.name: found for found in sorted(entry_points(group=GROUP), key=lambda one: one.name)}


def find_driver(scheme: str) -> type[Driver]:
    """Return the driver of a scheme, such as "postgresql" or "qdrant+https".

    Raises:
        InputError: There is none; the message names the nearest known one, or all of them.
    """
    kind, known = scheme.lower().partition("+")[0], _installed()
    if kind not in known:
        hint = did_you_mean(kind, known, f"known: {', '.join(known) or 'none, install lookalike again'}")
        raise InputError(f"store {scheme}://...: unknown kind of store; {hint}")
    driver: type[Driver] = known[kind].load()
    return driver


def address_forms() -> list[str]:
    """Return the forms of addresses of all installed stores."""
    return list(dict.fromkeys(find_driver(kind).form for kind in _installed()))


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
