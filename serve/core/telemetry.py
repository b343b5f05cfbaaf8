"""What a server counts about itself, for Prometheus."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPMethod
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.addresses import API

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STAGES = ("decode", "embed", "search", "encode")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # the library looks there, once, when it is imported
_METHODS = frozenset(HTTPMethod)
_PICTURES = (1, 2, 4, 8, 16, 32, 64)
_PAGE = "page"  # everything that the browser page asks for: its framework has many addresses, all its own


class Stopwatch:
    """How long a stage took, once it is over, in milliseconds."""

    ms = 0.0


class Telemetry:
    """The figures of one server, in a registry of their own.

    Several processes keep them in files of the folder that the environment names, so that each can tell the
    figures of all. What a process has counted stays when it ends.

    Attributes:
        requests: by method, address and status.
        seconds: that a request took, by address; the page's are not measured, as some stay open.
        problems: answers that are errors, by code.
        pictures: how many went through the model at once.
        waiting, running: requests that are waiting for a worker, and that have one.
        waited: for how long, by those that got one.
        images, unindexed: pictures in each gallery, and vectors that its index does not cover.
        thumbnails, thumbnails_made: asked for, and those of them that were not in memory.
    """

    def __init__(self) -> None:
        self.registry = to = CollectorRegistry()
        route, stage = ("route",), ("stage",)

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"lookalike_{name}", about, labels, registry=to)

        def gauge(name: str, about: str, of_all: Literal["livesum", "mostrecent"], *labels: str) -> Gauge:
            return Gauge(f"lookalike_{name}", about, labels, registry=to, multiprocess_mode=of_all)

        def histogram(name: str, about: str, labels: tuple[str, ...], buckets: Sequence[float]) -> Histogram:
            return Histogram(f"lookalike_{name}", about, labels, registry=to, buckets=buckets)

        self.requests = counter("requests", "Requests answered.", "method", "route", "status")
        self.problems = counter("problems", "Answers that are errors, by their code.", "code")
        self.thumbnails = counter("thumbnails", "Thumbnails asked for.")
        self.thumbnails_made = counter("thumbnails_made", "Thumbnails that were not in memory.")
        self.seconds = histogram("request_seconds", "Time to answer a request.", route, _SECONDS)
        self.pictures = histogram("batch_images", "Images embedded at once.", (), _PICTURES)
        self._stages = histogram("stage_seconds", "Time that a stage of a request took.", stage, _SECONDS)
        self.waiting = gauge("queue_depth", "Requests waiting for a worker.", "livesum")
        self.running = gauge("workers_busy", "Workers at work.", "livesum")
        self.waited = histogram("queue_seconds", "Time that a request waited for a worker.", (), _SECONDS)
        self.images = gauge("gallery_images", "Images in a gallery.", "mostrecent", "gallery")
        about = "Vectors that its index does not cover."
        self.unindexed = gauge("gallery_unindexed", about, "mostrecent", "gallery")
        for name in STAGES:
            self._stages.labels(name)
        ProcessCollector(registry=to)

    @contextmanager
    def stage(self, name: str) -> Iterator[Stopwatch]:
        """Measure one of `STAGES`."""
        watch, start = Stopwatch(), time.perf_counter()
        try:
            yield watch
        finally:
            seconds = time.perf_counter() - start
            watch.ms = 1000 * seconds
            self._stages.labels(name).observe(seconds)

    def text(self) -> bytes:
        """All figures, of all processes of the server, in the format of `MEDIA_TYPE`."""
        if _FOLDER not in os.environ:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together, os.environ[_FOLDER])
        together.register(_Processes(Path(os.environ[_FOLDER])))
        return generate_latest(together)


def forget_process(process: int) -> None:
    """Leave out what a process was about to do when it died; what it had done stays counted."""
    mark_process_dead(process, os.environ[_FOLDER])


class _Processes(Collector):
    """Memory, processor time and files of several processes, added up.

    Args:
        folder: has a file of each that lives.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """One figure of each kind."""
        found = defaultdict[str, list[Metric]](list)
        for file in self._folder.glob("gauge_livesum_*.db"):
            number = partial(str, file.stem.rpartition("_")[2])
            for family in ProcessCollector(pid=number, registry=None).collect():
                found[family.name].append(family)
        for name, families in found.items():
            values = [family.samples[0].value for family in families]
            value = min(values) if name == "process_start_time_seconds" else sum(values)
            families[0].samples = [families[0].samples[0]._replace(value=value)]
            yield families[0]


class Measured:
    """ASGI middleware that counts requests and measures them."""

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self._app, self._telemetry = app, telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, start = 0, time.perf_counter()

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        finally:
            route = _route(scope)
            # Any word may be sent as a method, and the series of each would be kept for ever.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._telemetry.requests.labels(method, route, str(status or "none")).inc()
            if route != _PAGE:
                self._telemetry.seconds.labels(route).observe(time.perf_counter() - start)


def _route(scope: Scope) -> str:
    """The address as it is declared, so that there are few of them."""
    path = getattr(scope.get("route"), "path_format", None)
    prefix = scope.get("root_path", "")
    if prefix.startswith(API):
        return f"{prefix}{path or '/*'}"
    return path if path and not prefix and not path.startswith("/gradio_api") and path != "/" else _PAGE
