"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from retrieval import metrics
from retrieval.decoding import embed_files
from retrieval.errors import ImageError, InputError, LookalikeError
from retrieval.progress import Progress
from train import losses
from train.batches import ClassBatches
from train.data import DataSet, LabelledImage, class_numbers
from train.model import EmbeddingModel
from train.pixels import Pixels, augment
from train.run import Run, initial_model

_LOG_EVERY = 10


class Trainer:
    """Trains as a run's configuration says, keeping the last and the best checkpoint.

    The best is chosen by Recall@1 on classes held out of the training split (`validation`); without any,
    it is the last. Test images are never looked at.

    Args:
        run: its configuration is followed, its folder filled.
        dataset: only `train` is used.
        show_progress: report on stderr.

    Raises:
        InputError: data that cannot be trained on, or a loss that cannot be built.
    """

    def __init__(self, run: Run, dataset: DataSet, *, show_progress: bool = False) -> None:
        self.run, self.config, self.show = run, run.config, show_progress
        self.device = choose_device(self.config.device)
        training, self.validation = split_validation(
            dataset.train, self.config.split.validation, self.config.seed
        )
        symmetries = self.config.augment.symmetries
        classes = symmetries * len({image.label for image in training})
        try:
            self.loss = losses.build(
                self.config.loss, num_classes=classes, embedding_dim=self.config.model.embedding_dim
            ).to(self.device)
        except (ValueError, TypeError) as error:
            raise InputError(f"loss: {error}") from error
        with Progress("reading", len(training), show=show_progress) as progress:
            paths = [image.path for image in training]
            self.pixels = Pixels.read(paths, self.config.preprocess, run.folder, progress)
        names = class_numbers([training[i] for i in self.pixels.positions])
        # Image i under symmetry s counts as image s N + i, of class s C + its own.
        self.labels = np.concatenate([names + s * (names.max(initial=0) + 1) for s in range(symmetries)])
        self.batches = ClassBatches(self.labels, self.config.batch, self.config.seed)
        self.model = initial_model(self.config).to(self.device)
        self.optimizer = torch.optim.AdamW(
            [*self.model.parameters(), *self.loss.parameters()],
            lr=self.config.optimizer.lr,
            weight_decay=self.config.optimizer.weight_decay,
        )
        self.epoch, self.step, self.best = 0, 0, -1.0

    @property
    def bad_files(self) -> list[ImageError]:
        """Training images that could not be read."""
        return self.pixels.bad

    def train(self, *, resume: bool = False) -> dict[str, Any]:
        """Train to the end; with `resume`, from the last checkpoint on.

        Returns:
            steps, epochs, seconds, and Recall@1 on the validation classes before and after (best), or `None`.

        Raises:
            LookalikeError: the loss became NaN or infinite. The last checkpoint is from before that.
        """
        began = time.monotonic()
        if resume:
            parts = {"model": self.model, "loss": self.loss}
            state = self.run.load("last", optimizer=self.optimizer, **parts)
            self.epoch, self.step, self.best = state["epoch"], state["step"], state["best"]
            self.run.forget_after(self.step)
        else:
            self._validate_and_save()
        total = self.config.epochs * self.batches.per_epoch
        with (
            SummaryWriter(str(self.run.folder), purge_step=self.step) as board,
            Progress("training", total, "steps", show=self.show) as progress,
        ):
            progress.update(self.step)
            while self.epoch < self.config.epochs:
                self._train_epoch(progress, board)
                self._validate_and_save(board)
        recalls = [r["recall_at_1"] for r in self.run.metrics() if "recall_at_1" in r]
        return {
            "run": str(self.run.folder),
            "epochs": self.epoch,
            "steps": self.step,
            "seconds": round(time.monotonic() - began, 1),
            "training_images": len(self.pixels.images),
            "validation_classes": len({image.label for image in self.validation}),
            "recall_at_1_before": recalls[0] if recalls else None,
            "recall_at_1_best": max(recalls) if recalls else None,
        }

    def _train_epoch(self, progress: Progress, board: SummaryWriter) -> None:
        # Everything random in an epoch follows from the seed and its number, so that it can be resumed.
        torch.manual_seed(np.random.SeedSequence([self.config.seed, self.epoch]).generate_state(1).item())
        generator = torch.Generator().manual_seed(torch.initial_seed() + 1)
        self.model.train()
        since, images, size = time.monotonic(), 0, self.config.preprocess.size
        for number, batch in enumerate(self.batches.epoch(self.epoch), 1):
            lr = self._set_learning_rate()
            turns, chosen = map(torch.from_numpy, np.divmod(batch, len(self.pixels.images)))
            pixels = augment(self.pixels.images[chosen], turns, size, self.config.augment, generator)
            labels = torch.from_numpy(self.labels[batch]).to(self.device)
            value = self.loss(self.model(pixels.to(self.device)), labels)
            self.optimizer.zero_grad()
            value.backward()
            self.optimizer.step()
            self.step += 1
            images += len(batch)
            last = number == self.batches.per_epoch
            if last or self.step % _LOG_EVERY == 0:  # reading the value waits for the device
                record = {"step": self.step, "epoch": self.epoch, "loss": self._finite(value, lr), "lr": lr}
                record["images_per_second"] = round(images / (time.monotonic() - since), 1)
                record |= {name: float(number) for name, number in self.loss.diagnostics.items()}
                self.run.log(record)
                board.add_scalar("loss", record["loss"], self.step)
                progress.update(0, f"epoch {self.epoch + 1}, loss {record['loss']:.4f}")
            progress.update(1)
        self.epoch += 1

    def _finite(self, value: Tensor, lr: float) -> float:
        number = value.item()
        if not math.isfinite(number):
            detail = f"the loss is {number} at step {self.step} (learning rate {lr:.3g})"
            raise LookalikeError(
                f"{self.run.folder}: {detail}; lower optimizer.lr. The last checkpoint is good"
            )
        return number

    def _set_learning_rate(self) -> float:
        done = self.step / (self.config.epochs * self.batches.per_epoch)
        lr = self.config.optimizer.lr * 0.5 * (1 + math.cos(math.pi * done))
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        return lr

    def _validate_and_save(self, board: SummaryWriter | None = None) -> None:
        recall = self._validate()
        if recall is not None:
            self.run.log({"step": self.step, "epoch": self.epoch, "recall_at_1": recall})
            if board is not None:
                board.add_scalar("recall_at_1", recall, self.step)
        is_best = recall is None or recall > self.best
        self.best = max(self.best, recall if recall is not None else self.best)
        facts = {"epoch": self.epoch, "step": self.step, "best": self.best, "recall_at_1": recall}
        for which in ("best", "last") if is_best else ("last",):
            self.run.save(which, facts, self.optimizer, model=self.model, loss=self.loss)

    def _validate(self) -> float | None:
        if not self.validation:
            return None
        paths = [image.path for image in self.validation]
        with Progress("validating", len(paths), show=False) as quiet:
            found = embed_files(paths, self.config.preprocess, pixel_embedder(self.model), quiet)
        kept = class_numbers([self.validation[i] for i in found.positions])
        return metrics.recall_at_k(found.vectors, kept, ks=(1,))[1]


