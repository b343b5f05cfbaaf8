"""Primitive changes of a gallery, of which runs and edits are made: in files and in a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np

from retrieval.errors import InputError, LookalikeError
from retrieval.galleries.database_folder import read_folder
from retrieval.images import boxes
from retrieval.search.where import parse_condition
from retrieval.storage import schema
from retrieval.storage.conditions import Filter, FilterTest
from retrieval.storage.manifest import Manifest
from retrieval.storage.merging import merge_small
from retrieval.storage.mirror import Mirror
from retrieval.storage.planning import ExistingItem, ImageFile, ItemTable, StoreTable, former_items
from retrieval.storage.queries import (
    count_items,
    holds_text,
    ids_by_key,
    items_by_content,
    labelled_items,
    live_ids,
    parts_at,
)
from retrieval.storage.records import PICTURE, UPLOADS, BadFile, Change, NewItem, StoredItem, Value
from retrieval.storage.store import Store, hold_lock
from retrieval.stores.conditions import is_hidden, resolve
from retrieval.stores.engine import Amendment, Engine
from retrieval.stores.writing import ItemWriter, visible

_AT_ONCE = 1024  # items written at a time
_SCANNED = 4096  # items read at a time


class Writer(ABC):
    """Primitive changes of one gallery.

    Attributes:
        folder: Gallery folder.
        manifest: Facts about the gallery as a whole.
        replays: Whether decisions made by hand are carried out again. In a database they are not: its labels
            are those of all machines, and the log of a folder knows only those made through it.
    """

    folder: Path
    manifest: Manifest
    replays = True

    @property
    def uploads(self) -> Path:
        """Folder of the uploaded image files, which may not exist."""
        return self.folder.resolve() / UPLOADS

    def with_parts(self, ids: Sequence[int]) -> list[int]:
        """Return ids, and those of the parts of the pictures among them; see `parts_of`."""
        return sorted({*ids, *self.parts_of(self.items(ids))}) if self.manifest.objects else [*ids]

    # ---- locks

    @abstractmethod
    def writing(self) -> AbstractContextManager[None]:
        """Hold the write lock of the gallery folder.

        Raises:
            LockedError: Another process is writing.
            LookalikeError: The folder cannot be written.
        """

    @abstractmethod
    def running(self) -> AbstractContextManager[None]:
        """Hold what a run needs: the write lock of a gallery in files. A database takes several runs."""

    # ---- reading

    @abstractmethod
    def count(self) -> int:
        """Return the number of items."""

    @abstractmethod
    def items(self, ids: Sequence[int]) -> list[StoredItem]:
        """Return all facts about items by id; unknown ids are left out."""

    @abstractmethod
    def ids_by_key(self, keys: Sequence[str]) -> dict[str, int]:
        """Return the id of the item of each key; keys without one are left out."""

    @abstractmethod
    def ids_by_content(self, digests: Sequence[str]) -> dict[str, int]:
        """Return the id of an item for each SHA-256 of a file; those without one are left out."""

    @abstractmethod
    def matching(self, where: str) -> list[int]:
        """Return the ids of all items that fulfil a condition, ascending.

        Raises:
            InputError: The condition is invalid.
        """

    @abstractmethod
    def labelled(self) -> list[tuple[int, str]]:
        """Return id and label of each item that has a label and a vector, by ascending id."""

    @abstractmethod
    def columns(self) -> list[str]:
        """Return the names of the metadata columns, oldest first."""

    @abstractmethod
    def type_of(self, column: str) -> schema.ColumnType | None:
        """Return the type of a metadata column; `None` if it has no value."""

    @abstractmethod
    def table(self, *, whole: bool = False) -> ItemTable:
        """Return the items that files are compared with; close it.

        Args:
            whole: All items are needed, not just those of the files: a database has them copied.
        """

    @abstractmethod
    def bad_files(self) -> list[BadFile]:
        """Return the files that could not be used when they were last tried, if that is recorded."""

    def check_metadata(
        self, names: Iterable[str], rows: Iterable[tuple[object, Mapping[str, Value]]]
    ) -> None:
        """Raise an `InputError` if metadata does not fit the gallery's columns.

        Args:
            names: Names of all columns of the metadata.
            rows: Position in error messages and values of each image with metadata.
        """
        given = sorted(names)
        if not given:
            return
        columns = self.columns()
        chosen = schema.match_columns(given, columns)
        known = {column: self.type_of(column) for column in set(columns) & set(chosen.values())}
        checked = (
            (place, {chosen[name]: schema.check_value(name, value) for name, value in values.items()})
            for place, values in rows
        )
        schema.check_types(checked, {column: type_ for column, type_ in known.items() if type_})

    # ---- writing

    @abstractmethod
    def use_manifest(self, manifest: Manifest) -> None:
        """Replace the facts about the gallery as a whole, of the same model and dimension.

        Raises:
            InputError: The database cannot change them.
            LookalikeError: The gallery cannot be written.
        """

    @abstractmethod
    def commit(self, vectors: np.ndarray, items: Sequence[NewItem], bad: Iterable[BadFile] = ()) -> None:
        """Add items with their vectors, and record unusable files, whose items are removed.

        Args:
            vectors: float32 [n, D], unit length.
            items: Items of the vectors.
            bad: Unusable files.

        Raises:
            InputError: A key, column or value that cannot be stored; nothing is changed.
        """

    @abstractmethod
    def amend(self, changes: Sequence[Change]) -> None:
        """Change facts about items, whose vectors stay.

        Raises:
            InputError: A column or value that cannot be stored; nothing is changed.
        """

    @abstractmethod
    def remove(self, ids: Sequence[int]) -> int:
        """Remove items, and their files if they were uploaded; return their number."""

    @abstractmethod
    def heirs(
        self, drafts: Sequence[tuple[ImageFile, ExistingItem | None]]
    ) -> list[tuple[str | None, ExistingItem | None]]:
        """Return what the new items of files inherit.

        Args:
            drafts: Each file, with the item that it has.

        Returns:
            The key of each, `None` if `commit` chooses it, and the item whose label it keeps.
        """

    @abstractmethod
    def discard(self, items: Sequence[NewItem], error: BaseException) -> None:
        """Delete the files of uploads whose commit failed, unless the error leaves open whether it did."""

    @abstractmethod
    def parts_of(self, items: Sequence[StoredItem]) -> list[int]:
        """Return the ids of the parts of pictures; none if the gallery does not divide pictures."""

    @abstractmethod
    def taken(self, keys: Sequence[str]) -> set[str]:
        """Return those of some keys that an upload, whose first choice is the first one, cannot have."""

    @abstractmethod
    def merge(self) -> None:
        """Merge small files of vectors after a small change."""

    @abstractmethod
    def record_run(self, command: str, started: str, counts: Mapping[str, int]) -> None:
        """Record a change of the gallery in its history, if it has one."""

    @abstractmethod
    def forget_bad_files(self, keys: Iterable[tuple[str, str]]) -> None:
        """Delete files, by root and path, from the list of unusable ones."""


class FileWriter(Store, Writer):
    """Changes of a gallery in files: its store, and what runs need beside it.

    Args:
        folder: Gallery folder.
    """

    def running(self) -> AbstractContextManager[None]:
        """Hold the write lock for the whole run: two concurrent runs would embed the same files twice."""
        return self.writing()

    def count(self) -> int:
        """Return the number of live items, those that wait to be embedded again included."""
        return count_items(self).live

    def ids_by_key(self, keys: Sequence[str]) -> dict[str, int]:
        """See `Writer.ids_by_key`."""
        return ids_by_key(self, keys)

    def ids_by_content(self, digests: Sequence[str]) -> dict[str, int]:
        """See `Writer.ids_by_content`."""
        return items_by_content(self, digests)

    def matching(self, where: str) -> list[int]:
        """See `Writer.matching`; items that wait to be embedded again are among them."""
        return live_ids(self, parse_condition(where))

    def labelled(self) -> list[tuple[int, str]]:
        """See `Writer.labelled`."""
        return labelled_items(self)

    def type_of(self, column: str) -> schema.ColumnType | None:
        """See `Writer.type_of`."""
        is_text = holds_text(self, column)
        return None if is_text is None else "text" if is_text else "number"

    def table(self, *, whole: bool = False) -> ItemTable:
        """See `Writer.table`."""
        return StoreTable(self)

    def use_manifest(self, manifest: Manifest) -> None:
        """See `Writer.use_manifest`; also inside `running()`."""
        with nullcontext() if self._held else self.writing():
            self.update_manifest(manifest)

    def heirs(
        self, drafts: Sequence[tuple[ImageFile, ExistingItem | None]]
    ) -> list[tuple[str | None, ExistingItem | None]]:
        """See `Writer.heirs`. An image whose item was removed gets its key and label back."""
        places = [(i.root, i.path) for i, existing in drafts if existing is None and i.id is None]
        with self.reading() as db:
            former = former_items(db, places)
        found: list[tuple[str | None, ExistingItem | None]] = []
        for image, existing in drafts:
            again = former.get((image.root, image.path)) if existing is None and image.id is None else None
            key = again.key if again is not None and again.key != image.path else image.id
            found.append((key, existing or again))
        return found

    def discard(self, items: Sequence[NewItem], error: BaseException) -> None:
        """See `Writer.discard`; the transaction was rolled back."""
        with suppress(OSError, LookalikeError):
            self.clear_leftovers()

    def parts_of(self, items: Sequence[StoredItem]) -> list[int]:
        """See `Writer.parts_of`."""
        return parts_at(self, [(item.root, item.path) for item in items]) if self.manifest.objects else []

    def taken(self, keys: Sequence[str]) -> set[str]:
        """See `Writer.taken`."""
        return {*ids_by_key(self, keys)}

    def merge(self) -> None:
        """See `retrieval.storage.merging.merge_small`."""
        merge_small(self)


class DatabaseWriter(Writer):
    """Changes of a gallery in a database. The files of uploads are in the gallery folder.

    Args:
        folder: Gallery folder.
        engine: The database.
        manifest: Facts about the gallery.
        changed: Called after items were added or removed.
    """

    replays = False

    def __init__(self, folder: Path, engine: Engine, manifest: Manifest, changed: Callable[[], None]) -> None:
        self.folder, self.manifest = folder, manifest
        self._engine, self._changed = engine, changed
        self._mirrors: list[Mirror] = []  # of runs that go on

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of the folder: an upload's file and its item are written, or removed, together."""
        try:
            with hold_lock(self.folder):
                yield
        except OSError as error:
            what = f"{self.folder}: cannot be written ({error.strerror})"
            raise LookalikeError(f"{what}; make the folder writable for this user") from error

    @contextmanager
    def running(self) -> Iterator[None]:
        """See `Writer.running`; several machines write at once, so there is no lock.

        Raises:
            LookalikeError: The folder got another collection meanwhile, which lacks what was written.
        """
        yield
        if read_folder(self.folder).uuid != self.manifest.uuid:
            what = f"{self.folder}: it was rebuilt meanwhile, and lacks what this command wrote"
            raise LookalikeError(f"{what}; run the command again")

    # ---- reading

    def count(self) -> int:
        """See `Writer.count`."""
        return self._engine.count()

    def items(self, ids: Sequence[int]) -> list[StoredItem]:
        """See `Writer.items`."""
        return [visible(item) for item in self._engine.items(ids)]

    def ids_by_key(self, keys: Sequence[str]) -> dict[str, int]:
        """See `Writer.ids_by_key`."""
        return self._engine.ids_by("key", keys) if keys else {}

    def ids_by_content(self, digests: Sequence[str]) -> dict[str, int]:
        """See `Writer.ids_by_content`."""
        return self._engine.ids_by("content_sha256", digests) if digests else {}

    def matching(self, where: str) -> list[int]:
        """See `Writer.matching`."""
        condition = resolve(parse_condition(where), self._engine.columns())
        return [item.id for some in self.scan(condition) for item in some]

    def labelled(self) -> list[tuple[int, str]]:
        """See `Writer.labelled`."""
        found = (item for some in self.scan(FilterTest("label", "not null")) for item in some)
        return [(item.id, item.label) for item in found if item.label]

    def scan(self, condition: Filter | None = None, *, size: int = _SCANNED) -> Iterator[list[StoredItem]]:
        """Yield all items that fulfil a filter by ascending id, some at a time."""
        last = 0
        while some := self._engine.scan(condition, last, size):
            last = some[-1].id
            yield [visible(item) for item in some]

    def columns(self) -> list[str]:
        """See `Writer.columns`."""
        return [name for name in self._engine.columns() if not is_hidden(name)]

    def type_of(self, column: str) -> schema.ColumnType | None:
        """See `Writer.type_of`."""
        return self._engine.columns().get(column)

    def table(self, *, whole: bool = False) -> Mirror:
        """See `Writer.table`. Changes through this object are made there as well, until it is closed."""
        mirror = Mirror(self.folder, None if whole else self._with_keys)
        self._mirrors = [*self._open_mirrors(), mirror]
        for some in self.scan() if whole else ():
            mirror.put(some)
        return mirror

    def _open_mirrors(self) -> list[Mirror]:
        return [mirror for mirror in self._mirrors if not mirror.closed]

    def _with_keys(self, keys: Sequence[str]) -> list[StoredItem]:
        return self.items([*self.ids_by_key(keys).values()])

    def bad_files(self) -> list[BadFile]:
        """Return nothing: a database does not record them."""
        return []

    # ---- writing

    def use_manifest(self, manifest: Manifest) -> None:
        """See `Writer.use_manifest`."""
        self._engine.use_manifest(manifest)
        self.manifest = manifest

    def put(self, items: Sequence[NewItem], vectors: np.ndarray) -> list[StoredItem]:
        """Write items with their vectors, and return them; see `retrieval.stores.writing.ItemWriter.put`."""
        written = ItemWriter(self._engine).put(items, vectors)
        self._changed()
        for mirror in self._open_mirrors():
            mirror.put(written)
        return written

    def commit(self, vectors: np.ndarray, items: Sequence[NewItem], bad: Iterable[BadFile] = ()) -> None:
        """See `Writer.commit`; some are written at a time."""
        for start in range(0, len(items), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            self.put(self._with_own_keys(items[some]), vectors[some])
        stamps = [file.stamp for file in bad]
        ids = {n for mirror in self._open_mirrors() for stamp in stamps for n in mirror.ids_at(*stamp.key)}
        if ids:
            self.remove(sorted(ids))

    def _with_own_keys(self, items: Sequence[NewItem]) -> list[NewItem]:
        """Give items without a key that of the item at their place, or their path if no other item has it."""
        stamps = [item.stamp for item in items if item.key is None]
        wanted = sorted({key for stamp in stamps for key in (stamp.path, stamp.full.as_posix())})
        places = {item.key: (item.root, item.path) for item in self._with_keys(wanted)}
        places |= {item.key: item.stamp.key for item in items if item.key is not None}
        keyed = []
        for item in items:
            key, full = item.key, item.stamp.full.as_posix()
            if key is None:
                free = places.setdefault(item.stamp.path, item.stamp.key) == item.stamp.key
                key = item.stamp.path if free and full not in places else full
            keyed.append(NewItem(*(vars(item) | {"key": key}).values()))
        return keyed

    def amend(self, changes: Sequence[Change]) -> None:
        """See `Writer.amend`."""
        amendments = []
        for change in changes:
            facts: dict[str, Value] = {} if change.stamp is None else dict(vars(change.stamp))
            if change.key is not None:
                facts["key"] = schema.check_key(change.key)
            amendments.append(Amendment(change.id, facts, change.metadata))
        ItemWriter(self._engine).amend(amendments)
        for mirror in self._open_mirrors():
            mirror.put(self._engine.items([change.id for change in changes]))

    def remove(self, ids: Sequence[int]) -> int:
        """Remove items, some thousands at a time, and their files if they were uploaded."""
        removed = 0
        for start in range(0, len(ids), _SCANNED):
            some = ids[start : start + _SCANNED]
            uploaded = self._uploaded_files(some)
            removed += self._engine.remove(some)
            self._delete_uploads(uploaded)
            for mirror in self._open_mirrors():
                mirror.remove(some)
        self._changed()
        return removed

    def _uploaded_files(self, ids: Sequence[int]) -> dict[str, Path]:
        """Return the uploaded files of some items in this folder, by SHA-256."""
        if not self.uploads.is_dir():
            return {}
        items = (item for item in self._engine.items(ids) if item.root == UPLOADS)
        files = (boxes.split(item.path)[0] for item in items)
        return {file.partition(".")[0]: self.uploads / file for file in files}  # named by their SHA-256

    def _delete_uploads(self, files: Mapping[str, Path]) -> None:
        """Delete files that no item has any more, by SHA-256."""
        left = self.ids_by_content([*files])
        for digest, file in files.items():
            if digest not in left:
                file.unlink(missing_ok=True)

    def heirs(
        self, drafts: Sequence[tuple[ImageFile, ExistingItem | None]]
    ) -> list[tuple[str | None, ExistingItem | None]]:
        """See `Writer.heirs`."""
        return [(image.id or (existing and existing.key), existing) for image, existing in drafts]

    def discard(self, items: Sequence[NewItem], error: BaseException) -> None:
        """See `Writer.discard`; after an error of the database, the items may have been written."""
        for item in items if isinstance(error, InputError) else ():
            (self.uploads / item.stamp.path).unlink(missing_ok=True)

    def parts_of(self, items: Sequence[StoredItem]) -> list[int]:
        """See `Writer.parts_of`."""
        wholes = {(item.root, item.path): item.metadata.get(PICTURE) for item in items}
        named = tuple({str(name) for name in wholes.values() if name is not None})
        if not (named and self.manifest.objects):
            return []
        found: list[int] = []
        for some in self.scan(FilterTest(PICTURE, "in", named)):
            for item in some:
                picture, box = boxes.split(item.path)
                found += [item.id] if box and (item.root, picture) in wholes else []
        return found

    def taken(self, keys: Sequence[str]) -> set[str]:
        """See `Writer.taken`. Servers with folders of their own do not exclude each other: no name alone."""
        return {keys[0], *self.ids_by_key(keys[1:])}

    def merge(self) -> None:
        """Do nothing: the database does."""

    def record_run(self, command: str, started: str, counts: Mapping[str, int]) -> None:
        """Do nothing: a database has no history of runs."""

    def forget_bad_files(self, keys: Iterable[tuple[str, str]]) -> None:
        """Do nothing: a database does not record unusable files."""
