"""Types of fields that several models have."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import from_json

from serve.limits import MAX_KEY, MAX_TEXT


def _decode_base64(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not Base64") from None


ImageBytes = Annotated[
    bytes,
    BeforeValidator(_decode_base64),
    WithJsonSchema(
        {"type": "string", "contentEncoding": "base64", "description": "An image file, in Base64."}
    ),
]

# As an array of numbers: readers of descriptions know it better than an array of four separate types.
Corners = Annotated[
    tuple[float, float, float, float],
    WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}),
]

Number = Annotated[int, Field(strict=True, ge=1, lt=2**63)]

Key = Annotated[str, StringConstraints(min_length=1, max_length=MAX_KEY)]

ItemName = Annotated[Number | Key, Field(description="The id of an image of the gallery, or its key.")]

Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT, pattern=r"\S")]

Texts = Annotated[list[Text], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]

Label = Annotated[str, StringConstraints(max_length=1000)]

QueryId = Annotated[str, StringConstraints(pattern="^[0-9a-f]{16}$")]

Fingerprint = Annotated[
    str,
    Field(max_length=1000, description="Model of the vectors: the SHA-256 of its file, or a name."),
]


def parse_json(value: Any) -> Any:
    """Return the value of a field of a form, which is JSON as text; other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError:
        raise ValueError("not JSON") from None
