"""Training objective: a loss with its regularizers and its cross-batch memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from train.losses.checks import check_batch, check_finite
from train.losses.cross_batch_memory import CrossBatchMemory
from train.losses.ops import masked_sum, ratio, sum_over_rows
from train.losses.view import NormalizationGradient, PairsView, Table, View


class Pairs(NamedTuple):
    """Values of the pairs of a batch; see `PairsView`."""

    values: Tensor  # [P]
    usable: Tensor  # [P] bool


class Objective(nn.Module):
    """Loss with its regularizers: `objective(embeddings, labels)` returns a differentiable scalar.

    Every sample of the batch is an anchor. Its positives and negatives are the other samples of the batch,
    the references and, in training mode with a memory, the embeddings of past batches; regularizers and
    proxies use the batch alone. Alternate pairs are formed over the batch followed by the references.

    Computes in float32 or wider, also under autocast; float64 for the closest points of arcs and segments.

    Attributes:
        diagnostics: Detached scalar tensors of the last call: mean_positive and mean_negative cosine in the
            batch, hard_anchor_share (of anchors whose hardest negative in the batch is closer than their
            easiest positive) and, if applicable, active_share and hard_share (negative closer than positive)
            of the triplets or pairs, synthetic_share of the points that a source of negatives selected,
            transport_cost, transport_iterations, transport_error, transport_converged, kernel_active
            (`mmd-laplacian`) and distillation, its value without the weight.
        measures_gradients: Also report gradient_ratio, the norm of the gradient of the weighted regularizers
            over that of the loss, both with respect to the embeddings. This costs a second backward pass of
            the loss and of the regularizers, not of the network; the trainer does it in the steps it logs.
            Not finite where the loss has no gradient, as without active triplets.

    Args:
        term: The loss; None for the regularizers alone.
        regularizers: Weights and regularizers.
        memory: Cross-batch memory, or None.
        normalization_gradient: Exact, or ignored: the value is that of the unit vectors z, and dL/dz, with L
            a function of their cosines, is used as the gradient by the raw embeddings. This is the update
            that SCT analyses as its first problem: its part along z changes the length alone, and is lost
            when the vectors are normalised again.
        prefixes: Dimension -> weight of the prefixes of the embedding whose objectives are added, ascending,
            the last one complete; without them the whole embedding alone.

    Raises:
        ValueError: Nothing to minimise, a memory without effect, or an ignored normalization that the loss
            does not have.
    """

    def __init__(
        self,
        term: nn.Module | None,
        regularizers: Sequence[tuple[float, nn.Module]] = (),
        memory: CrossBatchMemory | None = None,
        normalization_gradient: NormalizationGradient = "exact",
        prefixes: Mapping[int, float] | None = None,
    ) -> None:
        super().__init__()
        if term is None and not regularizers:
            raise ValueError("an objective needs a loss or a regularizer")
        if memory is not None and not getattr(term, "uses_references", term is not None):
            raise ValueError("memory: this objective compares no samples, so a memory has no effect")
        if normalization_gradient == "ignored":
            _require_normalized(term, [module for _, module in regularizers])
        self.normalization_gradient = normalization_gradient
        self.prefixes = dict(prefixes or {})
        self.term = term
        self.regularizers = nn.ModuleList(module for _, module in regularizers)
        self.weights = [weight for weight, _ in regularizers]
        self.memory = memory
        self.paired = bool(getattr(term, "paired", False))
        wide = bool(getattr(getattr(term, "negatives", None), "wide", False))
        self._precision = torch.float64 if wide else torch.float32
        self.diagnostics: dict[str, Tensor] = {}
        self.measures_gradients = False

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: None = None,
        *,
        ref_embeddings: Tensor | None = None,
        ref_labels: Tensor | None = None,
        targets: Tensor | None = None,
        batch_as_candidates: bool = True,
        pairs: Pairs | None = None,
    ) -> Tensor:
        """Return the objective of a batch, a scalar tensor in float32 or wider.

        Args:
            embeddings: Raw embeddings, [B, D].
            labels: [B] integers.
            indices_tuple: None, for compatibility with the trainers of pytorch-metric-learning.
            ref_embeddings: [M, D], more positives and negatives for the batch, from other samples; passing
                the tensor `embeddings` itself adds nothing.
            ref_labels: [M] integers, their labels.
            targets: [B, T], the vectors of a teacher, for distillation.
            batch_as_candidates: With False, the references replace the batch as positives and negatives, as
                in pytorch-metric-learning; for losses without alternate pairs.
            pairs: Values of the pairs (0, 1), (2, 3), ... of the batch: these alone are compared, and the
                labels are ignored. For objectives that `check_pairs` accepts.

        Raises:
            TypeError, ValueError: Wrong shapes, types or devices; on the CPU also values that are not finite,
                which elsewhere make the objective NaN.
        """
        if indices_tuple is not None:
            raise ValueError(
                "indices_tuple is not supported; put the miner into the specification (mining: ...)"
            )
        check_batch(embeddings, labels)
        references = self._references(embeddings, labels, ref_embeddings, ref_labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            result = _result_dtype(embeddings)
            dtype = (
                torch.promote_types(result, self._precision) if embeddings.device.type != "mps" else result
            )
            points = embeddings.to(dtype)
            guards = [check_finite(points)]
            if references is not None:
                references = (references[0].to(dtype), references[1], references[2])
                guards.append(check_finite(references[0], "ref_embeddings"))
            if self.prefixes and points.shape[1] != max(self.prefixes):
                raise ValueError(
                    f"embeddings have {points.shape[1]} dimensions, and dims end at {max(self.prefixes)}"
                )
            value, view = self._over_prefixes(
                points, labels, references, targets, batch_as_candidates, result, pairs
            )
            for guard in guards:
                value = value if guard is None else value * guard
        if self.memory is not None and self.training:
            self.memory.write(embeddings, labels)
        self.diagnostics = {name: value.detach() for name, value in view.report.items()}
        return value.to(result)

    def _over_prefixes(
        self,
        points: Tensor,
        labels: Tensor,
        references: tuple[Tensor, Tensor, Tensor | None] | None,
        targets: Tensor | None,
        batch_as_candidates: bool,
        gradient: torch.dtype,
        pairs: Pairs | None,
    ) -> tuple[Tensor, View]:
        """Return the weighted sum over the prefixes, and the view of the whole embeddings."""
        if pairs is not None:
            return self._over_pairs(points, pairs)
        if not self.prefixes:
            view = self._view(points, labels, references, targets, batch_as_candidates, gradient)
            return self.evaluate(view), view
        value = points.new_zeros(())
        for dim, weight in self.prefixes.items():
            cut = references and (references[0][:, :dim], *references[1:])
            part = points[:, :dim]
            view = self._view(
                part, labels, cut, targets, batch_as_candidates, gradient, full_dim=points.shape[1]
            )
            value = value + weight * self.evaluate(view)
        return value, view

    def _over_pairs(self, points: Tensor, pairs: Pairs) -> tuple[Tensor, View]:
        value = points.new_zeros(())
        for dim, weight in (self.prefixes or {points.shape[1]: 1.0}).items():
            view = PairsView(
                points[:, :dim],
                *pairs,
                normalization_gradient=self.normalization_gradient,
                full_dim=points.shape[1],
            )
            value = value + weight * self.evaluate(view)
        return value, view

    def check_pairs(self, *, graded: bool) -> None:
        """Check that the objective can be called with `pairs`.

        Args:
            graded: The values are scores.

        Raises:
            ValueError: It needs classes, or labels of the same and different.
        """
        if not getattr(self.term, "takes_scores" if graded else "takes_pairs", False):
            taken = "cosent" if graded else "cosent, contrastive, binomial-deviance and siglip"
            kind = "pairs with scores" if graded else "labelled pairs"
            raise ValueError(f"{kind} are learned by {taken}; name one of these")
        for name, part in (
            ("mining", getattr(self.term, "mining", None)),
            ("regularizers", self.regularizers or None),
            ("memory", self.memory),
        ):
            if part is not None:
                raise ValueError(f"{name}: needs classes, and labelled pairs have none; leave it out")

    def _view(
        self,
        points: Tensor,
        labels: Tensor,
        references: tuple[Tensor, Tensor, Tensor | None] | None,
        targets: Tensor | None,
        batch_as_candidates: bool,
        gradient: torch.dtype,
        full_dim: int | None = None,
    ) -> View:
        return View(
            points,
            labels,
            *(references or ()),
            paired=self.paired,
            normalization_gradient=self.normalization_gradient,
            full_dim=full_dim,
            targets=targets,
            batch_as_candidates=batch_as_candidates,
            gradient=gradient,
        )

    def evaluate(self, view: View) -> Tensor:
        """Return the objective of a view."""
        loss: Tensor | None = None if self.term is None else self.term(view)
        penalty: Tensor | None = None
        for weight, regularizer in zip(self.weights, self.regularizers, strict=True):
            term = weight * regularizer(view)
            penalty = term if penalty is None else penalty + term
        if self.measures_gradients and loss is not None and penalty is not None:
            view.report["gradient_ratio"] = _gradient_ratio(penalty, loss, view.embeddings)
        value = loss if penalty is None else penalty if loss is None else loss + penalty
        with torch.no_grad():
            view.report |= _similarities(view.within)
        assert value is not None
        return value

    def _references(
        self, embeddings: Tensor, labels: Tensor, ref_embeddings: Tensor | None, ref_labels: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Join the given references and the memory, with a mask of the valid ones."""
        if (ref_embeddings is None) != (ref_labels is None):
            raise ValueError("ref_embeddings and ref_labels must be given together")
        given = None
        if ref_embeddings is not None and ref_labels is not None:
            check_batch(ref_embeddings, ref_labels, "ref_embeddings")
            if _result_dtype(ref_embeddings) != _result_dtype(embeddings):
                raise TypeError(
                    f"ref_embeddings are {ref_embeddings.dtype}, embeddings {embeddings.dtype}; convert one"
                )
            if ref_embeddings.shape[1] != embeddings.shape[1] or ref_embeddings.device != embeddings.device:
                raise ValueError(
                    f"ref_embeddings have shape {tuple(ref_embeddings.shape)} on {ref_embeddings.device}, "
                    f"embeddings {tuple(embeddings.shape)} on {embeddings.device}; they must agree"
                )
            if ref_embeddings is not embeddings:
                given = (ref_embeddings, ref_labels.to(labels.dtype), None)
        if self.memory is None or not self.training:
            return given
        stored, stored_labels, usable = self.memory.read(embeddings.shape[1])
        stored_labels = stored_labels.to(labels.dtype)
        if given is None:
            return stored, stored_labels, usable
        usable = torch.cat([torch.ones_like(given[1], dtype=torch.bool), usable])
        points = torch.cat([given[0], stored.to(given[0].dtype)])
        return points, torch.cat([given[1], stored_labels]), usable


