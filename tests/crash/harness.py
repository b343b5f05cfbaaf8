"""Runs commands on galleries that end at any point, and judges what is left.

A command runs in a forked process in which every access to the disk is a step: an SQL statement, a flush, a
rename, a deletion, a new file. At one step, or at a random time, it is killed; or the power fails, and files
that were not flushed are torn, names of files whose folder was not flushed are gone; or an access fails, as
on a full disk; or every write does for a while, since the file system is read-only; or the
command is stopped and goes on, while another writer tries, and somebody copies the folder, half of its files
at one step and half at a later one. Meanwhile another process searches. Then:

- each item is as before or as after the command, and all of them are one of the two if the command is whole;
- while a bridge is served, each item has the vector of the map or the new one, and none the one before;
- what a reader has found has the scores that brute force gives to such vectors, of one model in an answer;
- `verify` finds no damage, and nothing that a reader has seen is gone again;
- what a server has acknowledged is there;
- the copy is made of such items, or `verify` finds what is wrong with it, and repairs it;
- the same command, run again, completes, and leaves the files that it leaves without an accident.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import torch  # noqa: F401  # once, before the forks: `teach` needs it

from retrieval import Gallery
from retrieval.cli import main
from retrieval.errors import InputError, LockedError, LookalikeError
from retrieval.galleries.database_folder import is_gallery
from retrieval.ingest import sync, watch
from retrieval.search.calibration import NAME as CALIBRATION
from retrieval.storage.manifest import read_copy
from retrieval.storage.store import Store
from retrieval.upkeep import bridge
from retrieval.upkeep.verify import verify
from serve.client import ApiError, Client, UnreachableError
from tests.crash.operations import ACCIDENTS, OPERATIONS, POSTGRES, STORE, Accident, Operation, address
from tests.retrieval.killing import Killer
from tests.retrieval.stores import postgres_server
from tests.retrieval.stores.postgres_server import PostgresServer

T = TypeVar("T")
_K = 5  # hits of a reader
_EXACT = 1e-4  # of scores
_NAMES = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f-]{15,}|[0-9a-f]{16,}|[-_][0-9a-f]{8}|\d+")
_PATIENCE = 180.0  # seconds of a step of the harness
ACKNOWLEDGED = "acknowledged"
_GRACE = 2.0  # seconds for a visitor whose server has ended
_DATABASE = "shop"  # of the server of PostgreSQL
_READ_ONLY = 20  # steps at which nothing can be written: what goes on tries again for a minute at most
# What an access raises in each accident in which one fails: a number of the system, or a text of SQLite.
FAILURES: dict[Accident, tuple[int, str]] = {
    "full": (errno.ENOSPC, "database or disk is full"),
    "broken": (errno.EIO, "disk I/O error"),
    "readonly": (errno.EROFS, "attempt to write a readonly database"),
}


class BrokenPromiseError(AssertionError):
    """A promise that was not kept."""


@dataclass(frozen=True, eq=False)
class State:
    """A gallery as it is on disk.

    Attributes:
        items: Label and metadata by key.
        vectors: Vector by key, float32 [D].
        calibrated: Whether it has a calibration.
    """

    items: dict[str, tuple[str | None, str]]
    vectors: dict[str, np.ndarray]
    calibrated: bool

    def has(self, key: str, other: State) -> bool:
        """Whether an item is the same in another state."""
        return other.has_vector(key, self.vectors[key]) and self.items[key] == other.items[key]

    def has_vector(self, key: str, vector: np.ndarray) -> bool:
        """Whether an item has this vector."""
        own = self.vectors.get(key)
        return own is not None and own.shape == vector.shape and np.allclose(own, vector, atol=1e-5)

    def equals(self, other: State, *, calibration: bool = True) -> bool:
        """Whether all items are the same in another state, and whether both have a calibration."""
        same = not calibration or self.calibrated == other.calibrated
        same = same and self.items.keys() == other.items.keys()
        return same and all(self.has(key, other) for key in self.items)


# States that may be mixed, item by item; the last one has the vectors of pictures.
Epoch = tuple[State, ...]


def places(found: dict[str, np.ndarray], epochs: Sequence[Epoch]) -> dict[str, int]:
    """Return of each vector the latest state that has it, counted over all epochs; one epoch has them all.

    Raises:
        BrokenPromiseError: No epoch has all vectors, or, of several epochs, one without those that it lacks.
    """
    first, problems = sum(map(len, epochs)), list[str]()
    for epoch in reversed(epochs):
        first -= len(epoch)
        counted = [*enumerate(epoch, first)]
        at = {
            key: max((place for place, state in counted if state.has_vector(key, vector)), default=-1)
            for key, vector in found.items()
        }
        strangers = [key for key, place in at.items() if place < 0]
        missing = frozenset.intersection(*(frozenset(state.items) for state in epoch)) - found.keys()
        if not strangers and not (missing and len(epochs) > 1):
            return at
        problems.append(f"{len(strangers)} other vectors, {len(missing)} missing")
    raise BrokenPromiseError(f"a mixture: {'; or '.join(problems)}")


def read_state(folder: Path) -> State | None:
    """Read a gallery; `None` if there is none."""
    if not is_gallery(folder):
        return None
    gallery = Gallery.open(folder)
    found = gallery.embeddings()
    items = gallery.items(found.ids.tolist())
    facts, vectors = {}, {}
    for number, vector in zip(found.ids.tolist(), found.vectors, strict=True):
        item = items[number]
        facts[item.key] = (item.label, repr(sorted(item.metadata.items())))
        vectors[item.key] = vector
    return State(facts, vectors, gallery.calibration is not None)


# ---- processes


def forked(function: Callable[[], T], *, seconds: float = _PATIENCE) -> T:
    """Return what a function returns in a forked process, so that this one starts no threads.

    Raises:
        BrokenPromiseError: It raises, or takes too long.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            result: tuple[bool, Any] = (True, function())
        except BaseException:
            result = (False, traceback.format_exc())
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writer)
    with _killed_after(child, seconds), os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    if not data:
        raise BrokenPromiseError(f"no answer within {seconds:g} seconds")
    good, value = pickle.loads(data)
    if not good:
        raise BrokenPromiseError(value)
    found: T = value
    return found


