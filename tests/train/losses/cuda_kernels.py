"""Kernels of losses that are compiled for an NVIDIA GPU on a machine without one.

    python -m tests.train.losses.cuda_kernels '{"name": "contrastive"}'

Forward and backward pass are traced on fake tensors of the CPU as a compiler sees them, the graph is moved
to a device that is described here and is not there, and inductor writes its code for it. Nothing is run. It
rests on private parts of torch, so a caller must expect it to fail with another version. It changes torch, so
it has a process of its own. On a GPU there are a few kernels more: the graph is cut in two, and each step of
`wasserstein` is a region of its own.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"

import torch
import torch._dynamo.device_interface
import torch._dynamo.utils
import torch._inductor.config
import torch._inductor.fx_passes.reinplace
import torch._inductor.runtime.triton_helpers
from torch import Tensor
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from train import losses

BATCH, DIM, PER_CLASS = 128, 512, 4
CAPABILITY = 90
CARD = types.SimpleNamespace(
    name="H100",
    major=CAPABILITY // 10,
    minor=CAPABILITY % 10,
    multi_processor_count=132,
    total_memory=80 << 30,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    regs_per_multiprocessor=65536,
    warp_size=32,
    gcnArchName="",
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 << 20,
)


def always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


class Driver:
    """What inductor asks of Triton's driver."""

    get_current_target = staticmethod(always(GPUTarget("cuda", CAPABILITY, 32)))
    get_current_device = staticmethod(always(0))
    get_active_torch_device = staticmethod(always(torch.device("cuda", 0)))
    get_device_interface = staticmethod(always(torch.cuda))
    is_active = staticmethod(always(True))


def pretend() -> None:
    """Let torch believe in the card."""
    interface = torch._dynamo.device_interface.CudaInterface
    for name, value in {
        "is_available": True,
        "current_device": 0,
        "device_count": 1,
        "get_device_properties": CARD,
        "get_compute_capability": CAPABILITY,
        "is_triton_capable": True,
        "raise_if_triton_unavailable": None,
        "synchronize": None,
        "get_raw_stream": 0,
        "exchange_device": 0,
        "maybe_exchange_device": 0,
    }.items():
        setattr(interface, name, staticmethod(always(value)))
    interface.Worker.get_device_properties = staticmethod(always(CARD))
    interface.Worker.current_device = staticmethod(always(0))
    for name, value in {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": (CARD.major, CARD.minor),
        "get_device_properties": CARD,
        "is_bf16_supported": True,
        "_lazy_init": None,
        "is_initialized": False,
        "synchronize": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
        "current_stream": types.SimpleNamespace(cuda_stream=0),
    }.items():
        setattr(torch.cuda, name, always(value))
    torch._dynamo.utils.preserve_rng_state = contextlib.nullcontext
    driver.set_active(Driver())
    torch._inductor.runtime.triton_helpers.set_driver_to_gpu = always(None)
    # Its copy of fake tensors asks CUDA for a stream.
    reinplace = torch._inductor.fx_passes.reinplace
    reinplace._inplace_generalized_scatter.__code__ = (lambda inp, src, view_ops: inp).__code__
    torch._inductor.config.fallback_random = True


def trace(loss: torch.nn.Module) -> tuple[torch.fx.GraphModule, list[Tensor]]:
    """Return the graph of value and gradients of a batch, and its fake inputs."""
    named = [*loss.named_parameters(), *loss.named_buffers()]
    names, count = [name for name, _ in named], len([*loss.parameters()])
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [torch.empty(BATCH, DIM), torch.empty(BATCH, dtype=torch.int64)]
        inputs += [torch.empty(tensor.shape, dtype=tensor.dtype) for _, tensor in named]

        def step(x: Tensor, labels: Tensor, *held: Tensor) -> tuple[Tensor, ...]:
            x = x.detach().requires_grad_()
            state = [t.detach().requires_grad_() if i < count else t.clone() for i, t in enumerate(held)]
            value = torch.func.functional_call(loss, dict(zip(names, state, strict=True)), (x, labels))
            gradients = torch.autograd.grad(value, [x, *state[:count]], allow_unused=True)
            return (value, *gradients, *state[count:])

        options = {"_allow_non_fake_inputs": True}
        graph = make_fx(step, decomposition_table=select_decomp_table(), **options)(*inputs)
        graph = make_fx(torch.func.functionalize(graph, remove="mutations"), **options)(*inputs)
    return graph, inputs


def count(spec: dict[str, Any]) -> dict[str, int]:
    """Return the kernels that inductor writes for a loss, and its other calls: products, scatters."""
    written: list[str] = []
    GraphLowering.save_output_code = staticmethod(written.append)
    AsyncCompile.triton = lambda *_, **__: types.SimpleNamespace(run=always(None))
    compiling = torch.compiler.is_compiling
    torch.compiler.is_compiling = always(True)
    try:
        graph, inputs = trace(
            losses.build(spec, num_classes=BATCH // PER_CLASS, embedding_dim=DIM, per_class=PER_CLASS)
        )
    finally:
        torch.compiler.is_compiling = compiling
    for node in graph.graph.nodes:
        if node.op == "call_function" and str(node.kwargs.get("device", "")).startswith("cpu"):
            node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}
        if node.op == "output":
            node.args = (tuple(value for value in node.args[0] if value is not None),)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        there = [torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda") for tensor in inputs]
    FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*there)
    with torch._guards.tracing(torch._guards.TracingContext(mode)):
        compile_fx_inner(graph, there)
    code = "\n".join(written)
    calls = re.findall(r"^\s+(?:\w+ = )?(?:extern_kernels|torch\.ops|aten)\.[\w.]+\(", code, re.M)
    return {"kernels": len(re.findall(r"^\s+triton_\w+\.run\(", code, re.M)), "calls": len(calls)}


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    pretend()
    for text in sys.argv[1:]:
        print(json.dumps(count(json.loads(text))), flush=True)
