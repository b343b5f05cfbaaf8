"""What a server counts about itself, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STAGES = ("decode", "embed", "search", "encode")
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_PICTURES = (1, 2, 4, 8, 16, 32, 64)
_PAGE = "page"  # everything that the browser page asks for: its framework has many addresses, all its own
_API = "/v1"


class Stopwatch:
    """How long a stage took, once it is over, in milliseconds."""

    ms = 0.0


class Telemetry:
    """The figures of one server, in a registry of their own.

    Attributes:
        requests: by method, address and status.
        seconds: that a request took, by address; the page's are not measured, as some stay open.
        problems: answers that are errors, by code.
        pictures: how many went through the model at once.
        waiting, running: requests that are waiting for a worker, and that have one.
        images, unindexed: pictures in the gallery, and vectors that its index does not cover.
        thumbnails, thumbnails_made: asked for, and those of them that were not in memory.
    """

    def __init__(self) -> None:
        self.registry = to = CollectorRegistry()
        route, stage = ("route",), ("stage",)

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"lookalike_{name}", about, labels, registry=to)

        def gauge(name: str, about: str) -> Gauge:
            return Gauge(f"lookalike_{name}", about, registry=to)

        def histogram(name: str, about: str, labels: tuple[str, ...], buckets: Sequence[float]) -> Histogram:
            return Histogram(f"lookalike_{name}", about, labels, registry=to, buckets=buckets)

        self.requests = counter("requests", "Requests answered.", "method", "route", "status")
        self.problems = counter("problems", "Answers that are errors, by their code.", "code")
        self.thumbnails = counter("thumbnails", "Thumbnails asked for.")
        self.thumbnails_made = counter("thumbnails_made", "Thumbnails that were not in memory.")
        self.seconds = histogram("request_seconds", "Time to answer a request.", route, _SECONDS)
        self.pictures = histogram("batch_images", "Images embedded at once.", (), _PICTURES)
        self._stages = histogram("stage_seconds", "Time that a stage of a request took.", stage, _SECONDS)
        self.waiting = gauge("queue_depth", "Requests waiting for a worker.")
        self.running = gauge("workers_busy", "Workers at work.")
        self.images = gauge("gallery_images", "Images in the gallery.")
        self.unindexed = gauge("gallery_unindexed", "Vectors that the index does not cover.")
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
        """All figures, in the format of `MEDIA_TYPE`."""
        return generate_latest(self.registry)


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
            # Any word may be sent as a method; a label of each would grow without end.
            method = scope["method"] if status != 405 else "other"
            self._telemetry.requests.labels(method, route, str(status or "none")).inc()
            if route != _PAGE:
                self._telemetry.seconds.labels(route).observe(time.perf_counter() - start)


def _route(scope: Scope) -> str:
    """The address as it is declared, so that there are few of them."""
    path = getattr(scope.get("route"), "path_format", None)
    prefix = scope.get("root_path", "")
    if prefix == _API:
        return f"{_API}{path}" if path else f"{_API}/*"
    return path if path and not prefix and not path.startswith("/gradio_api") and path != "/" else _PAGE