@contextlib.contextmanager
def _killed_after(child: int, seconds: float) -> Iterator[None]:
    def kill(*_: object) -> None:
        os.kill(child, signal.SIGKILL)

    before = signal.signal(signal.SIGALRM, kill)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(
    operation: Operation,
    work: Path,
    at_step: Callable[[int], None] | None,
    log: Path,
    kill_after: float = 0.0,
    when_stopped: Callable[[], object] = lambda: None,
) -> int:
    """Run a command in a folder, in a forked process. Return its exit code, negative if it was killed.

    Args:
        operation: The command.
        work: The folder.
        at_step: Called with the number of each step, from 1; it may end the process or raise.
        log: Gets what it prints. The file `ACKNOWLEDGED` beside it gets a line for each visit that a server
            has acknowledged: the keys of the items that it changed.
        kill_after: Seconds after which it is killed; 0 for not at all.
        when_stopped: Called each time that it was stopped, before it goes on.
    """
    acknowledged = log.with_name(ACKNOWLEDGED)
    for file in (log, acknowledged):
        file.write_text("")
    child = os.fork()
    if child == 0:
        try:
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1), os.dup2(out, 2)
            os.chdir(work)
            signal.setitimer(signal.ITIMER_REAL, 0)
            _arrange(operation)
            if operation.descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (operation.descriptors,) * 2)
            if at_step is not None:
                _watch(operation, at_step)
            store = address(operation.database, operation.target) if STORE in operation.words else ""
            main([store if word == STORE else word for word in operation.words])
        except SystemExit as left:
            os._exit(int(left.code or 0))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(70)
        os._exit(0)
    visitor = os.fork() if operation.visits else 0
    if operation.visits and visitor == 0:
        try:
            _visit(operation, work, child, log, acknowledged)
        except BaseException:
            if not isinstance(sys.exception(), UnreachableError):  # the server was killed
                traceback.print_exc()
                sys.stderr.flush()
        os._exit(0)
    if kill_after:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    code = _ended(child, when_stopped)
    if visitor:
        with _killed_after(visitor, _GRACE):
            os.waitpid(visitor, 0)
    return code


