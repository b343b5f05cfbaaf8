"""Problem details, in which the API reports errors."""

from __future__ import annotations

from pydantic import (
    BaseModel,
    Field,
)


class Fault(BaseModel):
    """A fault in a request."""

    pointer: str = Field(description="Location, as a JSON pointer.", examples=["#/k"])
    detail: str = Field(examples=["Input should be greater than or equal to 1"])


class OpenAIError(BaseModel):
    """An error as OpenAI's clients read it."""

    message: str
    type: str = Field(examples=["invalid_request_error"])
    param: str | None = Field(description="Location of the first fault, as a JSON pointer.")
    code: str


class ProblemDetails(BaseModel):
    """Problem details (RFC 9457)."""

    type: str = Field(description="URI of the kind of problem.", examples=["urn:lookalike:problem:busy"])
    title: str
    status: int
    detail: str = Field(description="What went wrong, and what to do.")
    instance: str = Field(description="URI of this occurrence.")
    code: str = Field(description="Stable code of the kind of problem.", examples=["busy"])
    reason: str | None = Field(
        None, description="For an image: missing, not-an-image, damaged, too-large or box."
    )
    errors: list[Fault] | None = Field(None, description="For a request: its faults, at most 20.")
    error: OpenAIError | None = Field(None, description="On `/v1/embeddings`: the same for OpenAI's clients.")
