"""Problem codes, statuses and titles, which clients rely on."""

from __future__ import annotations

from collections.abc import Iterator

from retrieval.errors import LookalikeError
from serve.core import errors

PROBLEMS = {
    "malformed-body": (400, "Malformed request body"),
    "wrong-host": (400, "Unknown host name"),
    "sign-in": (401, "Authentication required"),
    "forbidden": (403, "Forbidden"),
    "changes-not-allowed": (403, "Changes are disabled"),
    "not-recorded": (403, "Searches are not recorded"),
    "sharing-not-allowed": (403, "Sharing pictures is disabled"),
    "no-such-picture": (404, "No such picture"),
    "urls-not-allowed": (403, "Fetching images by URL is disabled"),
    "not-found": (404, "Not found"),
    "no-such-image": (404, "No such image"),
    "no-such-model": (404, "No such model"),
    "no-such-job": (404, "No such job"),
    "no-such-decision": (404, "No such decision"),
    "no-evaluation": (404, "No evaluation"),
    "method-not-allowed": (405, "Method not allowed"),
    "too-slow": (408, "Request timeout"),
    "model-mismatch": (409, "Model mismatch"),
    "no-model": (409, "The gallery has no model"),
    "no-text-encoder": (409, "The gallery cannot be searched by text"),
    "no-embedding-map": (409, "The gallery's model has no embedding map"),
    "count-mismatch": (409, "Another number of images"),
    "changed": (412, "Changed in the meantime"),
    "too-large": (413, "Request too large"),
    "unsupported-media-type": (415, "Unsupported media type"),
    "invalid-request": (422, "Invalid request"),
    "unusable-image": (422, "Unusable image"),
    "not-fetched": (422, "The image could not be fetched"),
    "too-many-requests": (429, "Too many requests"),
    "too-many-tries": (429, "Too many failed sign-ins"),
    "internal-error": (500, "Internal server error"),
    "busy": (503, "Server busy"),
    "gallery-unavailable": (503, "Gallery unavailable"),
    "deadline-exceeded": (504, "Deadline exceeded"),
    "not-stored": (507, "The gallery cannot be written"),
}


def _subclasses(kind: type[LookalikeError]) -> Iterator[type[LookalikeError]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def test_every_error_class_has_a_stable_code_status_and_title() -> None:
    classes = [LookalikeError, *_subclasses(LookalikeError)]
    assert errors.BusyError in classes
    own = [kind for kind in classes if kind.__module__ in ("retrieval.errors", "serve.core.errors")]
    assert {(kind.code, kind.status, kind.title) for kind in own} == {
        (code, *rest) for code, rest in PROBLEMS.items()
    }
