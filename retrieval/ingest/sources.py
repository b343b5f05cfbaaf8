"""Image sources: files, folders, glob patterns, tar shards, file lists and metadata tables."""

from __future__ import annotations

import glob
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path, PurePosixPath

from retrieval.errors import ImageError, InputError
from retrieval.images import shards
from retrieval.images.load import SUFFIXES
from retrieval.ingest import tables
from retrieval.storage import schema
from retrieval.storage.records import BadFile, FileStamp, Value

STDIN = "-"
Metadata = str | Path | Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class Sources:
    """Images to index and their metadata.

    With images or a list, the rows of a metadata table describe those images; without them, the table itself
    is the list of images.

    Attributes:
        images: Image files, folders, glob patterns and tar shards.
        list_file: Text file with one path per line, relative to the working folder; "-" is standard input.
        metadata: CSV or Parquet file, see `retrieval.ingest.tables`, with paths relative to the only folder
            in `images` or else to the folder of the table; or the values by column for each of `images`,
            which then are files.
        root: Folder that relative paths in the list and the table refer to instead.
    """

    images: Sequence[str | Path] = ()
    list_file: str | None = None
    metadata: Metadata | None = None
    root: Path | None = None


@dataclass(frozen=True)
class ImageFile(FileStamp):
    """An image file with the metadata given by the user.

    Attributes:
        id: Key given by the user; `None` for the path.
        metadata: Values by column.
        has_own_label: The label was given by the user, and is not just the name of the folder.
    """

    id: str | None = None
    metadata: Mapping[str, Value] = field(default_factory=dict)
    has_own_label: bool = False

    @property
    def stamp(self) -> FileStamp:
        """The file without its metadata."""
        return FileStamp(self.root, self.path, self.size, self.mtime_ns, self.label)


@dataclass
class Scan:
    """Files found in the sources.

    Attributes:
        files: Image files by full path, in a fixed order.
        unusable: Files with an invalid name, damaged tar files, table rows whose file does not exist.
        ignored: Number of files without an image suffix.
        unmatched: Number of table rows for files that are not among the images.
    """

    files: dict[Path, ImageFile] = field(default_factory=dict)
    unusable: list[BadFile] = field(default_factory=list)
    ignored: int = 0
    unmatched: int = 0

    def add(self, path: Path, image: ImageFile) -> None:
        """Add a file; of several entries for the same file the first one counts."""
        if _is_valid_text(image.path):
            self.files.setdefault(path, image)
            return
        printable = os.fsencode(image.path).decode("utf-8", "backslashreplace")
        detail = "its name is not valid UTF-8: rename it"
        self.unusable.append(BadFile(replace(image.stamp, path=printable), "name", detail))


def collect(sources: Sources, roots: Iterable[str] = ()) -> Scan:
    """Return all images of some sources, with their metadata.

    Args:
        sources: Images and metadata.
        roots: Known root folders, as for `scan`.

    Raises:
        InputError: There is no source, or one of them does not exist, contains no image or is invalid.
    """
    paths, roots = [Path(source) for source in sources.images], list(roots)
    metadata, root = sources.metadata, sources.root
    if not paths and sources.list_file is None and metadata is None:
        raise InputError("no images: name files or folders, or pass --list or --metadata")
    found = scan(paths, roots)
    if sources.list_file is not None:
        _add_list(found, sources.list_file, (root or Path()).resolve(), roots)
    if metadata is None:
        return found
    if not isinstance(metadata, str | Path):
        _describe(found, _rows_of_files(paths, metadata), Path("/"), "metadata")
        return found
    table = Path(metadata)
    if root is not None:
        base = root.resolve()
    else:
        folders = [path for path in paths if path.is_dir()]
        base = (folders[0] if len(folders) == 1 else table.parent).resolve()
    if found.files:
        _describe(found, tables.read_table(table), base, str(table))
    else:
        _add_rows(found, tables.read_table(table), base, roots)
    return found


def scan(sources: Iterable[str | Path], roots: Iterable[str] = ()) -> Scan:
    """Find the image files in files, folders, glob patterns and tar shards.

    Folders are searched recursively, through symbolic links too, but each folder only once. The label of an
    image is its folder, relative to the source folder. Hidden files are skipped; a file that is itself a
    source needs no image suffix.

    Args:
        sources: Files, folders, glob patterns and tar shards.
        roots: Known root folders; paths and labels of sources inside one of them are relative to it.

    Raises:
        InputError: A source does not exist or contains no image.
    """
    found, known = Scan(), list(roots)
    for source in map(Path, sources):
        part = Scan()
        if source.exists():
            top = source.resolve()
            _add_path(part, top, _root(top, known, top if top.is_dir() else top.parent))
        elif glob.has_magic(str(source)):
            _add_glob(part, source, known)
        else:
            raise InputError(f"{source}: there is no such file or folder")
        if not part.files and not part.unusable:
            suffixes = ", ".join(SUFFIXES[:6])
            raise InputError(f"{source}: no image files in it ({suffixes}, ...){_tar_hint(source)}")
        for path, image in part.files.items():
            found.files.setdefault(path, image)
        found.unusable += part.unusable
        found.ignored += part.ignored
    return found