def _require_normalized(term: nn.Module | None, regularizers: Sequence[nn.Module]) -> None:
    """Raise ValueError unless the loss, or without one a regularizer, compares unit vectors."""
    # Modules without the attribute compare cosines.
    measures = [getattr(module, "measure", "cosine") for module in ([term] if term else regularizers)]
    if "cosine" not in measures:
        raise ValueError(
            "normalization_gradient is 'ignored', but this objective compares raw embeddings, which are not "
            "normalised; leave it out or choose a loss on unit vectors, as triplet-nca"
        )


def _gradient_ratio(penalty: Tensor, loss: Tensor, embeddings: Tensor) -> Tensor:
    """Return |gradient of the penalty| / |gradient of the loss|; infinite or NaN if that of the loss is 0."""
    norms = []
    for value in (penalty, loss):
        gradient = None
        if value.requires_grad and embeddings.requires_grad:
            (gradient,) = torch.autograd.grad(value, embeddings, retain_graph=True, allow_unused=True)
        norms.append(value.new_zeros(()) if gradient is None else gradient.norm())
    return norms[0] / norms[1]


def _similarities(table: Table) -> dict[str, Tensor]:
    """Return the diagnostics of the similarities of a batch.

    These are the mean cosines of the positive and of the negative pairs, and the share of anchors whose
    hardest negative is closer than their easiest positive, among those with a positive and a negative.
    """
    none = -2.0  # below every cosine

    def terms(rows: slice, cosine: Tensor) -> tuple[Tensor, ...]:
        part = table.rows(rows, cosine)
        near, mask = part.near(cosine)
        positive, negative = torch.where(mask, near, none).amax(1), part.far(none).amax(1)
        both = (positive > none) & (negative > none)
        return (
            masked_sum(near, mask),
            part.far(0.0).sum(),
            mask.count_nonzero(),
            part.negative.count_nonzero(),
            (both & (negative > positive)).sum(),
            both.sum(),
        )

    positive, negative, positives, negatives, hard, both = sum_over_rows(terms, table.cosine)
    return {
        "mean_positive": ratio(positive, positives),
        "mean_negative": ratio(negative, negatives),
        "hard_anchor_share": ratio(hard, both),
    }


def _result_dtype(embeddings: Tensor) -> torch.dtype:
    """Return float64 for float64 and float32 otherwise."""
    return torch.promote_types(embeddings.dtype, torch.float32)
