"""Training step with gradient caching (GradCache), mixed precision and distributed data parallelism."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from train.loop.compilation import Compiled
from train.loop.precision import Precision
from train.loop.process_group import ProcessGroup
from train.losses import gather, gather_constant


class Step:
    """Training step: forward pass, loss, backward pass, optimizer update. It never waits for the device.

    With several processes, each puts its share of the batch through the network and computes the loss of the
    global batch: values and gradients equal those of one process, except that batch normalisation in training
    mode normalises each share (or chunk) separately.

    Args:
        model: Network from pixels uint8 [b, H, W, 3], or head from features float32 [b, C], to raw embeddings
            [b, D], on its device.
        loss: Loss of embeddings [B, D] and labels [B].
        optimizer: Optimizer over the parameters of both.
        group: Processes that train together.
        precision: "auto", "fp32", "tf32", "bf16" or "fp16" (with loss scaling) for the network. Losses use
            fp32, without TF32.
        chunk: Images per pass through the network; `None` for the whole batch. With chunks, gradient caching
            is used: one pass without gradient computes all embeddings, a second pass backpropagates the
            cached gradient of the loss chunk by chunk (Gao et al. 2021, "Scaling Deep Contrastive Learning
            Batch Size under Memory Limited Setup"). The gradient equals that of the whole batch.
        clip: Largest norm of the gradient of all weights; `None` for no clipping.
        seed: Seed of dropout and of random miners.
        compiled: Which of "network" and "loss" run through torch.compile; with "graph", the loss from CUDA
            graphs.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: nn.Module,
        optimizer: torch.optim.Optimizer,
        group: ProcessGroup,
        *,
        precision: str = "fp32",
        chunk: int | None = None,
        clip: float | None = None,
        seed: int = 0,
        compiled: Collection[str] = (),
    ) -> None:
        self.model, self.loss, self.optimizer, self.group = model, loss, optimizer, group
        self.network: nn.Module = model
        if group.size > 1:
            # Evaluations broadcast the statistics of batch norms; a step does not need those of others.
            self.network = DistributedDataParallel(
                model, broadcast_buffers=False, gradient_as_bucket_view=True
            )
        self._run_network: Callable[..., Tensor] = self.network
        if "network" in compiled:
            self._run_network = Compiled(self.network, "network")
        self._run_loss: Callable[..., Tensor] = loss
        if "loss" in compiled:  # its second backward pass for the gradient ratio cannot be compiled
            eager_when = lambda: bool(getattr(loss, "measures_gradients", False))  # noqa: E731
            self._run_loss = Compiled(loss, "loss", eager_when, graph="graph" in compiled)
        self.precision = Precision(precision, group.device)
        self.scaler = torch.amp.GradScaler(group.device.type, enabled=self.precision.scales_loss)
        self.chunk, self.clip, self.seed = chunk, clip, seed

    def __call__(
        self, inputs: Tensor, labels: Tensor, number: int, targets: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Take one step.

        Args:
            inputs: This process's share of the batch, on its device: pixels or features.
            labels: Labels of that share, int64 [b], on its device.
            number: Step number; all randomness depends on it and the seed alone.
            targets: Vectors of a teacher for that share, float32 [b, T], if the loss has a distillation.

        Returns:
            The loss and the embeddings [B, D] of the global batch, both detached.
        """
        self.optimizer.zero_grad(set_to_none=True)
        chunks = inputs.split(self.chunk or len(inputs))
        backward = self._whole_batch if len(chunks) == 1 else self._with_gradient_cache
        value, embeddings = backward(chunks, labels, number, targets)
        if self.clip is not None:
            self.scaler.unscale_(self.optimizer)
            weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
            nn.utils.clip_grad_norm_(weights, self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return value, embeddings

    def embed(self, inputs: Tensor, number: int) -> Tensor:
        """Return the raw embeddings of a batch as step `number` computes them, without taking the step.

        In training mode, with the dropout of that step; the running statistics of batch norms stay.

        Args:
            inputs: Pixels or features of the batch, on the model's device.
            number: Step number.

        Returns:
            float32 [b, D], without gradient.
        """
        return self._embed_chunks(inputs.split(self.chunk or len(inputs)), number)

    def _whole_batch(
        self, chunks: tuple[Tensor, ...], labels: Tensor, number: int, targets: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        outputs = self._embed(chunks[0], number)
        value, gathered, gradient = self._differentiate_loss(outputs.detach(), labels, number, targets)
        with self.precision.tensor_cores():
            outputs.backward(gradient)
        return value, gathered

    def _with_gradient_cache(
        self, chunks: tuple[Tensor, ...], labels: Tensor, number: int, targets: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        embeddings = self._embed_chunks(chunks, number)  # [b, D]
        value, gathered, gradients = self._differentiate_loss(embeddings, labels, number, targets)
        for i, (chunk, gradient) in enumerate(zip(chunks, gradients.split(len(chunks[0])), strict=True)):
            with self._gradient_sync(i == len(chunks) - 1):
                outputs = self._embed(chunk, number, i)
                with self.precision.tensor_cores():
                    outputs.backward(gradient)
        return value, gathered

    @torch.no_grad()
    def _embed_chunks(self, chunks: tuple[Tensor, ...], number: int) -> Tensor:
        with _frozen_statistics(self.model):
            return torch.cat([self._embed(chunk, number, i) for i, chunk in enumerate(chunks)])

    def _embed(self, inputs: Tensor, number: int, chunk: int = 0) -> Tensor:
        _seed(self.seed, number, self.group.rank + 1, chunk)
        with self.precision.autocast(), self.precision.tensor_cores():
            embeddings: Tensor = self._run_network(inputs).float()
            return embeddings

    def _differentiate_loss(
        self, embeddings: Tensor, labels: Tensor, number: int, targets: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, the embeddings of the global batch, and the scaled gradient of this share.

        Apart from the backward pass of the network, so that a precision of the network leaves the loss alone.
        """
        own = everyone = embeddings.requires_grad_()
        if self.group.size > 1:
            everyone, labels = gather(own, labels)
            targets = None if targets is None else gather_constant(targets)
        _seed(self.seed, number)  # the same in all processes, so that all draw the same triplets
        taught = {} if targets is None else {"targets": targets}
        value = self._run_loss(everyone, labels, **taught)
        self.scaler.scale(value).backward()
        assert own.grad is not None
        return value.detach(), everyone.detach(), own.grad

    def _gradient_sync(self, last: bool) -> AbstractContextManager[object]:
        """Synchronise gradients between processes once, with the last chunk."""
        if isinstance(self.network, DistributedDataParallel) and not last:
            return self.network.no_sync()
        return nullcontext()


def _seed(*numbers: int) -> None:
    """Seed torch's generators; `torch.manual_seed` takes 1 ms where CUDA is not in use."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def _frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Keep the running statistics of batch norms unchanged during a forward pass in training mode."""
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
