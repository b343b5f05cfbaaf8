"""Image sources: files, folders, glob patterns, tar shards, URLs, file lists and metadata tables.

Files are listed as a stream, so that a folder may have any number of them. The rows of a metadata table are
in memory during the run.
"""

from __future__ import annotations

import glob
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path, PurePosixPath

from retrieval.errors import ImageError, InputError
from retrieval.images import remote, shards
from retrieval.images.load import SUFFIXES, irregular
from retrieval.images.location import ABSENT, Location, locate
from retrieval.ingest import tables
from retrieval.storage import schema
from retrieval.storage.planning import ImageFile
from retrieval.storage.records import BadFile, FileStamp, Value
from retrieval.text import printable

STDIN = "-"
Metadata = str | Path | Sequence[Mapping[str, object]]
Entry = ImageFile | BadFile
_SORTED = 100_000  # entries of a folder that are sorted in memory
_SUFFIXES = frozenset(SUFFIXES)
_ARCHIVES = (
    ".zip",
    ".7z",
    ".rar",
    ".tgz",
    *(f"{shards.SUFFIX}.{form}" for form in ("gz", "bz2", "xz", "zst")),
)


@dataclass(frozen=True)
class Sources:
    """Images to index and their metadata.

    With images or a list, the rows of a metadata table describe those images; without them, the table itself
    is the list of images.

    Attributes:
        images: Image files, folders, glob patterns, tar shards, and URLs of remote folders and files.
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


class Scan:
    """Files of some sources, found while they are iterated over, which is possible once.

    Attributes:
        repeats: The same file may be found several times; the first time counts.
        ignored: Number of files without an image suffix.
        unmatched: Number of table rows for files that are not among the images.
        withheld: Number of files left out because their image was removed by hand.
        table: What does not fit the types of the columns of the table.
        places: Position in its table of each part of a picture, by root and path, for error messages.
        outdated: Ids of the items that are parts of a picture no more, as it has changed.
        empty: Folders that hold neither images nor folders, relative to their root.
    """

    def __init__(self, entries: Iterable[Entry] = (), *, repeats: bool = False) -> None:
        self.entries, self.repeats, self.table = entries, repeats, tables.TableReport()
        self.places: dict[tuple[str, str], str] = {}
        self.ignored = self.unmatched = self.withheld = 0
        self.outdated: list[int] = []
        self.empty: list[str] = []

    def __iter__(self) -> Iterator[Entry]:
        """Yield image files, and files that are unusable without reading them: with an invalid name, not
        regular files, in damaged tar files, and of table rows whose file does not exist."""
        return iter(self.entries)


def collect(sources: Sources, roots: Iterable[str] = ()) -> Scan:
    """Return all images of some sources, with their metadata. Iterating over them raises the same errors.

    Args:
        sources: Images and metadata.
        roots: Known root folders, as for `scan`.

    Raises:
        InputError: There is no source, or one of them does not exist, contains no image or is invalid.
    """
    places, roots = [Location.parse(source) for source in sources.images], list(roots)
    metadata, root = sources.metadata, sources.root
    if not places and sources.list_file is None and metadata is None:
        raise InputError("no images: name files or folders, or pass --list or --metadata")
    found = scan(places, roots)
    if sources.list_file is not None:
        listed = _listed(sources.list_file, absolute(root or Path()), roots)
        found.entries, found.repeats = chain(found.entries, listed), True
    if metadata is None:
        return found
    if not isinstance(metadata, str | Path):
        found.entries = _described(
            found, found.entries, _rows_of_files(places, metadata), Path("/"), "metadata"
        )
        return found
    table = Path(metadata)
    if root is not None:
        base = absolute(root)
    else:
        folders = [place for place in places if place.kind == "url" or os.path.isdir(place.name)]
        base = absolute(folders[0] if len(folders) == 1 else table.parent)
    rows = tables.read_table(table, found.table)
    if places or sources.list_file is not None:
        found.entries = _described(found, found.entries, rows, base, str(table))
    else:
        found.entries = _files_of_rows(found, rows, base, roots)
    return found


def scan(sources: Iterable[str | Path | Location], roots: Iterable[str] = ()) -> Scan:
    """Find the image files in files, folders, glob patterns, tar shards and URLs.

    Folders are searched recursively, through symbolic links too, but each folder only once. The label of an
    image is its folder, relative to the source folder. Hidden files are skipped; a file that is itself a
    source needs no image suffix. Only regular files are images. The files of a folder are in alphabetical
    order; if there are more than 100,000, each 100,000 of them are.

    Args:
        sources: Files, folders, glob patterns, tar shards, and URLs of remote folders and files.
        roots: Known root folders; paths and labels of sources inside one of them are relative to it.

    Raises:
        InputError: While iterating: a source does not exist or contains no image.
    """
    places = [Location.parse(source) for source in sources]
    several = len(places) > 1 or any(glob.has_magic(place.name) for place in places)
    found = Scan(repeats=several)
    found.entries = _entries(found, places, list(roots))
    return found


def _entries(found: Scan, places: Iterable[Location], known: Sequence[str]) -> Iterator[Entry]:
    for place in places:
        source = Path(place.path)
        if place.kind == "url":
            entries = _remote(found, place, known)
        elif exists(source):
            top = source.resolve()
            if top.name.lower().endswith(_ARCHIVES):
                raise InputError(f"{source}: is an archive; unpack it, since only .tar is read as it is")
            root = _root(str(top), known, str(top if top.is_dir() else top.parent))
            entries = _below(found, top, root)
        elif glob.has_magic(str(source)):
            entries = _matches(found, source, known)
        else:
            raise InputError(f"{source}: there is no such file or folder")
        first = next(entries, None)
        if first is None:
            suffixes = ", ".join(SUFFIXES[:6])
            raise InputError(f"{place}: no image files in it ({suffixes}, ...){_archive_hint(source)}")
        yield first
        yield from entries


def stat_image(path: str, root: str) -> ImageFile:
    """Return an image file with its size and modification time; its label is its folder below `root`."""
    relative = _relative(path, root)
    # Zeros if it was deleted, or is a broken link: reading it reports the error.
    return ImageFile(root, relative, *(locate(path).stamp() or (0, 0)), relative.rpartition("/")[0] or None)


def absolute(source: Path | Location) -> Path:
    """Return a path without symbolic links; a URL as the path that stands for it in a gallery."""
    place = Location.parse(source)
    return Path(place.path) if place.kind == "url" else Path(place.path).resolve()


def exists(path: Path) -> bool:
    """Return whether there is a file or folder; False for a path that cannot be one."""
    try:
        return path.exists()
    except OSError as error:  # a name that is too long
        if error.errno in ABSENT:
            return False
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


# ---- files and folders


def _below(found: Scan, top: Path, root: str) -> Iterator[Entry]:
    """Yield the images in a folder or a tar file, or the file itself."""
    if top.is_dir():
        yield from _walk(found, str(top), root)
    elif top.is_file() and top.suffix.lower() == shards.SUFFIX:
        yield from _members(found, top, root)
    else:
        relative = _relative(str(top), root)
        label, _, name = relative.rpartition("/")
        yield _entry(root, str(top), f"{label}/" if label else "", name, label or None)


def _matches(found: Scan, pattern: Path, known: Sequence[str]) -> Iterator[Entry]:
    """Yield the matches of a pattern; labels are relative to the last folder before its first wildcard."""
    magic = next(i for i, part in enumerate(pattern.parts) if glob.has_magic(part))
    start = Path(*pattern.parts[:magic])
    top = start.resolve()
    matches = glob.iglob(str(pattern), recursive=True)
    while some := sorted(islice(matches, _SORTED)):
        for match in some:
            path = top / Path(match).relative_to(start)
            if path.is_dir() or path.suffix.lower() in (*SUFFIXES, shards.SUFFIX):
                yield from _below(found, path, _root(str(path), known, str(top)))
            else:
                found.ignored += 1


def _walk(found: Scan, top: str, root: str) -> Iterator[Entry]:
    """Yield the images below a folder. Symbolic links to folders are followed after real folders."""
    seen: set[tuple[int, int]] = set()
    queue, links = [top], list[str]()
    while queue or links:
        if not queue:
            queue, links = links[:1], links[1:]
        folder = queue.pop()
        relative = _relative(folder, root)
        label, prefix = relative or None, f"{relative}/" if relative else ""
        below: list[str] = []
        is_empty = True
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(folder) as entries:
                while some := sorted(islice(entries, _SORTED), key=attrgetter("name")):
                    for entry in some:
                        name = entry.name
                        if name[0] == ".":
                            continue
                        path, is_image = prefix + name, name[name.rfind(".") :].lower() in _SUFFIXES
                        found_status = _status(entry) if is_image and path.isascii() else None
                        if found_status is not None:
                            is_empty = False
                            size, time = found_status.st_size, found_status.st_mtime_ns
                            yield ImageFile(root, path, size, time, label)
                        elif _is_folder(entry):
                            is_empty = False
                            (links if entry.is_symlink() else below).append(entry.path)
                        elif is_image:
                            is_empty = False
                            yield _entry(root, entry, prefix, name, label)
                        else:
                            found.ignored += 1
        except OSError as error:
            is_empty = False
            yield _unreadable_folder(root, relative or ".", error)
        if is_empty:
            found.empty.append(relative)
        queue += sorted(below, reverse=True)


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of a regular file; `None` for anything else."""
    try:
        status = entry.stat()
    except OSError:
        return None
    return status if status.st_mode & _FORMAT == _REGULAR else None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a loop of links
        return False


