"""What a training run is made of: the settings, their defaults and what they accept."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import yaml

from retrieval.errors import InputError
from retrieval.images.preprocess import Preprocess


@dataclass(frozen=True)
class SplitConfig:
    """Which training classes are held out to choose the best epoch.

    Args:
        validation: share of the training classes, drawn by the seed; 0: none, and the best epoch is the last.
        folds: more than 1: the classes are dealt into so many parts instead, and one of them is held out.
        fold: which part, from 0.
    """

    validation: float = 0.1
    folds: int = 0
    fold: int = 0


@dataclass(frozen=True)
class NoiseConfig:
    """Wrong labels, put into the training images (never into what is held out) and kept in noise.csv.

    Args:
        kind: symmetric (any other class) or asymmetric (the class that it is mistaken for).
        rate: share of the training images that get one.
    """

    kind: str = "symmetric"
    rate: float = 0.0


@dataclass(frozen=True)
class ModelConfig:
    """The network: a backbone, pooling, and a linear embedding.

    Args:
        backbone: conv4, vgg9, bn-inception, a classifier of torchvision by name, or timm:NAME
            (timm:NAME:key=value,... hands options of the architecture on).
        weights: null (random), imagenet (downloaded by torchvision or timm), or a .safetensors file with the
            names of the library's own classifier (for bn-inception, of the published file).
        embedding_dim: D.
        pooling: mean, gem (a learned power mean), cls (the class token of a transformer), or spatial (a
            linear map of its own for each location, for upright pictures of one thing).
        init: of the embedding layer: default (torch's), uniform, xavier or kaiming.
        dropout: share of the features dropped before the embedding layer.
        batch_norm: train, frozen (statistics and scales stay as they are), or sync (over all processes).
        trainable: how many of the backbone's last stages learn; null: all, 0: the embedding layer alone.
    """

    backbone: str = "conv4"
    weights: str | None = None
    embedding_dim: int = 64
    pooling: str = "mean"
    init: str = "default"
    dropout: float = 0.0
    batch_norm: str = "train"
    trainable: int | None = None


@dataclass(frozen=True)
class AugmentConfig:
    """What happens to training pictures, drawn anew each time.

    Args:
        crop: center, random (of preprocess.size, out of the picture with `resize` as its shorter side) or
            resized (a random part of the picture, enlarged or shrunk to preprocess.size).
        resize: the shorter side of what is cropped; null: preprocess.resize, as outside training.
        padding: pixels put around the picture before a random crop.
        min_area: the smallest part that a resized crop takes, as a share of the picture.
        flip: mirrored, every second time.
        color: brightness, contrast and saturation change by up to this share.
        rotate: turned by up to so many degrees, either way.
        scale: enlarged or shrunk by up to this share.
        shear: slanted by up to this share of the height.
        shift: moved by up to this share of the side, in x and in y.
        symmetries: 1, or 4: a class turned by 90, 180 and 270 degrees makes three classes more (Santoro et
            al. 2016), or 8: their mirror images too.
    """

    crop: str = "center"
    resize: int | None = None
    padding: int = 0
    min_area: float = 0.2
    flip: bool = True
    color: float = 0.0
    rotate: float = 10.0
    scale: float = 0.1
    shear: float = 0.0
    shift: float = 0.1
    symmetries: int = 1


@dataclass(frozen=True)
class BatchConfig:
    """P classes x K images.

    Args:
        classes: P.
        per_class: K; 2 makes pairs.
        layout: exact (P classes, K images of each) or at-least (P x K images in their natural frequencies,
            but at least K of every class that occurs).
        per_epoch: batches in an epoch; null: as many whole batches as fit into the images.
        chunk: null, or how many images go through the network at once: batches of any size fit any memory,
            by gradient caching (Gao et al. 2021), for a second forward pass.
    """

    classes: int = 16
    per_class: int = 4
    layout: str = "exact"
    per_epoch: int | None = None
    chunk: int | None = None


@dataclass(frozen=True)
class OptimizerConfig:
    """How a step is taken.

    Args:
        name: adamw (decoupled weight decay), adam or sgd.
        lr: learning rate.
        head_lr: of the embedding layer; null: the same.
        loss_lr: of the loss's own parameters (proxies, boundaries); null: the same.
        layer_decay: the rate of each stage of the backbone, as a share of the next one's.
        weight_decay: of all weights but those of the loss.
        momentum: of sgd.
    """

    name: str = "adamw"
    lr: float = 1e-3
    head_lr: float | None = None
    loss_lr: float | None = None
    layer_decay: float = 1.0
    weight_decay: float = 1e-4
    momentum: float = 0.9


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rates change.

    Args:
        name: cosine (half a cosine down to 0), constant, or step.
        warmup: epochs over which they rise from 0, in a straight line.
        at: for step: after which epochs they are multiplied by gamma.
        gamma: for step.
    """

    name: str = "cosine"
    warmup: float = 0.0
    at: tuple[int, ...] = ()
    gamma: float = 0.1


@dataclass(frozen=True)
class LoaderConfig:
    """How pictures reach the network.

    Args:
        workers: processes that decode and augment; null: on a CPU 1 where files are decoded each time, else
            0; for a GPU up to 8, as far as there are cores.
        cache: a folder for decoded, resized pictures: made once for each set of files and scale, used by
            every run on the same ones, and deleted by you alone; null: pictures that take less than 1 GiB as
            squares (and less than half the free disk) are decoded once into a temporary file in the run's
            folder, more are decoded each time.
    """

    workers: int | None = None
    cache: str | None = None


@dataclass(frozen=True)
class Published:
    """What a paper reports for this very experiment, in percent.

    Args:
        source: paper and table.
        recall: K: Recall@K.
        nmi: of k-means clusters.
        f1: of k-means clusters.
        note: what we know to differ.
    """

    source: str
    recall: dict[int, float] = field(default_factory=dict)
    nmi: float | None = None
    f1: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class Config:
    """Everything a run depends on; rerunning it reproduces the run.

    Args:
        data: what to train on, as --data names it.
        loss: see `lookalike losses`.
        epochs: how often the images are gone through (batch.per_epoch batches each).
        patience: stop after so many epochs without a better Recall@1 on the classes held out; null: never.
        ema: 0, or the decay of a running average of the weights, which is what is validated and exported.
        precision: fp32, bf16 or fp16 for the network; losses are always fp32.
        compile: let torch.compile speed up the network (takes minutes to begin).
        device: auto, cpu, cuda or cuda:N.
        seed: of everything drawn at random.
        save_every: steps from one checkpoint to the next within an epoch; there is one at its end anyway.
        wandb: a project at Weights & Biases to report to; null: none.
        published: numbers to compare with, in recipes.
    """

    data: str
    split: SplitConfig = field(default_factory=SplitConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    preprocess: Preprocess = field(default_factory=lambda: Preprocess(size=64))
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    loss: dict[str, Any] = field(
        default_factory=lambda: {"name": "triplet", "negatives": "optimal", "margin": 0.2}
    )
    batch: BatchConfig = field(default_factory=BatchConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    epochs: int = 20
    patience: int | None = None
    ema: float = 0.0
    precision: str = "fp32"
    compile: bool = False
    device: str = "auto"
    seed: int = 0
    save_every: int = 1000
    wandb: str | None = None
    published: Published | None = None

    def __post_init__(self) -> None:
        for name, accepted, wanted in _RULES:
            value: Any = self
            for part in name.split("."):
                value = getattr(value, part)
            if not accepted(value):
                raise InputError(f"{name}: expected {wanted}, got {value!r}")
        if self.split.folds and not self.split.fold < self.split.folds:
            raise InputError(f"split.fold: expected less than split.folds, got {self.split.fold}")
        if self.augment.resize is not None and self.augment.resize < self.preprocess.size:
            raise InputError(f"augment.resize: expected preprocess.size or more, got {self.augment.resize}")

    def to_dict(self) -> dict[str, Any]:
        """For YAML and JSON: plain values."""
        return _plain(dataclasses.asdict(self))

    def to_yaml(self) -> str:
        """As kept in config.yaml."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _one_of(name: str, *choices: Any) -> tuple[str, Any, str]:
    return name, choices.__contains__, " or ".join(map(str, choices))


def _at_least(name: str, least: float) -> tuple[str, Any, str]:
    return name, lambda value: value is None or value >= least, f"{least} or more"


def _share(name: str) -> tuple[str, Any, str]:
    return name, lambda value: 0 <= value < 1, "a share, 0 or more and below 1"


def _positive(name: str) -> tuple[str, Any, str]:
    return name, lambda value: value is None or value > 0, "more than 0"


_RULES = (
    _share("split.validation"),
    ("split.folds", lambda folds: folds == 0 or folds >= 2, "0 (none), or 2 or more"),
    _at_least("split.fold", 0),
    _one_of("noise.kind", "symmetric", "asymmetric"),
    _share("noise.rate"),
    _at_least("model.embedding_dim", 1),
    _one_of("model.pooling", "mean", "gem", "cls", "spatial"),
    _one_of("model.init", "default", "uniform", "xavier", "kaiming"),
    _share("model.dropout"),
    _one_of("model.batch_norm", "train", "frozen", "sync"),
    _at_least("model.trainable", 0),
    _one_of("augment.crop", "center", "random", "resized"),
    _at_least("augment.padding", 0),
    ("augment.min_area", lambda share: 0 < share <= 1, "a share, above 0 and at most 1"),
    _share("augment.color"),
    _share("augment.scale"),
    _one_of("augment.symmetries", 1, 4, 8),
    _at_least("batch.classes", 2),
    _at_least("batch.per_class", 2),
    _one_of("batch.layout", "exact", "at-least"),
    _at_least("batch.per_epoch", 1),
    _at_least("batch.chunk", 1),
    _one_of("optimizer.name", "adamw", "adam", "sgd"),
    _positive("optimizer.lr"),
    _positive("optimizer.head_lr"),
    _positive("optimizer.loss_lr"),
    ("optimizer.layer_decay", lambda share: 0 < share <= 1, "a share, above 0 and at most 1"),
    _at_least("optimizer.weight_decay", 0),
    _share("optimizer.momentum"),
    _one_of("schedule.name", "cosine", "constant", "step"),
    _at_least("schedule.warmup", 0),
    _positive("schedule.gamma"),
    _at_least("loader.workers", 0),
    _at_least("epochs", 0),
    _at_least("patience", 1),
    _share("ema"),
    _one_of("precision", "fp32", "bf16", "fp16"),
    _at_least("save_every", 1),
)
