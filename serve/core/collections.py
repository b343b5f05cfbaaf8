"""Collections of images: saved views of chosen ones, which the condition of a request can name.

`id in collection 'to check'` stands for `id in (17, 18, ...)`, with the ids of the saved view of that name.
They are in the log of decisions and not in the request, so that a condition stays short.
"""

from __future__ import annotations

import re
from pathlib import Path

from retrieval.errors import ConditionError, did_you_mean
from retrieval.files import file_version
from retrieval.storage.decisions import FILE, DecisionLog

# A name of a collection, or what may only look like one: other text, and names of columns in quotes.
_PART = re.compile(
    r"""\bin\s+collection\s*(?P<name>'(?:[^']|'')*+') | '(?:[^']|'')*+' | "(?:[^"]|"")*+" """,
    re.IGNORECASE | re.VERBOSE,
)


class Collections:
    """The collections of one gallery, read again when its log has changed.

    Args:
        folder: Gallery folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: tuple[tuple[int, int, int] | None, dict[str, str]] = (None, {})

    def expand(self, where: str) -> str:
        """Return a condition with the ids of the collections that it names.

        Raises:
            ConditionError: There is no such collection.
            LookalikeError: The log of decisions is damaged.
        """
        return _PART.sub(self._ids, where) if "collection" in where.lower() else where

    def _ids(self, found: re.Match[str]) -> str:
        if found["name"] is None:
            return found[0]
        name, known = found["name"][1:-1].replace("''", "'"), self._known()
        if name not in known:
            what = f"where: no collection {name!r} at character {found.start('name') + 1}"
            raise ConditionError(f"{what}; {did_you_mean(name, known, 'there is none of this name')}")
        return known[name]

    def _known(self) -> dict[str, str]:
        """Return the test of each collection by its name."""
        version = file_version(self._folder / FILE)
        if version != self._read[0]:
            views = DecisionLog(self._folder).views()
            tests = {one.name: f"in ({', '.join(map(str, one.items))})" for one in views if one.items}
            self._read = version, tests
        return self._read[1]