def _entry(root: str, file: os.DirEntry[str] | str, prefix: str, name: str, label: str | None) -> Entry:
    """Return an image file, from an entry of a folder or the full path."""
    path = prefix + name
    if not path.isascii() and (bad := _invalid_name(root, path)):
        return bad
    try:
        status = os.stat(file) if isinstance(file, str) else file.stat()
    except OSError as error:
        return _unreadable(root, path, error)
    if (status.st_mode & _FORMAT) != _REGULAR and (kind := irregular(status.st_mode)):
        detail = f"it is a {kind}, not an image file"
        return BadFile(FileStamp(root, path, 0, 0, label), ImageError.NOT_AN_IMAGE, detail)
    return ImageFile(root, path, status.st_size, status.st_mtime_ns, label)


_FORMAT, _REGULAR = 0o170000, 0o100000


def _unreadable(root: str, path: str, error: OSError) -> BadFile:
    stamp = FileStamp(root, path, 0, 0)
    if isinstance(error, PermissionError):
        return BadFile(stamp, ImageError.PERMISSION, "there is no permission to read it")
    if isinstance(error, FileNotFoundError):
        return BadFile(stamp, ImageError.MISSING, "there is no such file")
    return BadFile(stamp, ImageError.MISSING, f"it cannot be read ({error.strerror})")


