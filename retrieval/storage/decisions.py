"""Log of the decisions about the images of a gallery that people made by hand, and of the views they saved.

    decisions.jsonl   one JSON object a line, only ever appended to

A decision is appended, and flushed to disk, before the gallery is changed: if the process is killed between
the two, the next run that reads the source folders carries it out (`retrieval.ingest.replay`). If the change
is refused, or later undone, an entry that says so is appended. A line that a killed process left incomplete
does not count; the next one replaces it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import IO, Any, Literal

from retrieval.errors import InputError, LookalikeError
from retrieval.files import atomic_write, file_lock, now
from retrieval.storage.records import UPLOADS, StoredItem
from retrieval.system import fsync_folder

FILE = "decisions.jsonl"
_TAIL = 1 << 16  # bytes that have the last entry, mostly: a collection may need more

Action = Literal["label", "remove", "keep"]


@dataclass(frozen=True)
class Decision:
    """A decision about one image.

    Attributes:
        n: Number of its entry in the log, from 1; 0 before it is there.
        time: When it was made, ISO 8601 in UTC.
        action: "label": another label; "remove": removed from the gallery; "keep": right as it is.
        key: Key of the item.
        content: SHA-256 of the image file; the decision is about these bytes. Empty without a file.
        root, path, size, mtime_ns: The file, as in `StoredItem`.
        old: Label before.
        new: Label after; that before, unless the action is "label".
        undone: Whether it was withdrawn.
    """

    n: int
    time: str
    action: Action
    key: str
    content: str
    root: str
    path: str
    size: int
    mtime_ns: int
    old: str | None
    new: str | None
    undone: bool = False

    @property
    def has_source(self) -> bool:
        """Whether the image has a file in a folder that can be indexed again; an upload has none."""
        return bool(self.path) and self.root != UPLOADS


# How a line may be damaged, and the types of what a decision says.
_DAMAGE = (ValueError, KeyError, TypeError, RecursionError)
_TYPES = {
    field.name: int if field.type in ("int", "bool") else str | None if "None" in str(field.type) else str
    for field in fields(Decision)
}


def decide(action: Action, item: StoredItem, label: str | None = None) -> Decision:
    """Return a decision about an item, which `DecisionLog.append` writes; `label` is the new one, if any."""
    new = label if action == "label" else item.label
    file = (item.root, item.path, item.size, item.mtime_ns)
    return Decision(0, "", action, item.key, item.content_sha256, *file, item.label, new)


@dataclass(frozen=True)
class SavedView:
    """A view of the gallery's page that somebody has saved.

    Attributes:
        name: Its name, which no other one has.
        address: Query string of the page, with its "?".
        time: When it was saved, ISO 8601 in UTC.
        items: Ids of the images that were chosen, ascending, if it is a collection; those that were removed
            since are among them. Empty for other views.
    """

    name: str
    address: str
    time: str
    items: tuple[int, ...] = ()


class DecisionLog:
    """The decisions about the images of one gallery. Several processes may append.

    Args:
        folder: Gallery folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / FILE

    def read(self) -> list[Decision]:
        """Return all decisions, oldest first.

        Raises:
            LookalikeError: A line is damaged.
        """
        found: dict[int, Decision] = {}
        for number, entry in self._entries():
            with self._at(number):
                _take(entry, found)
        return [*found.values()]

    def damaged_lines(self) -> list[int]:
        """Return the numbers of the lines that are damaged, ascending."""
        damaged, found = list[int](), dict[int, Decision]()
        for number, line in enumerate(self._lines(), 1):
            try:
                _take(_parse(line), found)
            except _DAMAGE:
                damaged.append(number)
        return damaged

    def drop(self, damaged: Iterable[int]) -> None:
        """Delete lines by their numbers."""
        numbers = {*damaged}
        with file_lock(self._file, lambda _: None), atomic_write(self._file) as draft:
            kept = [line for number, line in enumerate(self._lines(), 1) if number not in numbers]
            draft.write_bytes(b"".join(line + b"\n" for line in kept))

    def views(self) -> list[SavedView]:
        """Return the saved views, by name.

        Raises:
            LookalikeError: A line is damaged.
        """
        entries = [entry for _, entry in self._entries() if "view" in entry]
        newest = {entry["view"]: entry for entry in entries}
        return [
            SavedView(name, entry["address"], entry["time"], tuple(entry.get("items", ())))
            for name, entry in sorted(newest.items())
            if entry["address"] is not None
        ]

    def save_view(self, name: str, address: str | None, items: Iterable[int] = ()) -> None:
        """Append that a view is saved under a name, in place of another one; no address deletes it.

        Args:
            name: Its name.
            address: Query string of the page.
            items: Ids of the images, if it is a collection.

        Raises:
            LookalikeError: The file cannot be written; nothing is appended.
        """
        chosen = sorted({*items})
        self._append([{"view": name, "address": address, **({"items": chosen} if chosen else {})}])

    def in_effect(self) -> list[Decision]:
        """Return the decisions that were not undone, oldest first."""
        return [decision for decision in self.read() if not decision.undone]

    def append(self, decisions: Iterable[Decision]) -> list[int]:
        """Append decisions, flush them to disk, and return their numbers.

        Raises:
            LookalikeError: The file cannot be written; nothing is appended.
        """
        entries = [asdict(decision) for decision in decisions]
        for entry in entries:
            del entry["undone"]
        return self._append(entries)

    def undo(self, numbers: Sequence[int]) -> None:
        """Append that decisions are withdrawn. Undoing one again has no effect.

        Raises:
            InputError: There is no such decision; nothing is appended.
            LookalikeError: The file cannot be written; nothing is appended.
        """
        known = {decision.n for decision in self.read()}
        for number in numbers:
            if number not in known:
                hint = f"`lookalike check decisions {self._folder}` lists them"
                raise InputError(f"{self._folder}: no decision {number}; {hint}")
        self._append([{"undo": number} for number in numbers])

    @contextmanager
    def before(self, decisions: Iterable[Decision]) -> Iterator[list[int]]:
        """Append decisions before the block that carries them out; withdraw them if it refuses.

        Yields their numbers.

        Raises:
            LookalikeError: The file cannot be written; the block is not run.
        """
        numbers = self.append(decisions)
        try:
            yield numbers
        except LookalikeError:  # nothing was changed
            self.undo(numbers)
            raise

    def _entries(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the entries with the numbers of their lines."""
        for number, line in enumerate(self._lines(), 1):
            with self._at(number):
                entry = _parse(line)
            yield number, entry

    def _lines(self) -> list[bytes]:
        """Return the complete lines."""
        return self._file.read_bytes().split(b"\n")[:-1] if self._file.exists() else []

    @contextmanager
    def _at(self, line: int) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            what = f"{self._file}: line {line} is damaged"
            hint = f"put the file back from a copy, or run `lookalike index verify {self._folder} --repair`"
            raise LookalikeError(f"{what}; {hint}") from error

    def _append(self, entries: Sequence[dict[str, Any]]) -> list[int]:
        """Append entries, and return their numbers."""
        if not entries:
            return []
        try:
            is_new = not self._file.exists()
            with file_lock(self._file, lambda _: None), self._file.open("r+b") as file:
                numbers = _write(file, entries)
            if is_new:
                fsync_folder(self._folder)
        except _DAMAGE as error:
            hint = f"run `lookalike index verify {self._folder} --repair`"
            raise LookalikeError(
                f"{self._file}: its last line is damaged; nothing was changed; {hint}"
            ) from error
        except OSError as error:
            what = f"{self._file}: cannot be written ({error.strerror})"
            raise LookalikeError(f"{what}; nothing was changed; make it writable for this user") from error
        return numbers


def _parse(line: bytes) -> dict[str, Any]:
    """Return the entry of a line, which may be damaged in one of the ways of `_DAMAGE`."""
    entry: dict[str, Any] = json.loads(line)
    if type(entry["n"]) is not int:
        raise TypeError
    if "view" in entry:
        is_text = [isinstance(entry[name], str) for name in ("view", "time")]
        ids = entry.get("items", [])
        if not (all(is_text) and isinstance(entry["address"], str | None) and {*map(type, ids)} <= {int}):
            raise TypeError
    return entry


def _take(entry: dict[str, Any], found: dict[int, Decision]) -> None:
    """Add what an entry says to the decisions found before, by number."""
    if "undo" in entry:
        found[entry["undo"]] = replace(found[entry["undo"]], undone=True)
    elif "view" not in entry:
        decision = Decision(**entry)
        if any(not isinstance(getattr(decision, name), types) for name, types in _TYPES.items()):
            raise TypeError
        found[decision.n] = decision


def copy_log(folder: Path, target: Path) -> None:
    """Copy the log of a gallery, if it has one, into the folder of another gallery."""
    if (folder / FILE).exists():
        with atomic_write(target / FILE) as draft:
            shutil.copyfile(folder / FILE, draft)


def _write(file: IO[bytes], entries: Sequence[dict[str, Any]]) -> list[int]:
    """Append entries to a file in place of an incomplete last line, flush them, and return their numbers."""
    end, size = file.seek(0, os.SEEK_END), _TAIL
    tail = whole = b""
    while len(tail) < end and whole.count(b"\n") < 2:  # the last entry, and the end of the one before it
        file.seek(max(0, end - size))
        tail, size = file.read(), 8 * size
        whole = tail[: tail.rfind(b"\n") + 1]
    first, time = (_parse(whole.splitlines()[-1])["n"] if whole else 0) + 1, now()
    file.truncate(end - len(tail) + len(whole))
    file.seek(0, os.SEEK_END)
    lines = (json.dumps({**entry, "n": n, "time": time}) for n, entry in enumerate(entries, first))
    file.write("".join(f"{line}\n" for line in lines).encode())
    file.flush()
    os.fsync(file.fileno())
    return [*range(first, first + len(entries))]
