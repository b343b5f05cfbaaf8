"""Log of the searches of served galleries and of what came of them: vectors, never pictures.

    queries-000001.jsonl   one JSON object a line, only ever appended to; a new file every 16 MB

A search has an id, the time, the name of the gallery, the fingerprint of its model, the kind of the query,
its vector as 16-bit floats, the ids of items that it consists of, the condition, and the first hits with
scores and probabilities; and which hits are of which model, if two were mixed. An outcome has the id of its
search, the item, and what was done with it. Nothing says who searched: there is no picture, no file name, no
text and no address.

It differs from the log of decisions (`retrieval.storage.decisions`) in what it may cost and lose. An entry is
one write of a whole line, without a lock between processes and without a flush to disk: it survives the
process at once, and the machine some seconds later. Several processes append to one file. A line that a
killed process left incomplete damages no other, and readers leave it out. The oldest files are deleted, so
that the log has a largest size.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from retrieval.errors import InputError
from retrieval.files import check_folder, now

Kind = Literal["image", "item", "vector", "text", "several", "objects"]
"""What was searched with: an image or a region of one, one of the gallery, a vector, a text, alone or with
images, several images, or an image in whose parts objects were looked for."""
Outcome = Literal["opened", "right", "wrong"]
"""What a visitor did with a hit: looked at it, asked for more like it, or for less like it."""

LOGGED = 10  # hits of a search
SEGMENT_BYTES, SEGMENTS = 16 << 20, 64  # 1 GB together
MOST_SEARCHES = 20_000  # that are read, the newest
_OUTCOMES = get_args(Outcome)
_DAMAGE = (ValueError, KeyError, TypeError, RecursionError)
_log = logging.getLogger("lookalike.retrieval")


@dataclass(frozen=True)
class Against:
    """What a second gallery has added to the hits of a search; see `retrieval.search.interleaving`.

    Attributes:
        gallery: Name of the second gallery.
        model: Fingerprint of its model.
        first: Ids of the hits that count for the gallery that was searched, in its numbers.
        second: Ids of those that count for the second one, in the numbers of the first.
    """

    gallery: str
    model: str
    first: Sequence[int]
    second: Sequence[int]


@dataclass(frozen=True, eq=False)
class LoggedSearch:
    """A search to log.

    Attributes:
        id: Its id, of `new_id`.
        kind: What was searched with.
        vector: Vector of the query, float32 [D]; `None` for one of several parts.
        items: Ids of the items that the query consists of, which its hits leave out.
        where: Condition on the hits.
        hits: Id, score and probability of the first ones, best first; of those of this gallery, if they were
            mixed with hits of a second one.
        against: The second gallery, if hits of two were mixed.
    """

    id: str
    kind: Kind
    vector: np.ndarray | None
    items: Sequence[int]
    where: str | None
    hits: Sequence[tuple[int, float, float | None]]
    against: Against | None = None


def new_id() -> str:
    """Return an id of a search that nobody can guess: 16 hexadecimal digits."""
    return secrets.token_hex(8)


class QueryLog:
    """A folder to which the processes of a server append searches. Thread-safe.

    Args:
        folder: The folder, created if missing, for this user only.
        segment_bytes: Size from which on a new file is begun.
        segments: Number of files that are kept.

    Attributes:
        folder: The folder.

    Raises:
        InputError: Nothing can be written there.
    """

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES, segments: int = SEGMENTS) -> None:
        check_folder(folder)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder, self._bytes, self._segments = folder.absolute(), segment_bytes, segments
        self._opening = threading.Lock()
        self._file: int | None = None
        self._told = ""

    def append(self, gallery: str, model: str, searches: Iterable[LoggedSearch]) -> None:
        """Append searches; if they cannot be written, that is logged, and nothing else fails.

        Args:
            gallery: Name of the gallery.
            model: Fingerprint of its model.
            searches: The searches.
        """
        time = now()
        for one in searches:
            vector = None if one.vector is None else base64.b64encode(one.vector.astype("<f2").data).decode()
            hits = [
                [item, round(score, 6), None if probability is None else round(probability, 6)]
                for item, score, probability in one.hits[:LOGGED]
            ]
            query = {"kind": one.kind, "vector": vector, "items": [*one.items], "where": one.where}
            place = {"id": one.id, "time": time, "gallery": gallery, "model": model}
            mixed = {} if one.against is None else {"against": vars(one.against)}
            self._write({**place, **query, "hits": hits, **mixed})

    def append_outcome(self, gallery: str, search: str, item: int, outcome: Outcome) -> None:
        """Append what was done with a hit of a search, as `append` does.

        Args:
            gallery: Name of the gallery.
            search: Id of the search.
            item: Id of the item.
            outcome: What was done.
        """
        self._write({"search": search, "time": now(), "gallery": gallery, "item": item, "outcome": outcome})

    def close(self) -> None:
        """Close the file; the next entry opens it again."""
        with self._opening:
            self._close()

    def _write(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(entry, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"
        try:
            with self._opening:  # a write is short; another thread must not close the file meanwhile
                file, is_whole = self._current()
                os.write(file, line if is_whole else b"\n" + line)
        except OSError as error:
            if error.strerror != self._told:  # a full disk would fill the log of the server
                self._told = str(error.strerror)
                _log.error("%s: searches are not logged (%s)", self.folder, error.strerror)
        else:
            self._told = ""

    def _current(self) -> tuple[int, bool]:
        """Return the file to append to, and whether its last line is complete."""
        if self._file is not None:
            found = os.fstat(self._file)
            if not found.st_nlink or found.st_size >= self._bytes:
                self._close()  # it was deleted, or is full
        if self._file is None:
            self._file = self._open()
        size = os.fstat(self._file).st_size
        os.lseek(self._file, max(0, size - 1), os.SEEK_SET)  # what is written goes to the end in any case
        return self._file, os.read(self._file, 1) in (b"", b"\n")

    def _open(self) -> int:
        """Open the newest file, or a new one if it is full, and delete the oldest."""
        files = _files(self.folder)
        number = _number(files[-1]) if files else 1
        if files and files[-1].stat().st_size >= self._bytes:
            number += 1
            for old in files[: max(0, len(files) - self._segments + 1)]:
                old.unlink(missing_ok=True)
        name = self.folder / f"queries-{number:06}.jsonl"
        return os.open(name, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass(frozen=True)
class Search:
    """A search that was logged.

    Attributes:
        id: Its id.
        time: Its time, ISO 8601 in UTC.
        kind: What was searched with.
        items: Ids of the items that the query consists of.
        where: Condition on the hits; `None` for none.
        hits: Id, score and probability of the first hits, as they were then.
        opened: Ids of the hits that were opened or marked right.
        right: Those that were marked right, and not wrong since.
        wrong: Those that were marked wrong, and not right since.
        against: The second gallery, if hits of two were mixed.
    """

    id: str
    time: str
    kind: Kind
    items: tuple[int, ...]
    where: str | None
    hits: list[tuple[int, float, float | None]]
    opened: frozenset[int]
    right: frozenset[int]
    wrong: frozenset[int]
    against: Against | None = None


@dataclass(frozen=True, eq=False)
class Searches:
    """Searches of one gallery with one model.

    Attributes:
        each: The searches that have a vector, oldest first.
        vectors: Their vectors, float32 [n, D], unit length.
        without: Number of further searches, without a vector.
        others: Number of searches of other galleries and models, by what they are of.
        damaged: Number of lines that are no entries, such as incomplete ones.
    """

    each: list[Search]
    vectors: np.ndarray
    without: int
    others: Mapping[str, int]
    damaged: int


def read_searches(
    folder: Path, gallery: str, model: str, dim: int, *, limit: int = MOST_SEARCHES
) -> Searches:
    """Read the newest searches of a gallery.

    Args:
        folder: Folder of the log.
        gallery: Name of the gallery. If all searches of the model are of one gallery, its name may be another
            one.
        model: Fingerprint of the model; vectors of other models cannot be compared.
        dim: Length D of its vectors.
        limit: Largest number of searches.

    Raises:
        InputError: The folder has no log.
    """
    files = _log_files(folder)
    entries = list[dict[str, Any]]()  # newest first
    outcomes = dict[tuple[str, str], list[dict[str, Any]]]()
    damaged, others = 0, dict[str, int]()
    for file in reversed(files):
        for entry in _entries(file):
            if entry is None:
                damaged += 1
            elif "search" in entry:
                outcomes.setdefault((entry["gallery"], entry["search"]), []).append(entry)
            elif entry["model"] == model and (entry["vector"] is None or len(entry["vector"]) == dim):
                entries.append(entry)
            else:
                name = f"{entry['gallery']}, model {entry['model'][:12]}"
                others[name] = others.get(name, 0) + 1
        if len(entries) >= limit:
            break
    if len({entry["gallery"] for entry in entries}) > 1:
        for entry in entries:
            if entry["gallery"] != gallery:
                others[entry["gallery"]] = others.get(entry["gallery"], 0) + 1
        entries = [entry for entry in entries if entry["gallery"] == gallery]
    whole = [entry for entry in entries if entry["vector"] is not None][:limit][::-1]
    vectors = np.stack([entry["vector"] for entry in whole]) if whole else np.empty((0, dim), np.float16)
    units = vectors.astype(np.float32)
    units /= np.maximum(np.linalg.norm(units, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return Searches(
        [_search(entry, outcomes.get((entry["gallery"], entry["id"]), ())) for entry in whole],
        units,
        sum(entry["vector"] is None for entry in entries),
        others,
        damaged,
    )


@dataclass(frozen=True)
class MixedSearches:
    """Searches in which the hits of two galleries were mixed.

    Attributes:
        count: Their number.
        chosen: Those of which something was opened or marked, oldest first, each with its query: the vector
            as it is in the log, and the condition.
        others: Number of further mixed searches, by the models that were compared.
    """

    count: int
    chosen: list[tuple[tuple[bytes, str | None], Search]]
    others: Mapping[str, int]


def read_mixed_searches(folder: Path, gallery: str, models: tuple[str, str]) -> MixedSearches:
    """Read the searches in which the hits of two galleries were mixed.

    Args:
        folder: Folder of the log.
        gallery: Name of the gallery that was searched.
        models: Fingerprints of its model and of that of the second gallery.

    Raises:
        InputError: The folder has no log.
    """
    count, others = 0, dict[str, int]()
    chosen = list[tuple[tuple[bytes, str | None], Search]]()
    outcomes = dict[tuple[str, str], list[dict[str, Any]]]()
    for file in reversed(_log_files(folder)):
        for entry in _entries(file):  # an outcome comes after its search, and so is read before it
            if entry is None:
                continue
            if "search" in entry:
                outcomes.setdefault((entry["gallery"], entry["search"]), []).append(entry)
                continue
            mixed: Against | None = entry.get("against")
            if mixed is None or entry["vector"] is None:
                continue
            if (entry["gallery"], entry["model"], mixed.model) != (gallery, *models):
                name = (
                    f"{entry['gallery']} of {entry['model'][:12]} and {mixed.gallery} of {mixed.model[:12]}"
                )
                others[name] = others.get(name, 0) + 1
                continue
            count += 1
            if done := outcomes.get((gallery, entry["id"])):
                chosen.append(((entry["vector"].tobytes(), entry["where"]), _search(entry, done)))
    return MixedSearches(count, chosen[::-1], others)


def _search(entry: Mapping[str, Any], outcomes: Sequence[Mapping[str, Any]]) -> Search:
    """Return a search of its entry and its outcomes, newest first."""
    by_time = [*outcomes][::-1]
    by_time.sort(key=lambda one: str(one["time"]))  # stable
    mark = {one["item"]: one["outcome"] for one in by_time if one["outcome"] != "opened"}
    opened = frozenset(one["item"] for one in by_time if one["outcome"] != "wrong")
    right, wrong = (
        frozenset(item for item, last in mark.items() if last == which) for which in ("right", "wrong")
    )
    hits = [(item, score, probability) for item, score, probability in entry["hits"]]
    query = (entry["kind"], tuple(entry["items"]), entry["where"])
    return Search(entry["id"], entry["time"], *query, hits, opened, right, wrong, entry.get("against"))


def _log_files(folder: Path) -> list[Path]:
    """Return the files of a log, oldest first; raise an `InputError` if there is none."""
    files = _files(folder)
    if not files:
        raise InputError(f"{folder}: no log of searches; `lookalike serve --query-log {folder}` writes one")
    return files


def _files(folder: Path) -> list[Path]:
    """Return the files of a log, oldest first."""
    return sorted(filter(_number, folder.glob("queries-*.jsonl")), key=_number)


def _number(file: Path) -> int:
    """Return the number of a file of a log; 0 for another file."""
    digits = file.stem.removeprefix("queries-")
    return int(digits) if digits.isdecimal() else 0


def _entries(file: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the entries of a file, the newest first, vectors as float16 [D]; `None` for a damaged line."""
    for line in reversed(file.read_bytes().split(b"\n")):
        if line:
            try:
                yield _parse(line)
            except _DAMAGE:
                yield None


