"""Losses replayed from CUDA graphs: the same values and gradients as eagerly while the inputs change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from benchmarks.gpu_check.compiled import CASES
from benchmarks.gpu_check.losses import (
    TOLERANCE,
    describe,
    evaluate,
    prepare,
    relative,
    seconds,
    specifications,
)
from benchmarks.gpu_check.results import Row
from benchmarks.gpu_check.workload import Workload
from train.loop.compilation import Compiled

T = TypeVar("T")
STEPS = 5  # of changing inputs; the first warms up, the second records
Found = list[tuple[Tensor, ...]]


def graphs(work: Workload) -> Iterator[Row]:
    """Follow losses with `compile: graph` through some steps, then record every uncompiled loss.

    Without a GPU the losses run as they are, which tries this comparison alone.
    """
    device, on_gpu = work.device, work.device.type == "cuda"
    compiled, eager = ("compiled and recorded", "recorded") if on_gpu else ("as it is", "as they are")
    for spec in CASES if on_gpu else CASES[3:4]:
        loss, x, labels = prepare(spec, device)
        way = Compiled(loss, "loss", graph=True) if on_gpu else loss
        error = difference(follow(spec, device), steps(loss, way, x, labels))
        taken = seconds(lambda way=way, x=x, labels=labels: way(x, labels).backward(), 30, device)
        yield Row(
            f"{describe(spec)}{', memory' if 'memory' in spec else ''}: {compiled}",
            f"{1000 * taken:.3f} ms, differs by {error:.1g}",
            "ok" if error <= TOLERANCE else "FAILED",
            {"seconds": taken, "error": error},
        )
        torch._dynamo.reset()
    worst, random, wrong = 0.0, 0, []
    specs = specifications() if on_gpu else specifications()[:8]
    for spec in specs:
        cpu = torch.device("cpu")
        drawn = not all(map(torch.equal, evaluate(spec, cpu, 0), evaluate(spec, cpu, 1)))
        try:
            found = replay(spec, device) if on_gpu else follow(spec, device)
        except RuntimeError as error:  # the last line of CUDA's messages is advice
            wrong.append(f"{spec} ({str(error).splitlines()[0][:120]})")
            continue
        if drawn:
            random += 1
            error = 0.0 if all(part.isfinite().all() for step in found for part in step) else torch.inf
        else:
            error = difference(follow(spec, device), found)
            worst = max(worst, error)
        if not error <= TOLERANCE:
            wrong.append(f"{spec} ({error:.2g})")
    yield Row(
        f"{len(specs)} specifications, {eager}",
        f"largest relative difference {worst:.2g}, {random} random ones"
        + "".join(f"; fails: {text}" for text in wrong[:8]),
        "FAILED" if wrong else "ok",
        {"specifications": len(specs), "worst": worst, "random": random, "wrong": wrong},
    )


def follow(spec: dict[str, Any], device: torch.device) -> Found:
    """Return value and gradients of some steps of a loss as it is."""
    loss, x, labels = prepare(spec, device)
    return steps(loss, loss, x, labels)


def steps(loss: nn.Module, way: Callable[..., Tensor], x: Tensor, labels: Tensor) -> Found:
    """Return value and gradients of every step; the values are read at the end, as training does."""
    found = []
    for number in range(STEPS):
        own = (x.detach() * (1 + number)).roll(number, 0).requires_grad_()
        loss.zero_grad(set_to_none=True)
        torch.manual_seed(number)
        value = way(own, labels.roll(number))
        value.backward()
        found.append((value.detach(), *gradients(loss, own)))
    return found


def replay(spec: dict[str, Any], device: torch.device) -> Found:
    """Return value and gradients of the same steps, replayed from one graph with static inputs."""
    loss, x, labels = prepare(spec, device)
    kept = {name: value.clone() for name, value in loss.state_dict().items()}
    own, classes = x.detach().clone().requires_grad_(), labels.clone()

    def once() -> tuple[Tensor, ...]:
        inputs = [own, *loss.parameters()]
        value = loss(own, classes)
        return value.detach(), *torch.autograd.grad(value, inputs, allow_unused=True)

    again = captured(once)
    loss.load_state_dict(kept)  # a memory holds what warmed up
    found = []
    for number in range(STEPS):
        with torch.no_grad():
            own.copy_((x * (1 + number)).roll(number, 0))
            classes.copy_(labels.roll(number))
        torch.manual_seed(number)
        found.append(tuple(part.clone() for part in again() if part is not None))
    return found


def captured(work: Callable[[], T]) -> Callable[[], T]:
    """Return a function that replays the work from a CUDA graph and returns the same tensors each time."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work()

    def replay() -> T:
        graph.replay()
        return found

    return replay


def gradients(loss: nn.Module, x: Tensor) -> list[Tensor]:
    found = [x.grad, *(weight.grad for weight in loss.parameters())]
    return [gradient.clone() for gradient in found if gradient is not None]


def difference(wanted: Found, found: Found) -> float:
    """Return the largest relative difference of a value or gradient of any step."""
    pairs = [pair for steps in zip(wanted, found, strict=True) for pair in zip(*steps, strict=True)]
    return max(relative(a, b) for a, b in pairs)
