"""Compilation of the network and of the loss with torch.compile, with a fall back to eager execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from retrieval.machine.devices import gpus
from retrieval.machine.gpu_trials import gpu_problem
from retrieval.text import print_notice

Compile = Literal["auto", "none", "network", "loss", "all"]


def compiled_parts(setting: Compile, device: torch.device) -> frozenset[str]:
    """Return which of network and loss to compile.

    `auto` compiles the loss on a GPU where a trial could: hundreds of small operations become about fifty
    kernels. The network gains less, and takes minutes.
    """
    if setting != "auto":
        return frozenset({"none": (), "all": ("network", "loss")}.get(setting, (setting,)))
    if device.type != "cuda":
        return frozenset()
    problem = gpu_problem("torch", device.index or 0) if gpus() else None  # AMD's GPUs are not tried
    if problem is not None:
        print_notice(f"compile: the loss runs without: {problem.text}; {problem.repair}")
    return frozenset(() if problem else ("loss",))


class Compiled:
    """A module that is called through torch.compile, or eagerly after a failure of the compiler.

    The module itself stays as it is: validation calls it eagerly, so that another batch size does not cost a
    second compilation.

    Args:
        module: Module to compile.
        name: For the message.
        eager_when: The call is eager while this is true.
    """

    def __init__(self, module: nn.Module, name: str, eager_when: Callable[[], bool] = lambda: False) -> None:
        self._module, self._name, self._eager_when = module, name, eager_when
        # Random miners draw the same numbers as without compilation.
        self._compiled: Callable[..., Tensor] | None = torch.compile(
            module, options={"fallback_random": True}
        )

    def __call__(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        if self._compiled is not None and not self._eager_when():
            try:
                # Compile the backward pass now, too, where a failure can still be handled.
                with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
                    return self._compiled(*inputs, **named)
            except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InductorError) as error:
                reason = str(getattr(error, "inner_exception", error)).split("\n")[0]
                print_notice(f"compile: the {self._name} could not be compiled ({reason}); it runs without")
                self._compiled = None
        result: Tensor = self._module(*inputs, **named)
        return result
