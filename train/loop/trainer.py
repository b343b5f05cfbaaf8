"""Trainer: the training loop with validation, checkpoints, resumption and early stopping."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from itertools import islice
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from retrieval.errors import ImageError, InputError, LookalikeError
from retrieval.machine.malloc import keep_tensors
from retrieval.progress import Progress
from retrieval.text import print_notice
from train.config import FITTED_INITS
from train.data import DataSet
from train.input.feature_loader import FeatureLoader
from train.input.loader import LoadedBatch, Loader
from train.loop.choice import EpochChoice
from train.loop.compilation import LONG_RUN, compiled_parts
from train.loop.hard_classes import HardClasses
from train.loop.interruption import Interrupted, Interruption
from train.loop.network import build_network
from train.loop.optimization import build_optimizer, rate_factor, set_learning_rates, update_ema
from train.loop.pair_division import metric_of
from train.loop.pair_validation import PairValidator
from train.loop.precision import chosen_kernels
from train.loop.process_group import join_process_group
from train.loop.processes import LONGEST_START
from train.loop.run_folder import Run
from train.loop.shared_images import ImageSource
from train.loop.step import Step
from train.loop.surrogate_classes import SurrogateClasses
from train.loop.tracking import WATCHED, Throughput, Tracker, WaitingHint
from train.loop.training_data import TrainingData
from train.loop.validation import Validator, Watcher
from train.loop.warning_signs import WarningSigns
from train.models.embedding_model import EmbeddingModel, without_head
from train.models.lora import has_adapters

_LOG_EVERY = 10
_OF_FEATURES = "features_"  # before the name of a metric
# Errors of cuDNN and cuBLAS that cannot get their workspace; torch has no class for them.
_WITHOUT_MEMORY = ("CUDNN_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
_LONGEST_WAIT = timedelta(minutes=30)  # for another process: longer than an evaluation or a checkpoint
_OVERFLOWS = 10  # steps in a row that fp16 may skip
_PIXELS_HINT = (
    "only the head learns, but every step runs the backbone: set augment.views=8 (fixed random views of each "
    "image), or no augmentation, to compute its features once"
)


class Trainer:
    """Trains a model according to a run's configuration and saves the last and the best checkpoint.

    The best checkpoint is chosen by the score of images held out of the training split (`split`); without
    them, or if the score cannot tell epochs apart, it is the last one. Test images are used only to be
    watched (`watch`). Under `torchrun` every process creates a `Trainer` of the same run; only the main
    process (rank 0) writes.

    Args:
        run: Run folder with the configuration.
        dataset: Data set; only `train` is used, and the split of `watch`.
        epochs: Epochs to train, with the learning rates of a run of `epochs` in the configuration; `None` for
            all of them.
        show_progress: Report progress on stderr.

    Raises:
        InputError: The data cannot be trained on, or the loss cannot be built.
    """

    def __init__(
        self, run: Run, dataset: DataSet, *, epochs: int | None = None, show_progress: bool = False
    ) -> None:
        self.run, self.config = run, run.config
        config = self.config
        self.epochs = config.epochs if epochs is None else epochs
        self.group = join_process_group(config.device)
        self.group.limit_waiting(LONGEST_START)
        device = self.group.device
        if device.type == "cpu":
            keep_tensors()
        self.show = show_progress and self.group.is_main
        self.data = TrainingData(dataset, config, self.group, run.folder, show_progress=self.show)
        self.sampler = self.data.sampler
        self._check_steps()

        self.network = build_network(run, self.data, self.group, show_progress=self.show)
        loss, backbone, auxiliary = self.network.loss, self.network.backbone, self.network.auxiliary
        self.optimizer = build_optimizer(
            self.network.model, loss, config.optimizer, auxiliary=auxiliary, fused=device.type == "cuda"
        )
        parts = compiled_parts(config.compile, device, long_run=backbone is None and self._is_long())
        if parts and self.epochs and self.show:
            what = " and the ".join(sorted(parts - {"graph"}, reverse=True))
            print_notice(f"compile: torch compiles the {what} in the first step, which may take minutes")
        self.take_step = Step(
            self.network.trained,
            loss,
            self.optimizer,
            self.group,
            precision=config.precision,
            chunk=config.batch.chunk,
            clip=config.optimizer.clip,
            seed=config.seed,
            compiled=parts,
        )

        self.loader: Loader | FeatureLoader
        if backbone is None:
            self.loader = self.data.loader(show_progress=self.show)
        else:
            self.loader = self.data.feature_loader(backbone.views(self.data.files))
        self.waiting_hint = WaitingHint(self.loader.cacheable)
        source = ImageSource(config, self.group, run.folder, backbone, self.show)
        pairs, held_out = self.data.pairs, self.data.held_out_pairs
        self.validator: Validator | PairValidator
        if pairs is not None and held_out is not None:
            self.validator = PairValidator(self.data.validation, held_out, source, self.data.files)
        else:
            self.validator = Validator(self.data, source)
        self.watcher = Watcher(dataset, self.data, source) if config.watch.split else None
        self.hard = HardClasses(self.data, source, config) if config.batch.hard_classes else None
        self.surrogates = SurrogateClasses(self.data, source, config) if config.mic.clusters else None
        self.epoch, self.step, self.choice = 0, 0, EpochChoice(config, metric_of(pairs) if pairs else None)
        self.signs = WarningSigns()

    def _is_long(self) -> bool:
        """Whether compiling the network pays, which was measured with one process and whole batches."""
        config = self.config
        plain = self.group.size == 1 and config.batch.chunk is None and not config.deterministic
        return plain and config.epochs * self.sampler.per_epoch >= LONG_RUN

    def _check_steps(self) -> None:
        most = self.config.epochs * self.sampler.per_epoch
        beyond = [step for step in self.config.checkpoints.at if step > most]
        if beyond:
            length = f"{self.config.epochs} epochs of {self.sampler.per_epoch} steps"
            raise InputError(
                f"checkpoints.at: step {beyond[0]} is beyond the {most} steps of this run "
                f"({length}); leave it out, or raise epochs"
            )

    @property
    def bad_files(self) -> list[ImageError]:
        """Errors of unreadable images: all validation and watched images, the training images used so far."""
        watched = self.watcher.bad if self.watcher else []
        mined = [error for part in (self.hard, self.surrogates) if part is not None for error in part.bad]
        errors = [*self.validator.bad, *watched, *mined, *self.loader.bad]
        return list({error.source: error for error in errors}.values())

    def train(self, *, resume: bool = False) -> dict[str, Any]:
        """Train to the end, with `resume` from the last checkpoint.

        Returns:
            Steps, epochs, seconds, Recall@1 on the held-out images (before, last and best, or `None`), why
            the best epoch was not chosen (or `None`), and the step since which all embeddings are nearly
            equal (or `None`).

        Raises:
            LookalikeError: The loss became NaN or infinite; the last checkpoint precedes that step.
            Interrupted: Ctrl-C or SIGTERM, after a checkpoint was saved.
        """
        began, steps = time.monotonic(), self.epochs * self.sampler.per_epoch
        if resume:
            self._load_checkpoint()
        with (
            closing(self.loader),
            chosen_kernels(self.group.device, deterministic=self.config.deterministic),
            Interruption() as interruption,
            Tracker(self.run, self.config, self.step, active=self.group.is_main) as tracker,
            Progress("training", steps, "steps", begun=self.step, show=self.show) as progress,
        ):
            if self._runs_backbone_in_vain:
                progress.write(_PIXELS_HINT)
            if has_adapters(self.network.model) and not resume:
                progress.write(_learned_weights(self.network.model))
            waits = self.hard is not None or self.surrogates is not None
            if not waits:
                batches = self._load(range(self.epoch, self.epochs))
            if not resume:
                self._observe(tracker, progress)
                self._end_epoch(tracker, progress)
            elif self._is_complete:
                progress.write(f"{self.run.folder}: it is complete; there is nothing to resume")
            while not self._is_complete:
                if waits:  # the batches of an epoch are known when the previous one has ended
                    batches = self._load(range(self.epoch, self.epoch + 1))
                self._train_epoch(batches, progress, tracker, interruption)
                self.epoch += 1
                self._end_epoch(tracker, progress)
        return {"seconds": round(time.monotonic() - began, 1), **self._summary()}

    @property
    def _is_complete(self) -> bool:
        return self.epoch >= self.epochs or self.choice.stops

    def mine(self) -> None:
        """Measure what the batches of the next epoch depend on, with the network as it is."""
        model, auxiliary = self.network.model, self.network.auxiliary
        if self.hard is not None:
            self.hard.measure(model)
        if self.surrogates is not None and auxiliary is not None and self.surrogates.is_due(self.epoch):
            self.surrogates.measure(model, auxiliary, self.epoch)

    def batches(self, epochs: Iterable[int], start: int = 0) -> Iterator[LoadedBatch]:
        """Load the batches of epochs, without the first `start` ones."""
        sampler = self.sampler if self.surrogates is None else self.surrogates
        return self.loader.load(sampler.epoch, epochs, start)

    def _load(self, epochs: range) -> Iterator[LoadedBatch]:
        return self.batches(epochs, self.step - self.epoch * self.sampler.per_epoch)

    @property
    def _runs_backbone_in_vain(self) -> bool:
        asked = self.config.loader.features == "auto"
        return asked and self.network.model.is_frozen_below_head and not self.network.on_features

    def _train_epoch(
        self,
        batches: Iterator[LoadedBatch],
        progress: Progress,
        tracker: Tracker,
        interruption: Interruption,
    ) -> None:
        config, per_epoch = self.config, self.sampler.per_epoch
        left = (self.epoch + 1) * per_epoch - self.step
        throughput = Throughput()
        pending: list[Tensor] = []
        self.network.model.train()
        self.group.broadcast(self.network.loss.parameters())  # each process updates its own copy
        for loaded in throughput.timed(islice(batches, left)):
            lr = self._set_learning_rates()
            ends = loaded.number + 1 == per_epoch
            self.network.loss.measures_gradients = ends or (self.step + 1) % _LOG_EVERY == 0
            with self._explain_errors(lr):
                value, embeddings = self.take_step(loaded.inputs, loaded.labels, self.step, loaded.targets)
            if self.network.ema is not None:
                update_ema(self.network.ema.learned, self.network.model.learned, config.ema, self.step)
            self.step += 1
            throughput.images += len(loaded.labels) * self.group.size
            pending.append(value)
            due = ends or self.step % config.save_every == 0 or self.step % _LOG_EVERY == 0
            # Processes stop after the same step, and agree on it where they wait for the device anyway.
            stops = (due or self.group.size == 1) and self.group.any(interruption.requested)
            saves = stops or (self.step % config.save_every == 0 and not ends)
            if due or saves:  # reading the values waits for the device
                with self._explain_errors(lr):
                    record = self._record(pending, embeddings, lr, throughput)
                tracker.log(record)
                pending.clear()
                progress.update(0, f"epoch {self.epoch + 1}/{self.epochs}, {_status(record)}")
                messages: list[str | None] = [self.signs.inert_kernel(self.step, record)]
                messages += [self.waiting_hint.advice(record["waiting"])]
                messages += [self.signs.collapse(self.step, record["mean_similarity"])] if ends else []
                for message in filter(None, messages):
                    progress.write(message)
            progress.update(1)
            with throughput.paused():  # before the checkpoint is saved: a resumed run misses nothing
                self._observe(tracker, progress)
            if saves:
                self._save_checkpoint("last")
            if stops:
                raise Interrupted(
                    f"{self.run.folder}: interrupted after step {self.step}, checkpoint saved; "
                    "--resume continues the run"
                )

    def _record(
        self, pending: list[Tensor], embeddings: Tensor, lr: float, throughput: Throughput
    ) -> dict[str, Any]:
        values = torch.stack(pending).tolist()
        self._check_values(values, lr)
        own = self.config.model.embedding_dim  # others belong to the auxiliary encoder
        diagnostics = {name: float(number) for name, number in self.network.loss.diagnostics.items()}
        return {
            "step": self.step,
            "epoch": self.epoch,
            "loss": next(filter(math.isfinite, reversed(values)), values[-1]),
            "lr": lr,
            **throughput.read(len(values)),
            # Mean cosine over all pairs of a batch, self-pairs included: a product of two vectors.
            "mean_similarity": normalize(embeddings[:, :own]).mean(0).square().sum().item(),
            # A gradient ratio is not finite if the loss had no gradient.
            **{name: number for name, number in diagnostics.items() if math.isfinite(number)},
        }

    def _check_values(self, values: list[float], lr: float) -> None:
        """Refuse losses that are not finite; of those that loss scaling skips, many in a row."""
        most = _OVERFLOWS if self.take_step.scaler.is_enabled() else 0
        place = self.signs.first_failure(values, most)
        if place is not None:
            hint = "set precision=bf16, or lower optimizer.lr" if most else "lower optimizer.lr"
            self._fail(f"the loss is {values[place]}", self.step - len(values) + place + 1, lr, hint)

    def _fail(self, problem: str, step: int, lr: float, hint: str = "lower optimizer.lr") -> NoReturn:
        where = f"at step {step} (learning rate {lr:.3g})"
        raise LookalikeError(
            f"{self.run.folder}: {problem} {where}: {hint}; the last checkpoint is still good"
        )

    @contextmanager
    def _explain_errors(self, lr: float) -> Iterator[None]:
        """Turn errors of a training step into messages with the step and a remedy."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            self._fail_without_memory(error)
        except ValueError as error:  # embeddings or a batch that the loss refuses
            self._fail("the loss cannot be computed", self.step + 1, lr, str(error))
        except RuntimeError as error:
            if any(words in str(error) for words in _WITHOUT_MEMORY):
                self._fail_without_memory(error)
            if "deterministic" in str(error) and self.config.deterministic:
                raise LookalikeError(
                    f"{self.run.folder}: deterministic: {str(error).splitlines()[0]}; "
                    "set deterministic=false, or change the setting that needs this operation"
                ) from error
            if "device-side assert" not in str(error):
                raise
            # On a GPU the same checks run in the stream of kernels and are reported a little later.
            self._fail("the loss could not be computed", self.step, lr)

    def _fail_without_memory(self, error: Exception) -> NoReturn:
        hint = "set batch.chunk to fewer images at once, or lower batch.classes"
        raise LookalikeError(f"{self.run.folder}: out of memory at step {self.step + 1}: {hint}") from error

    def _rate_factor(self) -> float:
        return rate_factor(self.config.schedule, self.step, self.sampler.per_epoch, self.config.epochs)

    def _set_learning_rates(self) -> float:
        """Set every parameter group's rate for the next step; return that of the backbone's last stage."""
        factor = self._rate_factor()
        set_learning_rates(self.optimizer, factor)
        return self.config.optimizer.lr * factor

    def _end_epoch(self, tracker: Tracker, progress: Progress) -> None:
        of_features = self._score_features(progress)
        score = self.validator.score(self.network.validated_model)
        score = self.group.share(score)  # the same choice everywhere
        known = self.choice.refusal
        is_best = self.choice.add(score, self.epoch)
        if score is not None:
            tracker.log({"step": self.step, "epoch": self.epoch, **score.record(), **of_features})
            progress.write(f"{f'epoch {self.epoch}' if self.epoch else 'before training'}: {score}")
        if self.choice.refusal != known:
            progress.write(str(self.choice.refusal))
        ended = self.epoch == self.epochs or self.choice.stops
        if ended and self.watcher is not None and not self.watcher.is_due(self.step):
            self._watch(tracker, progress)
        if not ended:
            self.mine()
        recall = None if score is None else score.values.get("recall_at_1")
        self._save_checkpoint("best" if is_best else "last", recall)
        if is_best and self.group.is_main:
            self.run.link_checkpoint("best", "last")
        self.group.barrier()
        if self.epoch:
            self.group.limit_waiting(_LONGEST_WAIT)

    def _score_features(self, progress: Progress) -> dict[str, float]:
        """Return the metrics of the features of a frozen backbone, which a head should be better than."""
        if self.step or not self.network.on_features:
            return {}
        score = self.validator.score(without_head(self.network.validated_model))
        if score is None:
            return {}
        progress.write(f"features alone: {score}")
        return {f"{_OF_FEATURES}{name}": value for name, value in score.values.items()}

    def _observe(self, tracker: Tracker, progress: Progress) -> None:
        """Keep a checkpoint and evaluate the watched images if they are due after this step."""
        fitted = self.step == 0 and self.config.model.init in FITTED_INITS
        if fitted or self.config.checkpoints.keeps(self.step):
            self._keep_checkpoint()
        if self.watcher is not None and self.watcher.is_due(self.step):
            self._watch(tracker, progress)

    def _watch(self, tracker: Tracker, progress: Progress) -> None:
        assert self.watcher is not None
        self._check_weights()
        record = self.watcher.record(self.network.validated_model, self.step)
        self.network.model.train()
        tracker.log(record)
        title = WATCHED[record["watched"]]
        progress.write(f"step {self.step}: Recall@1 {record['recall_at_1']:.4f} of {title}")

    # ---- checkpoints

    def _keep_checkpoint(self) -> None:
        if not self.group.is_main:
            return
        self._check_weights()
        networks = {name: self._modules[name] for name in ("model", "average") if name in self._modules}
        state = {"epoch": self.epoch, "step": self.step}
        self.run.save_checkpoint(str(self.step), state, None, **networks)

    def _check_weights(self) -> None:
        total = torch.stack([weight.detach().sum() for weight in self.network.model.parameters()]).sum()
        if not math.isfinite(total.item()):
            lr = self.config.optimizer.lr * self._rate_factor()
            self._fail("weights are no longer finite", self.step, lr)

    def _save_checkpoint(self, which: str, recall: float | None = None) -> None:
        if not self.group.is_main:
            return
        self._check_weights()
        state = {
            "epoch": self.epoch,
            "step": self.step,
            **self.choice.state(),
            "collapsed_at": self.signs.collapsed_at,
            "scaler": self.take_step.scaler.state_dict(),
            "recall_at_1": recall,
            "start_sha256": self.network.start_digest,
            "division_sha256": self.data.division_digest,
        }
        self.run.save_checkpoint(which, state, self.optimizer, **self._modules)

    def _load_checkpoint(self) -> None:
        state = self.run.load_checkpoint("last", optimizer=self.optimizer, **self._modules)
        self.epoch, self.step = state["epoch"], state["step"]
        self.signs.collapsed_at = state["collapsed_at"]
        self.choice.restore(state)
        self.network.start_digest = state.get("start_sha256")  # missing in runs of older versions
        self.take_step.scaler.load_state_dict(state["scaler"])
        if self.hard is not None:
            self.hard.apply_to_sampler()

    @property
    def _modules(self) -> dict[str, nn.Module]:
        mined = {"hard_classes": self.hard, "surrogates": self.surrogates}
        return self.network.modules(self.run) | {n: part for n, part in mined.items() if part is not None}

    def _summary(self) -> dict[str, Any]:
        metric, pairs = self.choice.metric, self.data.held_out_pairs
        records = [record for record in self.run.metrics() if metric in record]
        recalls = [record.get("recall_at_1") for record in records]
        best, gain = self.choice.best_record(records), self.choice.gain
        return {
            "run": str(self.run.folder),
            "epochs": self.epoch,
            "steps": self.step,
            "training_images": len(self.data.images),
            "cached_features": self.network.on_features,
            "validation_classes": len({image.label for image in self.data.validation}),
            "validation_images": len(self.data.validation),
            "training_pairs": len(self.data.pairs) if self.data.pairs else None,
            "validation_pairs": len(pairs) if pairs else None,
            "recall_at_1_before": recalls[0] if recalls else None,
            "recall_at_1_last": recalls[-1] if recalls else None,
            "recall_at_1_best": best.get("recall_at_1") if best else None,
            "metric": metric,
            "metric_of_features": self._metric_of_features(),
            "metric_before": records[0][metric] if best else None,
            "metric_best": best[metric] if best else None,
            "metric_interval": [best[f"{metric}_low"], best[f"{metric}_high"]] if best and pairs else None,
            "metric_gain": None if gain is None else dataclasses.asdict(gain),
            "best_epoch": best["epoch"] if best else self.epoch,
            "best_refused": self.choice.refusal,
            "standard_error": best.get("standard_error") if best else None,
            "distractors": best.get("distractors") if best else None,
            "watched": self._watched_summary(),
            "stopped_early": self.choice.stops,
            "collapsed_at": self.signs.collapsed_at,
        }

    def _metric_of_features(self) -> float | None:
        key = f"{_OF_FEATURES}{self.choice.metric}"
        return next((float(record[key]) for record in self.run.metrics() if key in record), None)

    def _watched_summary(self) -> dict[str, Any] | None:
        records = self.run.watched()
        if not records:
            return None
        return {
            "images": WATCHED[records[0]["watched"]],
            "recall_at_1_before": records[0]["recall_at_1"],
            "recall_at_1_last": records[-1]["recall_at_1"],
        }


def _learned_weights(model: EmbeddingModel) -> str:
    learned, every = (
        sum(p.numel() for p in model.backbone.parameters() if p.requires_grad or not only)
        for only in (True, False)
    )
    return (
        f"LoRA: {learned:,} weights are learned beside the {every - learned:,} of the backbone, and the head"
    )


def _status(record: dict[str, Any]) -> str:
    speed = f"{record['images_per_second']:.0f} images/s, {100 * record['waiting']:.0f}% waiting for data"
    return f"loss {record['loss']:.4f}, {speed}"
