"""Builder of training objectives from specifications, as in recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from torch import nn

from retrieval.errors import did_you_mean
from train.losses.cross_batch_memory import CrossBatchMemory
from train.losses.distillation import Distillation
from train.losses.matryoshka import prefix_weights
from train.losses.negatives import NegativeSource
from train.losses.objective import Objective
from train.losses.pml import PMLMiner, build_pml, build_pml_miner, is_pml
from train.losses.registry import (
    WORDS,
    Entry,
    check_effects,
    check_parameters,
    entries,
    find,
    not_loaded,
    require,
    signature,
)
from train.losses.view import NormalizationGradient

_PARTS = (
    "name",
    "negatives",
    "mining",
    "regularizers",
    "memory",
    "normalization_gradient",
    "dims",
    "dim_weights",
)


def build(
    spec: Mapping[str, Any],
    *,
    num_classes: int | None = None,
    embedding_dim: int | None = None,
    per_class: int | None = None,
    distillation: float | None = None,
) -> Objective:
    """Build the training objective that a specification describes.

    Args:
        spec: `name` and the loss's own parameters; `negatives`, the name of a source (with its parameters
            beside it, or both as a mapping); `mining`, the parameters of a miner, or null for none;
            `regularizers`, a list of mappings with `name`, `weight` and own parameters; `memory`, the number
            of past embeddings to keep (0 for none) or a mapping with `size` and `warmup`;
            `normalization_gradient`, exact or ignored (see Objective); `dims`, prefixes of the embedding that
            are trained, too, with `dim_weights` (see matryoshka). Without `name` there must be regularizers.
            A name `pml:Class` builds that loss, or in `mining` that miner, of pytorch-metric-learning.
        num_classes: Number of training classes; required by losses with proxies and by classifiers.
        embedding_dim: Embedding dimension; required by those, by a memory and by `dims`.
        per_class: Samples of every class in a batch, if all have the same number: faster transport on
            accelerators, where it is not read from the labels.
        distillation: Weight of a distillation, which is added like a regularizer and needs `targets` in every
            call; `None` for none.

    Returns:
        A module with `module(embeddings, labels, *, ref_embeddings=None, ref_labels=None, targets=None)` and
        `diagnostics`.

    Raises:
        ValueError: An unknown name or parameter (with similar names), or parts that cannot be combined.

    Example:
        >>> import torch
        >>> from lookalike import losses
        >>> loss = losses.build({"name": "triplet", "negatives": "optimal", "margin": 0.2})
        >>> x = torch.eye(4).requires_grad_()
        >>> value = loss(x, torch.tensor([0, 0, 1, 1]))  # orthogonal samples, pairs 90 degrees apart
        >>> round(value.item(), 4)
        0.2
    """
    if not isinstance(spec, Mapping):
        example = spec if isinstance(spec, str) else "triplet"
        raise TypeError(
            f"a loss is specified by a mapping, not by {type(spec).__name__}: {{'name': {example!r}}}"
        )
    spec = dict(spec)
    supplied = {"num_classes": num_classes, "embedding_dim": embedding_dim, "per_class": per_class}
    name = spec.pop("name", None)
    regularizers = [_regularizer(part, supplied) for part in _list(spec.pop("regularizers", None))]
    if distillation is not None:
        regularizers.append((distillation, Distillation()))
    memory = _memory(spec.pop("memory", None), embedding_dim)
    gradient = spec.pop("normalization_gradient", "exact")
    if gradient not in get_args(NormalizationGradient):
        hint = did_you_mean(str(gradient), get_args(NormalizationGradient))
        raise ValueError(f"normalization_gradient is {gradient!r}; {hint}")
    prefixes = prefix_weights(spec, embedding_dim)
    spec = {key: value for key, value in spec.items() if key not in ("dims", "dim_weights")}
    term: nn.Module | None = None
    if name is None and spec:
        raise ValueError(f"{', '.join(map(repr, spec))} given without the `name` of a loss")
    if isinstance(name, str) and is_pml(name):
        term = build_pml(name, spec, supplied)
        if prefixes and next(term.parameters(), None) is not None:
            raise ValueError(f"dims: {name!r} has weights of one dimension; leave dims out")
    elif name is not None:
        term = _term(find("loss", name), spec, supplied)
    if memory is not None and isinstance(getattr(term, "mining", None), PMLMiner):
        raise ValueError("memory: the miners of pytorch-metric-learning see the batch alone; leave one out")
    return Objective(term, regularizers, memory, gradient, prefixes)


def _list(parts: Any) -> Sequence[Any]:
    if parts is None:
        return ()
    if isinstance(parts, Mapping) or not isinstance(parts, Sequence):
        raise ValueError(f"regularizers is {parts!r}; it must be a list of mappings with `name` and `weight`")
    return parts


def _term(entry: Entry, spec: dict[str, Any], supplied: Mapping[str, int | None]) -> nn.Module:
    source, source_entry = _source(entry, spec)
    miner = _miner(entry, spec)
    if isinstance(miner, PMLMiner) and source is not None:
        raise ValueError(
            "mining: the miners of pytorch-metric-learning choose samples; leave negatives out, or mining"
        )
    parts = {
        p.name: part
        for p in signature(entry.cls)
        if (part := {"negatives": source, "mining": miner}.get(p.name))
    }
    also = [*_PARTS, *(source_entry.parameters if source_entry else ())]
    own = check_parameters(entry, spec, also)
    check_effects(entry, own, {"negatives": source, "mining": miner})
    term: nn.Module = entry.cls(**own, **parts, **_supply(entry, supplied))
    if source is not None:
        source.check(getattr(term, "measure", "cosine"))  # losses without the attribute compare cosines
    return term


def _source(entry: Entry, spec: dict[str, Any]) -> tuple[Any, Entry | None]:
    """Build the source of negatives, removing its parameters from the specification."""
    given = spec.pop("negatives", "batch")
    own = dict(given) if isinstance(given, Mapping) else {"name": given}
    name = own.pop("name", None)
    if name == "batch":
        if own:
            raise ValueError(
                f"negatives: {', '.join(own)} has no effect on the samples of the batch; leave it out, or "
                "name a source of synthetic negatives"
            )
        return None, None
    source = find("negatives", name)
    _check_accepted(entry, source, entry.negatives)
    beside = [key for key in source.parameters if key in spec and key not in entry.parameters]
    own.update({key: spec.pop(key) for key in beside})
    return source.cls(**check_parameters(source, own)), source


def _miner(entry: Entry, spec: dict[str, Any]) -> Any:
    given = spec.pop("mining", entry.default_mining)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ValueError(
            f"mining is {given!r}; it must be a mapping, as {{positive: easy, negative: hard}}, or null"
        )
    own = dict(given)
    name = own.pop("name", "triplet")
    if is_pml(name):
        if "vthm" not in entry.mining:
            refusal = "of pytorch-metric-learning's miners, our pair losses and its own losses take any"
            raise ValueError(f"{entry.name!r} does not take mining {name!r}: {refusal}")
        return build_pml_miner(given)
    miner = find("mining", name)
    _check_accepted(entry, miner, entry.mining)
    check_effects(miner, check_parameters(miner, own))
    return miner.cls(**own)


def _check_accepted(entry: Entry, part: Entry, taken: tuple[str, ...]) -> None:
    """Raise a ValueError for a source of negatives or a miner that a loss does not take.

    Of plug-ins, a loss takes the sub-classes of the miners that it takes, and if it takes sources, all.
    """
    if part.name in taken:
        return
    if part.kind == "mining":
        bases = tuple(find("mining", name).cls for name in taken)
    else:
        bases = (NegativeSource,) if len(taken) > 1 else ()
    if part.is_ours or not issubclass(part.cls, bases):
        refusal = entry.refusal or f"it takes {', '.join(taken) or 'none'}"
        raise ValueError(f"{entry.name!r} does not take {part.kind} {part.name!r}: {refusal}")


def _regularizer(part: Any, supplied: Mapping[str, int | None]) -> tuple[float, nn.Module]:
    if not isinstance(part, Mapping) or "name" not in part:
        raise ValueError(f"{part!r} is no regularizer; it must be a mapping with `name` and `weight`")
    own = dict(part)
    entry = find("regularizer", own.pop("name"))
    weight = own.pop("weight", entry.default_weight(own))
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise ValueError(f"weight of regularizer {entry.name!r} is {weight!r}; it must be a number")
    return float(weight), entry.cls(**check_parameters(entry, own, ["weight"]), **_supply(entry, supplied))


def _supply(entry: Entry, supplied: Mapping[str, int | None]) -> dict[str, int]:
    """Return the arguments that the caller of `build` supplies, as far as the entry takes them."""
    found = {}
    for parameter in signature(entry.cls):
        value = supplied.get(parameter.name)
        if value is not None:
            found[parameter.name] = value
        elif parameter.name in supplied and parameter.default is parameter.empty:
            needed = " and ".join(p.name for p in signature(entry.cls) if supplied.get(p.name, 0) is None)
            raise ValueError(f"{entry.name!r} has parameters of its own; pass {needed} to build")
    return found


def _memory(given: Any, embedding_dim: int | None) -> CrossBatchMemory | None:
    if given is None or (given == 0 and not isinstance(given, bool)):
        return None
    own = dict(given) if isinstance(given, Mapping) else {"size": given}
    for key, value in own.items():
        if key not in ("size", "warmup"):
            raise ValueError(f"memory has no parameter {key!r}; {did_you_mean(str(key), ['size', 'warmup'])}")
        whole = isinstance(value, int) and not isinstance(value, bool)
        require(whole, f"memory {key}", value, "a whole number")
    if "size" not in own:
        raise ValueError("memory needs its `size`, the number of embeddings to keep")
    if embedding_dim is None:
        raise ValueError("a memory stores embeddings; pass embedding_dim to build")
    return CrossBatchMemory(embedding_dim=embedding_dim, **own) if own["size"] else None


_OF_EVERY_LOSS = """Of every loss

