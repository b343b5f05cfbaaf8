"""A network without its classifier, described enough to get features of places out of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from retrieval.errors import InputError

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class FeatureExtractor:
    """A network without its classifier.

    Attributes:
        network: made of the classifier's own modules.
        classifier_tensors: the tensors of the whole classifier, by the names that files of weights use.
        published_weights: downloads weights of ImageNet, with those names; `None`: there are none.
        method: of `network`: planes [N, 3, H, W] -> features.
        layout: of the features: NCHW, NHWC, or tokens [N, T, C].
        prefix: how many tokens come before those of places.
        has_class_token: it is the first of them.
        stages: names of parameters; empty: the network is a chain of layers, and their maps' sides tell.
    """

    network: nn.Module
    classifier_tensors: Weights
    published_weights: Callable[[], Weights] | None = None
    method: str = "forward"
    layout: str = "NCHW"
    prefix: int = 0
    has_class_token: bool = False
    stages: tuple[tuple[str, ...], ...] = ()

    def features(self, name: str, size: int) -> Tensor:
        """The features of one black picture.

        Raises:
            InputError: pictures of that size do not go through.
        """
        training = self.network.training
        self.network.eval()
        try:
            features: Tensor = getattr(self.network, self.method)(torch.zeros(1, 3, size, size))
            return features
        except (RuntimeError, AssertionError, ValueError, IndexError) as error:
            raise unusable_size(name, size, error) from error
        finally:
            self.network.train(training)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers themselves, by name."""
    return module.state_dict(keep_vars=True)


def unusable_size(name: str, size: int, error: Exception) -> InputError:
    """What a network says to pictures of a size that it was not made for, in one sentence."""
    reason = " ".join(str(error).split())[:160] or type(error).__name__
    return InputError(f"preprocess.size: {name} cannot take pictures of {size} x {size} ({reason})")
