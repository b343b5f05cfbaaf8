"""Where a server has what: the first of its galleries at the root, each one under its name, too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from retrieval.errors import InputError

API = "/v1"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_BELOW = re.compile(r"^/galleries/[a-z0-9][a-z0-9._-]*(?=/|$)")


def api_of(name: str) -> str:
    """Where a gallery's part of the API is."""
    return f"{API}/galleries/{name}"


def page_of(name: str) -> str:
    """Where a gallery's page is, unless it is the first one's."""
    return f"/galleries/{name}"


def within_page(path: str) -> str:
    """An address without the name of the gallery that it belongs to: the same for every page."""
    return _BELOW.sub("", path, count=1) or "/"


def named(words: Sequence[str]) -> dict[str, Path]:
    """Galleries by name, from `FOLDER` or `NAME=FOLDER`; a folder `Shop.gallery` is called "shop".

    Raises:
        InputError: a name that cannot be part of an address, or two of the same.
    """
    found: dict[str, Path] = {}
    for word in words:
        name, given, folder = word.partition("=")
        if not given or Path(word).exists():
            name, folder = _slug(Path(word)), word
        if not _NAME.fullmatch(name):
            raise InputError(
                f"{word}: call the gallery by small letters, digits, '-', '_' and '.': birds={folder}"
            )
        if name in found:
            raise InputError(
                f"{word}: there is a gallery {name!r} already; give this one another: NAME={folder}"
            )
        found[name] = Path(folder)
    return found


def _slug(folder: Path) -> str:
    """A name for a folder that has none: its own, as far as an address may have it."""
    name = folder.resolve().name.lower().removesuffix(".gallery")
    return re.sub(r"[^a-z0-9._-]+", "-", name).strip("._-")[:64] or "gallery"