def _unreadable_folder(root: str, path: str, error: OSError) -> BadFile:
    is_permission = isinstance(error, PermissionError)
    reason = ImageError.PERMISSION if is_permission else ImageError.MISSING
    return _invalid_name(root, path) or BadFile(
        FileStamp(root, path, 0, 0), reason, f"the folder cannot be read ({error.strerror})"
    )


def _invalid_name(root: str, path: str) -> BadFile | None:
    """Return an entry for a file whose name cannot be stored."""
    try:
        path.encode()
        if "\0" not in path:
            return None
    except UnicodeEncodeError:  # bytes of the operating system that are not UTF-8, as surrogates
        path = printable(path)
    return BadFile(FileStamp(root, path, 0, 0), "name", "its name is not valid UTF-8: rename it")


def _relative(path: str, root: str) -> str:
    """Return a path below a root, relative to it; empty for the root."""
    return path[len(root.rstrip("/")) + 1 :] if path != root else ""


def _root(path: str, known: Sequence[str], otherwise: str) -> str:
    """Return the innermost known root that contains a path."""
    within = [root for root in known if path == root or path.startswith(f"{root.rstrip('/')}/")]
    return max(within, key=len, default=otherwise)


def _archive_hint(source: Path) -> str:
    names = [path.name.lower() for path in source.iterdir()] if source.is_dir() else []
    if any(name.endswith(shards.SUFFIX) for name in names):
        return f"; pass tar shards explicitly, for example '{source}/*{shards.SUFFIX}'"
    return "; unpack the archives in it" if any(name.endswith(_ARCHIVES) for name in names) else ""


