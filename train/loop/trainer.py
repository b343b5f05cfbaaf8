"""The training loop."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import normalize

from retrieval import metrics
from retrieval.errors import ImageError, InputError, LookalikeError
from retrieval.progress import Progress
from train.data import DataSet, class_numbers
from train.data.label_noise import with_wrong_labels, write_noise
from train.data.splits import hold_out
from train.input.cache import ValidationImages
from train.input.loader import Loader
from train.input.sampler import ClassBatchSampler
from train.loop.interruption import Interrupted, Interruption
from train.loop.knn import neighbour_search
from train.loop.malloc import keep_freed_memory
from train.loop.optimization import build_optimizer, rate_factor, update_ema
from train.loop.process_group import join_process_group
from train.loop.run_folder import Run, initial_loss, initial_model
from train.loop.step import Step
from train.loop.tracking import Tracker
from train.models.embedding_model import EmbeddingModel, synchronise_batch_norm

_LOG_EVERY = 10
_COLLAPSED = 0.99  # mean cosine between the images of a batch
_T = TypeVar("_T")


class Trainer:
    """Trains as a run's configuration says, keeping the last and the best checkpoint.

    The best is chosen by Recall@1 on classes held out of the training split (`split`); without any, it is
    the last. Test images are never looked at. Under `torchrun` every process makes a `Trainer` of the same
    run; the first one writes.

    Args:
        run: its configuration is followed, its folder filled.
        dataset: only `train` is used.
        show_progress: report on stderr.

    Raises:
        InputError: data that cannot be trained on, or a loss that cannot be built.
    """

    def __init__(self, run: Run, dataset: DataSet, *, show_progress: bool = False) -> None:
        self.run, self.config = run, run.config
        config = self.config
        self.group = join_process_group(config.device)
        if self.group.device.type == "cpu":
            keep_freed_memory()
        self.show = show_progress and self.group.is_main
        clean, self.validation = hold_out(dataset.train, config.split, config.seed)
        if config.patience and not self.validation:
            raise InputError("patience: no classes are held out to stop early by; set split.validation")
        training = with_wrong_labels(clean, config.noise, config.seed, dataset.transitions)
        if config.noise.rate and self.group.is_main:
            write_noise(run.folder / "noise.csv", clean, training)
        numbers = class_numbers(training)
        classes = int(numbers.max(initial=-1)) + 1
        symmetries = config.augment.symmetries
        # Image i under symmetry s counts as image s N + i, of class s C + its own.
        self.labels = np.concatenate([numbers + s * classes for s in range(symmetries)])
        self.sampler = ClassBatchSampler(self.labels, config.batch, config.seed)
        self._share = self._divide(self.sampler.classes * self.sampler.per_class)
        self.loss = initial_loss(config, symmetries * classes).to(self.group.device)
        self.model = initial_model(config).to(self.group.device)
        if config.model.batch_norm == "sync":
            synchronise_batch_norm(self.model)
        self.ema = copy.deepcopy(self.model).requires_grad_(False) if config.ema else None
        self.optimizer = build_optimizer(
            self.model, self.loss, config.optimizer, fused=self.group.device.type == "cuda"
        )
        if config.compile:
            self.model.compile()
        self.take_step = Step(
            self.model,
            self.loss,
            self.optimizer,
            self.group,
            precision=config.precision,
            chunk=config.batch.chunk,
            seed=config.seed,
        )
        self._read(training, numbers)
        self.epoch, self.step, self.best, self.since_best = 0, 0, -1.0, 0
        self.collapsed_at: int | None = None

    def _divide(self, size: int) -> slice:
        each, left = divmod(size, self.group.size)
        if left:
            raise InputError(f"batch: {size} images cannot be dealt to {self.group.size} processes evenly")
        return slice(self.group.rank * each, (self.group.rank + 1) * each)

    def _read(self, training: list[Any], numbers: np.ndarray) -> None:
        config, group = self.config, self.group
        self.loader = Loader(
            [image.path for image in training],
            numbers,
            config,
            device_type=group.device.type,
            folder=self.run.folder,
            rank=group.rank,
            world_size=group.size,
            show_progress=self.show,
        )
        self._validation_images = ValidationImages(
            [image.path for image in self.validation[group.rank :: group.size]],
            config.preprocess,
            config.loader,
            folder=self.run.folder,
            show_progress=self.show,
        )

    @property
    def bad_files(self) -> list[ImageError]:
        """Images that could not be read: of those held out, and of those that came up in training."""
        return [*self._validation_images.bad, *self.loader.bad]

    def train(self, *, resume: bool = False) -> dict[str, Any]:
        """Train to the end; with `resume`, from the last checkpoint on.

        Returns:
            steps, epochs, seconds, Recall@1 on the validation classes before, last and best (or `None`), and
            since when all embeddings are nearly equal (or `None`).

        Raises:
            LookalikeError: the loss became NaN or infinite. The last checkpoint is from before that.
            Interrupted: by Ctrl-C or SIGTERM, after a checkpoint.
        """
        began = time.monotonic()
        if resume:
            self._load()
        total = self.config.epochs * self.sampler.per_epoch
        with (
            closing(self.loader),
            Interruption() as interruption,
            Tracker(self.run, self.config, self.step, active=self.group.is_main) as tracker,
            Progress("training", total, "steps", begun=self.step, show=self.show) as progress,
        ):
            if not resume:
                self._end_epoch(tracker)
            while self.epoch < self.config.epochs and not self._stopped_early:
                self._train_epoch(progress, tracker, interruption)
                self.epoch += 1
                self._end_epoch(tracker)
        return {"seconds": round(time.monotonic() - began, 1), **self._facts()}

    @property
    def _stopped_early(self) -> bool:
        return self.config.patience is not None and self.since_best >= self.config.patience

    def _train_epoch(self, progress: Progress, tracker: Tracker, interruption: Interruption) -> None:
        config, device = self.config, self.group.device
        batches = list(self.sampler.epoch(self.epoch))
        start = self.step - self.epoch * self.sampler.per_epoch
        clock = _Clock()
        pending: list[Tensor] = []
        self.model.train()
        for loaded in clock.waiting(self.loader.epoch(self.epoch, batches, start)):
            lr = self._set_learning_rates()
            labels = torch.from_numpy(self.labels[batches[loaded.number][self._share]])
            pixels = loaded.pixels.to(device, non_blocking=True)
            with self._explained(lr):
                value, embeddings = self.take_step(pixels, labels.to(device, non_blocking=True), self.step)
            if self.ema is not None:
                update_ema(self.ema, self.model, config.ema, self.step)
            self.step += 1
            clock.images += len(batches[loaded.number])
            pending.append(value)
            ends = loaded.number + 1 == len(batches)
            saves = interruption.requested or (self.step % config.save_every == 0 and not ends)
            if ends or saves or self.step % _LOG_EVERY == 0:  # reading the values waits for the device
                with self._explained(lr):
                    record = self._record(pending, embeddings, lr, clock)
                tracker.log(record)
                pending.clear()
                progress.update(0, f"epoch {self.epoch + 1}/{config.epochs}, {_in_words(record)}")
                if ends:
                    self._look_for_collapse(record["mean_similarity"], progress)
            progress.update(1)
            if saves:
                self._save("last")
            if interruption.requested:
                detail = (
                    f"{self.run.folder}: interrupted after step {self.step}, which is kept; --resume goes on"
                )
                raise Interrupted(detail)

    def _record(self, pending: list[Tensor], embeddings: Tensor, lr: float, clock: _Clock) -> dict[str, Any]:
        values = torch.stack(pending).tolist()
        for step, value in enumerate(values, self.step - len(values) + 1):
            if not math.isfinite(value):
                self._stop(f"the loss is {value}", step, lr)
        return {
            "step": self.step,
            "epoch": self.epoch,
            "loss": values[-1],
            "lr": lr,
            **clock.read(),
            # The mean over all pairs, with themselves, of a batch: a product of two vectors.
            "mean_similarity": normalize(embeddings).mean(0).square().sum().item(),
            **{name: float(number) for name, number in self.loss.diagnostics.items()},
        }

    def _stop(self, what: str, step: int, lr: float, hint: str = "lower optimizer.lr") -> NoReturn:
        where = f"at step {step} (learning rate {lr:.3g})"
        raise LookalikeError(f"{self.run.folder}: {what} {where}: {hint}. The last checkpoint is good")

    @contextmanager
    def _explained(self, lr: float) -> Iterator[None]:
        """What went wrong in a step, with the step and what to do about it."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            hint = "set batch.chunk to fewer images at once, or lower batch.classes"
            raise LookalikeError(
                f"{self.run.folder}: out of memory at step {self.step + 1}: {hint}"
            ) from error
        except ValueError as error:  # embeddings or a batch that the loss cannot work with
            self._stop("the loss cannot be computed", self.step + 1, lr, str(error))
        except RuntimeError as error:
            if "device-side assert" not in str(error):
                raise
            # On a GPU the same checks run in the stream of kernels, and are heard of a little later.
            self._stop("the loss could not be computed", self.step, lr)

    def _rate_factor(self) -> float:
        return rate_factor(self.config.schedule, self.step, self.sampler.per_epoch, self.config.epochs)

    def _set_learning_rates(self) -> float:
        """Set every parameter group's rate for the next step; return that of the backbone's last stage."""
        factor = self._rate_factor()
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        return self.config.optimizer.lr * factor

    def _look_for_collapse(self, mean_similarity: float, progress: Progress) -> None:
        if mean_similarity <= _COLLAPSED:
            self.collapsed_at = None
        elif self.collapsed_at is None:
            self.collapsed_at = self.step
            progress.write(
                f"collapsed: at step {self.step} all embeddings are nearly equal (mean cosine "
                f"{mean_similarity:.4f}); the hardest negatives do that to a triplet loss: mine semi-hard "
                "ones, take the sct loss, or lower optimizer.lr"
            )

    # ---- between epochs

    def _end_epoch(self, tracker: Tracker) -> None:
        recall = self._validate()
        if recall is not None:
            tracker.log({"step": self.step, "epoch": self.epoch, "recall_at_1": recall})
        is_best = recall is None or recall > self.best
        self.since_best = 0 if is_best else self.since_best + 1
        self.best = max(self.best, recall if recall is not None else self.best)
        for which in ("best", "last") if is_best else ("last",):
            self._save(which, recall)
        self.group.barrier()

    def _validate(self) -> float | None:
        if not self.validation:
            return None
        model = self.ema if self.ema is not None else self.model
        if self.group.size > 1:  # statistics of batch normalisation are each process's own
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)
        embed = pixel_embedder(model)
        own = self.validation[self.group.rank :: self.group.size]
        parts = [
            ([own[i].label for i in read], embed(pixels))
            for read, pixels in self._validation_images.batches()
        ]
        found = [part for parts in self._from_everyone(parts) for part in parts]
        if not found:
            raise InputError("split: none of the images held out for validation can be read")
        labels = np.unique([label for names, _ in found for label in names], return_inverse=True)[1]
        vectors = np.concatenate([vectors for _, vectors in found])
        return metrics.recall_at_k(vectors, labels, ks=(1,), search=neighbour_search(self.group.device))[1]

    def _from_everyone(self, own: _T) -> list[_T]:
        if self.group.size == 1:
            return [own]
        everyone: list[Any] = [None] * self.group.size
        dist.all_gather_object(everyone, own)
        return everyone

    # ---- checkpoints

    def _save(self, which: str, recall: float | None = None) -> None:
        if not self.group.is_main:
            return
        total = torch.stack([weight.detach().sum() for weight in self.model.parameters()]).sum()
        if not math.isfinite(total.item()):
            lr = self.config.optimizer.lr * self._rate_factor()
            self._stop("weights are no longer finite", self.step, lr)
        facts = {
            "epoch": self.epoch,
            "step": self.step,
            "best": self.best,
            "since_best": self.since_best,
            "collapsed_at": self.collapsed_at,
            "scaler": self.take_step.scaler.state_dict(),
            "recall_at_1": recall,
        }
        self.run.save_checkpoint(which, facts, self.optimizer, **self._parts)

    def _load(self) -> None:
        state = self.run.load_checkpoint("last", optimizer=self.optimizer, **self._parts)
        self.epoch, self.step, self.best = state["epoch"], state["step"], state["best"]
        self.since_best, self.collapsed_at = state["since_best"], state["collapsed_at"]
        self.take_step.scaler.load_state_dict(state["scaler"])

    @property
    def _parts(self) -> dict[str, torch.nn.Module]:
        parts: dict[str, torch.nn.Module] = {"model": self.model, "loss": self.loss}
        return parts | ({"average": self.ema} if self.ema is not None else {})

    def _facts(self) -> dict[str, Any]:
        recalls = [r["recall_at_1"] for r in self.run.metrics() if "recall_at_1" in r]
        return {
            "run": str(self.run.folder),
            "epochs": self.epoch,
            "steps": self.step,
            "training_images": len(self.labels) // self.config.augment.symmetries,
            "validation_classes": len({image.label for image in self.validation}),
            "recall_at_1_before": recalls[0] if recalls else None,
            "recall_at_1_last": recalls[-1] if recalls else None,
            "recall_at_1_best": max(recalls) if recalls else None,
            "stopped_early": self._stopped_early,
            "collapsed_at": self.collapsed_at,
        }


