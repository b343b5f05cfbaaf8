"""LoRA: low-rank updates of the linear layers of a transformer (Hu et al. 2022), through peft.

An adapted layer computes W x + (alpha / rank) B A x, with A and B learned and W frozen. After training, the
product is added to W: the network has its own layers again, and exports and evaluations see nothing of it.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from retrieval.errors import InputError
from retrieval.machine.extras import needs

# Last names of the linear layers of attention and of MLPs in timm, torchvision and their relatives.
_ATTENTION = ("qkv", "q", "k", "v", "kv", "query", "key", "value", "proj")
_MLP = ("fc1", "fc2", "fc1_g", "fc1_x", "w1", "w2", "w3", "w12")
_TARGETS = frozenset([*_ATTENTION, *_MLP])
_INSERTED = re.compile(r"\.base_layer\.|\.lora_[AB]\.default\.")


def add_adapters(network: nn.Module, name: str, sample: Tensor, rank: int, alpha: float) -> None:
    """Adapt the attention and MLP layers of a network in place, and freeze all other weights.

    Only layers that the network calls are adapted: some of timm's read the weights of a layer instead, and
    would not notice an adapter.

    Args:
        network: Module that maps images to features when called.
        name: Name of the backbone, for error messages.
        sample: Planes that the network accepts, float32 [1, 3, H, W].
        rank: Rank of the updates.
        alpha: Scale of the updates times the rank.

    Raises:
        InputError: peft is not installed, or the network has no such layers.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise InputError(f"model.lora_rank: {needs('peft')}") from error
    layers = {path: module for path, module in network.named_modules() if isinstance(module, nn.Linear)}
    wanted = {module: path for path, module in layers.items() if path.rpartition(".")[2] in _TARGETS}
    called: dict[str, None] = {}
    hooks = [
        module.register_forward_hook(lambda module, *_: called.setdefault(wanted[module]))
        for module in wanted
    ]
    training = network.training
    with torch.no_grad():
        network.eval()(sample)
    network.train(training)
    for hook in hooks:
        hook.remove()
    if not called:
        raise InputError(
            f"model.lora_rank: {name} has no attention or MLP layers that LoRA can adapt; use a transformer "
            "of timm, or leave it out"
        )
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(called)), network)
    for path, parameter in network.named_parameters():
        parameter.requires_grad_(".lora_" in path)


def merge_adapters(network: nn.Module) -> None:
    """Add the updates to the weights in place and remove the adapters, if there are any."""
    if not has_adapters(network):
        return
    from peft.tuners.lora import LoraLayer

    for path, module in list(network.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge()
            network.set_submodule(path, module.get_base_layer())


def has_adapters(network: nn.Module) -> bool:
    """Return whether a network has adapters."""
    return any(".lora_" in path for path, _ in network.named_parameters())


def own_name(path: str) -> str:
    """Return the name that a weight, or the weight that an update belongs to, has without adapters."""
    return _INSERTED.sub(".", path)
