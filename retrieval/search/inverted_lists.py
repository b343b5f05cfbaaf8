"""Inverted lists that are built and searched on disk: encoded in parts, then merged list by list.

A part is a file of FAISS with the lists of some of the vectors. The merged file is the one that FAISS writes
for an index in memory, to the byte: header, sizes of the lists, then codes and numbers of one list after the
other. So it is opened, copied and checked like every index, memory-mapped, and it contains no path.

FAISS's own merge (`OnDiskInvertedLists.merge_from_multiple`) writes a second file through a memory map: on a
full disk the process is killed by SIGBUS, the written pages count as its memory, and the index names the
other file by its path.

Memory: one part, the largest list, and a buffer for each part.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retrieval.errors import LookalikeError
from retrieval.files import atomic_write
from retrieval.machine import lazy_faiss as faiss
from retrieval.machine.faiss_backend import CPU, CpuBackend
from retrieval.progress import Progress
from retrieval.search import training
from retrieval.search.vectors import Vectors

PART_BYTES = 1 << 30  # memory for the lists of a part
_NUMBER = 8  # bytes of a vector number
_GROWTH = 2  # memory that growing lists take for each byte of them
_MOST_PARTS = 512  # files open at once
_BUFFER = 1 << 17  # bytes read at once from each part


@dataclass(frozen=True)
class Lists:
    """The lists at the end of a file of FAISS.

    Attributes:
        file: Index, or lists alone.
        sizes: Number of vectors of each list, int64 [cells].
        code_size: Bytes of a code.
    """

    file: Path
    sizes: np.ndarray
    code_size: int

    @classmethod
    def of(cls, file: Path, lists: faiss.InvertedLists) -> Lists:
        """Return the lists that FAISS has read from a file, or written to it."""
        sizes = [lists.list_size(cell) for cell in range(lists.nlist)]
        return cls(file, np.array(sizes, np.int64), lists.code_size)

    @property
    def bytes(self) -> int:
        """Size of all lists in bytes."""
        return (self.code_size + _NUMBER) * int(self.sizes.sum())


@dataclass(frozen=True)
class Workplace:
    """Where an index is built on disk, and with how much memory.

    Attributes:
        folder: Folder of the parts and of the merged file, created if necessary. Parts of an interrupted
            build are used by the next one if they hold the same vectors in the same cells.
        memory: Bytes for the lists of a part.
    """

    folder: Path
    memory: int = PART_BYTES

    def build(
        self,
        empty: faiss.IndexIVF,
        vectors: Vectors,
        rows: Sequence[np.ndarray],
        *,
        before: Lists | None = None,
        backend: CpuBackend = CPU,
        show_progress: bool = False,
    ) -> Path:
        """Write an index of rows, in this order, and return its file.

        Args:
            empty: Trained index without vectors, whose lists are FAISS's `ArrayInvertedLists`.
            vectors: Vectors of the gallery.
            rows: Rows to add, each int64 [n].
            before: Lists of an index with the same cells and codes, which the new rows follow.
            backend: Where cells are found.
            show_progress: Report progress on stderr.

        Raises:
            LookalikeError: There is not enough disk space, or a part cannot be written or read.
        """
        self.folder.mkdir(exist_ok=True)
        entry = empty.code_size + _NUMBER
        count = sum(map(len, rows))
        per_part = max(1, self.memory // (_GROWTH * entry), -(-count // _MOST_PARTS))
        key = _key(empty)
        planned = [
            (self.folder / f"{key}-{_digest(vectors.numbers_of(some))}.lists", some)
            for some in _divided(rows, per_part)
        ]
        self._make_room([file for file, _ in planned], entry * count, 0 if before is None else before.bytes)
        parts = [] if before is None else [before]
        with Progress("indexing", count, "vectors", show=show_progress) as progress:
            for file, some in planned:
                if not file.exists():
                    remove_vectors(empty)
                    training.add_blocks(empty, vectors, some, backend, progress)
                    _write(empty.invlists, file)
                else:
                    progress.update(len(some))
                parts.append(_read(file))
            remove_vectors(empty)
        merged = self.folder / "merged"
        _merge(empty, parts, merged, show_progress)
        return merged

    def _make_room(self, files: Sequence[Path], size: int, before: int) -> None:
        """Delete other files; fail early if the parts and the merged file do not fit on the disk."""
        for file in self.folder.iterdir():
            if file not in files:
                file.unlink()
        done = sum(file.stat().st_size for file in files if file.exists())
        needed, free = 2 * size + before - done, shutil.disk_usage(self.folder).free
        if needed > free:
            what = f"the index needs {needed:,} bytes of disk while it is built, and {free:,} are free"
            raise LookalikeError(f"{self.folder}: {what}; free some, or choose a smaller kind of index")


def remove_vectors(index: faiss.IndexIVF) -> None:
    """Remove all vectors from an index in memory or memory-mapped, whose file stays as it is.

    The lists are replaced: `reset` would keep the memory of each.
    """
    lists = faiss.ArrayInvertedLists(index.nlist, index.code_size)
    index.replace_invlists(lists, True)
    lists.this.disown()
    index.ntotal = 0


def _divided(rows: Sequence[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yield the rows in parts of a size; the last one also has what follows the first array."""
    first, rest = rows[0], rows[1:]
    ends = [*range(size, len(first), size), len(first)]
    for start, end in zip([0, *ends], ends, strict=False):
        part = first[start:end]
        yield part if end < len(first) else np.concatenate([part, *rest])


