"""Metrics of the server for Prometheus, of one process or several."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STAGES = ("decode", "embed", "search", "encode")
_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client reads it once, when it is imported
# Both are untyped in prometheus_client.
_collect_processes: Callable[[CollectorRegistry, str], object] = MultiProcessCollector
_forget_process: Callable[[int, str], None] = mark_process_dead


class Stopwatch:
    """Duration of a stage in milliseconds, set when it is over."""

    ms = 0.0


class Telemetry:
    """Metrics of one server, in a registry of their own.

    Several processes keep them in files of the folder in `PROMETHEUS_MULTIPROC_DIR`, so that each can report
    the sum over all. Counts of a process stay when it ends. The attributes are named as the metrics, without
    the prefix `lookalike_`; their help texts are below.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, help_text: str, *labels: str) -> Counter:
            return Counter(f"lookalike_{name}", help_text, labels, registry=registry)

        def gauge(
            name: str, help_text: str, aggregate: Literal["livesum", "mostrecent"], *labels: str
        ) -> Gauge:
            return Gauge(
                f"lookalike_{name}", help_text, labels, registry=registry, multiprocess_mode=aggregate
            )

        def histogram(name: str, help_text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"lookalike_{name}", help_text, labels, registry=registry, buckets=buckets)

        seconds = _SECONDS_BUCKETS
        self.requests = counter("requests", "Responses.", "method", "route", "status")
        self.problems = counter("problems", "Error responses by problem code.", "code")
        self.thumbnails = counter("thumbnails", "Thumbnails served.")
        self.thumbnails_made = counter("thumbnails_made", "Thumbnails rendered: cache misses.")
        self.request_seconds = histogram(
            "request_seconds", "Response time, without the page.", seconds, "route"
        )
        self.batch_images = histogram("batch_images", "Images per run of the model.", _BATCH_BUCKETS)
        self._stage_seconds = histogram("stage_seconds", "Time of a stage of a request.", seconds, "stage")
        self.queue_depth = gauge("queue_depth", "Requests waiting for a thread.", "livesum")
        self.workers_busy = gauge("workers_busy", "Threads at work.", "livesum")
        self.queue_seconds = histogram("queue_seconds", "Waiting time for a thread.", seconds)
        self.gallery_up = gauge(
            "gallery_up", "Whether a gallery can be read: 1 or 0.", "mostrecent", "gallery"
        )
        self.gallery_images = gauge("gallery_images", "Images in a gallery.", "mostrecent", "gallery")
        self.gallery_unindexed = gauge(
            "gallery_unindexed", "Vectors that the index does not cover.", "mostrecent", "gallery"
        )
        for name in STAGES:
            self._stage_seconds.labels(name)
        ProcessCollector(registry=registry)

    @contextmanager
    def stage(self, name: str) -> Iterator[Stopwatch]:
        """Measure one of `STAGES`."""
        watch, start = Stopwatch(), time.perf_counter()
        try:
            yield watch
        finally:
            seconds = time.perf_counter() - start
            watch.ms = 1000 * seconds
            self._stage_seconds.labels(name).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics, of all processes, in the format of `MEDIA_TYPE`."""
        if _FOLDER not in os.environ:
            return generate_latest(self.registry)
        registry = CollectorRegistry()
        _collect_processes(registry, os.environ[_FOLDER])
        registry.register(_ProcessesCollector(Path(os.environ[_FOLDER])))
        return generate_latest(registry)


def forget_process(pid: int) -> None:
    """Drop the gauges of a dead process; its counts stay."""
    _forget_process(pid, os.environ[_FOLDER])


class _ProcessesCollector(Collector):
    """Sum of memory, CPU time and open files of several processes.

    Args:
        folder: Folder with a file of each live process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Yield one metric of each kind."""
        found = defaultdict[str, list[Metric]](list)
        for file in self._folder.glob("gauge_livesum_*.db"):
            pid = partial(str, file.stem.rpartition("_")[2])
            for metric in ProcessCollector(pid=pid, registry=None).collect():
                found[metric.name].append(metric)
        for name, metrics in found.items():
            values = [metric.samples[0].value for metric in metrics]
            value = min(values) if name == "process_start_time_seconds" else sum(values)
            metrics[0].samples = [metrics[0].samples[0]._replace(value=value)]
            yield metrics[0]
