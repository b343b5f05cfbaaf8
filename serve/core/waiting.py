"""Whether anybody still waits for what a thread is doing: nothing can stop a thread, so its work asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from serve.core.errors import AbandonedError

_awaited: ContextVar[Callable[[], bool]] = ContextVar("awaited", default=lambda: True)


@contextmanager
def for_one_who(waits: Callable[[], bool]) -> Iterator[None]:
    """Work in here, in this thread, is for somebody who `waits` for it, or does so no longer."""
    token = _awaited.set(waits)
    try:
        yield
    finally:
        _awaited.reset(token)


def go_on() -> None:
    """To be called between two steps of work that takes long.

    Raises:
        AbandonedError: nobody waits for it any more. What is done for no request is always gone on with.
    """
    if not _awaited.get()():
        raise AbandonedError("nobody waits for this any more")
