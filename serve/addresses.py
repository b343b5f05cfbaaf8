"""URL paths of galleries, API and pages, and the names of galleries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from retrieval.errors import InputError

API = "/v1"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_GALLERY_PREFIX = re.compile(r"^/galleries/[a-z0-9][a-z0-9._-]*(?=/|$)")


def api_of(name: str) -> str:
    """Return the path of a gallery's API."""
    return f"{API}/galleries/{name}"


def page_of(name: str) -> str:
    """Return the path of a gallery's page; that of the first gallery is the root instead."""
    return f"/galleries/{name}"


def within_page(path: str) -> str:
    """Return a path without the prefix of its gallery, which makes it the same for every page."""
    return _GALLERY_PREFIX.sub("", path, count=1) or "/"


def within_api(path: str) -> str:
    """Return a path of the API without its root or that of its gallery."""
    return within_page(path.removeprefix(API))


def is_event_stream(path: str) -> bool:
    """Return whether a path is that of the events of a gallery, whose answer does not end."""
    return path.startswith(API) and within_api(path) == "/events"


def parse_galleries(arguments: Sequence[str]) -> dict[str, Path]:
    """Parse `FOLDER` or `NAME=FOLDER` arguments to gallery folders by name.

    A folder without a name gets that of its last part: `Shop.gallery` is "shop".

    Raises:
        InputError: A name that cannot be part of a URL, or is given twice.
    """
    found: dict[str, Path] = {}
    for argument in arguments:
        name, given, folder = argument.partition("=")
        if not given or Path(argument).exists():
            name, folder = _slug(Path(argument)), argument
        if not _NAME.fullmatch(name):
            raise InputError(
                f"{argument}: invalid gallery name; use lower-case letters, digits, '-', '_' and '.', "
                f"such as birds={folder}"
            )
        if name in found:
            raise InputError(f"{argument}: gallery {name!r} exists already; use another name: NAME={folder}")
        found[name] = Path(folder)
    return found


def _slug(folder: Path) -> str:
    """Return the name of a folder with the characters that a URL may have."""
    name = folder.resolve().name.lower().removesuffix(".gallery")
    return re.sub(r"[^a-z0-9._-]+", "-", name).strip("._-")[:64] or "gallery"
