"""Base error classes: exit code of the command line, problem code and HTTP status of the server.

Errors are raised where the cause is known and caught once, at the command line or the HTTP boundary.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, ClassVar


class LookalikeError(Exception):
    """An operation failed. The message is one line: where, the problem, what to do.

    Attributes:
        exit_code: Exit code of the command line.
        code: Stable problem code in the server's responses.
        status: HTTP status of those responses.
        title: Short description of the problem code.
    """

    exit_code: ClassVar[int] = 1
    code: str = "internal-error"
    status: int = 500
    title: ClassVar[str] = "Internal server error"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it by its state: a pool of processes hangs at an error that its constructor refuses."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[LookalikeError], args: tuple[object, ...], state: dict[str, Any]) -> LookalikeError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class InputError(LookalikeError):
    """Invalid input: a wrong path, name, option, model or data set.

    Attributes:
        pointer: Part of a request that the error is in, as a JSON pointer in a URI fragment, if known.
    """

    pointer: str | None = None

    exit_code = 2
    code = "invalid-request"
    status = 422
    title = "Invalid request"


@contextmanager
def pointing(pointer: str) -> Iterator[None]:
    """Give an `InputError` of the block its place in a request, unless it has one."""
    try:
        yield
    except InputError as error:
        error.pointer = error.pointer or pointer
        raise


class ConditionError(InputError):
    """An invalid condition on items, see `retrieval.search.where`."""

    pointer = "#/where"


class LockedError(LookalikeError):
    """Another process is writing to the gallery, or keeps its database locked."""


class StoreError(LookalikeError):
    """The database of a gallery cannot be reached, or fails; a later try may succeed."""


class ImageError(InputError):
    """An image that cannot be used.

    Attributes:
        source: Path of the image, or a placeholder for bytes without a path.
        reason: One of the constants below; stable, so that failures can be counted by reason.
        detail: One sentence for people.
    """

    code = "unusable-image"
    title = "Unusable image"

    MISSING = "missing"
    PERMISSION = "permission"
    NOT_AN_IMAGE = "not-an-image"
    DAMAGED = "damaged"
    TOO_LARGE = "too-large"
    BOX = "box"  # that of a part of a picture is not in it
    UNREACHABLE: ClassVar[tuple[str, ...]] = (MISSING, PERMISSION)  # reasons that may have passed

    def __init__(self, source: str, reason: str, detail: str) -> None:
        super().__init__(f"{source}: {detail}")
        self.source = source
        self.reason = reason
        self.detail = detail


def did_you_mean(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return a hint for an unknown name: the closest known name, or `otherwise` if none is close.

    Args:
        name: The unknown name.
        known: Valid names.
        otherwise: Hint if no name is close; by default the list of valid names.
    """
    names = list(known)
    close = get_close_matches(name, names, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return otherwise or (f"known: {', '.join(map(repr, names))}" if names else "there are none")


_OS_HINTS = {
    errno.ENOSPC: "make room, then run the same command again",
    errno.EDQUOT: "make room, then run the same command again",
    errno.EROFS: "choose another place",
    errno.EACCES: "change its permissions, or choose another place",
    errno.EPERM: "change its permissions, or choose another place",
    errno.EEXIST: "choose another name",
    errno.ENOTDIR: "choose another name",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def describe_os_error(error: OSError) -> str | None:
    """Return one line for an error of the file system, or `None` if the user can hardly mend it."""
    hint = _OS_HINTS.get(error.errno or 0)
    if hint is None or error.strerror is None:
        return None
    file = error.filename2 or error.filename  # of two, the second is the one that was to be written
    where = f"{file}: " if isinstance(file, str) else ""
    return f"{where}{error.strerror[0].lower()}{error.strerror[1:]}; {hint}"
