"""Request bodies: JSON, a form with files, or the bytes of one image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json
from starlette.datastructures import UploadFile
from starlette.requests import Request

from retrieval.images.load import begins_like_an_image
from serve.core.errors import InvalidRequestError, MalformedBodyError, UnsupportedMediaTypeError
from serve.limits import MAX_BATCH

JSON, FORM, BYTES = "application/json", "multipart/form-data", "application/octet-stream"
# Types that say nothing, the last because curl sends it with any file: the bytes decide.
_UNTYPED = ("", BYTES, "application/x-www-form-urlencoded")
_IMAGE_FIELDS = ("image", "images", "file", "files")  # of a form; each route takes all of them
_LIST_FIELDS = ("exclude", "galleries", "images", "text", "texts", "without", "like", "unlike")
_SPACES = 64  # bytes in which a JSON object has to begin
_MAX_FIELDS = 1100
_NOT_AN_OBJECT = {"pointer": "#", "detail": "Input should be an object"}


@dataclass(frozen=True)
class Body:
    """A received body, not validated yet.

    Attributes:
        media_type: `JSON`, `FORM` or `BYTES`.
        data: Bytes of the JSON or the image.
        fields: Fields of a form without the images.
        images: Images of a form.
        names: File names of these images.
    """

    media_type: str
    data: bytes = b""
    fields: dict[str, Any] = field(default_factory=dict)
    images: tuple[bytes | str, ...] = ()
    names: tuple[str, ...] = ()

    def values(self, image_field: str | None = None) -> dict[str, Any]:
        """Return the fields by name.

        Args:
            image_field: Field that the bytes of an image, or the images of a form, stand for.

        Raises:
            MalformedBodyError: The body is not JSON.
            InvalidRequestError: The body is not a JSON object.
        """
        if self.media_type == FORM:
            assert image_field is not None
            found = [*self.images]
            is_list = image_field in _LIST_FIELDS or len(found) > 1
            return {**self.fields, **({image_field: found if is_list else found[0]} if found else {})}
        if self.media_type != JSON:
            assert image_field is not None
            return {image_field: [self.data] if image_field in _LIST_FIELDS else self.data}
        try:
            found = from_json(self.data, allow_inf_nan=False)
        except ValueError as error:
            raise MalformedBodyError(f"the body is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise InvalidRequestError("the body has to be a JSON object", [_NOT_AN_OBJECT])
        return found


async def read_body(request: Request, *types: str) -> Body:
    """Receive the body of a request.

    Args:
        request: The request.
        types: Accepted types among `JSON`, `FORM` and `BYTES`; the last includes all image types. A body
            without a type is accepted if its first bytes are those of an accepted one.

    Raises:
        UnsupportedMediaTypeError: The body is of another type.
    """
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    media_type = BYTES if declared.startswith("image/") else declared
    if declared in _UNTYPED:
        media_type = _sniff(await request.body()) or declared
    if media_type not in types:
        accepted = ", ".join(types) + (", image/*" if BYTES in types else "")
        given = f"a body of type {declared[:100]}" if declared else "a body without a Content-Type"
        message = f"{given} is not accepted here; send one of: {accepted}"
        raise UnsupportedMediaTypeError(message, headers={"Accept-Post": accepted})
    if media_type != FORM:
        return Body(media_type, await request.body())
    async with request.form(max_files=MAX_BATCH, max_fields=_MAX_FIELDS) as form:
        fields: dict[str, Any] = {}
        for name in dict.fromkeys(form):
            if name in _IMAGE_FIELDS:
                continue
            parts = [
                await part.read() if isinstance(part, UploadFile) else part for part in form.getlist(name)
            ]
            fields[name] = parts if len(parts) > 1 or name in _LIST_FIELDS else parts[0]
        files = [part for name, part in form.multi_items() if name in _IMAGE_FIELDS]
        images = [await part.read() if isinstance(part, UploadFile) else part for part in files]
        names = tuple(getattr(part, "filename", None) or "" for part in files)
    return Body(FORM, fields=fields, images=tuple(images), names=names)


def _sniff(data: bytes) -> str | None:
    """Return the type of a body by its first bytes; None if it is neither an image nor a JSON object."""
    if begins_like_an_image(data):
        return BYTES
    return JSON if data[:_SPACES].lstrip().startswith(b"{") else None
