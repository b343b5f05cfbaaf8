"""Optimizer, learning rate schedule and exponential moving average (EMA) of the weights."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from train.config import OptimizerConfig, ScheduleConfig
from train.models.embedding_model import EmbeddingModel


def build_optimizer(
    model: EmbeddingModel,
    loss: nn.Module,
    config: OptimizerConfig,
    *,
    auxiliary: nn.Module | None = None,
    fused: bool = False,
) -> torch.optim.Optimizer:
    """Build the optimizer over all trainable parameters; a group's `initial_lr` is its peak learning rate.

    The learning rate of a backbone stage is `layer_decay` times that of the next stage; the last stage has
    `lr` (Clark et al. 2020, ELECTRA, for fine-tuning).

    Args:
        model: Model to train.
        loss: Loss, whose own parameters are trained too, without weight decay.
        config: Optimizer settings.
        auxiliary: Layers beside the head that are trained like it, but are no part of the model.
        fused: Use one fused kernel for all weights, on devices that support it.
    """
    stages = model.stages()
    rates = [config.lr * config.layer_decay ** (len(stages) - 1 - i) for i in range(len(stages))]
    groups = [_group(parameters, rate, config) for parameters, rate in zip(stages, rates, strict=True)]
    beside = [] if auxiliary is None else list(auxiliary.parameters())
    groups.append(_group([*model.head_parameters(), *beside], config.head_lr or config.lr, config))
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
    """Return the factor on all learning rates for a step.

    Args:
        config: Learning rate schedule.
        step: Number of steps done.
        per_epoch: Steps per epoch.
        epochs: Epochs of the whole run.
    """
    if step < config.warmup * per_epoch:
        return (step + 1) / (config.warmup * per_epoch + 1)
    epoch = step / per_epoch
    if config.name == "step":
        return config.gamma ** sum(epoch >= at for at in config.at)
    if config.name == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (epoch - config.warmup) / max(epochs - config.warmup, 1e-9)))
    return 1.0


def set_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rate of every parameter group to its peak rate times a factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


@torch.no_grad()
def update_ema(average: nn.Module, model: nn.Module, decay: float, step: int) -> None:
    """Update an exponential moving average (EMA) of all weights and statistics of a model in place.

    The effective decay is at most (1 + step) / (10 + step), so that the random initial weights fade quickly.

    Args:
        average: Averaged model, updated in place.
        model: Model being trained.
        decay: EMA decay.
        step: Number of steps done.
    """
    blend = get_ema_multi_avg_fn(min(decay, (1 + step) / (10 + step)))
    averages, weights = average.state_dict(), model.state_dict()
    floating = [name for name, value in weights.items() if value.is_floating_point()]
    blend([averages[name] for name in floating], [weights[name] for name in floating], None)
    counts = [name for name, value in weights.items() if not value.is_floating_point()]
    if counts:
        torch._foreach_copy_([averages[name] for name in counts], [weights[name] for name in counts])