def _ended(child: int, when_stopped: Callable[[], object]) -> int:
    while True:
        with _killed_after(child, _PATIENCE):
            status = os.waitpid(child, os.WUNTRACED)[1]
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        try:
            when_stopped()
        except BaseException:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        os.kill(child, signal.SIGCONT)


def _watch(operation: Operation, at_step: Callable[[int], None]) -> None:
    killer = Killer(at_step)
    killer.arm(())
    if operation.database == "postgres":
        from adbc_driver_postgresql import dbapi

        for name in ("execute", "adbc_ingest"):
            killer.watch(dbapi.Cursor, name)
    if operation.database == "qdrant":
        from retrieval.stores.qdrant import embedded

        killer.watch(embedded._OpenFolder, "update")


def _visit(operation: Operation, work: Path, server: int, log: Path, acknowledged: Path) -> None:
    """Send the requests of an operation to its server, and end it."""
    os.chdir(work)
    while (found := re.search(r"Lookalike is at (\S+)", log.read_text())) is None:
        time.sleep(0.02)
    with Client(found[1], seconds=_PATIENCE) as client:
        for visit in operation.visits:
            with contextlib.suppress(ApiError):  # of an accident
                keys = visit(client)
                with acknowledged.open("a") as file:
                    file.write(" ".join(keys) + "\n")
    os.kill(server, signal.SIGTERM)


def _arrange(operation: Operation) -> None:
    """Let happen in this process what the command needs to meet, or to end."""
    if operation.commit_items:
        bridge.COMMIT_ITEMS = operation.commit_items
    look, find_gone = watch.folder_difference, sync.find_gone

    def look_or_end(*given: Any, **options: Any) -> Any:
        found = look(*given, **options)
        if not found.has_changes:
            os.kill(os.getpid(), signal.SIGTERM)  # as users end a watch
        return found

    def find_and_lose(*given: Any) -> None:
        find_gone(*given)
        subprocess.run(["rm", "-rf", operation.vanishing], check=True)  # which is no step

    watch.folder_difference = look_or_end
    if operation.vanishing:
        sync.find_gone = find_and_lose


class Beside:
    """A process that repeats a command until it is stopped.

    Args:
        words: The command.
        work: The folder.
        log: Gets what it prints.
    """

    def __init__(self, words: tuple[str, ...], work: Path, log: Path) -> None:
        self._stopped, self._stop = os.pipe()
        self._log, self._child = log, os.fork()
        if self._child == 0:
            os.close(self._stop)
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1), os.dup2(out, 2)
            os.chdir(work)
            os.set_blocking(self._stopped, False)
            try:
                while self._goes_on():
                    with contextlib.suppress(SystemExit):
                        main(words)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(0)
        os.close(self._stopped)

    def _goes_on(self) -> bool:
        try:
            return bool(os.read(self._stopped, 1))
        except BlockingIOError:
            return True

    def stop(self) -> None:
        """Let it end.

        Raises:
            BrokenPromiseError: It failed, other than by leaving the gallery to another writer.
        """
        os.close(self._stop)
        with _killed_after(self._child, _PATIENCE):
            os.waitpid(self._child, 0)
        lines = self._log.read_text().splitlines()
        bad = [line for line in lines if line.startswith("lookalike: ") and "being written by" not in line]
        if bad or any("Traceback" in line for line in lines):
            raise BrokenPromiseError(f"a writer beside it: {(bad or lines)[-12:]}")


# ---- accidents