def _parse(line: bytes) -> dict[str, Any]:
    """Return the entry of a line, which may be damaged in one of the ways of `_DAMAGE`."""
    entry: dict[str, Any] = json.loads(line)
    _check(all(isinstance(entry[name], str) for name in ("time", "gallery")))
    if "search" in entry:
        _check(type(entry["item"]) is int and entry["outcome"] in _OUTCOMES)
        _check(isinstance(entry["search"], str))
        return entry
    _check(all(isinstance(entry[name], str) for name in ("id", "model")))
    _check(entry["kind"] in get_args(Kind) and isinstance(entry["where"], str | None))
    _check(all(type(item) is int for item in entry["items"]))
    for item, score, probability in entry["hits"]:
        _check(type(item) is int and isinstance(score, float | int))
        _check(isinstance(probability, float | int | None))
    if "against" in entry:
        mixed = entry["against"] = Against(**entry["against"])
        _check(all(isinstance(name, str) for name in (mixed.gallery, mixed.model)))
        _check(all(type(item) is int for item in (*mixed.first, *mixed.second)))
    if entry["vector"] is not None:
        vector = np.frombuffer(base64.b64decode(entry["vector"], validate=True), "<f2")
        _check(bool(np.isfinite(vector).all() and vector.any()))
        entry["vector"] = vector
    return entry


def _check(is_right: bool) -> None:
    if not is_right:
        raise TypeError
