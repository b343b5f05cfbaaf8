"""How a step is taken: the optimizer, its learning rates, and the running average of the weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from train.config import OptimizerConfig, ScheduleConfig
from train.models.embedding_model import EmbeddingModel


def build_optimizer(
    model: EmbeddingModel, loss: nn.Module, config: OptimizerConfig, *, fused: bool = False
) -> torch.optim.Optimizer:
    """The optimizer over all that learns; each group's `initial_lr` is its rate at its highest.

    The rate of a stage of the backbone is `layer_decay` times that of the next one; the last stage has `lr`
    (Clark et al. 2020, ELECTRA, for fine-tuning).

    Args:
        fused: one kernel for all weights, on devices that have it.
    """
    stages = model.stages()
    rates = [config.lr * config.layer_decay ** (len(stages) - 1 - i) for i in range(len(stages))]
    groups = [_group(parameters, rate, config) for parameters, rate in zip(stages, rates, strict=True)]
    groups.append(_group(model.head_parameters(), config.head_lr or config.lr, config))
    groups.append(
        {**_group(list(loss.parameters()), config.loss_lr or config.lr, config), "weight_decay": 0.0}
    )
    groups = [group for group in groups if group["params"]]
    if config.name == "sgd":
        return torch.optim.SGD(groups, momentum=config.momentum, fused=fused)
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    return kind(groups, fused=fused)


def _group(parameters: list[nn.Parameter], rate: float, config: OptimizerConfig) -> dict[str, Any]:
    return {
        "params": [parameter for parameter in parameters if parameter.requires_grad],
        "lr": rate,
        "initial_lr": rate,
        "weight_decay": config.weight_decay,
    }


def rate_factor(config: ScheduleConfig, step: int, per_epoch: int, epochs: int) -> float:
    """What the learning rates are multiplied by in a step.

    Args:
        step: how many have been taken.
        per_epoch: how many an epoch has.
    """
    if step < config.warmup * per_epoch:
        return (step + 1) / (config.warmup * per_epoch + 1)
    epoch = step / per_epoch
    if config.name == "step":
        return config.gamma ** sum(epoch >= at for at in config.at)
    if config.name == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (epoch - config.warmup) / max(epochs - config.warmup, 1e-9)))
    return 1.0


@torch.no_grad()
def update_ema(average: nn.Module, model: nn.Module, decay: float, step: int) -> None:
    """Move a running average of all weights and statistics towards those of a model.

    Early on it follows more closely, by (1 + step) / (10 + step): the random weights of the beginning have
    no place in it.

    Args:
        step: how many steps have been taken.
    """
    blend = get_ema_multi_avg_fn(min(decay, (1 + step) / (10 + step)))
    ours, theirs = average.state_dict(), model.state_dict()
    floating = [name for name, value in theirs.items() if value.is_floating_point()]
    blend([ours[name] for name in floating], [theirs[name] for name in floating], None)
    for name in theirs.keys() - set(floating):
        ours[name].copy_(theirs[name])