regularizers: List of the regularizers above, each with its `weight`.
memory: Number of embeddings of past batches that are compared, too (cross-batch memory); 0 for none.
normalization_gradient: exact, or ignored to use the gradient by the unit vectors as that of the embeddings \
(SCT, section 4); refused by losses on raw embeddings.
dims: Prefixes of the embedding that are trained, too, as [16, 32], so that a vector can be cut off there \
(Matryoshka embeddings, Kusupati et al. 2022); the whole embedding always counts.
dim_weights: Weight of the loss of each of dims and of the whole embedding, by default equal."""

TITLES = {"loss": "Losses", "negatives": "Negatives", "mining": "Mining", "regularizer": "Regularizers"}


class Names(dict[str, Entry]):
    """Entries by name; iteration yields the names, `str` a readable listing."""

    def __str__(self) -> str:
        return "\n".join(str(entry) for entry in self.values())


def names(kind: str = "loss") -> Names:
    """Return the entries of a kind: summary, source, parameters with defaults, accepted negatives and miners.

    Args:
        kind: Loss, negatives, mining or regularizer.

    Example:
        >>> from lookalike import losses
        >>> "triplet" in losses.names()
        True
        >>> losses.names()["n-pair"].negatives
        ('batch', 'optimal', 'optimal-segment', 'symmetric', 'interpolated')
    """
    if kind not in TITLES:
        raise ValueError(f"there is no kind {kind!r}; {did_you_mean(kind, TITLES)}")
    return Names(entries(kind))  # type: ignore[arg-type]


def describe(*wanted: str) -> str:
    """Return a terminal text on losses, sources of negatives, miners and regularizers.

    Args:
        wanted: Names to describe in detail; if there are none, everything is listed with its summary.

    Raises:
        ValueError: A name is unknown; the message suggests similar names.
    """
    others = {kind: not_loaded(kind) for kind in WORDS}
    for name in wanted:
        for kind in [kind for kind, of_kind in others.items() if name in of_kind]:
            find(kind, name)
    known = {kind: names(kind) for kind in TITLES}
    every = [name for of_kind in known.values() for name in of_kind]
    for name in wanted:
        if name not in every:
            similar = [*every, *(name for of_kind in others.values() for name in of_kind)]
            hint = did_you_mean(name, similar, "`lookalike losses` lists the names")
            raise ValueError(f"unknown name {name!r}; {hint}")
    chosen = {
        kind: Names({name: entry for name, entry in of_kind.items() if not wanted or name in wanted})
        for kind, of_kind in known.items()
    }
    texts = {
        kind: "\n\n".join(entry.describe() for entry in of_kind.values()) if wanted else str(of_kind)
        for kind, of_kind in chosen.items()
        if of_kind
    }
    parts = [f"{TITLES[kind]}\n\n{text}" for kind, text in texts.items()]
    if wanted:
        return "\n\n".join(parts)
    lines = [
        f"{name}: {WORDS[kind]} of {origin}"
        for kind, of_kind in others.items()
        for name, origin in of_kind.items()
    ]
    return "\n\n".join([*parts, _OF_EVERY_LOSS, *(["Plug-ins", "\n".join(lines)] if lines else [])])
