"""Rows of a file of vectors as items of a gallery: checks, keys, image files, unit vectors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from operator import itemgetter, methodcaller
from pathlib import Path

import numpy as np

from retrieval.errors import InputError
from retrieval.galleries.files import FilesView
from retrieval.images.location import Location
from retrieval.ingest.vector_files import Chunk, VectorFile
from retrieval.progress import Progress
from retrieval.storage import schema
from retrieval.storage.queries import column_kinds, ids_between_keys, last_key
from retrieval.storage.records import UPLOADS, Facts, Value

COLUMNS = ("id", "path", "label", "width", "height")  # columns that are facts about an item
CONTENT, SIZE, MTIME = "_content_sha256", "_size", "_mtime_ns"  # facts that only vector shards have
_CHUNK_BYTES = 32 * 2**20  # float32 vectors of a chunk
_LEAST_ROWS, _MOST_ROWS = 1024, 65_536  # of a chunk
_DIGITS = 9  # of the row number in the key of a row without an id
_UNIT = 2e-6  # largest error of the squared length of a unit vector, which is a sum in float32
_SAME = 1e-3  # largest difference between a vector and its copy in float16
_UNUSUAL = ("//", "/.", "\n.", "/\n")  # in lines of paths, one of which may be written in a shorter way


class VectorItems:
    """The rows of a file of vectors, as items of a gallery.

    Args:
        file: File of vectors.
        base: Base folder of relative paths.
        prefix: Start of the keys of rows without an id.

    Raises:
        InputError: The name of a column or the prefix cannot be used.
    """

    def __init__(self, file: VectorFile, base: Path, prefix: str) -> None:
        self.file, self._base, self._prefix = file, base, schema.check_key(prefix)
        self.is_numbered = not {"id", "path"} & {*file.names}
        self._numbered_key = f"{prefix.replace('%', '%%')}-%0{_DIGITS}d".__mod__
        self._metadata = [name for name in file.names if name not in COLUMNS]
        schema.match_columns(self._metadata, ())
        self._at_once = min(max(_CHUNK_BYTES // (4 * file.dim), _LEAST_ROWS), _MOST_ROWS)

    def check(self, gallery: FilesView | None, *, show_progress: bool = False) -> int:
        """Check all rows, and return how many of them, from the first on, the gallery has already.

        Args:
            gallery: Gallery that they will be added to; `None` for a new one.
            show_progress: Print progress on stderr.

        Raises:
            InputError: A row is invalid, or the gallery has another vector under its number.
        """
        known = [] if gallery is None else gallery.store.columns()
        columns = schema.match_columns(self._metadata, known)
        kinds = {} if gallery is None else column_kinds(gallery.store, set(known) & {*columns.values()})
        there = 0 if gallery is None or not self.is_numbered else self._last_number(gallery)
        for chunk in self._checked(columns, kinds, show_progress):
            if gallery is not None and chunk.start < there:
                self._compare(gallery, chunk.start, self._unit_vectors(chunk))
        return min(there, self.file.count)

    def check_for_store(self, known: Mapping[str, str], *, show_progress: bool = False) -> None:
        """Check all rows before they are added to a gallery in a database.

        Args:
            known: Type of each metadata column of the gallery, "text" or "number".
            show_progress: Print progress on stderr.

        Raises:
            InputError: A row is invalid.
        """
        columns = schema.match_columns(self._metadata, [*known])
        for _ in self._checked(columns, {**known}, show_progress):
            pass

    def _checked(
        self, columns: Mapping[str, str], kinds: dict[str, str], show_progress: bool
    ) -> Iterator[Chunk]:
        """Yield all chunks after their check; then check that the keys differ."""
        hashes: list[np.ndarray] = []
        with Progress("checking", self.file.count, "vectors", show=show_progress) as progress:
            for chunk in self.file.chunks(self._at_once):
                squares = self._squared_lengths(chunk)
                yield chunk
                if not self.is_numbered:
                    keys = self._keys(chunk)
                    hashes.append(np.fromiter(map(hash, keys), np.int64, len(keys)))
                self._texts(chunk, "label"), self._sides(chunk, "width"), self._sides(chunk, "height")
                for name in self._metadata:
                    self._check_metadata(chunk, name, columns[name], kinds)
                progress.update(len(squares))
        if hashes:
            self._check_unique(np.concatenate(hashes))

    def chunks(
        self, uploads: Path, skipped: int = 0
    ) -> Iterator[tuple[np.ndarray, Facts, dict[str, list[Value]]]]:
        """Yield the rows in chunks: unit vectors, float32 [n, D]; facts; metadata by column.

        Args:
            uploads: Folder of the gallery's uploaded files.
            skipped: Number of rows to leave out at the start.
        """
        for whole in self.file.chunks(self._at_once):
            chunk = _without(whole, skipped - whole.start)
            count = len(chunk.vectors)
            if not count:
                continue
            facts = Facts(
                self._keys(chunk),
                *_stamps(self._texts(chunk, "path"), self._base, uploads, _versions(chunk)),
                [str(content or "") for content in chunk.columns.get(CONTENT, [""] * count)],
                self._sides(chunk, "width"),
                self._sides(chunk, "height"),
                [label or None for label in self._texts(chunk, "label")],
            )
            yield self._unit_vectors(chunk), facts, {name: chunk.columns[name] for name in self._metadata}

    # ---- columns

    def _place(self, chunk: Chunk, position: int) -> str:
        return f"{self.file.path}, row {chunk.start + position + 1}"

    def _squared_lengths(self, chunk: Chunk) -> np.ndarray:
        squares = _squared_lengths(chunk.vectors)
        for invalid, problem in ((~np.isfinite(squares), "not finite"), (squares == 0, "zero")):
            if invalid.any():
                raise InputError(f"{self._place(chunk, int(np.argmax(invalid)))}: the vector is {problem}")
        return squares

    def _unit_vectors(self, chunk: Chunk) -> np.ndarray:
        """Return the vectors scaled to unit length, float32 [n, D]; those of unit length are unchanged."""
        squares = self._squared_lengths(chunk)
        has_unit = np.abs(squares - 1) <= _UNIT
        scaled = chunk.vectors if has_unit.all() else _scaled(chunk.vectors, np.where(has_unit, 1, squares))
        return scaled.astype(np.float32, copy=False)

    def _keys(self, chunk: Chunk) -> list[str]:
        if self.is_numbered:
            first = chunk.start + 1
            return [*map(self._numbered_key, range(first, first + len(chunk.vectors)))]
        keys = self._texts(chunk, "id")
        if not all(keys):
            keys = [key or path for key, path in zip(keys, self._texts(chunk, "path"), strict=True)]
            if not all(keys):
                place = self._place(chunk, keys.index(""))
                raise InputError(f"{place}: no id and no path; give one to every row, or to none")
        return keys

    def _texts(self, chunk: Chunk, name: str) -> list[str]:
        """Return a column as text, "" for missing values."""
        values = chunk.columns.get(name)
        if values is None:
            return [""] * len(chunk.vectors)
        if {*map(type, values)} == {str}:
            texts: list[str] = values  # type: ignore[assignment]
        else:
            texts = ["" if value is None else str(value) for value in values]
        if not _is_encodable(texts):
            position = next(i for i, text in enumerate(texts) if not _is_encodable([text]))
            raise InputError(f"{self._place(chunk, position)}: the {name} is not valid Unicode")
        return texts

    def _sides(self, chunk: Chunk, name: str) -> list[int]:
        """Return the column `width` or `height`, 0 for missing values."""
        values = chunk.columns.get(name)
        if values is None:
            return [0] * len(chunk.vectors)
        for position, value in enumerate(values):
            if isinstance(value, str) or (value is not None and not 0 <= value < 2**31):
                raise InputError(
                    f"{self._place(chunk, position)}: {name} {value!r} is not a number of pixels"
                )
        return [int(value or 0) for value in values]

    def _check_metadata(self, chunk: Chunk, name: str, column: str, kinds: dict[str, str]) -> None:
        """Check that values can be stored, and are of the type that the column has so far."""
        values = chunk.columns[name]
        types = {*map(type, values)} - {type(None)}
        if not types:
            return
        kind = "text" if str in types else "number"
        if kinds.setdefault(column, kind) != kind:
            what = f"column {name!r} is {kind}, but {kinds[column]} in the gallery"
            raise InputError(f"{self.file.path}: {what}; use one type or two columns")
        try:
            schema.check_values(name, values)
        except InputError as error:
            position = next(i for i, value in enumerate(values) if not _can_be_stored(name, value))
            raise InputError(f"{self._place(chunk, position)}: {error}") from error

    def _check_unique(self, hashes: np.ndarray) -> None:
        """Check that all keys differ, by their hashes, int64 [rows], and for equal hashes by the keys."""
        ascending = np.sort(hashes)
        repeated = ascending[1:][ascending[1:] == ascending[:-1]]
        if not len(repeated):
            return
        suspects = np.isin(hashes, repeated)
        seen: set[str] = set()
        for chunk in self.file.chunks(self._at_once):
            keys = self._keys(chunk)
            for position in np.flatnonzero(suspects[chunk.start : chunk.start + len(keys)]).tolist():
                if keys[position] in seen:
                    place = self._place(chunk, position)
                    raise InputError(f"{place}: the id {keys[position]!r} is already used")
                seen.add(keys[position])

    # ---- rows without ids

    def _last_number(self, gallery: FilesView) -> int:
        """Return the highest row number among the gallery's keys with the prefix; 0 for none."""
        pattern = f"{self._prefix}-"
        last = last_key(gallery.store, pattern + "0" * _DIGITS, pattern + "9" * _DIGITS)
        return 0 if last is None else int(last[len(pattern) :])

    def _compare(self, gallery: FilesView, start: int, unit: np.ndarray) -> None:
        """Compare rows, float32 [n, D] from `start` on, with the gallery's items of the same numbers."""
        first, last = self._numbered_key(start + 1), self._numbered_key(start + len(unit))
        found = ids_between_keys(gallery.store, first, last)
        rows = gallery.state.rows_of(np.array([item for _, item in found], np.int64))
        numbers = np.array([int(key[-_DIGITS:]) for key, _ in found], np.int64)
        stored = gallery.state.vectors(rows[rows >= 0])
        if np.abs(stored - unit[numbers[rows >= 0] - 1 - start]).max(initial=0) > _SAME:
            what = f"has other vectors under the keys {first} to {last}, from another file of this name"
            raise InputError(
                f"{gallery.folder}: {what}; choose other keys with --prefix, or give the rows ids"
            )


