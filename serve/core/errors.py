"""What can go wrong between a request and a gallery, told apart by what the caller can do about it."""

from __future__ import annotations

from retrieval.errors import InputError, LookalikeError


class UnknownItemError(InputError):
    """The gallery has no picture of that number or key, or has none any more."""


class OtherModelError(InputError):
    """A vector of one model was sent to a gallery of another."""


class NoModelError(InputError):
    """The gallery holds vectors that were made elsewhere, so that it cannot embed pictures."""


class FetchError(InputError):
    """There is no picture at an address, or none that is fetched."""


class UnavailableError(LookalikeError):
    """The gallery cannot be read just now; it may come back."""


class BusyError(LookalikeError):
    """Other work has to end first; try again."""


class LateError(LookalikeError):
    """A request was not answered within the time it may take."""


class AbandonedError(LookalikeError):
    """Nobody waits any more for what was being done, so that it was left undone."""


class NotAllowedError(LookalikeError):
    """Visitors may not do this: the server's owner has not said so."""


class UnwritableError(LookalikeError):
    """The gallery cannot be written: the disk is full, or may only be read."""