def pixel_embedder(model: EmbeddingModel) -> Callable[[np.ndarray], np.ndarray]:
    """A network as a function from pixels uint8 [N, H, W, 3] to unit vectors float32 [N, D]."""
    model.eval()

    @torch.inference_mode()
    def embed(pixels: np.ndarray) -> np.ndarray:
        images = torch.from_numpy(pixels).to(model.mean.device)
        return torch.nn.functional.normalize(model(images)).cpu().numpy()

    return embed


def split_validation(
    images: list[LabelledImage], share: float, seed: int
) -> tuple[list[LabelledImage], list[LabelledImage]]:
    """Hold a share of the classes out of the training images, drawn by the seed: at least two, or none."""
    classes = sorted({image.label for image in images})
    count = round(share * len(classes))
    if count < 2:
        return images, []
    held_out = set(np.random.default_rng(seed).choice(classes, count, replace=False).tolist())
    training = [image for image in images if image.label not in held_out]
    return training, [image for image in images if image.label in held_out]


def choose_device(name: str) -> torch.device:
    """The device of a configuration; "auto" takes a GPU where there is one.

    Raises:
        InputError: a name that torch does not know, or a GPU that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device: {name!r} cannot be used here ({str(error).splitlines()[0]}); try auto"
        ) from error
    return device
