"""Compilation of the network and of the loss with torch.compile, with a fall back to eager execution."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from retrieval.errors import InputError
from retrieval.machine.devices import gpus
from retrieval.machine.gpu_trials import gpu_problem
from retrieval.text import print_notice

# Advice of inductor that nobody can follow: losses are in full float32, and its reductions are its own.
_ADVICE = (r"TensorFloat32 tensor cores", r"\s*Online softmax is disabled")

Compile = Literal["auto", "none", "network", "loss", "all", "graph"]


# Steps from which a compiled network pays: it saves 8 to 11 ms of each (docs/gpu.md).
LONG_RUN = 20_000


def compiled_parts(setting: Compile, device: torch.device, *, long_run: bool = False) -> frozenset[str]:
    """Return which of network and loss to compile; with "graph", the loss is replayed from CUDA graphs.

    `auto` compiles the loss on a GPU where a trial could: hundreds of small operations become about fifty
    kernels. In a long run it compiles the network as well.

    Args:
        setting: The setting `compile`.
        device: Device of the run.
        long_run: The network takes enough steps that its compilation pays.

    Raises:
        InputError: Graphs are asked for on a device that has none.
    """
    if setting == "graph":
        if device.type != "cuda" or torch.version.hip is not None:
            raise InputError(
                f"compile graph: CUDA graphs need an NVIDIA GPU, and this run is on {device}; set compile to "
                "auto or loss"
            )
        return frozenset(("loss", "graph"))
    if setting != "auto":
        return frozenset({"none": (), "all": ("network", "loss")}.get(setting, (setting,)))
    if device.type != "cuda":
        return frozenset()
    problem = gpu_problem("torch", device.index or 0) if gpus() else None  # AMD's GPUs are not tried
    if problem is not None:
        print_notice(f"compile: the loss runs without: {problem.text}; {problem.repair}")
        return frozenset()
    return frozenset(("network", "loss") if long_run else ("loss",))


class Compiled:
    """A module that is called through torch.compile, or eagerly after a failure of the compiler.

    The module itself stays as it is: validation calls it eagerly, so that another batch size does not cost a
    second compilation.

    With graphs, inductor records forward and backward pass in the second step, once for each size of a batch,
    and replays them. What it cannot record runs compiled, and one line says so. A replay overwrites the
    results of the one before: those that outlive a step, value and diagnostics, are copied; gradients are
    used up within it.

    Args:
        module: Module to compile.
        name: For the message.
        eager_when: The call is eager while this is true.
        graph: Replay the compiled module from CUDA graphs.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str,
        eager_when: Callable[[], bool] = lambda: False,
        *,
        graph: bool = False,
    ) -> None:
        self._module, self._name, self._eager_when = module, name, eager_when
        self._graph, self._skips = graph, float(_skipped_graphs())
        for advice in _ADVICE:
            warnings.filterwarnings("ignore", advice, UserWarning)
        # Random miners draw the same numbers as without compilation.
        self._compiled: Callable[..., Tensor] | None = torch.compile(
            module, options={"fallback_random": True, "triton.cudagraphs": graph}
        )

    def __call__(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        if self._compiled is not None and not self._eager_when():
            try:
                if self._graph:
                    torch.compiler.cudagraph_mark_step_begin()
                # Compile the backward pass now, too, where a failure can still be handled.
                with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
                    value = self._compiled(*inputs, **named)
                return self._copied(value) if self._graph else value
            except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
                reason = str(getattr(error, "inner_exception", error)).split("\n")[0]
                print_notice(f"compile: the {self._name} could not be compiled ({reason}); it runs without")
                self._compiled = None
        result: Tensor = self._module(*inputs, **named)
        return result

    def _copied(self, value: Tensor) -> Tensor:
        """Return a copy of the value, with copies of the diagnostics in the module."""
        if _skipped_graphs() > self._skips:
            self._skips = math.inf  # one line is enough
            print_notice(
                f"compile: torch records no CUDA graph of a part of the {self._name}, which runs compiled; "
                "TORCH_LOGS=cudagraphs shows why"
            )
        diagnostics: dict[str, Tensor] = getattr(self._module, "diagnostics", {})
        diagnostics.update({name: number.clone() for name, number in diagnostics.items()})
        return value.clone()


def _skipped_graphs() -> int:
    """Return how many graphs inductor left out in this process."""
    return int(torch._dynamo.utils.counters["inductor"]["cudagraph_skips"])
