"""Exchanges with a server, written once and carried out with or without asyncio.

A method of a client is a generator: it yields requests and pauses, receives the answers, and returns a
result. `Blocking` and `Asynchronous` carry them out; `exchange` and `listing` make methods of both of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import httpx

from retrieval.errors import InputError, LookalikeError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """A request; `options` are those of `httpx.Client.request`."""

    method: str
    path: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Found(Generic[T]):
    """Results of a listing, before the next request."""

    results: Iterable[T]


Pause = float  # seconds
Steps = Generator[Request | Pause, Any, T]
ListingSteps = Generator[Request | Pause | Found[T], Any, None]


class UnreachableError(LookalikeError):
    """The server does not answer: nothing listens, the connection breaks, or the timeout has passed.

    Its cause is the error of `httpx`. A request that was sent may have been carried out.
    """


@contextmanager
def _reaching(http: httpx.Client | httpx.AsyncClient) -> Iterator[None]:
    """Convert the errors of a connection to the server of a client.

    Raises:
        InputError: Its address cannot be that of a server.
        UnreachableError: It does not answer.
    """
    where = str(http.base_url).rstrip("/") or "''"
    try:
        yield
    except httpx.UnsupportedProtocol as error:
        what = "not the address of a server; give one such as http://127.0.0.1:7860"
        raise InputError(f"{where}: {what}") from error
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        hint = "start it with `lookalike serve GALLERY`, or give the address that it prints"
        raise UnreachableError(f"{where}: no server answers ({_cause(error)}); {hint}") from error
    except httpx.TimeoutException as error:
        what = "no answer within the timeout; try again, or give the client more `seconds`"
        raise UnreachableError(f"{where}: {what}") from error
    except httpx.RequestError as error:
        raise UnreachableError(f"{where}: no whole answer ({_cause(error)}); try again") from error


def _cause(error: Exception) -> str:
    return str(error) or type(error).__name__


class Blocking:
    """Carries out exchanges in the calling thread."""

    _http: httpx.Client

    def _run(self, steps: Steps[T]) -> T:
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            answer = self._take(step)

    def _iterate(self, steps: ListingSteps[T]) -> Iterator[T]:
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            if isinstance(step, Found):
                yield from step.results
                answer = None
            else:
                answer = self._take(step)

    def _take(self, step: Request | Pause) -> httpx.Response | None:
        if isinstance(step, Request):
            with _reaching(self._http):
                return self._http.request(step.method, step.path, **step.options)
        time.sleep(step)
        return None


class Asynchronous:
    """Carries out exchanges in the running event loop."""

    _http: httpx.AsyncClient

    async def _run(self, steps: Steps[T]) -> T:
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            answer = await self._take(step)

    async def _iterate(self, steps: ListingSteps[T]) -> AsyncIterator[T]:
        answer = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration:
                return
            if isinstance(step, Found):
                for result in step.results:
                    yield result
                answer = None
            else:
                answer = await self._take(step)

    async def _take(self, step: Request | Pause) -> httpx.Response | None:
        if isinstance(step, Request):
            with _reaching(self._http):
                return await self._http.request(step.method, step.path, **step.options)
        await asyncio.sleep(step)
        return None


class exchange(Generic[P, T]):  # noqa: N801
    """Decorator of a generator, as a method that returns its result, or a coroutine of it.

    Of the class, it is the generator itself, for other exchanges to yield from.
    """

    def __init__(self, steps: Callable[Concatenate[Any, P], Steps[T]]) -> None:
        @wraps(steps)
        def run(client: Any, *args: P.args, **given: P.kwargs) -> Any:
            return client._run(steps(client, *args, **given))

        self._steps, self._method, self.__doc__ = steps, run, steps.__doc__

    @overload
    def __get__(self, client: None, kind: type) -> Callable[Concatenate[Any, P], Steps[T]]: ...
    @overload
    def __get__(self, client: Blocking, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Asynchronous, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, kind: type) -> Any:
        return self._steps if client is None else MethodType(self._method, client)


class listing(Generic[P, T]):  # noqa: N801
    """Decorator of a generator with many results, as a method that returns an iterator over them."""

    def __init__(self, steps: Callable[Concatenate[Any, P], ListingSteps[T]]) -> None:
        @wraps(steps)
        def run(client: Any, *args: P.args, **given: P.kwargs) -> Any:
            return client._iterate(steps(client, *args, **given))

        self._steps, self._method, self.__doc__ = steps, run, steps.__doc__

    @overload
    def __get__(self, client: None, kind: type) -> Callable[Concatenate[Any, P], ListingSteps[T]]: ...
    @overload
    def __get__(self, client: Blocking, kind: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: Asynchronous, kind: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, kind: type) -> Any:
        return self._steps if client is None else MethodType(self._method, client)
