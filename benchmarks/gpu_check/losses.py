"""Losses on the device: the same values as on the CPU, no host reads, and their share of a training step."""

from __future__ import annotations

import itertools
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu_check.results import Row, Verdict
from benchmarks.gpu_check.workload import Workload
from train import losses
from train.loop.compilation import Compiled

CLASSES, PER_CLASS, DIM = 16, 4, 32
TOLERANCE = 1e-3  # of the largest component of a gradient
TIMED = (
    {"name": "contrastive"},
    {"name": "multi-similarity"},
    {"name": "triplet", "negatives": "optimal"},
    {"name": "n-pair", "negatives": "symmetric"},
    {"name": "triplet", "regularizers": [{"name": "wasserstein"}]},
)
SHARES = {"resnet50": 0.02, "timm:vit_small_patch16_224": 0.10}  # largest share of a step
JUDGED = 128  # images of such a step


def specifications() -> list[dict[str, Any]]:
    """Return every loss with each of its sources and miners, every rule of mining, regularizer and memory."""
    found: list[dict[str, Any]] = []
    for name, entry in losses.names().items():
        found += [{"name": name, "negatives": source} for source in entry.negatives]
        found += [{"name": name, "mining": {"name": miner}} for miner in entry.mining]
    rules = losses.names("mining")["triplet"].parameters
    positives, negatives = (choices(rules[side].annotation) for side in ("positive", "negative"))
    for name, positive, negative in itertools.product(("triplet", "raw"), positives, negatives):
        found.append({"name": name, "mining": {"positive": positive, "negative": negative}})
    found += [{"regularizers": [{"name": name}]} for name in losses.names("regularizer")]
    found += [{"name": name, "memory": 2 * CLASSES} for name in ("triplet", "contrastive", "raw")]
    return found


def choices(annotation: Any) -> list[str]:
    """Return the strings that an annotation accepts: a Literal, or a union with one."""
    if isinstance(annotation, str):
        return [annotation]
    return [choice for part in typing.get_args(annotation) for choice in choices(part)]


def compare(work: Workload) -> Iterator[Row]:
    """Compare value and gradient of every loss on the CPU and on the device.

    Losses that draw at random draw other numbers on a GPU; their values must be finite.
    """
    device = work.device
    worst, differing, unread, random = 0.0, [], 0, 0
    specs = specifications()
    for spec in specs:
        cpu, again = (evaluate(spec, torch.device("cpu"), seed) for seed in (0, 1))
        own = evaluate(spec, device, 0)
        if not all(torch.equal(a, b) for a, b in zip(cpu, again, strict=True)):
            random += 1
            if not all(value.isfinite().all() for value in own):
                differing.append(str(spec))
        else:
            difference = max(relative(a, b) for a, b in zip(cpu, own, strict=True))
            worst = max(worst, difference)
            if not difference <= TOLERANCE:
                differing.append(f"{spec} ({difference:.2g})")
        unread += reads_host(spec, device)
    yield Row(
        f"{len(specs)} specifications against the CPU",
        f"largest relative difference {worst:.2g}, {random} random ones finite"
        + "".join(f"; differs: {text}" for text in differing[:5]),
        "FAILED" if differing else "ok",
        {"specifications": len(specs), "worst": worst, "random": random, "differing": differing},
    )
    if device.type == "cuda":
        verdict = "FAILED" if unread else "ok"
        yield Row("host reads, forward and backward", f"in {unread} specifications", verdict, {"in": unread})
    else:
        yield Row("host reads", "only a GPU shows them", "skipped")


def evaluate(spec: dict[str, Any], device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
    """Return value and gradient of a loss on a fixed batch, on the CPU."""
    loss, x, labels = prepare(spec, device)
    torch.manual_seed(seed)
    value = loss(x, labels)
    value.backward()
    assert x.grad is not None
    return value.detach().cpu(), x.grad.cpu()


def prepare(spec: dict[str, Any], device: torch.device) -> tuple[nn.Module, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    centres = torch.randn(CLASSES, DIM, generator=generator)
    x = centres[labels] + torch.randn(len(labels), DIM, generator=generator)
    torch.manual_seed(0)  # proxies begin at random
    loss = losses.build(spec, num_classes=CLASSES, embedding_dim=DIM, per_class=PER_CLASS).to(device)
    return loss, x.to(device).requires_grad_(), labels.to(device)


def relative(reference: Tensor, other: Tensor) -> float:
    largest = float(reference.abs().max())
    return float((reference - other).abs().max()) / max(largest, 1e-12)


def reads_host(spec: dict[str, Any], device: torch.device) -> bool:
    """Return whether a step of a loss waits for the device; CUDA raises an error where it does."""
    if device.type != "cuda":
        return False
    loss, x, labels = prepare(spec, device)
    loss(x, labels).backward()  # the first step initialises libraries, which may wait
    try:
        with forbidden_reads(device):
            loss(x, labels).backward()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return True
    return False


@contextmanager
def forbidden_reads(device: torch.device) -> Iterator[None]:
    """Raise an error where the host waits for a GPU."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def shares(device: torch.device, steps: dict[str, float], batch: int) -> Iterator[Row]:
    """Compare the time of losses with that of a training step.

    Args:
        device: Device.
        steps: Seconds of a step by backbone.
        batch: Images of a batch.
    """
    for spec in TIMED:
        for way, taken in loss_seconds(spec, device, batch).items():
            parts, numbers, missed = [], {"seconds": taken}, False
            judged = way == "compiled" and batch == JUDGED
            for backbone, step in steps.items():
                name, share = backbone.removeprefix("timm:"), taken / step
                limit = SHARES.get(backbone) if judged else None
                parts.append(f"{share:.1%} of {name}" + (f" (limit {limit:.0%})" if limit else ""))
                numbers[name] = share
                missed |= limit is not None and share > limit
            what = f"{describe(spec)}, {way}, {batch}: share of a step"
            verdict: Verdict = "FAILED" if missed else "ok" if judged else ""
            yield Row(what, f"{1000 * taken:.2f} ms: {', '.join(parts)}", verdict, numbers)


def loss_seconds(spec: dict[str, Any], device: torch.device, batch: int) -> dict[str, float]:
    """Return the seconds of a loss, forward and backward, in the ways that a training can run it."""
    labels = torch.arange(batch // 4, device=device).repeat_interleave(4)
    x = torch.randn(batch, 512, device=device, requires_grad=True)
    taken = {}
    for way in ("eager", "compiled", "graph") if device.type == "cuda" else ("eager",):
        loss = losses.build(spec, num_classes=batch // 4, embedding_dim=512, per_class=4).to(device)
        call = loss if way == "eager" else Compiled(loss, "loss", graph=way == "graph")
        taken[way] = seconds(lambda: torch.autograd.grad(call(x, labels), x), 20, device)  # noqa: B023
        torch._dynamo.reset()
    return taken


def describe(spec: dict[str, Any]) -> str:
    also = [spec.get("negatives", ""), *(part["name"] for part in spec.get("regularizers", []))]
    return " ".join(part for part in (spec["name"], *also) if part)


def seconds(work: Callable[[], object], times: int, device: torch.device) -> float:
    """Return the seconds of one run of `work`, after three to warm up."""
    for _ in range(3):
        work()
    wait(device)
    start = time.perf_counter()
    for _ in range(times):
        work()
    wait(device)
    return (time.perf_counter() - start) / times


def wait(device: torch.device) -> None:
    """Wait until a GPU has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
