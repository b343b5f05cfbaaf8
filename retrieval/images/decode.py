"""Read-ahead: read and decode files in threads or processes while the model processes the previous batch.

Memory use besides the model: one file per decoding thread (at most `load.MAX_BYTES` bytes); decoded images of
`PIXELS_IN_FLIGHT` pixels in all, at 9 to 12 bytes per pixel, or one larger image; for each thread the pixels
of the picture whose parts it decodes, at 3 bytes per pixel; `files_ahead()` preprocessed images. On machines
with many cores there may be a process per thread as well, of about 30 MB, with its share of as many decoded
pixels again, and 32 preprocessed images per thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from threading import Lock, local
from time import perf_counter

import numpy as np

from retrieval.errors import ImageError
from retrieval.images import decoders
from retrieval.images.decoders import DecodingProcess
from retrieval.images.location import Location, locate
from retrieval.images.picture import Budget, Decoded, File, KnownFile, PictureReader
from retrieval.images.preprocess import Preprocess
from retrieval.machine.malloc import keep_images
from retrieval.machine.resources import cores
from retrieval.progress import Progress

BATCH = 32
PIXELS_IN_FLIGHT = 64_000_000
_PARTS = 16  # of one picture that are decoded in one go
# Processes in place of threads: from so many cores on, if in the time of so many files a run has waited for
# them for so much of it. They read so many files at a time.
_MANY, _JUDGED, _MUCH, _TOGETHER = 4, 512, 0.25, 16


@dataclass(frozen=True)
class EmbeddedFiles:
    """Embeddings of files.

    Attributes:
        vectors: Embeddings, float32 [n, D].
        positions: Position among the given files of each row, int64 [n].
        contents: SHA-256 of the file of each row, [n].
        bad: Errors of the unusable files.
    """

    vectors: np.ndarray
    positions: np.ndarray
    contents: list[str]
    bad: list[ImageError]


class _Own(local):
    """What a thread has of its own."""

    process: DecodingProcess | None = None
    has_lost_one = False


class _Readers:
    """Reads pictures in threads; where cores are many, each thread soon has a process of its own do it.

    A file takes Python's lock for about 0.15 ms, so threads read a few thousand files a second at most. With
    processes it is a tenth of that. They open files themselves, and are sent the bytes of those in tar files
    and remote storage, whose tables and connections are here.

    Args:
        reader: Reader of one picture.
        known: See `read_ahead`.
        threads: Number of threads.
    """

    def __init__(self, reader: PictureReader, known: Callable[[str], bool], threads: int) -> None:
        self._reader, self._known, self._threads = reader, known, threads
        self._budget = Budget(PIXELS_IN_FLIGHT)
        self._setup: bytes | None = None  # of the processes, while there are any
        self._may_start = decoders.POSSIBLE and threads >= _MANY
        self._files, self._waited, self._since = 0, 0.0, perf_counter()
        self._own = _Own()
        self._all: list[DecodingProcess] = []
        self._lock, self._closed = Lock(), False

    @property
    def together(self) -> int:
        """Number of files that a thread takes at once."""
        return 1 if self._setup is None else _TOGETHER

    @property
    def ahead(self) -> int:
        """Number of files that are read ahead."""
        return files_ahead(self._threads) if self._setup is None else 2 * self._threads * _TOGETHER

    def note(self, files: int, waited: float) -> None:
        """Note the seconds that a run has waited for files; begin with processes if it does little else."""
        self._files, self._waited = self._files + files, self._waited + waited
        if not self._may_start or self._files < _JUDGED:
            return
        passed = perf_counter() - self._since
        if self._waited > _MUCH * passed:
            self._may_start = False
            self._setup = decoders.setup(self._reader, PIXELS_IN_FLIGHT // self._threads)
        self._files, self._waited, self._since = 0, 0.0, perf_counter()

    def read(self, pictures: Sequence[Sequence[Location]], *, again: int = 2) -> list[File]:
        """Return what is at each place of each picture, in a thread.

        Args:
            pictures: Places in each picture.
            again: How often to read a picture again, alone, if that ended the process.
        """
        process = self._process()
        if process is None:
            return [file for places in pictures for file in self._read_here(places)]
        try:
            answers = process.ask([decoders.request(places) for places in pictures])
        except (OSError, EOFError):
            self._own.process, self._own.has_lost_one = None, True
            if self._closed:
                return []
            if again:
                return [file for places in pictures for file in self.read([places], again=again - 1)]
            detail = f"its decoder was ended by {process.end()}: it is damaged, or there is too little memory"
            return [ImageError(str(where), ImageError.DAMAGED, detail) for where in chain(*pictures)]
        found: list[File] = []
        for places, answer in zip(pictures, answers, strict=True):
            found += self._read_here(places) if answer is None else map(self._without_known, answer)
        return found

    def stop(self) -> None:
        """End the processes, so that no thread waits for one."""
        with self._lock:
            self._closed = True
            for process in self._all:
                process.kill()

    def close(self) -> None:
        """Free the processes, after the threads have ended."""
        for process in self._all:
            process.close()

    def _process(self) -> DecodingProcess | None:
        """Return the process of this thread, if it is to have one. The thread decodes until that is ready.

        After one has ended, it waits for the next: a picture that ends processes is not for this one.
        """
        process, setup = self._own.process, self._setup
        try:
            if process is None and setup is not None:
                process = self._own.process = self._started(setup)
            return process if process and process.is_ready(wait=self._own.has_lost_one) else None
        except (OSError, EOFError):  # too little memory, or a function that it cannot import
            self._setup = self._own.process = None
            return None

    def _started(self, setup: bytes) -> DecodingProcess:
        process = DecodingProcess(setup)
        with self._lock:
            self._all.append(process)
            if self._closed:
                process.kill()
        return process

    def _read_here(self, places: Sequence[Location]) -> list[File]:
        return self._reader.read(places, self._budget, self._known)

    def _without_known(self, file: File) -> File:
        if isinstance(file, Decoded) and self._known(file.content_sha256):
            return KnownFile(file.content_sha256)
        return file


def decode_ahead(
    paths: Iterable[Path | Location],
    preprocess: Callable[[np.ndarray], np.ndarray],
    *,
    side: int | None = None,
) -> Iterator[Decoded | ImageError]:
    """Decode files and yield them in order. See the module for the memory use.

    Args:
        paths: Image files.
        preprocess: Function from an upright RGB image, uint8 [H, W, 3], to an array, such as a `Preprocess`.
        side: Length to which `preprocess` scales the shorter side; see `retrieval.images.load.load_image`.
    """
    for file in read_ahead(paths, preprocess, side=side, known=lambda _: False):
        assert not isinstance(file, KnownFile)
        yield file


def read_ahead(
    paths: Iterable[Path | Location],
    preprocess: Callable[[np.ndarray], np.ndarray],
    *,
    side: int | None,
    known: Callable[[str], bool],
    threads: int | None = None,
) -> Generator[File]:
    """Decode files as `decode_ahead` does, except files whose SHA-256 is `known`.

    There is a thread for each core, or `threads`. From 4 on, if the run waits for them, each gets a process
    to decode in, which decodes known files as well.
    """
    keep_images()
    threads = threads or cores()
    readers = _Readers(PictureReader(preprocess, side), known, threads)
    queue: deque[tuple[Future[list[File]], int]] = deque()
    pictures, waiting = _pictures(paths), 0
    with closing(readers), ThreadPoolExecutor(threads, thread_name_prefix="decode") as pool:
        try:
            while True:
                while waiting < readers.ahead and (some := _take(pictures, readers.together)):
                    count = sum(map(len, some))
                    queue.append((pool.submit(readers.read, some), count))
                    waiting += count
                if not queue:
                    return
                future, count = queue.popleft()
                start = perf_counter()
                found = future.result()
                readers.note(count, perf_counter() - start)
                yield from found
                waiting -= count
        finally:
            for future, _ in queue:
                future.cancel()
            readers.stop()


def _pictures(paths: Iterable[Path | Location]) -> Iterator[list[Location]]:
    """Yield each place, and the parts of one picture that follow each other together, up to 16."""
    together: list[Location] = []
    for where in map(locate, paths):
        if together and (len(together) == _PARTS or where.whole != together[0].whole or not where.box):
            yield together
            together = []
        if where.box:
            together.append(where)
        else:
            yield [where]
    if together:
        yield together


def _take(pictures: Iterator[list[Location]], files: int) -> list[list[Location]]:
    """Return the next pictures that have so many places together, or a few more."""
    taken: list[list[Location]] = []
    for places in pictures:
        taken.append(places)
        files -= len(places)
        if files <= 0:
            break
    return taken


def files_ahead(threads: int) -> int:
    """Return the number of files that are read ahead: two batches, and enough to keep all threads busy
    while one of them decodes a very large image."""
    return max(2 * BATCH, 8 * threads)


def embed_files(
    paths: Sequence[Path | Location],
    preprocess: Preprocess,
    embed_pixels: Callable[[np.ndarray], np.ndarray],
    progress: Progress,
    *,
    batch_size: int = BATCH,
) -> EmbeddedFiles:
    """Embed files.

    Args:
        paths: Image files.
        preprocess: Preprocessing of the model.
        embed_pixels: Model, a function from uint8 [N, H, W, 3] to float32 [N, D].
        progress: Progress to update.
        batch_size: Images that are passed to the model at once.
    """
    vectors: list[np.ndarray] = []
    positions: list[int] = []
    contents: list[str] = []
    bad: list[ImageError] = []
    files = enumerate(decode_ahead(paths, preprocess, side=preprocess.scaled))
    while batch := list(islice(files, batch_size)):
        good = [(i, file) for i, file in batch if isinstance(file, Decoded)]
        bad += [file for _, file in batch if isinstance(file, ImageError)]
        if good:
            vectors.append(embed_pixels(np.stack([file.pixels for _, file in good])))
        positions += [i for i, _ in good]
        contents += [file.content_sha256 for _, file in good]
        progress.update(len(batch), f"{len(bad)} unusable" if bad else "")
    joined = np.concatenate(vectors) if vectors else np.empty((0, 0), np.float32)
    return EmbeddedFiles(joined, np.array(positions, np.int64), contents, bad)