def stat_image(path: Path, root: Path) -> ImageFile:
    """Return an image file with its size and modification time; its label is its folder below `root`."""
    relative = path.relative_to(root)
    label = relative.parent.as_posix() if relative.parent.parts else None
    try:
        size, mtime = _stat(path)
    except (OSError, ValueError, InputError):  # deleted, or a broken link: reading it reports the error
        size, mtime = 0, 0
    return ImageFile(str(root), relative.as_posix(), size, mtime, label)


def file_exists(path: Path) -> bool:
    """Return whether a file, or a member of a tar file, exists; True if permissions forbid to check."""
    try:
        _stat(path)
    except PermissionError:
        return True
    except (OSError, ValueError, InputError):
        return False
    return True


def _stat(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except NotADirectoryError:
        return shards.stat(path)
    return status.st_size, status.st_mtime_ns


# ---- files and folders


def _add_path(found: Scan, top: Path, root: Path) -> None:
    if top.is_file() and top.suffix.lower() == shards.SUFFIX:
        _add_shard(found, top, root)
        return
    errors: list[OSError] = []
    for path in _walk(top, errors):
        if top.is_dir() and path.suffix.lower() not in SUFFIXES:
            found.ignored += 1
        else:
            found.add(path, stat_image(path, root))
    for error in errors:
        folder = stat_image(Path(error.filename), root)
        found.unusable.append(
            BadFile(folder, ImageError.PERMISSION, f"the folder cannot be read ({error.strerror})")
        )


def _add_glob(found: Scan, pattern: Path, known: Sequence[str]) -> None:
    """Add the matches of a pattern; labels are relative to the last folder before its first wildcard."""
    magic = next(i for i, part in enumerate(pattern.parts) if glob.has_magic(part))
    start = Path(*pattern.parts[:magic])
    top = start.resolve()
    for match in sorted(glob.glob(str(pattern), recursive=True)):
        path = top / Path(match).relative_to(start)
        if path.is_dir() or path.suffix.lower() in (*SUFFIXES, shards.SUFFIX):
            _add_path(found, path, _root(path, known, top))
        else:
            found.ignored += 1


def _walk(top: Path, errors: list[OSError]) -> Iterator[Path]:
    """Yield the files below a folder, or the file itself. Symbolic links are followed after real folders."""
    if not top.is_dir():
        yield top
        return
    seen: set[tuple[int, int]] = set()
    queue = [top]
    while queue:
        links = []
        for folder, folders, names in os.walk(queue.pop(0), onerror=errors.append):
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                folders.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            links += [path for name in folders if (path := Path(folder, name)).is_symlink()]
            yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        queue += links


def _root(path: Path, known: Iterable[str], otherwise: Path) -> Path:
    """Return the innermost known root that contains a path."""
    within = [root for root in map(Path, known) if path.is_relative_to(root)]
    return max(within, key=lambda root: len(root.parts), default=otherwise)


def _tar_hint(source: Path) -> str:
    tars = source.is_dir() and any(path.suffix.lower() == shards.SUFFIX for path in source.iterdir())
    return f"; pass tar shards explicitly, for example '{source}/*{shards.SUFFIX}'" if tars else ""


def _is_valid_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes of the operating system that are not UTF-8, as surrogates
        return False
    return "\0" not in name


# ---- tar shards


def _add_shard(found: Scan, tar: Path, root: Path) -> None:
    """Add the images of a tar shard, with metadata from sidecar files of the same stem, as in WebDataset.

    x.json contains metadata (and id, label), x.cls the label, x.txt the metadata column "text". Reserved
    column names of a gallery, such as width, are skipped.
    """
    base = stat_image(tar, root)
    try:
        for _, group in groupby(shards.members(tar), lambda member: _stem(member.name)):
            members = list(group)
            values, problem = _sidecar_values(tar, members)
            for member in members:
                name = PurePosixPath(member.name)
                if name.suffix.lower() not in SUFFIXES or name.name.startswith("."):
                    found.ignored += name.suffix.lower() not in _SIDECARS
                    continue
                path = f"{base.path}/{name.as_posix()}"
                label = name.parent.as_posix() if name.parent.parts else None
                image = ImageFile(base.root, path, member.size, base.mtime_ns, label)
                if not shards.is_within(member.name):
                    found.unusable.append(BadFile(image, "name", "its name points outside the tar file"))
                elif problem:
                    found.unusable.append(BadFile(image, "metadata", problem))
                else:
                    found.add(tar / name, _with_row(image, tables.parse_row(values, f"{tar}/{name}")))
    except InputError as error:
        if not any(path.is_relative_to(tar) for path in found.files):
            raise
        found.unusable.append(BadFile(base, ImageError.DAMAGED, f"its end cannot be read ({error})"))


_SIDECARS = {".json": "", ".cls": "label", ".txt": "text"}
_MAX_SIDECAR = 2**20


def _stem(name: str) -> str:
    """Return the common part of the names of an image and its sidecar files: up to the first dot."""
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.partition('.')[0]}"


