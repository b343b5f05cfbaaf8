"""Ask a Lookalike server from Python.

    from serve.client import Client

    with Client("https://search.example.com", token="...") as client:
        for hit in client.search("query.jpg", k=5, where="price < 30"):
            print(f"{hit.score:.3f}  {hit.key}  {hit.metadata}")

What a server refuses raises an `ApiError`, whose `code` says what it is; a server that cannot be reached
raises what `httpx` has for it.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

import httpx

from retrieval.errors import InputError
from serve.addresses import API, api_of

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image as Pillow

    Picture = str | Path | bytes | Pillow.Image
    Vector = Sequence[float] | np.ndarray

_SECONDS = 35.0  # a server gives up a little earlier, and says so
_BYTES = {"Content-Type": "application/octet-stream"}
T = TypeVar("T")


@dataclass(frozen=True)
class Image:
    """An image of the gallery.

    Attributes:
        id: its number, which is never used again.
        key: what its owner calls it, or its path in the folder that was indexed.
        thumbnail: where a small picture of it is, on the server.
    """

    id: int
    key: str
    label: str | None
    metadata: dict[str, Any]
    thumbnail: str


@dataclass(frozen=True)
class Hit(Image):
    """An image found; the score is 1 for the same picture."""

    score: float = 0.0


@dataclass(frozen=True)
class Added(Image):
    """An image that was sent to be added; it is not new where the gallery had its bytes already."""

    is_new: bool = True


@dataclass(frozen=True)
class Vectors:
    """A vector for each picture, in their order, and the fingerprint of the model they come from."""

    vectors: list[list[float]]
    fingerprint: str


@dataclass(frozen=True)
class Gallery:
    """What is searched; see `GET /v1/gallery`."""

    name: str
    uuid: str
    images: int
    dim: int
    fingerprint: str
    embeds: bool
    columns: list[str]
    index: str
    unindexed: int


@dataclass(eq=False)
class ApiError(Exception):
    """What a server says is wrong (RFC 9457).

    Attributes:
        code: the kind of problem in a word that stays the same, such as "busy"; empty where the answer is not
            from a Lookalike server.
        status: the HTTP status.
        detail: a sentence for people.
        instance: names the occurrence, for whoever reads the server's log.
        retry_after: seconds after which it may work, where the server knows.
        more: what else the problem has, such as the `reason` why an image cannot be used.
    """

    code: str
    status: int
    detail: str
    instance: str = ""
    retry_after: float | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.detail}"


class Client:
    """One server. Threads may share it; it keeps connections open, which `close()` or `with` ends.

    Args:
        url: of the server, `http://127.0.0.1:7860`.
        token: where the server asks for one.
        user: name and password, where it asks for these.
        gallery: the name of one of its galleries; without it, the first.
        seconds: to wait for an answer.
        transport: how to get there, if not over the network.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        user: tuple[str, str] | None = None,
        gallery: str | None = None,
        seconds: float = _SECONDS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._api = API if gallery is None else api_of(quote(gallery, safe=""))
        self._http = httpx.Client(
            base_url=url, headers=headers, auth=user, timeout=seconds, transport=transport
        )

    def search(
        self,
        image: Picture | None = None,
        *,
        id: int | str | None = None,
        vector: Vector | None = None,
        url: str | None = None,
        region: Sequence[float] | None = None,
        fingerprint: str | None = None,
        **options: Any,
    ) -> list[Hit]:
        """The images most like a picture, one of the gallery, a vector, or a picture on the web: give one.

        Args:
            image: a path, the bytes of a file, or a Pillow image.
            id: of an image of the gallery, or its key; it is not among its own hits.
            vector: of the gallery's model.
            url: where a picture is on the web, for the server to fetch, if it is one that does.
            region: left, top, right and bottom of the part of the picture, or of the image of the gallery, to
                search with, as fractions of its width and height.
            fingerprint: of the model that made the vector, to have another one refused.
            options: k, where, min_score, group_by, exclude and rerank, as for `retrieval.Gallery.search`.

        Raises:
            ApiError: the server refuses.
            InputError: none of them, or more than one.
        """
        if sum(one is not None for one in (image, id, vector, url)) != 1:
            raise InputError("search: give exactly one of image, id, vector and url")
        given = _given({**options, "region": None if region is None else [float(part) for part in region]})
        if image is not None:
            body: dict[str, Any] = {"params": given, "content": _bytes(image), "headers": _BYTES}
        else:
            numbers = None if vector is None else [float(number) for number in vector]
            asked = {"id": id, "vector": numbers, "url": url, "fingerprint": fingerprint}
            body = {"json": given | _given(asked)}
        return _hits(self._ask("POST", "/search", **body)["hits"])

    def search_batch(self, images: Iterable[Picture], **options: Any) -> list[list[Hit] | ApiError]:
        """For each picture its hits, or what is wrong with it; options are as for `search`.

        With `together=True` all pictures are views of one thing: one list of hits, for the mean of them.

        Raises:
            ApiError: the server refuses all of them; one picture together that cannot be used is enough.
        """
        answer = self._ask("POST", "/search:batch", params=_given(options), files=_files(images))
        return [
            _hits(result["hits"]) if "hits" in result else _error(result["problem"], None)
            for result in answer["results"]
        ]

    def embed(self, images: Iterable[Picture]) -> Vectors:
        """The vectors of pictures, of unit length.

        Raises:
            ApiError: the server refuses; one picture that cannot be used is enough.
        """
        return _made(Vectors, self._ask("POST", "/embed", files=_files(images)))

    def image(self, id: int | str) -> Image:
        """What is known about an image, by its id or key; an `ApiError` where the gallery has none."""
        if isinstance(id, str):
            return _made(Image, self._ask("GET", "/images/by-key", params={"key": id}))
        return _made(Image, self._ask("GET", f"/images/{id}"))

    def thumbnail(self, id: int) -> bytes:
        """A small picture of an image of the gallery, WebP, or SVG where its file is gone."""
        return self._send("GET", f"/images/{id}/thumbnail").content

    def add(
        self,
        images: Iterable[Picture],
        *,
        label: str | None = None,
        metadata: Mapping[str, str | int | float | None] | None = None,
    ) -> list[Added | ApiError]:
        """Add images to the gallery, where the server lets its visitors do that -> for each what it is now,
        or what is wrong with it.

        Args:
            images: paths, whose last part they are then called by, the bytes of files, or Pillow images.
            label, metadata: of all of them.

        Raises:
            ApiError: the server refuses all of them.
        """
        given = list(images)
        names = [Path(one).name if isinstance(one, str | Path) else "" for one in given]
        files = [base64.b64encode(_bytes(one)).decode() for one in given]
        body = _given({"images": files, "names": names, "label": label, "metadata": metadata})
        try:
            results = self._ask("POST", "/images", json=body)["results"]
        except ApiError as error:
            if len(given) == 1 and error.code == "unusable-image":
                return [error]
            raise
        return [
            _error(result["problem"], None)
            if "problem" in result
            else Added(**vars(_made(Image, result["image"])), is_new=result["added"])
            for result in results
        ]

    def remove(self, id: int) -> None:
        """Remove an image from the gallery; an `ApiError` where there is none, or the server refuses."""
        self._send("DELETE", f"/images/{id}")

    def gallery(self) -> Gallery:
        """What is searched."""
        return _made(Gallery, self._ask("GET", "/gallery"))

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, method: str, path: str, **body: Any) -> Any:
        return self._send(method, path, **body).json()

    def _send(self, method: str, path: str, **body: Any) -> httpx.Response:
        answer = self._http.request(method, self._api + path, **body)
        if answer.is_success:
            return answer
        try:
            problem = answer.json()
        except ValueError:
            problem = None
        if not isinstance(problem, dict):
            problem = {"detail": answer.reason_phrase}
        raise _error({"status": answer.status_code, **problem}, answer.headers.get("Retry-After"))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _files(images: Iterable[Picture]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", (f"{number}", _bytes(image))) for number, image in enumerate(images)]


def _bytes(image: Picture) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | Path):
        return Path(image).read_bytes()
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _made(kind: type[T], values: Mapping[str, Any]) -> T:
    """Of what a server says, which may be a newer one, what is known here."""
    return kind(**{one.name: values[one.name] for one in fields(kind) if one.name in values})  # type: ignore[arg-type]


def _hits(found: Iterable[Mapping[str, Any]]) -> list[Hit]:
    return [_made(Hit, hit) for hit in found]


def _error(problem: Mapping[str, Any], retry_after: str | None) -> ApiError:
    known = {name: problem.get(name, "") for name in ("code", "detail", "instance")}
    more = {name: value for name, value in problem.items() if name in ("reason", "errors")}
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return ApiError(**known, status=int(problem["status"]), retry_after=seconds, more=more)
