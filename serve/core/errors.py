"""Error classes of the server, each with its problem code, HTTP status and title.

`retrieval.errors` has the base classes and the codes `internal-error`, `invalid-request` and
`unusable-image`. To add a problem, add a class here; its messages are shown to visitors and must not name
paths of the server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from retrieval.errors import InputError, LookalikeError

# ---- invalid input


class UnknownItemError(InputError):
    """The gallery has no image with this id or key."""

    code = "no-such-image"
    status = 404
    title = "No such image"


class ModelMismatchError(InputError):
    """A vector and the gallery come from different models."""

    code = "model-mismatch"
    status = 409
    title = "Model mismatch"


class NoModelError(InputError):
    """The gallery has imported vectors and no model to embed images with."""

    code = "no-model"
    status = 409
    title = "The gallery has no model"


class NoTextEncoderError(InputError):
    """The gallery's model embeds images only."""

    code = "no-text-encoder"
    status = 409
    title = "The gallery cannot be searched by text"


class NoEmbeddingMapError(InputError):
    """The gallery's model has no embedding map, of which heatmaps are made."""

    code = "no-embedding-map"
    status = 409
    title = "The gallery's model has no embedding map"


class CountMismatchError(InputError):
    """A condition selects another number of images than the request expects."""

    pointer = "#/expected"
    code = "count-mismatch"
    status = 409
    title = "Another number of images"


class ChangedError(InputError):
    """What a request changes is not as the client has read it."""

    code = "changed"
    status = 412
    title = "Changed in the meantime"


class FetchError(InputError):
    """The URL of an image is not allowed, or no image could be fetched from it."""

    code = "not-fetched"
    title = "The image could not be fetched"


class InvalidRequestError(InputError):
    """A request does not match its schema.

    Attributes:
        errors: Faults of the request, each with the keys `pointer` and `detail`.
    """

    def __init__(self, message: str, errors: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(message)
        self.errors = errors


# ---- refusals and failures


class ServerError(LookalikeError):
    """Base class of errors of the server itself; the message is written for visitors.

    Args:
        message: One sentence for the visitor.
        retry_after: Seconds after which a retry may succeed, if it differs from that of the class.
        headers: Additional response headers.

    Attributes:
        retry_after: Seconds, sent as the `Retry-After` header; None sends no header.
    """

    retry_after: ClassVar[int | None] = None

    def __init__(
        self, message: str, *, retry_after: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        seconds = self.retry_after if retry_after is None else retry_after
        self.headers = ({} if seconds is None else {"Retry-After": str(seconds)}) | dict(headers or {})


class MalformedBodyError(ServerError):
    """The body of a request cannot be parsed."""

    code = "malformed-body"
    status = 400
    title = "Malformed request body"


class WrongHostError(ServerError):
    """The Host header is not one of the server's names."""

    code = "wrong-host"
    status = 400
    title = "Unknown host name"


class SignInError(ServerError):
    """Credentials are missing or wrong."""

    code = "sign-in"
    status = 401
    title = "Authentication required"


class ForbiddenError(ServerError):
    """A cross-origin request is refused."""

    code = "forbidden"
    status = 403
    title = "Forbidden"


class ChangesNotAllowedError(ServerError):
    """Visitors may not change the gallery."""

    code = "changes-not-allowed"
    status = 403
    title = "Changes are disabled"


class UrlsNotAllowedError(ServerError):
    """The server does not fetch images by URL."""

    code = "urls-not-allowed"
    status = 403
    title = "Fetching images by URL is disabled"


class SharingNotAllowedError(ServerError):
    """The server keeps no pictures of visitors."""

    code = "sharing-not-allowed"
    status = 403
    title = "Sharing pictures is disabled"


class NotRecordedError(ServerError):
    """The server keeps no log of searches."""

    code = "not-recorded"
    status = 403
    title = "Searches are not recorded"


class UnknownPictureError(ServerError):
    """There is no shared picture with this id, or not any more."""

    code = "no-such-picture"
    status = 404
    title = "No such picture"


class UnknownModelError(ServerError):
    """The gallery has another model, or none."""

    code = "no-such-model"
    status = 404
    title = "No such model"


class NotFoundError(ServerError):
    """No route has this path."""

    code = "not-found"
    status = 404
    title = "Not found"


class UnknownJobError(ServerError):
    """There is no job with this id, or not any more."""

    code = "no-such-job"
    status = 404
    title = "No such job"


class UnknownDecisionError(InputError):
    """The log of the gallery has no decision with this number."""

    code = "no-such-decision"
    status = 404
    title = "No such decision"


class NoEvaluationError(ServerError):
    """The gallery keeps no evaluation report."""

    code = "no-evaluation"
    status = 404
    title = "No evaluation"


class MethodNotAllowedError(ServerError):
    """The route does not support the method."""

    code = "method-not-allowed"
    status = 405
    title = "Method not allowed"


class SlowRequestError(ServerError):
    """The body of a request arrived too slowly."""

    code = "too-slow"
    status = 408
    title = "Request timeout"


class TooLargeError(ServerError):
    """The body of a request is too large."""

    code = "too-large"
    status = 413
    title = "Request too large"


class UnsupportedMediaTypeError(ServerError):
    """The route does not accept the Content-Type of the body."""

    code = "unsupported-media-type"
    status = 415
    title = "Unsupported media type"


class RateLimitError(ServerError):
    """A client sends too many requests."""

    code = "too-many-requests"
    status = 429
    title = "Too many requests"


class SignInRateLimitError(ServerError):
    """A client has sent wrong credentials too often."""

    code = "too-many-tries"
    status = 429
    title = "Too many failed sign-ins"


class InternalError(ServerError):
    """An unexpected failure, with a message that reveals nothing about it."""


class BusyError(ServerError):
    """The server, or the resource that a request needs, is busy; retry."""

    code = "busy"
    status = 503
    title = "Server busy"
    retry_after = 1


class UnavailableError(ServerError):
    """The gallery cannot be read at the moment."""

    code = "gallery-unavailable"
    status = 503
    title = "Gallery unavailable"
    retry_after = 5


# The message of an unexpected error may name paths of the server.
INTERNAL_DETAIL = "internal error: the server's log has the details"
# The message of a `StoreError` names the host of the database.
UNREACHABLE = "the gallery's database cannot be reached: try again in a moment"


class DeadlineExceededError(ServerError):
    """A request was not answered before its deadline."""

    code = "deadline-exceeded"
    status = 504
    title = "Deadline exceeded"


class UnwritableError(ServerError):
    """The gallery cannot be written: the disk is full or read-only."""

    code = "not-stored"
    status = 507
    title = "The gallery cannot be written"


class AbandonedError(LookalikeError):
    """Work was stopped because its client has disconnected or its deadline has passed."""
