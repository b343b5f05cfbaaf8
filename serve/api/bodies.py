"""The ways of sending a request: JSON, a form with files, or the bytes of one image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json
from starlette.datastructures import UploadFile
from starlette.requests import Request

from serve.api.schemas import MAX_BATCH
from serve.core.errors import InvalidRequestError, MalformedBodyError, UnsupportedMediaTypeError

JSON, FORM, BYTES = "application/json", "multipart/form-data", "application/octet-stream"
_LISTS = ("exclude", "images")
_MAX_FIELDS = 1100


@dataclass(frozen=True)
class Body:
    """What was sent, not looked into yet.

    Attributes:
        data: of JSON, or of an image.
        fields: of a form.
        names: of the files `images` of a form, as their sender has them.
    """

    media_type: str
    data: bytes = b""
    fields: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()

    def values(self, picture: str | None = None) -> dict[str, Any]:
        """The names and values in it.

        Args:
            picture: what the bytes of an image are called.

        Raises:
            Problem: it is no JSON object.
        """
        if self.media_type == FORM:
            return self.fields
        if self.media_type != JSON:
            assert picture is not None
            return {picture: [self.data] if picture in _LISTS else self.data}
        try:
            found = from_json(self.data, allow_inf_nan=False)
        except ValueError as error:
            raise MalformedBodyError(f"the body is no JSON: {error}") from None
        if not isinstance(found, dict):
            raise InvalidRequestError("the body has to be a JSON object", [_NO_OBJECT])
        return found


_NO_OBJECT = {"pointer": "#", "detail": "Input should be an object"}


async def read(request: Request, *types: str) -> Body:
    """Receive a body of one of the types `JSON`, `FORM` and `BYTES`; the last stands for images, too.

    Raises:
        Problem: it is of another type.
    """
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    media_type = BYTES if declared.startswith("image/") else declared
    if media_type not in types:
        taken = ", ".join(types) + (", image/*" if BYTES in types else "")
        what = f"a body of type {declared[:100]}" if declared else "a body without a Content-Type"
        detail = f"{what} is not taken here; send one of: {taken}"
        raise UnsupportedMediaTypeError(detail, headers={"Accept-Post": taken})
    if media_type != FORM:
        return Body(media_type, await request.body())
    async with request.form(max_files=MAX_BATCH, max_fields=_MAX_FIELDS) as form:
        fields: dict[str, Any] = {}
        for name in dict.fromkeys(form):
            parts = [
                await part.read() if isinstance(part, UploadFile) else part for part in form.getlist(name)
            ]
            fields[name] = parts if len(parts) > 1 or name in _LISTS else parts[0]
        names = tuple(getattr(part, "filename", None) or "" for part in form.getlist("images"))
    return Body(FORM, fields=fields, names=names)
