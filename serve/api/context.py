"""FastAPI dependencies: the gallery and the thread pools of a request.

Every gallery has an application of its own, which holds them in its state. The dependencies are coroutines:
FastAPI runs plain functions in a thread pool, which the page's work may occupy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, FastAPI
from starlette.requests import Request

from serve.core.feed import Feed
from serve.core.jobs import Jobs
from serve.core.service import SearchService
from serve.core.shared_pictures import SharedPictures
from serve.core.workers import Workers


@dataclass(frozen=True)
class Context:
    """State of an application.

    Attributes:
        services: All galleries of the server; the first is the default.
        service: The gallery of this application.
        jobs: The jobs of this gallery.
        workers: Thread pool for searches and changes.
        thumbnail_workers: Thread pool for thumbnails, so that neither delays the other.
        feed: The feed of this gallery.
        pictures: The shared pictures of the server; None if visitors cannot share them.
        is_root: Whether it is the API at /v1, which searches several galleries at once.
    """

    services: Sequence[SearchService]
    service: SearchService
    jobs: Jobs
    workers: Workers
    thumbnail_workers: Workers
    feed: Feed
    pictures: SharedPictures | None = None
    is_root: bool = False


def set_context(app: FastAPI, context: Context) -> None:
    """Store the context of an application."""
    app.state.context = context


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


async def _services(request: Request) -> Sequence[SearchService]:
    return _context(request).services


async def _together(request: Request) -> Mapping[str, SearchService]:
    context = _context(request)
    return {service.name: service for service in context.services} if context.is_root else {}


async def _service(request: Request) -> SearchService:
    return _context(request).service


async def _jobs(request: Request) -> Jobs:
    return _context(request).jobs


async def _feed(request: Request) -> Feed:
    return _context(request).feed


async def _pictures(request: Request) -> SharedPictures | None:
    return _context(request).pictures


async def _workers(request: Request) -> Workers:
    return _context(request).workers


async def _thumbnail_workers(request: Request) -> Workers:
    return _context(request).thumbnail_workers


SearchedTogether = Annotated[Mapping[str, SearchService], Depends(_together)]  # by name; none below
AllServices = Annotated[Sequence[SearchService], Depends(_services)]
Service = Annotated[SearchService, Depends(_service)]
GalleryFeed = Annotated[Feed, Depends(_feed)]
GalleryJobs = Annotated[Jobs, Depends(_jobs)]
Pictures = Annotated[SharedPictures | None, Depends(_pictures)]
RequestWorkers = Annotated[Workers, Depends(_workers)]
ThumbnailWorkers = Annotated[Workers, Depends(_thumbnail_workers)]
