"""Losses as torch runs them and compiled: time, host time and kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_check.losses import describe, relative, seconds, wait
from benchmarks.gpu_check.results import Row, Verdict
from benchmarks.gpu_check.workload import Workload
from train import losses
from train.loop.compilation import Compiled

DIM = 512
CASES: tuple[dict[str, Any], ...] = (
    {"name": "triplet", "negatives": "optimal"},
    {"name": "n-pair", "negatives": "symmetric"},
    {"name": "triplet", "regularizers": [{"name": "wasserstein"}]},
    {"name": "multi-similarity"},
    {"name": "contrastive"},
    {"name": "raw"},
    {"name": "triplet"},
    {"name": "proxy-anchor"},
    {"name": "multi-similarity", "memory": 65536},
)
BATCHES = (128, 512)
TOLERANCE = 1e-3  # of the largest component of a gradient


def compiled(work: Workload) -> Iterator[Row]:
    """Time forward and backward of losses in both ways, and compare the gradients."""
    on_gpu = work.device.type == "cuda"
    for spec in CASES if on_gpu else CASES[3:4]:
        for batch in BATCHES if on_gpu else (32,):
            yield from one(spec, batch, work.device)
        torch._dynamo.reset()


def one(spec: dict[str, Any], batch: int, device: torch.device) -> Iterator[Row]:
    labels = torch.arange(batch // 4, device=device).repeat_interleave(4)
    x = torch.randn(batch, DIM, device=device, requires_grad=True)
    loss = losses.build(spec, num_classes=batch // 4, embedding_dim=DIM, per_class=4).to(device)
    kept = {name: value.clone() for name, value in loss.state_dict().items()}
    ways: dict[str, Callable[[], Tensor]] = {"eager": step(loss, x, labels)}
    if device.type == "cuda":
        ways["compiled"] = step(Compiled(loss, "loss"), x, labels)
    found: dict[str, Tensor] = {}
    name = f"{describe(spec)}{', memory' if 'memory' in spec else ''}, {batch}"
    for way, work in ways.items():
        loss.load_state_dict(kept)  # a memory fills up
        yield timed(f"{name}: {way}", work, device, found)


def step(loss: Callable[..., Tensor], x: Tensor, labels: Tensor) -> Callable[[], Tensor]:
    return lambda: torch.autograd.grad(loss(x, labels), x)[0]


def timed(what: str, work: Callable[[], Tensor], device: torch.device, found: dict[str, Tensor]) -> Row:
    """Return the row of a way to run a loss; its gradient is compared with that of the first way."""
    start = time.perf_counter()
    gradient = work().clone()
    wait(device)
    first = time.perf_counter() - start
    error = relative(found.setdefault("eager", gradient), gradient)
    taken = seconds(work, 30, device)
    start = time.perf_counter()
    for _ in range(10):
        work()
    host = (time.perf_counter() - start) / 10
    wait(device)
    numbers = {"seconds": taken, "host": host, "first": first, "error": error}
    text = f"{1000 * taken:.3f} ms, host {1000 * host:.3f}, first {first:.1f} s"
    if device.type == "cuda":
        kernels, busy = count_kernels(work)
        numbers |= {"kernels": kernels, "busy": busy}
        text += f", {kernels} kernels of {1000 * busy:.3f} ms"
    verdict: Verdict = "ok" if error <= TOLERANCE else "FAILED"
    return Row(what, f"{text}, gradient differs by {error:.1g}", verdict, numbers)


def count_kernels(work: Callable[[], Tensor]) -> tuple[int, float]:
    """Return the kernels of one run and the seconds that they are busy."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
        torch.cuda.synchronize()
    kernels = [event for event in profiled.events() if not event.name.startswith(("Memcpy", "Memset"))]
    return len(kernels), sum(event.device_time_total for event in kernels) / 1e6