def _key(empty: faiss.IndexIVF) -> str:
    """Return a digest of cells and quantiser."""
    digest = hashlib.sha256(f"{faiss.__version__} {empty.code_size}".encode())
    quantizer = faiss.downcast_index(empty.quantizer)
    digest.update(getattr(quantizer, "reconstruct_n_numpy", quantizer.reconstruct_n)(0, empty.nlist).data)
    if isinstance(empty, faiss.IndexIVFScalarQuantizer):
        digest.update(faiss.vector_to_array(empty.sq.trained).data)
    return digest.hexdigest()[:16]


def _digest(numbers: np.ndarray) -> str:
    return hashlib.sha256(numbers.data).hexdigest()[:16]


def _write(lists: faiss.InvertedLists, file: Path) -> None:
    """Write the lists of a part.

    Raises:
        LookalikeError: They cannot be written.
    """
    with atomic_write(file) as draft:
        try:
            writer = faiss.FileIOWriter(str(draft))
            faiss.write_InvertedLists(lists, writer)
            del writer  # closes the file; a failure then is not reported, so the size is checked
            is_complete = draft.stat().st_size >= Lists.of(draft, lists).bytes
        except RuntimeError:  # FAISS does not pass on the system's error
            is_complete = False
        if not is_complete:
            detail = "the disk is full, or the folder cannot be written"
            raise LookalikeError(f"{file.parent}: the index was not written; {detail}")


def _read(file: Path) -> Lists:
    """Return the lists of a part.

    Raises:
        LookalikeError: They cannot be read.
    """
    try:
        return Lists.of(file, faiss.read_InvertedLists(faiss.FileIOReader(str(file)), faiss.IO_FLAG_MMAP))
    except RuntimeError as error:
        raise _damage(file) from error


def _damage(file: Path) -> LookalikeError:
    """Delete a part, so that the next build does not use it."""
    file.unlink(missing_ok=True)
    return LookalikeError(f"{file}: this part of the index was damaged; build the index again")


def _merge(empty: faiss.IndexIVF, parts: Sequence[Lists], target: Path, show_progress: bool) -> None:
    """Write the index whose lists are those of all parts, one after the other.

    Raises:
        LookalikeError: FAISS writes another format.
    """
    head = _head(empty, np.sum([part.sizes for part in parts], axis=0))
    with (
        ExitStack() as stack,
        target.open("wb") as merged,
        Progress("merging", empty.nlist, "lists", show=show_progress) as progress,
    ):
        merged.write(head)
        streams = []
        for part in parts:
            stream = stack.enter_context(part.file.open("rb", buffering=_BUFFER))
            stream.seek(part.file.stat().st_size - part.bytes)
            streams.append(stream)
        per_part = np.stack([part.sizes for part in parts], axis=1)  # [cells, parts]
        for counts in per_part:
            numbers = []
            for stream, count in zip(streams, counts.tolist(), strict=True):
                if count:
                    merged.write(stream.read(empty.code_size * count))
                    numbers.append(stream.read(_NUMBER * count))
            merged.writelines(numbers)
            progress.update()


def _head(empty: faiss.IndexIVF, sizes: np.ndarray) -> bytes:
    """Return what precedes the lists in the file of an index with lists of these sizes, int64 [cells].

    `write_InvertedLists` of FAISS: "ilar", number of lists, bytes of a code; then either "full" and the size
    of each list, or, if at most half of them have vectors, "sprs" and number and size of each of those.
    """
    empty.ntotal = int(sizes.sum())
    head: bytes = faiss.serialize_index(empty).tobytes()
    empty.ntotal = 0
    known = b"ilar" + np.array([empty.nlist, empty.code_size], np.uint64).tobytes()
    nothing = b"sprs" + bytes(8)
    if not head.endswith(known + nothing):
        what = f"FAISS {faiss.__version__} writes lists in another format than FAISS 1.7 to 1.15"
        raise LookalikeError(f"{what}; use one of these, or another kind of index")
    filled = np.flatnonzero(sizes)
    is_full = len(filled) > len(sizes) // 2
    listed = sizes if is_full else np.stack([filled, sizes[filled]], axis=1).ravel()
    name = b"full" if is_full else b"sprs"
    return head[: -len(nothing)] + name + len(listed).to_bytes(8, "little") + listed.astype("<u8").tobytes()
