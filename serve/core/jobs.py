"""Jobs of the API: background work whose state all processes of the server can read.

A job is a few files in a folder that the processes share: `ID.json`, its state, `ID.result`, and `ID.lock`,
which its process keeps locked. So a job whose process has died is recognized, and work whose files are
deleted stops.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal

from retrieval.errors import LookalikeError
from retrieval.progress import Stage
from retrieval.system import lock, try_lock
from serve.core.background import Background, Status
from serve.core.errors import AbandonedError, InternalError, UnknownJobError

KEPT = 16  # jobs of a gallery
_ID = re.compile(r"[0-9a-f]{16}")
_SECONDS_BETWEEN_WRITES = 0.2
_ENDED = "the process of the job ended before the job: start it again"


@dataclass(frozen=True)
class Failure:
    """The error that ended a job, as in a problem document."""

    code: str
    status: int
    title: str
    detail: str

    @classmethod
    def of(cls, error: LookalikeError) -> Failure:
        """Return the failure of an error whose message is for visitors."""
        return cls(error.code, error.status, error.title, str(error))


@dataclass(frozen=True)
class Job:
    """A job.

    Attributes:
        id: Its id.
        kind: What it does.
        created: Time of its start, ISO 8601, UTC.
        state: Whether it is running, done or has failed.
        progress: How far it is, if it reports that.
        ended: Time of its end; None while it is running.
        failure: Why it failed.
    """

    id: str
    kind: str
    created: str
    state: Literal["running", "done", "failed"] = "running"
    progress: Stage | None = None
    ended: str | None = None
    failure: Failure | None = None


class Jobs:
    """The jobs of one gallery; the newest 16 are kept.

    Args:
        folder: Folder that the processes of the server share, created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, kind: str, work: Callable[[], str]) -> Job:
        """Start work and return its job.

        Args:
            kind: What it does.
            work: Returns the result as JSON.

        Raises:
            BusyError: Other long work is running in this process.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        job = Job(secrets.token_hex(8), kind, _now())
        held = (self._folder / f"{job.id}.lock").open("w")
        lock(held)
        self._write(job)
        try:
            Background(_Record(self, job, held).update).start(job.id, work)
        except BaseException:
            held.close()
            self.remove(job.id)
            raise
        for old in self.all()[KEPT:]:
            if old.state != "running":
                self.remove(old.id)
        return job

    def get(self, id: str) -> Job:
        """Return a job by its id; raise an `UnknownJobError` if there is none."""
        job = self._read(id)
        if job.state == "running" and not self._is_locked(id):
            job = self._read(id)  # it may just have ended
            if job.state == "running":
                return replace(job, state="failed", ended=_now(), failure=Failure.of(InternalError(_ENDED)))
        return job

    def result(self, id: str) -> str:
        """Return the result of a job that is done, as JSON; raise an `UnknownJobError` if there is none."""
        try:
            return self._file(id, "result").read_text("utf-8")
        except OSError:
            raise _unknown(id) from None

    def all(self) -> list[Job]:
        """Return all jobs, the newest first."""
        found = []
        for file in self._folder.glob("*.json"):
            with suppress(UnknownJobError):  # just removed
                found.append(self.get(file.stem))
        return sorted(found, key=lambda job: (job.created, job.id), reverse=True)

    def remove(self, id: str) -> None:
        """Forget a job; running work stops when it next reports its progress.

        Raises:
            UnknownJobError: There is no such job.
        """
        self._read(id)
        for part in ("json", "result", "lock"):
            self._file(id, part).unlink(missing_ok=True)

    def _file(self, id: str, part: str) -> Path:
        if not _ID.fullmatch(id):
            raise _unknown(id)
        return self._folder / f"{id}.{part}"

    def _read(self, id: str) -> Job:
        try:
            values = json.loads(self._file(id, "json").read_text("utf-8"))
        except OSError:
            raise _unknown(id) from None
        progress, failure = values.pop("progress"), values.pop("failure")
        return Job(
            **values,
            progress=Stage(**progress) if progress else None,
            failure=Failure(**failure) if failure else None,
        )

    def _write(self, job: Job, result: str | None = None) -> None:
        """Write a job, its state last; the file is replaced, so that no reader sees half of it."""
        if result is not None:
            self._file(job.id, "result").write_text(result, "utf-8")
        new = self._file(job.id, "new")
        new.write_text(json.dumps(asdict(job)), "utf-8")
        new.replace(self._file(job.id, "json"))

    def _is_locked(self, id: str) -> bool:
        try:
            with self._file(id, "lock").open() as file:
                return not try_lock(file, shared=True)
        except OSError:
            return False


class _Record:
    """Writes what becomes of a job."""

    def __init__(self, jobs: Jobs, job: Job, lock: IO[str]) -> None:
        self._jobs, self._job, self._lock = jobs, job, lock
        self._next_write = 0.0

    def update(self, status: Status[str]) -> None:
        """Write the state of the work; raise an `AbandonedError` if the running job was removed."""
        jobs, job = self._jobs, self._job
        if not status.running:
            with self._lock, suppress(UnknownJobError):
                jobs._read(job.id)
                state: Literal["done", "failed"] = "failed" if status.failure else "done"
                failure = Failure.of(status.failure) if status.failure else None
                ended = replace(job, state=state, ended=_now(), failure=failure)
                jobs._write(ended, status.result)
        elif (now := time.monotonic()) >= self._next_write:
            self._next_write = now + _SECONDS_BETWEEN_WRITES
            try:
                jobs._read(job.id)
            except UnknownJobError:
                raise AbandonedError("the job was removed") from None
            jobs._write(replace(job, progress=status.stage))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _unknown(id: str) -> UnknownJobError:
    return UnknownJobError(f"there is no job {id[:32]!r}: the list of jobs has those that are kept")