class _Clock:
    """How fast training goes, and how much of the time is spent waiting for pictures."""

    def __init__(self) -> None:
        self.images, self._began, self._waited = 0, time.monotonic(), 0.0

    def waiting(self, loader: Iterable[_T]) -> Iterator[_T]:
        """The same, with the time that each takes to come counted."""
        batches = iter(loader)
        while True:
            asked = time.monotonic()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._waited += time.monotonic() - asked
            yield batch

    def read(self) -> dict[str, float]:
        """Numbers since the last reading."""
        now = time.monotonic()
        seconds = max(now - self._began, 1e-9)
        numbers = {
            "images_per_second": round(self.images / seconds, 1),
            "waiting": round(self._waited / seconds, 4),
        }
        self.images, self._began, self._waited = 0, now, 0.0
        return numbers


def _in_words(record: dict[str, Any]) -> str:
    speed = f"{record['images_per_second']:.0f} images/s, {100 * record['waiting']:.0f}% waiting for data"
    return f"loss {record['loss']:.4f}, {speed}"


def pixel_embedder(model: EmbeddingModel) -> Callable[[np.ndarray], np.ndarray]:
    """A network as a function from pixels uint8 [N, H, W, 3] to unit vectors float32 [N, D]."""
    model.eval()

    @torch.inference_mode()
    def embed(pixels: np.ndarray) -> np.ndarray:
        images = torch.from_numpy(pixels).to(model.mean.device)
        return normalize(model(images)).cpu().numpy()

    return embed