# ---- remote storage


def _remote(found: Scan, url: Location, known: Sequence[str]) -> Iterator[Entry]:
    """Yield the images below a URL, or the file itself."""
    top = Path(url.path)
    for file in remote.list_files(str(url)):
        path = top / file.name
        root = _root(str(path), known, str(top if file.name else top.parent))
        relative = _relative(str(path), root)
        if file.name and path.suffix.lower() not in _SUFFIXES:
            found.ignored += 1
            continue
        label = relative.rpartition("/")[0] or None
        yield _invalid_name(root, relative) or ImageFile(root, relative, file.size, file.mtime_ns, label)


# ---- tar shards


def _members(found: Scan, tar: Path, root: str) -> Iterator[Entry]:
    """Yield the images of a tar shard, with metadata from sidecar files of the same stem, as in WebDataset.

    x.json contains metadata (and id, label), x.cls the label, x.txt the metadata column "text". Reserved
    column names of a gallery, such as width, are skipped.
    """
    base, is_empty = stat_image(str(tar), root), True
    try:
        for _, group in groupby(shards.members(tar), lambda member: _stem(member.name)):
            members = list(group)
            values, problem = _sidecar_values(tar, members)
            for member in members:
                name = PurePosixPath(member.name)
                if name.suffix.lower() not in SUFFIXES or name.name.startswith("."):
                    found.ignored += name.suffix.lower() not in _SIDECARS
                    continue
                is_empty = False
                path = f"{base.path}/{name.as_posix()}"
                label = name.parent.as_posix() if name.parent.parts else None
                image = ImageFile(base.root, path, member.size, base.mtime_ns, label)
                if not shards.is_within(member.name):
                    yield BadFile(image.stamp, "name", "its name points outside the tar file")
                elif problem:
                    yield BadFile(image.stamp, "metadata", problem)
                else:
                    row = tables.parse_row(values, f"{tar}/{name}")
                    yield _invalid_name(base.root, path) or _with_row(found, image, row)
    except InputError as error:
        if is_empty:
            raise
        yield BadFile(base.stamp, ImageError.DAMAGED, f"its end cannot be read ({error})")


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


def _listed(list_file: str, base: Path, known: Sequence[str]) -> Iterator[Entry]:
    name, is_empty = "standard input" if list_file == STDIN else list_file, True
    try:
        with nullcontext(sys.stdin.buffer) if list_file == STDIN else open(list_file, "rb") as lines:
            for number, line in enumerate(lines, 1):
                text = os.fsdecode(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).rstrip("\r\n")
                if text.strip():
                    path = _resolve(base, text, f"{name}, line {number}")
                    is_empty = False
                    yield _image_at(path, _root(path, known, _outer(path, base)))
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror})") from error
    if is_empty:
        raise InputError(f"{name}: lists no images")


def _outer(path: str, base: Path) -> str:
    """Return the root of a listed path: the folder of the list, or the bucket or host of a URL outside it."""
    return str(base) if Path(path).is_relative_to(base) else str(Path(*Path(path).parts[:3]))


def _image_at(path: str, root: str) -> Entry:
    image = stat_image(path, root)
    return _invalid_name(root, image.path) or image