def _sidecar_values(tar: Path, members: Iterable[shards.Member]) -> tuple[dict[str, object], str | None]:
    """Return the values in the sidecar files of an image, and an error message or `None`."""
    values: dict[str, object] = {}
    for member in members:
        suffix = PurePosixPath(member.name).suffix.lower()
        if suffix not in _SIDECARS:
            continue
        if member.size > _MAX_SIDECAR:
            return {}, f"its sidecar {member.name} is over 1 MB"
        try:
            text = shards.read_member(tar, member.start, member.size).decode("utf-8-sig")
            values |= _from_json(text) if suffix == ".json" else {_SIDECARS[suffix]: text.strip()}
        except (ValueError, RecursionError) as error:
            return {}, f"its sidecar {member.name} cannot be read ({error})"
    return values, None


def _from_json(text: str) -> dict[str, object]:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("expected an object")
    reserved = schema.RESERVED - {"id", "label"}
    return {
        name: value if isinstance(value, Value) else json.dumps(value)
        for name, value in values.items()
        if name.lower() not in reserved
    }


# ---- lists and tables


def _add_list(found: Scan, list_file: str, base: Path, known: Sequence[str]) -> None:
    name = "standard input" if list_file == STDIN else list_file
    try:
        data = sys.stdin.buffer.read() if list_file == STDIN else Path(list_file).read_bytes()
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror})") from error
    lines = os.fsdecode(data.removeprefix(b"\xef\xbb\xbf")).split("\n")
    entries = [(number, line.rstrip("\r")) for number, line in enumerate(lines, 1) if line.strip()]
    if not entries:
        raise InputError(f"{name}: lists no images")
    for number, line in entries:
        path = _resolve(base, line, f"{name}, line {number}")
        found.add(path, stat_image(path, _root(path, known, base)))


def _rows_of_files(paths: Sequence[Path], values: Sequence[Mapping[str, object]]) -> list[tables.TableRow]:
    """Return the values for each of some files as rows of a table."""
    if len(values) != len(paths):
        raise InputError(f"metadata: {len(values)} rows for {len(paths)} files; pass one row per file")
    rows = enumerate(zip(paths, values, strict=True), 1)
    return tables.parse_rows(
        (f"metadata, row {n}", {**row, "path": str(path.resolve())}) for n, (path, row) in rows
    )


def _add_rows(found: Scan, rows: Iterable[tables.TableRow], base: Path, known: Sequence[str]) -> None:
    """Add the images that are listed in a table."""
    for row in rows:
        path = _resolve(base, row.path, row.place)
        if path in found.files:
            raise InputError(f"{row.place}: {row.path!r} is in the table twice")
        found.add(path, _with_row(stat_image(path, _root(path, known, base)), row))


def _describe(found: Scan, rows: Iterable[tables.TableRow], base: Path, name: str) -> None:
    """Set the metadata of the files found from the rows of a table."""
    done: set[Path] = set()
    for row in rows:
        path = _resolve(base, row.path, row.place)
        if path in done:
            raise InputError(f"{row.place}: {row.path!r} is in the table twice")
        done.add(path)
        if path in found.files:
            found.files[path] = _with_row(found.files[path], row)
        elif file_exists(path):
            found.unmatched += 1
        else:
            detail = f"there is no such file ({row.place})"
            found.unusable.append(BadFile(stat_image(path, base), ImageError.MISSING, detail))
    if done.isdisjoint(found.files):
        raise InputError(
            f"{name}: no row matches an image; paths are relative to {base}, --root sets another folder"
        )


def _with_row(image: ImageFile, row: tables.TableRow) -> ImageFile:
    label = row.label if row.has_label else image.label
    has_own_label = image.has_own_label or row.has_label
    return replace(image, label=label, id=row.id, metadata=row.metadata, has_own_label=has_own_label)


def _resolve(base: Path, name: str, place: str) -> Path:
    """Return a path in a list or table as a path below `base`; raise an `InputError` if it is outside."""
    path = Path(os.path.normpath(base / name))
    if not path.is_relative_to(base):  # it may contain symbolic links, `base` is without
        path = path.parent.resolve() / path.name
    if not path.is_relative_to(base) or path == base or "\0" in name:
        raise InputError(f"{place}: {name!r} is outside {base}; set --root to the folder of all images")
    return path