def _versions(chunk: Chunk) -> tuple[list[int], list[int]] | None:
    """Return sizes and modification times of the image files when they were embedded; `None` if unknown."""
    if SIZE not in chunk.columns:
        return None
    sizes, times = ([int(value or 0) for value in chunk.columns[name]] for name in (SIZE, MTIME))
    return sizes, times


def _stamps(
    paths: list[str], base: Path, uploads: Path, versions: tuple[list[int], list[int]] | None
) -> tuple[list[str], list[str], list[int], list[int]]:
    """Return root, path below it, size and modification time of image files: columns of `Facts`.

    Args:
        paths: Paths of the files, relative to `base` or absolute; "" for rows without a file.
        base: Absolute folder.
        uploads: Folder of the gallery's uploaded files.
        versions: Sizes and modification times; `None` for those of the files that are there now.
    """
    nothing = [0] * len(paths)
    if not any(paths):
        return paths, paths, nothing, nothing
    start, lines = f"{base}/".replace("//", "/"), "\n".join(["", *paths, ""])
    if any(map(lines.__contains__, _UNUSUAL)):
        paths = [Location.parse(path).path for path in paths]
    elif all(paths) and "\n/" not in lines:
        within = {*map(itemgetter(0), map(methodcaller("rpartition", "/"), paths))}
        folders = {start + folder if folder else str(base) for folder in within}
        if str(uploads) not in folders and (versions or not any(map(os.path.isdir, folders))):
            return [str(base)] * len(paths), paths, *(versions or (nothing, nothing))
    files = [path if path[:1] in ("/", "") else start + path for path in paths]
    below = [file.removeprefix(start) if file[: len(start)] == start else file[1:] for file in files]
    roots = [
        path and (str(base) if file[: len(start)] == start else "/")
        for path, file in zip(paths, files, strict=True)
    ]
    folders = {file.rpartition("/")[0] for file in files}
    sizes, times = versions or (nothing, nothing)
    present = set() if versions else {folder for folder in folders if folder and os.path.isdir(folder)}
    if present:
        found = [_version(file) if file.rpartition("/")[0] in present else (0, 0) for file in files]
        sizes, times = [size for size, _ in found], [time for _, time in found]
    if str(uploads) in folders:
        for row, file in enumerate(files):
            if file.rpartition("/")[0] == str(uploads):
                roots[row], below[row] = UPLOADS, file.rpartition("/")[2]
    return roots, below, sizes, times


