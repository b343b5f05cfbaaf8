"""The errors a user can meet. They are raised where the cause is known and caught once, at the boundary."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class LookalikeError(Exception):
    """Something failed. The message says what, where and what to do, in one line."""

    exit_code = 1


class InputError(LookalikeError):
    """What was handed in cannot be used: a wrong path, name, option, model or data set."""

    exit_code = 2


class LockedError(LookalikeError):
    """Another process is writing the gallery."""


class ImageError(InputError):
    """A picture that cannot be used.

    Attributes:
        source: the path, or a word for bytes that came without one.
        reason: one of the codes below, stable enough to count by.
        detail: one sentence for people.
    """

    MISSING = "missing"
    PERMISSION = "permission"
    NOT_AN_IMAGE = "not-an-image"
    DAMAGED = "damaged"
    TOO_LARGE = "too-large"

    def __init__(self, source: str, reason: str, detail: str) -> None:
        super().__init__(f"{source}: {detail}")
        self.source = source
        self.reason = reason
        self.detail = detail


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """The hint of an error about a name that is not known: the nearest that is, or else `otherwise`."""
    near = get_close_matches(name, list(known), 1)
    return f"did you mean {near[0]!r}?" if near else otherwise