def _rows_of_files(
    places: Sequence[Location], values: Sequence[Mapping[str, object]]
) -> list[tables.TableRow]:
    """Return the values for each of some files as rows of a table."""
    given = [*values]  # of a mapping or a DataFrame the names of its columns
    if not all(isinstance(row, Mapping) and all(isinstance(name, str) for name in row) for row in given):
        hint = "pass a list of them, as by to_dict('records') of a DataFrame"
        raise InputError(f"metadata: each file has a mapping of its values by name of the column; {hint}")
    if len(given) != len(places):
        raise InputError(f"metadata: {len(given)} rows for {len(places)} files; pass one row per file")
    rows = enumerate(zip(places, given, strict=True), 1)
    return tables.parse_rows(
        (f"metadata, row {n}", {**row, "path": str(absolute(place))}) for n, (place, row) in rows
    )


def _files_of_rows(
    found: Scan, rows: Iterable[tables.TableRow], base: Path, known: Sequence[str]
) -> Iterator[Entry]:
    """Yield the images that are listed in a table."""
    for path, of_picture in _by_path(rows, base).items():
        image = _image_at(path, _root(path, known, _outer(path, base)))
        for row in of_picture:
            yield _with_row(found, image, row) if isinstance(image, ImageFile) else image


def _described(
    found: Scan, entries: Iterable[Entry], rows: Iterable[tables.TableRow], base: Path, name: str
) -> Iterator[Entry]:
    """Yield files with the metadata from the rows of a table, then the rows of files that do not exist."""
    by_path = _by_path(rows, base)
    matched: set[str] = set()
    for entry in entries:
        if isinstance(entry, ImageFile):
            path = f"{entry.root.rstrip('/')}/{entry.path}"
            if of_picture := by_path.get(path):
                matched.add(path)
                yield from (_with_row(found, entry, row) for row in of_picture)
                continue
        yield entry
    if not matched:
        raise InputError(
            f"{name}: no row matches an image; paths are relative to {base}, --root sets another folder"
        )
    for path in (path for path in by_path if path not in matched):
        if locate(path).exists():
            found.unmatched += len(by_path[path])
        else:
            detail = f"there is no such file ({by_path[path][0].place})"
            root = _outer(path, base)
            relative = _relative(path, root)
            stamp = FileStamp(root, relative, 0, 0, relative.rpartition("/")[0] or None)
            yield BadFile(stamp, ImageError.MISSING, detail)


def _by_path(rows: Iterable[tables.TableRow], base: Path) -> dict[str, list[tables.TableRow]]:
    """Return the rows of each picture; several are about its parts."""
    by_path: dict[str, list[tables.TableRow]] = {}
    seen = set[tuple[str, str]]()
    for row in rows:
        path = _resolve(base, row.path, row.place)
        if (path, row.box) in seen and row.problem is None:
            raise InputError(f"{row.place}: {row.path + row.box!r} is in the table twice")
        seen.add((path, row.box))
        by_path.setdefault(path, []).append(row)
    return by_path


def _with_row(found: Scan, image: ImageFile, row: tables.TableRow) -> Entry:
    """Return the image that a row is about: the picture or its part."""
    if row.box:
        image = image._replace(path=image.path + row.box)
        found.places[image[:2]] = row.place
    if row.problem is not None:
        return BadFile(FileStamp(*image[:2], 0, 0), ImageError.BOX, row.problem)
    label = row.label if row.has_label else image.label
    has_own_label = image.has_own_label or row.has_label
    return image._replace(label=label, id=row.id, metadata=row.metadata, has_own_label=has_own_label)


def _resolve(base: Path, name: str, place: str) -> str:
    """Return a path in a list or table as a path below `base`; raise an `InputError` if it is outside."""
    where = Location.parse(name)
    if where.kind == "url":
        return where.path
    path = Path(os.path.normpath(base / name))
    if not path.is_relative_to(base):  # it may contain symbolic links, `base` is without
        path = path.parent.resolve() / path.name
    if not path.is_relative_to(base) or path == base or "\0" in name:
        hint = "write absolute paths, and " if name.startswith("..") else ""
        raise InputError(f"{place}: {name!r} is outside {base}; {hint}set --root to the folder of all images")
    return str(path)
