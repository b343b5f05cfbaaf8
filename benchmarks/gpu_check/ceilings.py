"""What the device can do at best: products of matrices, copies, and transfers from pinned memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.gpu_check.losses import seconds
from benchmarks.gpu_check.results import Row
from benchmarks.gpu_check.workload import Workload

PRODUCTS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def ceilings(work: Workload) -> Iterator[Row]:
    """Measure the rates that the times of the other checks are compared with."""
    device = work.device
    on_gpu = device.type == "cuda"
    side = 8192 if on_gpu else 256
    for name, dtype in PRODUCTS.items():
        a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in "ab")
        yield product(f"product of {side} x {side}, {name}", a, b)
    if on_gpu:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        yield product(f"product of {side} x {side}, tf32", a, b)
    source = torch.randint(0, 256, ((1 << 32) if on_gpu else (1 << 20),), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    rate = 2 * source.numel() / seconds(lambda: target.copy_(source), 10, device) / 1e9
    yield Row("copy on the device, read and written", f"{rate:.0f} GB/s", numbers={"gb_per_s": rate})
    batch = torch.zeros(128, 224, 224, 3, dtype=torch.uint8, pin_memory=on_gpu)
    there = torch.empty_like(batch, device=device)
    taken = seconds(lambda: there.copy_(batch, non_blocking=True), 10, device)
    what = "128 images of 224 px from pinned memory"
    yield Row(
        what, f"{1000 * taken:.2f} ms, {batch.numel() / taken / 1e9:.0f} GB/s", numbers={"seconds": taken}
    )


def product(what: str, a: torch.Tensor, b: torch.Tensor) -> Row:
    rate = 2 * len(a) ** 3 / seconds(lambda: a @ b, 20, a.device) / 1e12
    return Row(what, f"{rate:.0f} TFLOP/s", numbers={"tflops": rate})
