"""Request and response of `/v1/embeddings`, in the form of OpenAI's API.

An input is a string. It is an image if it is a data URL, an http or https URL, or Base64 whose first bytes
are those of an image file; any other string is a text.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from retrieval.images.load import begins_like_an_image
from serve.core.errors import InvalidRequestError
from serve.core.queries import TextQuery
from serve.core.url_fetcher import MAX_BYTES
from serve.limits import MAX_BATCH, MAX_TEXT

MAX_URLS = 8  # fetched one after the other, within the deadline of the request
_HEAD = 64  # characters of Base64 that are decoded to recognize an image
_HINT = "the input has to be a string or a list of strings"


def _check_kind(value: Any) -> Any:
    """Return the input as a list of strings; refuse token ids with a hint."""
    if isinstance(value, str):
        return [value]
    parts = value if isinstance(value, list) else []
    if any(isinstance(part, int | list) for part in parts[:MAX_BATCH]):
        hint = "in LangChain, set check_embedding_ctx_length=False"
        raise ValueError(f"{_HINT}: token ids are not accepted; {hint}")
    return value


@dataclass(frozen=True)
class ImageUrl:
    """The URL of an image for the server to fetch."""

    url: str


Content = bytes | TextQuery | ImageUrl


class EmbeddingsRequest(BaseModel):
    """Images or texts to embed, as the `embeddings` of OpenAI's clients send them."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"model": "lookalike", "input": ["data:image/png;base64,iVBORw0KGgo..."]},
                {"model": "lookalike", "input": "red kettle", "encoding_format": "base64"},
            ]
        },
    )

    input: Annotated[list[str], BeforeValidator(_check_kind)] = Field(
        min_length=1,
        max_length=MAX_BATCH,
        description="A string or a list of strings. A data URL, an http or https URL (at most "
        f"{MAX_URLS}, of {MAX_BYTES // 2**20} MB together, if the server was started with --allow-urls) and "
        "the Base64 of an image file are images. Other strings are texts, for a model with a text encoder, "
        f"of at most {MAX_TEXT} characters.",
        json_schema_extra=lambda schema: _also_a_string(schema),
    )
    model: str = Field(
        "",
        max_length=1000,
        description="The fingerprint of a model is refused if it is not that of the gallery's model; other "
        "names are ignored. The response has the fingerprint.",
    )
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="Numbers, or the Base64 of float32 values, little-endian."
    )
    dimensions: int | None = Field(
        None,
        ge=1,
        description="Number of leading dimensions, scaled to unit length again. Only those that a model with "
        "Matryoshka embeddings was trained for.",
    )
    user: str | None = Field(None, max_length=1000, description="Ignored.")

    def contents(self) -> list[Content]:
        """Return the images, texts and URLs of the input.

        Raises:
            InvalidRequestError: An input is malformed.
        """
        found: list[Content] = []
        for number, text in enumerate(self.input):
            try:
                found.append(_parse(text))
            except ValueError as error:
                faults = [{"pointer": f"#/input/{number}", "detail": str(error)}]
                raise InvalidRequestError(f"input {number}: {error}", faults) from None
        if sum(isinstance(one, ImageUrl) for one in found) > MAX_URLS:
            message = f"at most {MAX_URLS} URLs are fetched for a request: send the images themselves"
            raise InvalidRequestError(message, [{"pointer": "#/input", "detail": message}])
        return found


def _also_a_string(schema: dict[str, Any]) -> None:
    """Change the schema of a list to that of a string or such a list."""
    keys = [key for key in schema if key not in ("title", "description")]
    schema["anyOf"] = [{"type": "string"}, {key: schema.pop(key) for key in keys}]


def _parse(text: str) -> Content:
    start = text[:8].lower()
    if start.startswith("data:"):
        header, comma, data = text.partition(",")
        if not (comma and header.lower().endswith(";base64")):
            raise ValueError("the data URL has no Base64: it must begin like data:image/png;base64,")
        return _decode(data)
    if start.startswith(("https://", "http://")):
        return ImageUrl(text)
    head = text[:_HEAD]
    try:
        is_image = begins_like_an_image(base64.b64decode(head[: len(head) // 4 * 4], validate=True))
    except (binascii.Error, ValueError):
        is_image = False
    if is_image:
        return _decode(text)
    if not text.strip():
        raise ValueError("the text is empty")
    if len(text) > MAX_TEXT:
        limit = f"at most {MAX_TEXT} are allowed"
        raise ValueError(f"a text of {len(text)} characters, which is not the Base64 of an image: {limit}")
    return TextQuery(text)


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not Base64") from None


class Embedding(BaseModel):
    """The vector of one input."""

    object: Literal["embedding"] = "embedding"
    index: int = Field(description="Number of the input, from 0.")
    embedding: list[float] | str = Field(description="Vector of unit length, in the requested encoding.")


class Usage(BaseModel):
    """Tokens of the texts; images have none."""

    prompt_tokens: int
    total_tokens: int


class Model(BaseModel):
    """The model of the gallery, as OpenAI's clients read it."""

    id: str = Field(description="Its fingerprint, which an embedding may require.")
    object: Literal["model"] = "model"
    created: int = Field(description="When its file was written here, in seconds since 1970.")
    owned_by: Literal["lookalike"] = "lookalike"


class ModelsAnswer(BaseModel):
    """The model of the gallery; none if its vectors were imported."""

    object: Literal["list"] = "list"
    data: list[Model]


class EmbeddingsAnswer(BaseModel):
    """A vector for each input, in their order."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str = Field(description="Fingerprint of the model.")
    usage: Usage
