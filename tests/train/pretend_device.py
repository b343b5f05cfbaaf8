"""Pretended accelerator: finds host reads and copies between devices without a GPU.

Tensors of the device have shapes and no values: FakeTensorMode on a PrivateUse1 device registered in Python.
Forward and backward passes run as on a real accelerator, and operations that would wait for it, or take data
from host memory, are recorded:

    with pretend_device() as device:
        x = torch.randn(8, 4, device=device, requires_grad=True)
        with Watch() as watch:
            (2 * x).sum().backward()
    assert watch.found == []

Reading a value also raises an error of torch, because there is none; so does a copy of numbers from the host,
`torch.tensor(numbers, device=...)`. A module is built before and moved with `place`, or built inside
`with device:`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree, backend_registration
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "pretend"

# These wait for the device because the result, or its shape, depends on values.
_READS = (
    "_local_scalar_dense",
    "nonzero",
    "unique",
    "_unique2",
    "unique_consecutive",
    "masked_select",
    "equal",
)
_MASKED = ("index", "index_put", "index_put_", "_index_put_impl_")


class _Presence:
    """Whether torch finds the device: only inside `pretend_device`, for the sake of other tests."""

    entered = 0


class _Backend(backend_registration._DummyBackendModule):
    def is_available(self) -> bool:
        return _Presence.entered > 0

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


class _Hook(backend_registration._DummyPrivateUse1Hook):
    def is_available(self) -> bool:
        return _Presence.entered > 0


# When this is imported: the first backward pass of a process fixes the devices of the autograd engine.
backend_registration._setup_privateuseone_for_python_backend(NAME, _Backend(), _Hook())


@contextmanager
def pretend_device() -> Iterator[torch.device]:
    """Enter fake tensors, for which the device exists, and yield it."""
    _Presence.entered += 1
    try:
        with FakeTensorMode():
            yield torch.device(NAME)
    finally:
        _Presence.entered -= 1


def place(module: nn.Module, device: torch.device) -> None:
    """Replace the parameters and buffers of a module, built on the CPU, by tensors of the device.

    `Module.to` would swap each tensor with its copy, which fake tensors refuse.
    """
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = nn.Parameter(_like(parameter, device), parameter.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = _like(buffer, device)


def _like(tensor: Tensor, device: torch.device) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


class Watch(TorchDispatchMode):
    """Record operations that touch host memory or wait for the device, in forward and backward passes.

    Attributes:
        found: One line for every such operation: its name and the devices and shapes of its tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        inputs = _tensors((args, kwargs))
        name = func.overloadpacket.__name__
        if name in _READS or (name in _MASKED and any(_is_mask(index) for index in args[1])):
            self.found.append(_line(func, inputs))
        result = func(*args, **(kwargs or {}))
        outputs = _tensors(result)
        if any(tensor.device.type == "cpu" for tensor in (*inputs, *outputs)):
            self.found.append(_line(func, [*inputs, *outputs]))
        return result


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _line(func: Callable[..., Any], tensors: Sequence[Tensor]) -> str:
    return f"{func}({', '.join(f'{tensor.device.type}{list(tensor.shape)}' for tensor in tensors)})"
