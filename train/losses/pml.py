"""Adapters for pytorch-metric-learning (PML): its losses and miners here, our losses in its programs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from retrieval.errors import did_you_mean
from train.losses.objective import Objective
from train.losses.view import Measure, View


class PMLMiner:
    """Miner of pytorch-metric-learning, for its losses and for our pair losses.

    It sees the raw embeddings of a batch, and compares them by its own distance.
    """

    def __init__(self, miner: nn.Module) -> None:
        self.miner = miner

    def indices(self, view: View) -> tuple[Tensor, ...]:
        """Return the positions of the chosen triplets, three [T], or pairs, two [P] and two [Q].

        Raises:
            ValueError: There are references.
        """
        if view.references is not None:
            raise ValueError("the miners of pytorch-metric-learning see the batch alone; give no references")
        found: tuple[Tensor, ...] = self.miner(view.embeddings.detach(), view.labels.long())
        return found

    def masks(self, view: View) -> tuple[Tensor, Tensor]:
        """Return the masks of the positives and of the negatives that are in a chosen pair, [B, B] each."""
        found = self.indices(view)
        anchors, positives, others, negatives = found if len(found) == 4 else (*found[:2], found[0], found[2])
        masks = torch.zeros(2, view.batch, view.batch, dtype=torch.bool, device=view.labels.device)
        masks[0, anchors, positives] = True
        masks[1, others, negatives] = True
        return masks[0], masks[1]


class PMLTerm(nn.Module):
    """Loss of pytorch-metric-learning as a term of an objective.

    Args:
        loss: The loss.
        mining: A miner of the same library; `None` for none.
    """

    paired = False
    measure: Measure = "dot"  # takes raw embeddings; whether it normalises them is up to it

    def __init__(self, loss: nn.Module, mining: PMLMiner | None = None) -> None:
        super().__init__()
        self.loss, self.mining = loss, mining

    def forward(self, view: View) -> Tensor:
        labels = view.labels.long()
        if self.mining is not None:
            mined: Tensor = self.loss(view.embeddings, labels, self.mining.indices(view))
            return mined
        if view.references is None:
            value: Tensor = self.loss(view.embeddings, labels)
            return value
        # PML's references replace the batch as candidates; ours extend it.
        points, point_labels = view.references
        batch = torch.arange(view.batch, device=labels.device)
        same = labels[:, None] == point_labels[None, :]
        exists = torch.ones_like(same) if view.usable is None else view.usable.expand_as(same)
        itself = batch[:, None] == torch.arange(len(point_labels), device=labels.device)[None, :]
        positives, negatives = (
            (same & ~itself & exists).nonzero(as_tuple=True),
            (~same & exists).nonzero(as_tuple=True),
        )
        pairs = (*positives, *negatives)
        joint: Tensor = self.loss(view.embeddings, labels, pairs, points, point_labels.long())
        return joint


class PMLCall(nn.Module):
    """One of our objectives with the call of PML's losses.

    `ref_emb` replaces the batch as positives and negatives, where our `ref_embeddings` join it.

    Raises:
        ValueError: References for a loss that forms alternate pairs within the batch.
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """Return the objective of a batch [B, D] with labels [B], against references [M, D] with [M]."""
        replaced = ref_emb is not None and ref_emb is not embeddings
        value: Tensor = self.objective(
            embeddings,
            labels,
            indices_tuple,
            ref_embeddings=ref_emb,
            ref_labels=ref_labels,
            batch_as_candidates=not replaced,
        )
        return value


_SIZES = {
    "num_classes": "num_classes",
    "embedding_size": "embedding_dim",
    "descriptors_dim": "embedding_dim",  # of P2SGradLoss
}
"""Arguments of PML's constructors that the caller of `build` knows, with our names for them."""

_UNUSABLE = (
    *("BaseMetricLossFunction", "GenericPairLoss", "ManifoldLoss", "VICRegLoss"),
    *("BaseMiner", "EmbeddingsAlreadyPackagedAsTriplets"),
)
"""Abstract ones, those that PML refuses to call with labels, and one for batches that are triplets."""

_PREFIX, _EXAMPLE = "pml:", "pml:MultiSimilarityMiner"


def is_pml(name: object) -> bool:
    """Return whether a name is of a class of pytorch-metric-learning: `pml:Class`."""
    return isinstance(name, str) and name.startswith(_PREFIX)


