"""The folder of a training run: configuration, metrics and checkpoints.

    config.yaml                      everything resolved
    metrics.jsonl                    one object per step or evaluation
    checkpoints/last|best/state.safetensors
    events.out.tfevents.*            for TensorBoard

A checkpoint is one safetensors file with the tensors of the model, the loss and the optimizer, and the
rest as JSON in its header: replaced in one step, and nothing in it can run code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from retrieval.errors import InputError
from retrieval.files import atomic_write, sha256_of
from train import losses, settings
from train.config import Config
from train.losses import Objective
from train.models.embedding_model import EmbeddingModel


@dataclass(frozen=True)
class Run:
    """A run on disk."""

    folder: Path

    @classmethod
    def start(cls, folder: Path, configuration: Config) -> Run:
        """Begin a new run; an `InputError` where one lies there already.

        What was begun but never came to a checkpoint is written over.
        """
        run = cls(folder)
        if run.has_checkpoint("last"):
            raise InputError(f"{folder}: holds a run already; --resume continues it, or choose another --out")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").unlink(missing_ok=True)
        (folder / "config.yaml").write_text(configuration.to_yaml())
        return run

    @classmethod
    def open(cls, folder: Path) -> Run:
        """A run that exists."""
        if not (folder / "config.yaml").is_file():
            raise InputError(f"{folder}: not a training run; `lookalike train --out {folder}` makes one")
        return cls(folder)

    @property
    def config(self) -> Config:
        return settings.load(self.folder / "config.yaml")

    def untrained(self) -> EmbeddingModel:
        """The network as it was before the first step."""
        return initial_model(self.config)

    def trained(self, which: str = "best") -> EmbeddingModel:
        """The network of a checkpoint (the average of its weights, where one is kept), in evaluation mode."""
        model = initial_model(self.config, pretrained=False)
        part = "average" if self.config.ema else "model"
        self.load_checkpoint(which, optimizer=None, **{part: model})
        return model.eval()

    # ---- checkpoints

    def has_checkpoint(self, which: str) -> bool:
        return self._checkpoint(which).is_file()

    def save_checkpoint(
        self, which: str, facts: Mapping[str, Any], optimizer: torch.optim.Optimizer, **parts: nn.Module
    ) -> None:
        """Write a checkpoint, in place of the one before it, in one step."""
        tensors = {
            f"{part}.{name}": value
            for part, module in parts.items()
            for name, value in module.state_dict().items()
        }
        state = optimizer.state_dict()
        for number, values in state["state"].items():
            slots = {name: value for name, value in values.items() if isinstance(value, Tensor)}
            tensors |= {f"optimizer.{number}.{name}": value for name, value in slots.items()}
        header = {"facts": json.dumps(dict(facts)), "groups": json.dumps(state["param_groups"])}
        path = self._checkpoint(which)
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft:
            save_file({name: value.detach().contiguous() for name, value in tensors.items()}, draft, header)

    def load_checkpoint(
        self, which: str, *, optimizer: torch.optim.Optimizer | None = None, **parts: nn.Module
    ) -> dict[str, Any]:
        """Fill modules (and an optimizer) from a checkpoint -> the facts kept with it.

        Raises:
            InputError: no such checkpoint, or one of another network.
        """
        path = self._checkpoint(which)
        if not path.is_file():
            raise InputError(f"{path}: no such checkpoint; the run has not come that far")
        try:
            with safe_open(path, "pt") as file:
                header = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            for part, module in parts.items():
                module.load_state_dict(_below(part, tensors))
        except (SafetensorError, RuntimeError) as error:
            raise InputError(f"{path}: does not belong to this run's network ({error})") from error
        if optimizer is not None:
            state: dict[int, dict[str, Tensor]] = {}
            for name, value in _below("optimizer", tensors).items():
                number, _, slot = name.partition(".")
                state.setdefault(int(number), {})[slot] = value
            optimizer.load_state_dict({"state": state, "param_groups": json.loads(header["groups"])})
        return json.loads(header["facts"])

    def _checkpoint(self, which: str) -> Path:
        return self.folder / "checkpoints" / which / "state.safetensors"

    def checkpoint_digest(self, which: str) -> str:
        """SHA-256 of a checkpoint."""
        return sha256_of(self._checkpoint(which))

    # ---- metrics

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one object to metrics.jsonl."""
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(dict(record)) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Everything logged so far, oldest first."""
        path = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def drop_metrics_after(self, step: int) -> None:
        """Drop what was logged after a step: a resumed run logs it again."""
        kept = [record for record in self.metrics() if record["step"] <= step]
        with atomic_write(self.folder / "metrics.jsonl") as draft:
            draft.write_text("".join(json.dumps(record) + "\n" for record in kept))


def initial_model(configuration: Config, *, pretrained: bool = True) -> EmbeddingModel:
    """The network that a configuration begins with: its random weights depend on the seed alone.

    Args:
        pretrained: False leaves pretrained weights out, for a network that is filled from a checkpoint.
    """
    with _seeded(configuration.seed):
        return EmbeddingModel(configuration.model, configuration.preprocess, pretrained=pretrained)


def initial_loss(configuration: Config, classes: int) -> Objective:
    """The loss that a configuration asks for; its own parameters depend on the seed alone.

    Raises:
        InputError: it cannot be built; the reason says why.
    """
    try:
        with _seeded(configuration.seed):
            return losses.build(
                configuration.loss, num_classes=classes, embedding_dim=configuration.model.embedding_dim
            )
    except (ValueError, TypeError) as error:
        raise InputError(f"loss: {error}") from error


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