def _version(file: str) -> tuple[int, int]:
    """Return size and modification time of a file; 0 if there is none."""
    if not os.path.isfile(file):
        return 0, 0
    found = os.stat(file)
    return found.st_size, found.st_mtime_ns


def _without(chunk: Chunk, count: int) -> Chunk:
    """Return a chunk without its first rows, unless `count` is negative."""
    if count <= 0:
        return chunk
    rest = {name: values[count:] for name, values in chunk.columns.items()}
    return Chunk(chunk.start + count, chunk.vectors[count:], rest)


def _squared_lengths(vectors: np.ndarray) -> np.ndarray:
    """Return the squared lengths of vectors of a floating-point type [n, D]: float [n]."""
    if vectors.dtype.itemsize < 4:
        vectors = vectors.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        squares: np.ndarray = np.einsum("nd,nd->n", vectors, vectors)
        extreme = ~((squares > 1e-30) & (squares < 1e30))
        if extreme.any():  # out of the range of float32, or not finite
            exact = vectors[extreme].astype(np.float64)
            squares = squares.astype(np.float64)
            squares[extreme] = np.einsum("nd,nd->n", exact, exact)
    return squares


def _scaled(vectors: np.ndarray, squares: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = vectors / np.sqrt(squares)[:, None]
    return scaled


def _can_be_stored(name: str, value: Value) -> bool:
    try:
        schema.check_value(name, value)
    except InputError:
        return False
    return True


def _is_encodable(texts: list[str]) -> bool:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True