def build_pml(name: str, parameters: Mapping[str, Any], supplied: Mapping[str, int | None]) -> PMLTerm:
    """Build the loss `pml:Class` with its parameters.

    Args:
        name: Name with its prefix.
        parameters: Keyword arguments of the class; `mining`, a mapping with the name of a miner of the same
            library, `pml:Class`, and its parameters.
        supplied: `num_classes` and `embedding_dim`, for a class that requires them.

    Raises:
        ValueError: The package is not installed, an unknown class or parameter, with similar names, a missing
            one, or a miner of ours.
    """
    own = dict(parameters)
    mining = own.pop("mining", None)
    if mining is not None and not (isinstance(mining, Mapping) and is_pml(mining.get("name"))):
        raise ValueError(f"{name!r} takes miners of pytorch-metric-learning alone, as {{name: {_EXAMPLE}}}")
    loss = _instance(name, "losses", "BaseMetricLossFunction", "loss {!r} of labelled images", own, supplied)
    return PMLTerm(loss, None if mining is None else build_pml_miner(mining))


def build_pml_miner(spec: Mapping[str, Any]) -> PMLMiner:
    """Build the miner that a mapping describes, with `name`, `pml:Class`, and its parameters.

    Raises:
        ValueError: The package is not installed, or an unknown class or parameter, with similar names.
    """
    own = dict(spec)
    return PMLMiner(_instance(own.pop("name"), "miners", "BaseMiner", "miner {!r}", own, {}))


def _instance(
    name: str,
    module: str,
    base: str,
    kind: str,
    parameters: Mapping[str, Any],
    supplied: Mapping[str, int | None],
) -> nn.Module:
    """Build an object of a class of a module of PML."""
    try:
        found = import_module(f"pytorch_metric_learning.{module}")
    except ImportError as missing:
        raise ValueError(
            f"{name!r} needs pytorch-metric-learning; install it: pip install pytorch-metric-learning"
        ) from missing
    known: dict[str, Any] = {
        key: cls
        for key, cls in vars(found).items()
        if inspect.isclass(cls) and issubclass(cls, getattr(found, base)) and key not in _UNUSABLE
    }
    wanted = name.removeprefix(_PREFIX)
    if wanted not in known:
        what = kind.format(wanted)
        raise ValueError(f"pytorch-metric-learning has no {what}; {did_you_mean(wanted, known)}")
    taken = _parameters(known[wanted])
    for key in parameters:
        if key not in taken:
            raise ValueError(f"{name!r} has no parameter {key!r}; {did_you_mean(str(key), taken)}")
    built: nn.Module = known[wanted](**_completed(name, known[wanted], taken, parameters, supplied))
    return built


def _completed(
    name: str,
    cls: type,
    taken: Mapping[str, inspect.Parameter],
    parameters: Mapping[str, Any],
    supplied: Mapping[str, int | None],
) -> dict[str, Any]:
    """Return the arguments of a class with the sizes that it requires.

    An optional size is left alone: with `num_classes`, MarginLoss would learn a boundary for each class.
    """
    found = dict(parameters)
    # A base class's requirement counts for sizes only: the others are met by the class between.
    required = [p for p in inspect.signature(cls).parameters if p in taken and _is_required(taken[p])]
    required += [s for s in _SIZES if s not in required and s in taken and _is_required(taken[s])]
    for parameter in required:
        size = supplied[_SIZES[parameter]] if parameter in _SIZES else None
        if parameter not in found and size is not None:
            found[parameter] = size
    missing = [parameter for parameter in required if parameter not in found]
    own = [repr(parameter) for parameter in missing if parameter not in _SIZES]
    if own:
        raise ValueError(f"{name!r} needs {' and '.join(own)}; add {'it' if len(own) == 1 else 'them'}")
    if missing:
        sizes = " and ".join(dict.fromkeys(_SIZES[parameter] for parameter in missing))
        raise ValueError(f"{name!r} has parameters of its own; pass {sizes} to build")
    return found


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty


def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Return the keyword arguments of a class, including those its constructor passes to its base classes."""
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__[: cls.__mro__.index(nn.Module)]:
        for parameter in inspect.signature(base).parameters.values():
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                found.setdefault(parameter.name, parameter)
    return found
