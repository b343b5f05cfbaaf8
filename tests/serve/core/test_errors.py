"""Problem codes, statuses and titles, which clients rely on."""

from __future__ import annotations

from collections.abc import Iterator

from retrieval.errors import LookalikeError
from serve.core import errors

PROBLEMS = {
    "malformed-body": (400, "The body cannot be read"),
    "wrong-host": (400, "The server does not go by this name"),
    "sign-in": (401, "Sign-in is needed"),
    "forbidden": (403, "Not allowed"),
    "changes-not-allowed": (403, "Images are not added or removed here"),
    "urls-not-allowed": (403, "Addresses of images are not fetched"),
    "not-found": (404, "No such address"),
    "no-such-image": (404, "No such image"),
    "no-evaluation": (404, "No evaluation"),
    "method-not-allowed": (405, "The address has no such method"),
    "too-slow": (408, "The request took too long to arrive"),
    "model-mismatch": (409, "The vector is of another model"),
    "no-model": (409, "The gallery has no model"),
    "too-large": (413, "The request is too large"),
    "unsupported-media-type": (415, "The body is of a type that is not taken"),
    "invalid-request": (422, "The request cannot be used"),
    "unusable-image": (422, "The image cannot be used"),
    "not-fetched": (422, "There is no image at the address"),
    "too-many-requests": (429, "Too many requests"),
    "too-many-tries": (429, "Too many wrong tries to sign in"),
    "internal-error": (500, "The server failed"),
    "busy": (503, "The server is busy"),
    "gallery-unavailable": (503, "The gallery cannot be read"),
    "deadline-exceeded": (504, "The request took too long to answer"),
    "not-stored": (507, "The server cannot store it"),
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
