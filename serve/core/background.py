"""Background work: a thread for work that takes longer than a request, with its progress for all visitors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from retrieval.errors import InputError, LookalikeError, StoreError
from retrieval.machine.extras import missing_extra
from retrieval.progress import Stage, progress_listener
from serve.core.errors import (
    INTERNAL_DETAIL,
    UNREACHABLE,
    AbandonedError,
    BusyError,
    InternalError,
    ServerError,
    UnavailableError,
)

T = TypeVar("T")

# A process does one work at a time, whatever its kind and gallery: searches need the cores, too.
_slot = threading.Lock()
_log = logging.getLogger("lookalike.serve")


@dataclass(frozen=True)
class Status(Generic[T]):
    """The state of background work.

    Attributes:
        key: Identifies the work.
        running: Whether it is still running.
        stage: Its progress, if it reports any.
        result: Its result, once it is done.
        failure: The error that ended it, whose message is written for visitors; None unless it failed.
    """

    key: str = ""
    running: bool = False
    stage: Stage | None = None
    result: T | None = None
    failure: LookalikeError | None = None


def is_working() -> bool:
    """Return whether long work is running in this process."""
    return _slot.locked()


class Background(Generic[T]):
    """One kind of work on one gallery; the last result is kept.

    The thread is a daemon: a server that is stopped does not wait for it.

    Args:
        observe: Called with every new state, in the thread; an error that it raises ends the work.
    """

    def __init__(self, observe: Callable[[Status[T]], None] = lambda _: None) -> None:
        self._observe = observe
        self._status: Status[T] = Status()
        self._lock = threading.Lock()  # the slot is free as soon as the status says so

    def status(self) -> Status[T]:
        """Return the state of the work that was started last."""
        return self._status

    def start(self, key: str, work: Callable[[], T]) -> None:
        """Start work, unless work of the same key is running.

        Raises:
            BusyError: Other work is running in this process.
        """
        with self._lock:
            if not _slot.acquire(blocking=False):
                if self._status.running and self._status.key == key:
                    return
                raise BusyError("other long work is running on this server: try again when it is done")
            self._status = Status(key, running=True)
        threading.Thread(target=self._run, args=(key, work), name="background", daemon=True).start()

    def _run(self, key: str, work: Callable[[], T]) -> None:
        ended: Status[T] = Status(key)
        try:
            with progress_listener(lambda stage: self._report(key, stage)):
                ended = Status(key, result=work())
        except Exception as error:
            ended = Status(key, failure=_public_error(error))
        finally:
            try:
                self._observe(ended)
            finally:
                with self._lock:
                    _slot.release()
                    self._status = ended

    def _report(self, key: str, stage: Stage) -> None:
        self._status = Status(key, running=True, stage=stage)
        self._observe(self._status)


def _public_error(error: Exception) -> LookalikeError:
    """Return an error whose message is for visitors; other ones, which may name paths, are logged."""
    if isinstance(error, InputError | ServerError | AbandonedError):
        return error
    if isinstance(error, StoreError):
        _log.error("%s", error)
        return UnavailableError(UNREACHABLE)
    if isinstance(error, ModuleNotFoundError) and (lacking := missing_extra(error)):
        _log.error("this work %s", lacking)
        return UnavailableError("this server was installed without what this work needs")
    _log.error("long work failed", exc_info=error)
    return InternalError(INTERNAL_DETAIL)