class _Disk:
    """What a loss of power leaves of the files in a folder: what was flushed, and what was there before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._flushed = {*map(_version, self._files())}
        self._named = {_entry(path) for path in folder.rglob("*")}
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.is_dir():
                self._named |= {*map(_entry, path.iterdir())}
            elif path.exists():
                self._flushed.add(_version(path))

        os.fsync = fsync

    def _files(self) -> list[Path]:
        return [path for path in self._folder.rglob("*") if path.is_file() and not _is_of_sqlite(path)]

    def fail(self) -> None:
        """Tear what was not flushed."""
        for path in self._files():
            if _entry(path) not in self._named:
                path.unlink()
            elif _version(path) not in self._flushed:
                os.truncate(path, path.stat().st_size // 2)


def _is_of_sqlite(path: Path) -> bool:
    return path.name.startswith("gallery.db") or path.name == "LOCK"


def _entry(path: Path) -> tuple[int, str]:
    """Return the entry of a folder that names a path: it stays when the folder gets another name."""
    return path.parent.stat().st_ino, path.name


def _version(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def accident_at(step: int, accident: Accident, folder: Path, later: int = 0) -> Callable[[int], None]:
    """Return what a command calls at each of its steps, so that an accident happens at one of them.

    Args:
        step: The step.
        accident: The accident.
        folder: Folder in which the command runs.
        later: Second step at which the command is stopped.
    """
    disk = _Disk(folder) if accident == "power" else None

    def happen(number: int) -> None:
        if accident == "stop":
            if number in (step, later):
                os.kill(os.getpid(), signal.SIGSTOP)
            return
        if accident == "readonly":
            if step <= number < step + _READ_ONLY and _writes():
                raise _failure_of_step(accident)
            return
        if number != step:
            return
        if accident in FAILURES:
            raise _failure_of_step(accident)
        if disk:
            disk.fail()
        os.kill(os.getpid(), signal.SIGKILL)

    return happen


def _failure_of_step(accident: Accident) -> Exception:
    """Return what the access of the present step raises: SQLite has errors of its own."""
    code, of_sqlite = FAILURES[accident]
    is_query = _access().f_code.co_name != "watched"
    return sqlite3.OperationalError(of_sqlite) if is_query else OSError(code, os.strerror(code))


def _access() -> FrameType:
    """Return the call that is the present step."""
    frame = sys._getframe(1)
    while frame.f_code.co_name not in ("watched", "execute", "executemany"):
        assert frame.f_back is not None
        frame = frame.f_back
    return frame


def _writes() -> bool:
    """Whether the present step needs a file system that can be written."""
    access = _access()
    function, given = access.f_locals.get("real"), access.f_locals["args"]
    if function is None:
        return given[0].split()[0].upper() not in ("SELECT", "WITH", "PRAGMA", "ATTACH", "DETACH", "ROLLBACK")
    name, how = function.__name__, [*given[1:], *access.f_locals["options"].values()]
    if name == "open" and isinstance(how[0], int):
        return bool(how[0] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    if name == "open":
        return bool(how) and not {*"wax+"}.isdisjoint(str(how[0]))
    if name in ("mkdir", "unlink", "rmtree"):  # they fail before that, or do nothing
        return os.path.lexists(given[0]) != (name == "mkdir")
    return True


class _Copy:
    """A copy of a folder that is made by hand, some files now and the others later.

    Args:
        source: The folder.
        target: Where the copy is.
    """

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target, self._has_begun = source, target, False
        shutil.rmtree(target, ignore_errors=True)

    def go_on(self) -> None:
        """Copy every other file, and then all that are not there yet."""
        files = sorted(path for path in self._source.rglob("*") if path.is_file())
        for file in files[:: 1 if self._has_begun else 2]:
            place = self._target / file.relative_to(self._source)
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
        self._has_begun = True


def _try_to_write(folder: Path) -> None:
    """Be another writer, if none is there."""
    if (folder / "gallery.db").exists():
        with contextlib.suppress(LockedError), Store(folder).writing():
            pass


# ---- readers


@dataclass(frozen=True)
class Sight:
    """What a reader saw.

    Attributes:
        searches: Number of searches that it made.
        places: Keys of the gallery that it opened last, and the states that have their vectors.
        problem: The first wrong answer or exception; empty for none.
    """

    searches: int
    places: dict[str, int]
    problem: str


class Reader:
    """A process that searches a gallery until it is stopped, and checks each answer.

    Args:
        folder: The gallery.
        epochs: What it may see.
    """

    def __init__(self, folder: Path, epochs: Sequence[Epoch]) -> None:
        self._answer, answer = os.pipe()
        stop, self._stop = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            for end in (self._answer, self._stop):
                os.close(end)
            os.set_blocking(stop, False)
            with os.fdopen(answer, "wb") as pipe:
                _search(folder, epochs, stop, pipe)
            os._exit(0)
        os.close(answer)
        os.close(stop)
        self._pipe = os.fdopen(self._answer, "rb")
        self._pipe.read(1)  # it has searched

    def stop(self) -> Sight:
        """Let it search once more, and return what it saw."""
        with contextlib.suppress(BrokenPipeError):  # it ended by itself, with a problem
            os.write(self._stop, b"x")
        os.close(self._stop)
        with _killed_after(self._child, _PATIENCE), self._pipe:
            data = self._pipe.read()
        os.waitpid(self._child, 0)
        if not data:
            raise BrokenPromiseError("a reader ended without an answer")
        sight: Sight = pickle.loads(data)
        return sight


def _search(folder: Path, epochs: Sequence[Epoch], stop: int, pipe: Any) -> None:
    searches, at, problem, stopping = 0, dict[str, int](), "", False
    draw = random.Random(0)
    try:
        while not stopping:
            with contextlib.suppress(BlockingIOError):
                stopping = bool(os.read(stop, 1))
            gallery = Gallery.open(folder)
            at = _looked(gallery, epochs, at)
            for turn in range(4):
                gallery.refresh()
                asked = draw.choice([*(epochs[0][0].vectors.keys() & at.keys())])
                with contextlib.suppress(LookupError):  # removed meanwhile
                    _check(gallery, asked, epochs, with_picture=turn == 0)
                searches += 1
            if searches == 4:
                pipe.write(b"x")
                pipe.flush()
    except BaseException:
        problem = traceback.format_exc()
        if not searches:
            pipe.write(b"x")
    pickle.dump(Sight(searches, at, problem), pipe)


def _looked(gallery: Gallery, epochs: Sequence[Epoch], before: dict[str, int]) -> dict[str, int]:
    """Return the states of all vectors of a gallery, none of which goes back to an earlier one."""
    found = gallery.embeddings()
    keys = {number: item.key for number, item in gallery.items(found.ids.tolist()).items()}
    pairs = zip(found.ids.tolist(), found.vectors, strict=True)
    at = places({keys[number]: vector for number, vector in pairs if number in keys}, epochs)
    if back := [key for key, place in at.items() if place < before.get(key, 0)]:
        raise BrokenPromiseError(f"vectors went back to an earlier state: {back[:5]}")
    return at


def _check(gallery: Gallery, asked: str, epochs: Sequence[Epoch], with_picture: bool) -> None:
    """Search with an item, or with its picture if there is one, and compare the scores with brute force."""
    try:
        picture = Path(gallery.item(gallery.ids_of([asked])[0]).path)
        with_picture = with_picture and picture.is_file()
        found = gallery.search(picture, _K) if with_picture else gallery.search_id(asked, _K)
    except InputError as error:
        if "no image" in str(error) or "no item" in str(error):
            raise LookupError from error
        raise
    hits = [(hit.key, hit.score) for hit in found]

    def explains(epoch: Epoch) -> bool:
        queries = [state.vectors[asked] for state in epoch if asked in state.vectors]
        queries = queries[-1:] if with_picture else queries
        return all(
            any(
                abs(float(query @ state.vectors[key]) - score) < _EXACT
                for query in queries
                for state in epoch
                if key in state.vectors
            )
            for key, score in hits
        )

    def is_best(epoch: Epoch) -> bool:
        """Whether the hits are the best ones, as far as one state or the number of images tells."""
        if len(epochs) == 1 or len(epoch) > 1:
            return len(epochs) == 1 or len(hits) == min(_K, len(epoch[-1].items) - (not with_picture))
        (state,) = epoch
        if asked not in state.vectors:
            return False
        others = [key for key in state.vectors if with_picture or key != asked]
        scores = np.sort([float(state.vectors[asked] @ state.vectors[key]) for key in others])[::-1][:_K]
        return len(hits) == len(scores) and np.allclose([score for _, score in hits], scores, atol=_EXACT)

    if not any(explains(epoch) and is_best(epoch) for epoch in epochs):
        raise BrokenPromiseError(f"wrong scores for {asked}: {hits}")


# ---- trials


@dataclass(frozen=True, eq=False)
class Course:
    """A command without an accident.

    Attributes:
        operation: The command.
        stage: Folder before it.
        before: Gallery before it; `None` if there is none.
        after: Gallery after it.
        mapped: Gallery when it is served by a bridge, before an image is embedded again; `None` without one.
        mapped_at: Step at which it is.
        names: Files and folders after it.
        steps: Number of its steps.
        seconds: Time that it takes.
    """

    operation: Operation
    stage: Path
    before: State | None
    after: State
    mapped: State | None
    mapped_at: int
    names: frozenset[str]
    steps: int
    seconds: float

    @property
    def epochs(self) -> list[Epoch]:
        """What may be seen of the gallery."""
        given = [state for state in (self.before, self.mapped, self.after) if state is not None]
        if self.mapped is not None:
            return [(*given[:1],), (*given[1:],)]
        return [(state,) for state in given] if self.operation.whole else [(*given,)]

    def strangers(self, found: State) -> list[str]:
        """Return the items of a gallery that are as in no state that may be seen."""
        states = [state for epoch in self.epochs for state in epoch]
        return [
            key
            for key in found.items
            if not any(key in state.items and found.has(key, state) for state in states)
        ]


class Site:
    """A folder in which commands run, and their folders before they run.

    Args:
        out: Folder for everything, which must be on a disk with `os.link`.
    """

    def __init__(self, out: Path) -> None:
        self.out, self.work, self.log = out, out / "work", out / "log"
        self._courses: dict[str, Course] = {}
        self._open = contextlib.ExitStack()
        self._postgres: PostgresServer | None = None

    def close(self) -> None:
        """End the database."""
        self._open.close()

    def _database(self) -> PostgresServer:
        """Return a server of PostgreSQL, started at its first use."""
        if self._postgres is None:
            folder = self._open.enter_context(tempfile.TemporaryDirectory())
            self._postgres = self._open.enter_context(postgres_server.running(Path(folder)))
            os.environ[POSTGRES] = self._postgres.address
            os.environ["LOOKALIKE_STORE_PASSWORD"] = self._postgres.password
        return self._postgres

    def _restore(self, operation: Operation, stage: Path) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(stage, self.work)
        if operation.database == "postgres":
            self._database().copy(stage.name, _DATABASE)

    def _look(self, operation: Operation) -> State | None:
        def look() -> State | None:
            try:
                return read_state(self.work / operation.target)
            except LookalikeError:
                if operation.is_damaged:
                    return None
                raise

        return forked(look)

    def course(self, name: str) -> Course:
        """Return a command's course, which is run at its first use."""
        if name not in self._courses:
            operation = OPERATIONS[name]
            given = [operation.database] if operation.database else []
            stage = self.out / "stages" / "".join([operation.prepare.__name__.strip("_"), *given])
            if operation.database == "postgres" and stage.name not in self._database().databases():
                shutil.rmtree(stage, ignore_errors=True)
                self._database().copy("template1", _DATABASE)
            if not stage.exists():
                shutil.rmtree(self.work, ignore_errors=True)
                self.work.mkdir(parents=True)
                forked(lambda: (os.chdir(self.work), operation.prepare(*given))[0], seconds=300)
                stage.parent.mkdir(exist_ok=True)
                shutil.copytree(self.work, stage)
                if operation.database == "postgres":
                    self._database().copy(_DATABASE, stage.name)
            self._restore(operation, stage)
            before = self._look(operation)
            steps, mapped = self.out / "steps", self.out / "mapped"
            shutil.rmtree(mapped, ignore_errors=True)
            counter = os.open(steps, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

            def count(number: int) -> None:
                os.pwrite(counter, b"%12d" % number, 0)
                copy = read_copy(self.work / operation.target)
                if copy is not None and copy.bridged is not None and not mapped.exists():
                    shutil.copytree(self.work / operation.target, mapped)
                    os.pwrite(counter, b"%12d" % number, 12)

            began = time.monotonic()
            code = run(operation, self.work, count, self.log)
            seconds = time.monotonic() - began
            os.close(counter)
            if code != operation.code:
                raise BrokenPromiseError(f"{name}: exit code {code}: {self.log.read_text()}")
            answers = (self.out / ACKNOWLEDGED).read_text().splitlines()
            if len(answers) != len(operation.visits):
                raise BrokenPromiseError(f"{name}: only {len(answers)} visits were acknowledged")
            after = self._look(operation)
            assert after is not None
            between = forked(lambda: read_state(mapped)) if mapped.exists() else None
            total, mapped_at = int(steps.read_text()[:12]), int(steps.read_text()[12:] or 0)
            names = self._names(operation)
            self._courses[name] = Course(
                operation, stage, before, after, between, mapped_at, names, total, seconds
            )
        return self._courses[name]

    def attempt(self, name: str, accident: Accident, draw: random.Random) -> str:
        """Let an accident happen to a command, and judge what is left. Return where it happened.

        Raises:
            BrokenPromiseError: A promise is not kept.
        """
        course = self.course(name)
        step = draw.randint(1, course.steps)
        seconds = draw.uniform(0, course.seconds) if accident == "time" else 0.0
        where = f"{seconds:.2f} s" if accident == "time" else f"step {step} of {course.steps}"
        try:
            self._attempt(course, accident, step, seconds)
        except BrokenPromiseError as error:
            raise BrokenPromiseError(f"{name}, {ACCIDENTS[accident]}, {where}: {error}") from error
        return where

    def _attempt(self, course: Course, accident: Accident, step: int, seconds: float) -> None:
        operation = course.operation
        self._restore(operation, course.stage)
        reader = None
        # An image that cannot be read while the map is fitted makes another map.
        is_other_map = accident in FAILURES and step < course.mapped_at
        is_alone = operation.database == "qdrant"  # an embedded engine has one process
        if course.before is not None and not is_other_map and not is_alone:
            reader = Reader(self.work / operation.target, course.epochs)
        later = step + (course.steps - step) // 2
        happen = None if accident == "time" else accident_at(step, accident, self.work, later)
        copy = _Copy(self.work, self.out / "copy")

        def meet() -> None:
            copy.go_on()
            if not operation.is_damaged:
                forked(lambda: _try_to_write(self.work / operation.target))

        fsync, beside = os.fsync, None
        if operation.beside and accident != "power":  # which ends all processes
            beside = Beside(operation.beside, self.work, self.out / "beside.log")
        try:
            code = run(operation, self.work, happen, self.log, seconds, meet)
        finally:
            os.fsync = fsync
            if beside:
                beside.stop()
        text = self.log.read_text()
        logs = operation.words[0] == "serve"  # for its operator; the visitor gets a line
        if accident in FAILURES and (code == 70 or ("Traceback" in text and not logs)):
            raise BrokenPromiseError(f"a traceback:\n{text}")
        if accident in FAILURES and code not in (0, 1, 3):
            raise BrokenPromiseError(f"exit code {code}:\n{text}")
        sight = reader.stop() if reader else None
        is_busy = bool(operation.beside) and "being written by" in text
        if accident == "stop" and code != operation.code and not is_busy:
            raise BrokenPromiseError(f"after it was stopped, exit code {code}:\n{text}")
        if code == 3 and operation.words[1] == "rebuild" and course.mapped is None:
            return  # it has said that it left images out, and the gallery before is beside it
        if sight and sight.problem:
            raise BrokenPromiseError(f"a reader after {sight.searches} searches:\n{sight.problem}")
        if sight and not sight.searches:
            raise BrokenPromiseError("the reader did not search")
        left = self._look(operation)
        is_done = left is not None and left.equals(course.after, calibration=not operation.calibrates)
        # One that goes on, or has said that it left images out, has an exit code of its own.
        if code != 3 and not (accident in FAILURES and "--watch" in operation.words):
            self._judge(course, left, is_done, sight)
        if accident == "stop" and not operation.is_damaged:
            copy.go_on()
            self._judge_copy(course)
        self._repeat(course, is_done)

    def _judge(self, course: Course, left: State | None, is_done: bool, sight: Sight | None) -> None:
        before, after = course.before, course.after
        if left is None:
            if before is not None:
                raise BrokenPromiseError("the gallery is gone")
            return
        is_mixed = course.mapped is not None or not course.operation.whole
        if not (is_mixed or is_done or (before and left.equals(before))):
            raise BrokenPromiseError("neither the state before nor the one after")
        at = places(left.vectors, course.epochs)
        if strangers := course.strangers(left):
            raise BrokenPromiseError(f"{strangers[0]} is neither as before nor as after")
        for key in (self.out / ACKNOWLEDGED).read_text().split():
            is_there = key in left.items and key in after.items and left.has(key, after)
            if not (is_there or key not in left.items | after.items):
                raise BrokenPromiseError(f"{key} was acknowledged, and is not there")
        for key, place in (sight.places if sight else {}).items():
            if key in after.items and at.get(key, -1) < place:
                raise BrokenPromiseError(f"{key} was seen, and is lost")
        if not course.operation.is_damaged:
            self._verify(course.operation)

    def _judge_copy(self, course: Course) -> None:
        """Judge a copy of the folder that was made while the command wrote."""
        target = self.out / "copy" / course.operation.target

        def look() -> list[str]:
            """Return the items that are wrong, although `verify` has found nothing, or has repaired it."""
            try:
                problems: object = verify(target).problems
            except LookalikeError as error:
                problems = error
            if problems:
                verify(target, repair=True)
            found = read_state(target)
            assert found is not None
            return course.strangers(found)

        if (target / "gallery.db").exists() and (wrong := forked(look)):
            raise BrokenPromiseError(f"of a copy that was made meanwhile, {wrong[:5]} are wrong")

    def _verify(self, operation: Operation) -> None:
        target = self.work / operation.target
        if found := forked(lambda: [one.what for one in Gallery.kind(target).verify_at(target).problems]):
            raise BrokenPromiseError(f"verify: {found}")

    def _repeat(self, course: Course, is_done: bool) -> None:
        """Run the command again, which completes it."""
        operation = course.operation
        code = run(operation, self.work, None, self.log)
        if code not in (0, operation.code) and not (is_done and code in (1, 2)):
            raise BrokenPromiseError(f"run again, exit code {code}:\n{self.log.read_text()}")
        left = self._look(operation)
        if left is None or not left.equals(course.after, calibration=not operation.calibrates):
            raise BrokenPromiseError("run again, it leaves another state")
        self._verify(operation)
        others = self._names(operation) ^ course.names
        if operation.calibrates:  # the trials are deleted after that
            others -= {f"{operation.target}/{CALIBRATION}", f"{operation.target}.improve"}
        if others:
            raise BrokenPromiseError(f"run again, it leaves other files: {sorted(others)}")

    def _names(self, operation: Operation) -> frozenset[str]:
        """Return the names of files, and of tables in a database, without numbers."""
        tables = self._database().tables() if operation.database == "postgres" else []
        return _names(self.work) | {_NAMES.sub("#", table) for table in tables}


def _names(folder: Path) -> frozenset[str]:
    """Return the names in a folder, in its galleries and among their reports, without numbers."""
    galleries = [path for path in folder.iterdir() if is_gallery(path)]
    found = [path for one in (folder, *galleries) for path in one.iterdir()]
    found += [path for one in galleries for path in one.glob("reports/**/*")]
    passing = ("gallery.db-wal", "gallery.db-shm", "gallery.db-journal", "removals.log")
    return frozenset(
        _NAMES.sub("#", str(path.relative_to(folder))) for path in found if path.name not in passing
    )
