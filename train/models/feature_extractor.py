"""Feature extractor: a network without its classifier, with the layout of its features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from retrieval.errors import InputError

Weights = Mapping[str, Tensor]


def forward(network: nn.Module, planes: Tensor) -> Tensor:
    """Return what a network returns when it is called."""
    output: Tensor = network(planes)
    return output


@dataclass(frozen=True)
class FeatureExtractor:
    """Network without its classifier, with or without its own pooling.

    Attributes:
        network: Network, built from the classifier's own modules.
        classifier_tensors: Tensors of the whole classifier, by the names used in weight files.
        published_weights: Functions that load or download weights with those names, by the name of the
            weights; empty if none are published. "imagenet" is what the library recommends.
        compute: Function of `network` and planes [N, 3, H, W] that returns features.
        layout: Layout of the features: NCHW, NHWC, tokens [N, T, C], or vector [N, C], which the network has
            pooled.
        prefix: Number of tokens before those of locations.
        has_class_token: Whether the first token is the class token.
        stages: Parameter names by stage; if empty, the network is sequential and stages follow its map sizes.
    """

    network: nn.Module
    classifier_tensors: Weights
    published_weights: Mapping[str, Callable[[], Weights]] = field(default_factory=dict)
    compute: Callable[[nn.Module, Tensor], Tensor] = forward
    layout: str = "NCHW"
    prefix: int = 0
    has_class_token: bool = False
    stages: tuple[tuple[str, ...], ...] = ()

    def features(self, name: str, size: int, planes: Tensor | None = None) -> Tensor:
        """Return the features of planes [N, 3, size, size], or of one black image, in evaluation mode.

        Raises:
            InputError: The network cannot process images of that size.
        """
        training = self.network.training
        self.network.eval()
        try:
            return self.compute(self.network, torch.zeros(1, 3, size, size) if planes is None else planes)
        except (RuntimeError, AssertionError, ValueError, IndexError) as error:
            raise unusable_size(name, size, error) from error
        finally:
            self.network.train(training)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers (not copies), by name."""
    return module.state_dict(keep_vars=True)


def unusable_size(name: str, size: int, error: Exception) -> InputError:
    """Return the error for an image size that a network cannot process."""
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    return InputError(f"preprocess.size: {name} cannot process images of {size} x {size} ({reason})")
