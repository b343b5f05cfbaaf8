"""Ask a Lookalike server from Python.

    from serve.client import Client

    with Client("https://search.example.com", token="...") as client:
        for hit in client.search("query.jpg", k=5, where="price < 30"):
            print(f"{hit.score:.3f}  {hit.key}  {hit.metadata}")

What a server refuses raises an `ApiError`, whose `code` says what it is, and so does whatever else answers in
its place, such as a proxy; a server that cannot be reached raises what `httpx` has for it.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
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
_SHOWN = 100  # characters of an answer that is none of a Lookalike server
T = TypeVar("T")
Rerank = Literal["none", "query-expansion", "k-reciprocal"]


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


@dataclass(frozen=True)
class ServedGallery:
    """One of the galleries of a server; `Client(..., gallery=name)` asks it."""

    name: str
    images: int
    fingerprint: str
    address: str


@dataclass(frozen=True)
class Metric:
    """A metric of an evaluation: the key of its values, its title and its meaning."""

    key: str
    title: str
    meaning: str


@dataclass(frozen=True)
class Result:
    """Values of one model in an evaluation.

    Attributes:
        title: Name of the model.
        by: Labels that count as classes, if they are not those of the gallery.
        values: Metric key -> value in 0..1.
        intervals: Metric key -> 95% confidence interval.
    """

    title: str
    by: str | None
    values: dict[str, float]
    intervals: dict[str, list[float]]


@dataclass(frozen=True)
class Evaluation:
    """The newest evaluation of a gallery; see `GET /v1/evaluation`.

    Attributes:
        created: Time of the evaluation, ISO 8601, UTC.
        data: Query images.
        protocol: Searched set.
        images: Number of query images.
        classes: Number of their classes.
        results: Published results first, then baselines, the model of the gallery last.
        metrics: Metrics of the results.
    """

    created: str
    data: str
    protocol: str
    images: int
    classes: int
    results: list[Result]
    metrics: list[Metric]


@dataclass(eq=False)
class ApiError(Exception):
    """What a server says is wrong (RFC 9457), or that what answered is no Lookalike server.

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
        return f"{self.status} {self.code}".rstrip() + f": {self.detail}"


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
        k: int = 10,
        where: str | None = None,
        min_score: float | None = None,
        group_by: str | None = None,
        exclude: Iterable[int | str] = (),
        rerank: Rerank = "none",
    ) -> list[Hit]:
        """The images most like a picture, one of the gallery, a vector, or a picture on the web: give one.

        Args:
            image: a path, the bytes of a file, or a Pillow image, which is sent upright and in 8-bit RGB.
            id: of an image of the gallery, or its key; it is not among its own hits.
            vector: of the gallery's model.
            url: where a picture is on the web, for the server to fetch, if it is one that does.
            region: left, top, right and bottom of the part of the picture, or of the image of the gallery, to
                search with, as fractions of its width and height.
            fingerprint: of the model that made the vector, to have another one refused.
            k: how many images to find, 1 to 1000.
            where: a condition that hits fulfil, such as `label = 'red' and price < 30`.
            min_score: the least score of a hit, -1 to 1.
            group_by: a column, of whose values each gives its best hit alone, such as `label`.
            exclude: ids or keys of images that are no hits.
            rerank: how to order what was found, and with it what the score is; see `Rerank`.

        Raises:
            ApiError: the server refuses.
            InputError: none of image, id, vector and url, or more than one; a Pillow image that is unusable.
        """
        if sum(one is not None for one in (image, id, vector, url)) != 1:
            raise InputError("search: give exactly one of image, id, vector and url")
        given = _options(k, where, min_score, group_by, exclude, rerank)
        if region is not None:
            given["region"] = [float(part) for part in region]
        if image is not None:
            body: dict[str, Any] = {"params": given, "content": _bytes(image), "headers": _BYTES}
        else:
            numbers = None if vector is None else [float(number) for number in vector]
            asked = {"id": id, "vector": numbers, "url": url, "fingerprint": fingerprint}
            body = {"json": given | _given(asked)}
        return self._ask(lambda answer: _hits(answer["hits"]), "POST", "/search", **body)

    def search_batch(
        self,
        images: Iterable[Picture],
        *,
        together: bool = False,
        k: int = 10,
        where: str | None = None,
        min_score: float | None = None,
        group_by: str | None = None,
        exclude: Iterable[int | str] = (),
        rerank: Rerank = "none",
    ) -> list[list[Hit] | ApiError]:
        """For each picture its hits, or what is wrong with it.

        Args:
            images: at most 64, each as for `search`; the options are as there, too.
            together: all pictures are views of one thing: one list of hits, for the mean of them.

        Raises:
            ApiError: the server refuses all of them; one picture together that cannot be used is enough.
        """
        options = _options(k, where, min_score, group_by, exclude, rerank) | {"together": together}
        body = {"params": options, "files": _files(images)}
        return self._ask(lambda answer: [*map(_result, answer["results"])], "POST", "/search:batch", **body)

    def embed(self, images: Iterable[Picture]) -> Vectors:
        """The vectors of pictures, of unit length.

        Raises:
            ApiError: the server refuses; one picture that cannot be used is enough.
        """
        return self._ask(partial(_made, Vectors), "POST", "/embed", files=_files(images))

    def image(self, id: int | str) -> Image:
        """What is known about an image, by its id or key; an `ApiError` where the gallery has none."""
        read = partial(_made, Image)
        if isinstance(id, str):
            return self._ask(read, "GET", "/images/by-key", params={"key": id})
        return self._ask(read, "GET", f"/images/{id}")

    def thumbnail(self, id: int) -> bytes:
        """A small picture of an image of the gallery, WebP, or SVG where its file is gone."""
        answer = self._send("GET", f"/images/{id}/thumbnail")
        if not answer.headers.get("Content-Type", "").startswith("image/"):
            raise _foreign(answer)
        return answer.content

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
            images: paths, whose last part they are then called by, the bytes of files, or Pillow images; at
                most 64.
            label, metadata: of all of them.

        Raises:
            ApiError: the server refuses all of them.
        """
        given = list(images)
        names = [Path(one).name if isinstance(one, str | Path) else "" for one in given]
        files = [base64.b64encode(_bytes(one)).decode() for one in given]
        body = _given({"images": files, "names": names, "label": label, "metadata": metadata})
        try:
            return self._ask(
                lambda answer: [*map(_addition, answer["results"])], "POST", "/images", json=body
            )
        except ApiError as error:
            if len(given) == 1 and error.code == "unusable-image":
                return [error]
            raise

    def remove(self, id: int) -> None:
        """Remove an image from the gallery; an `ApiError` where there is none, or the server refuses."""
        answer = self._send("DELETE", f"/images/{id}")
        if answer.status_code != 204:
            raise _foreign(answer)

    def gallery(self) -> Gallery:
        """What is searched."""
        return self._ask(partial(_made, Gallery), "GET", "/gallery")

    def evaluation(self) -> Evaluation:
        """Return the newest evaluation of the gallery.

        Raises:
            ApiError: "no-evaluation" if the gallery keeps none.
        """

        def read(answer: Any) -> Evaluation:
            results = [_made(Result, one) for one in answer["results"]]
            metrics = [_made(Metric, one) for one in answer["metrics"]]
            return _made(Evaluation, {**answer, "results": results, "metrics": metrics})

        return self._ask(read, "GET", "/evaluation")

    def galleries(self) -> list[ServedGallery]:
        """All galleries of the server; the first is what is searched where none is named."""

        def read(answer: Any) -> list[ServedGallery]:
            return [_made(ServedGallery, one) for one in answer["galleries"]]

        return self._ask(read, "GET", "/galleries", api=API)

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, read: Callable[[Any], T], method: str, path: str, **request: Any) -> T:
        answer = self._send(method, path, **request)
        try:
            return read(answer.json())
        except (ValueError, LookupError, TypeError, AttributeError):  # JSON of somebody else, if that
            raise _foreign(answer) from None

    def _send(self, method: str, path: str, api: str | None = None, **request: Any) -> httpx.Response:
        answer = self._http.request(method, (api or self._api) + path, **request)
        if answer.is_success:
            return answer
        try:
            problem = answer.json()
        except ValueError:
            raise _foreign(answer) from None
        if not (isinstance(problem, dict) and isinstance(problem.get("code"), str) and "detail" in problem):
            raise _foreign(answer)
        raise _error({**problem, "status": answer.status_code}, _seconds(answer))


def _options(
    k: int,
    where: str | None,
    min_score: float | None,
    group_by: str | None,
    exclude: Iterable[int | str],
    rerank: Rerank,
) -> dict[str, Any]:
    told = {"k": k, "where": where, "min_score": min_score, "group_by": group_by, "rerank": rerank}
    return _given({**told, "exclude": list(exclude)})


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _files(images: Iterable[Picture]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", (f"{number}", _bytes(image))) for number, image in enumerate(images)]


def _bytes(image: Picture) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, str | Path):
        return Path(image).read_bytes()
    from retrieval.images.load import load_image

    buffer = io.BytesIO()
    load_image(image).save(buffer, "PNG")
    return buffer.getvalue()


def _made(kind: type[T], values: Mapping[str, Any]) -> T:
    """Of what a server says, which may be a newer one, what is known here."""
    return kind(**{one.name: values[one.name] for one in fields(kind) if one.name in values})  # type: ignore[arg-type]


def _hits(found: Iterable[Mapping[str, Any]]) -> list[Hit]:
    return [_made(Hit, hit) for hit in found]


def _result(result: Mapping[str, Any]) -> list[Hit] | ApiError:
    return _hits(result["hits"]) if "hits" in result else _error(result["problem"])


def _addition(result: Mapping[str, Any]) -> Added | ApiError:
    if "problem" in result:
        return _error(result["problem"])
    return Added(**vars(_made(Image, result["image"])), is_new=result["added"])


def _error(problem: Mapping[str, Any], retry_after: float | None = None) -> ApiError:
    known = {name: str(problem.get(name, "")) for name in ("code", "detail", "instance")}
    more = {name: value for name, value in problem.items() if name in ("reason", "errors")}
    return ApiError(**known, status=int(problem["status"]), retry_after=retry_after, more=more)


def _foreign(answer: httpx.Response) -> ApiError:
    """What is wrong with an answer that does not come from a Lookalike server."""
    kind = answer.headers.get("Content-Type", "").partition(";")[0] or "no type"
    shown = " ".join(answer.text[: 10 * _SHOWN].split())[:_SHOWN]
    detail = f"{answer.reason_phrase}: not the answer of a Lookalike server, but {kind}: {shown!r}"
    return ApiError("", answer.status_code, detail, retry_after=_seconds(answer))


def _seconds(answer: httpx.Response) -> float | None:
    """What an answer says to wait for; a date, as some proxies have it, is passed over."""
    given = answer.headers.get("Retry-After", "")
    return float(given) if given.isdecimal() else None
