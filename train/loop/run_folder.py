"""Run folder: configuration, metrics and checkpoints of a training run.

    config.yaml                      resolved configuration
    metrics.jsonl                    one object per logged step or evaluation; those of watched images have
                                     a key `watched`, which names the split
    teacher.json                     with a distillation, facts about the teacher
    checkpoints/last|best/state.safetensors
    checkpoints/step-000012/state.safetensors    kept by `checkpoints.at` and `checkpoints.every`
    checkpoints/backbone.safetensors             a frozen backbone; the other files then have only the head
    choice                           with `split.refit`, the run that chose the number of epochs
    events.out.tfevents.*            TensorBoard events

A checkpoint is one safetensors file: tensors of the model, the loss and the optimizer, everything else as
JSON in its header. It is replaced by an atomic rename, and loading it cannot execute code. The kept ones have
only the model and its moving average. With several machines, see `train.loop.run_copies`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from retrieval.errors import InputError
from retrieval.files import atomic_write, link_or_copy, sha256_of
from train import losses, settings
from train.config import FITTED_INITS, Config, DistillConfig
from train.data.dataset import LabelledPairs
from train.loop.precision import resolve_precision
from train.loop.process_group import find_device
from train.loop.teacher import TEACHER_FILE
from train.loop.twin_encoder import AuxiliaryEncoder
from train.losses import Objective
from train.losses.labelled_pairs import PairObjective
from train.losses.mic import MicObjective
from train.models.embedding_model import EmbeddingModel
from train.models.lora import merge_adapters

_KEPT = re.compile(r"(?:step-)?(\d+)")


@dataclass(frozen=True)
class Run:
    """A training run on disk.

    Attributes:
        folder: Run folder.
    """

    folder: Path

    @classmethod
    def start(cls, folder: Path, configuration: Config, why: str = "") -> Run:
        """Create a run folder; one without a checkpoint is overwritten.

        Settings that depend on the device are resolved, so that the run keeps them wherever it continues.

        Args:
            folder: Folder to create.
            configuration: Settings of the run.
            why: Why they are these; the first line of config.yaml, as a comment.

        Raises:
            InputError: The folder holds a run with a checkpoint already.
        """
        run = cls(folder)
        if run.is_begun:
            raise InputError(f"{folder}: holds a run already; --resume continues it, or choose another --out")
        folder.mkdir(parents=True, exist_ok=True)
        for step in run.kept_steps:  # of a run that ended before its first checkpoint
            shutil.rmtree(run._checkpoint(str(step)).parent)
        run._backbone.unlink(missing_ok=True)
        shutil.rmtree(run.choice.folder, ignore_errors=True)
        (folder / "metrics.jsonl").unlink(missing_ok=True)
        run.teacher_file.unlink(missing_ok=True)
        comment = f"# {' '.join(why.split())}\n" if why else ""
        (folder / "config.yaml").write_text(comment + _resolve(configuration).to_yaml())
        return run

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Open an existing run.

        Raises:
            InputError: The folder is not a training run.
        """
        if not (folder / "config.yaml").is_file():
            raise InputError(f"{folder}: not a training run; `lookalike train --out {folder}` creates one")
        return cls(folder)

    @property
    def choice(self) -> Run:
        """The run that chooses the number of epochs with `split.refit`."""
        return Run(self.folder / "choice")

    @property
    def teacher_file(self) -> Path:
        """Facts about the teacher of a distillation."""
        return self.folder / TEACHER_FILE

    @property
    def is_begun(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.has_checkpoint("last") or self.choice.has_checkpoint("last")

    @property
    def progress(self) -> list[int]:
        """Steps of the last checkpoint and of that of `choice`, -1 without one: larger if further."""
        return [
            run.checkpoint_state("last")["step"] if run.has_checkpoint("last") else -1
            for run in (self, self.choice)
        ]

    @property
    def config(self) -> Config:
        return settings.load_config(self.folder / "config.yaml")

    def differences(self, configuration: Config) -> list[str]:
        """Return in which settings this run differs from a configuration, as "epochs 3, not 5".

        The device does not count, and an automatic setting agrees with what it was resolved to.
        """
        own = self.config
        same = {"device": own.device}
        same |= {"precision": own.precision} if configuration.precision == "auto" else {}
        return settings.differences(own, configuration.model_copy(update=same))

    def move_to(self, device: str) -> None:
        """Let the run continue on a device, perhaps another one."""
        for run in (self, self.choice):
            file = run.folder / "config.yaml"
            if file.is_file() and run.config.device != device:
                with atomic_write(file) as draft:
                    draft.write_text(run.config.model_copy(update={"device": device}).to_yaml())

    def untrained(self) -> EmbeddingModel:
        """Return the network as it was before the first step, in evaluation mode."""
        config = self.config
        if config.model.init in FITTED_INITS:  # kept by the trainer: it depends on the training images
            return self.trained("0")
        model = initial_model(config)
        merge_adapters(model)
        return model.eval()

    def trained(self, which: str = "best", *, like: EmbeddingModel | None = None) -> EmbeddingModel:
        """Load the network of a checkpoint (its EMA weights if there are any), in evaluation mode.

        LoRA's updates are merged into the weights.

        Args:
            which: Name of the checkpoint.
            like: A network of this run, whose frozen backbone is used in place of another copy.
        """
        shares = like is not None and self._backbone.is_file()
        model = like.with_own_head() if like and shares else initial_model(self.config, pretrained=False)
        part = "average" if self.config.ema else "model"
        self.load_checkpoint(which, optimizer=None, **{part: self.checkpointed(model)})
        if not shares:
            self.restore_backbone(model)
        merge_adapters(model)
        return model.eval()

    # ---- the weights of a frozen backbone

    def keep_backbone(self, weights: Path) -> None:
        """Keep the weights of a frozen backbone, so that checkpoints need only the head.

        Args:
            weights: File to link to, or to copy from another disk.
        """
        self._backbone.parent.mkdir(parents=True, exist_ok=True)
        self._backbone.unlink(missing_ok=True)
        link_or_copy(weights, self._backbone)

    def restore_backbone(self, model: EmbeddingModel) -> None:
        """Load the kept weights of a frozen backbone, if there are any.

        Raises:
            InputError: They belong to another network.
        """
        if self._backbone.is_file():
            with _explain_mismatch(self._backbone):
                model.backbone.load_state_dict(load_file(self._backbone))

    def checkpointed(self, model: EmbeddingModel) -> nn.Module:
        """Return the part of a model that the checkpoints of this run hold."""
        return model.learned if self._backbone.is_file() else model

    @property
    def _backbone(self) -> Path:
        return self.folder / "checkpoints" / "backbone.safetensors"

    # ---- checkpoints, named "best", "last", or by their step: "12" or "step-12"

    @property
    def kept_steps(self) -> list[int]:
        """Steps of the kept checkpoints, ascending."""
        files = (self.folder / "checkpoints").glob("step-*/state.safetensors")
        return sorted(int(found[1]) for file in files if (found := _KEPT.fullmatch(file.parent.name)))

    def has_checkpoint(self, which: str) -> bool:
        return self._checkpoint(which).is_file()

    def save_checkpoint(
        self,
        which: str,
        state: Mapping[str, Any],
        optimizer: torch.optim.Optimizer | None,
        **modules: nn.Module,
    ) -> None:
        """Save a checkpoint, replacing the previous one by an atomic rename.

        Args:
            which: Name of the checkpoint.
            state: JSON values to save in the header.
            optimizer: Optimizer whose state is saved; `None` for a checkpoint that cannot be resumed.
            **modules: Modules whose state is saved, by name.
        """
        tensors = {
            f"{part}.{name}": value
            for part, module in modules.items()
            for name, value in module.state_dict().items()
        }
        optimizer_state = optimizer.state_dict() if optimizer else {"state": {}, "param_groups": []}
        for number, values in optimizer_state["state"].items():
            slots = {name: value for name, value in values.items() if isinstance(value, Tensor)}
            tensors |= {f"optimizer.{number}.{name}": value for name, value in slots.items()}
        groups = json.dumps(optimizer_state["param_groups"])
        header = {"facts": json.dumps(dict(state)), "groups": groups}
        path = self._checkpoint(which)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            try:
                save_file(
                    {name: value.detach().contiguous() for name, value in tensors.items()}, draft, header
                )
            except SafetensorError as error:  # "I/O error: No space left on device (os error 28)"
                if not (found := re.search(r"os error (\d+)", str(error))):
                    raise
                raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error

    def link_checkpoint(self, which: str, to: str) -> None:
        """Let a checkpoint be the same as another one, without writing it again."""
        target = self._checkpoint(to)
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as draft:
            link_or_copy(self._checkpoint(which), draft)

    def load_checkpoint(
        self, which: str, *, optimizer: torch.optim.Optimizer | None = None, **modules: nn.Module
    ) -> dict[str, Any]:
        """Load a checkpoint into modules and an optimizer; return the state saved in its header.

        Raises:
            InputError: The checkpoint does not exist, belongs to another network, or has no optimizer.
        """
        with self._opened(which) as file:
            header = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            for part, module in modules.items():
                module.load_state_dict(_with_prefix(part, tensors))
        if optimizer is not None:
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in _with_prefix("optimizer", tensors).items():
                number, _, slot = name.partition(".")
                state.setdefault(int(number), {})[slot] = value
            optimizer.load_state_dict({"state": state, "param_groups": json.loads(header["groups"])})
            _lay_out_like_weights(optimizer)
        saved: dict[str, Any] = json.loads(header["facts"])
        return saved

    def checkpoint_state(self, which: str) -> dict[str, Any]:
        """Return the state saved in the header of a checkpoint: its step and epoch, among others.

        Raises:
            InputError: The checkpoint does not exist.
        """
        with self._opened(which) as file:
            state: dict[str, Any] = json.loads(file.metadata()["facts"])
        return state

    @contextmanager
    def _opened(self, which: str) -> Iterator[Any]:
        path = self._checkpoint(which)
        if not path.is_file():
            raise InputError(f"{self.folder}: there is no such checkpoint: {which}; {self._available()}")
        with _explain_mismatch(path), safe_open(path, "pt") as file:
            yield file

    def _checkpoint(self, which: str) -> Path:
        """Return the path of a checkpoint.

        Raises:
            InputError: Not the name of a checkpoint.
        """
        step = _KEPT.fullmatch(which)
        if step is None and which not in ("best", "last"):
            raise InputError(f"checkpoint {which!r}: expected best, last, or a step as in 12 or step-12")
        name = f"step-{int(step[1]):06d}" if step else which
        return self.folder / "checkpoints" / name / "state.safetensors"

    def _available(self) -> str:
        if not self.has_checkpoint("last"):
            return "the run has not saved one yet"
        steps = ", ".join(map(str, self.kept_steps))
        kept = f"and those of steps {steps}" if steps else "and checkpoints.at keeps others while training"
        return f"it has best and last, {kept}"

    def checkpoint_digest(self, which: str) -> str:
        """Return the SHA-256 of a checkpoint."""
        return sha256_of(self._checkpoint(which))

    # ---- metrics

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one object to metrics.jsonl."""
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(dict(record)) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return the records of training and of validation, oldest first."""
        return [record for record in self._records() if "watched" not in record]

    def watched(self) -> list[dict[str, Any]]:
        """Return the records of watched images, oldest first; they never select a checkpoint."""
        return [record for record in self._records() if "watched" in record]

    def _records(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        try:
            found = [json.loads(line) for line in path.read_text().splitlines()]
            if all(isinstance(record, dict) for record in found):
                return found
            raise ValueError
        except (ValueError, RecursionError) as error:
            what = "a line is not a JSON object"
            raise InputError(f"{path}: {what}; put the file back from a copy, or delete it") from error

    def drop_metrics_after(self, step: int) -> None:
        """Drop the records of later steps: a resumed run logs them again."""
        kept = [record for record in self._records() if record["step"] <= step]
        with atomic_write(self.folder / "metrics.jsonl") as draft:
            draft.write_text("".join(json.dumps(record) + "\n" for record in kept))


@contextmanager
def _explain_mismatch(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        raise InputError(f"{path}: does not belong to this run's network ({error})") from error


def _resolve(configuration: Config) -> Config:
    device = find_device(configuration.device)
    precision = resolve_precision(configuration.precision, device)
    return configuration.model_copy(update={"precision": precision})


def initial_model(configuration: Config, *, pretrained: bool = True) -> EmbeddingModel:
    """Build the network of a configuration; its random weights depend on the seed alone.

    Args:
        configuration: Configuration of the run.
        pretrained: Load pretrained weights; False for a network to be filled from a checkpoint.
    """
    with _seeded(configuration.seed):
        return EmbeddingModel(configuration.model, configuration.preprocess, pretrained=pretrained)


def initial_loss(configuration: Config, classes: int) -> Objective:
    """Build the loss of a configuration; its own parameters depend on the seed alone.

    Args:
        configuration: Configuration of the run.
        classes: Number of training classes.

    Raises:
        InputError: The loss specification is invalid.
    """
    try:
        with _seeded(configuration.seed):
            batch, distill = configuration.batch, configuration.distill
            return losses.build(
                configuration.loss,
                num_classes=classes,
                embedding_dim=configuration.model.embedding_dim,
                per_class=batch.per_class if batch.layout == "exact" else None,
                distillation=None if distill.teacher is None else distill.weight,
            )
    except (ValueError, TypeError) as error:
        raise InputError(f"loss: {error}") from error


def initial_mic_loss(configuration: Config, objective: Objective, count: int) -> MicObjective:
    """Build the loss of a configuration with `mic.clusters` around its objective.

    Surrogate classes are learned with the same loss, but without its regularizers, memory and prefixes.

    Args:
        configuration: Configuration of the run.
        objective: Objective of the classes.
        count: Number of images of classes in a batch.

    Raises:
        InputError: The loss specification is invalid.
    """
    mic, dim = configuration.mic, configuration.model.embedding_dim
    left_out = ("regularizers", "memory", "dims", "dim_weights")
    plain = {key: value for key, value in configuration.loss.items() if key not in left_out}
    of_surrogates = configuration.model_copy(
        update={
            "loss": plain,
            "distill": DistillConfig(),
            "model": configuration.model.model_copy(update={"embedding_dim": mic.dim or dim}),
        }
    )
    auxiliary = initial_loss(of_surrogates, mic.clusters or 0)
    return MicObjective(objective, auxiliary, mic.weight, count, (dim, mic.dim or dim))


def pair_loss(objective: Objective, pairs: LabelledPairs) -> PairObjective:
    """Return the loss of a run that learns from labelled pairs.

    Raises:
        InputError: The objective needs classes.
    """
    try:
        values = torch.from_numpy(pairs.values.astype(np.float32))
        return PairObjective(objective, values, graded=pairs.graded)
    except ValueError as error:
        raise InputError(f"loss: {error}; as --set loss='{{name: cosent}}'") from error


def initial_auxiliary(configuration: Config, model: EmbeddingModel) -> AuxiliaryEncoder:
    """Build the auxiliary encoder of a configuration with `mic.clusters`; it depends on the seed alone.

    Args:
        configuration: Configuration of the run.
        model: The model, for the number of its features.
    """
    dim, mic = configuration.model.embedding_dim, configuration.mic
    with _seeded(configuration.seed):
        return AuxiliaryEncoder(model.locations * model.backbone.channels, mic.dim or dim, mic.width, dim)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _lay_out_like_weights(optimizer: torch.optim.Optimizer) -> None:
    """Give state that was loaded the strides of its weights, as the fused kernels of CUDA demand.

    A file keeps no strides, and the weights of convolutions are in `channels_last`.
    """
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == weight.shape:
                state[name] = torch.empty_like(weight).copy_(value)


def _with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
