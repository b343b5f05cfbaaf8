"""Settings of a training run: pydantic models with defaults, descriptions and accepted values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from retrieval.errors import InputError
from retrieval.images.preprocess import Preprocess

Pooling = Literal["mean", "gem", "cls", "spatial", "native"]
ProbeLabels = Literal["clean", "noisy"]
ValidationMetric = Literal["recall_at_1", "map_at_r"]


class StrictModel(BaseModel):
    """Base of all settings: immutable, no unknown keys, no conversion between types (but int to float)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


# Choice of the best epoch as papers make it, and as versions before `split.choice` did: held-out images are
# searched among themselves alone, and their score is trusted in any case.
CHOICE_OF_PAPERS: Mapping[str, Any] = {"metric": "recall_at_1", "distractors": 0, "choice": "always"}


class SplitConfig(StrictModel):
    """Held-out images: part of the training split, set aside to choose the best epoch."""

    validation: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of the training classes (or images, see split.by) to hold out, drawn with the "
        "seed. 0: none, and the last epoch counts as the best.",
    )
    by: Literal["classes", "images"] = Field(
        default="classes",
        description="classes (whole classes are held out: the test classes are new), or images (the same "
        "share of the images of every class: a closed set, whose test classes are those of training). The "
        "best epoch has the best split.metric of the held-out images, by their true labels.",
    )
    metric: ValidationMetric = Field(
        default="map_at_r",
        description="Metric that chooses the best epoch: map_at_r, which follows Recall@1 of new classes "
        "better and is far from its ceiling, or recall_at_1.",
    )
    distractors: int = Field(
        default=1000,
        ge=0,
        description="Largest number of training images, drawn with the seed, that each held-out image "
        "searches besides the other held-out ones: a few classes alone are easy to tell apart. With "
        "split.by=images there are none, since all classes are held out in part.",
    )
    choice: Literal["auto", "always"] = Field(
        default="auto",
        description="auto: no choice of the best epoch and no early stopping, but the last epoch, if the "
        "metric is saturated (above 0.95 before training, or within two standard errors of 1) or rests on "
        "fewer than 300 held-out images or 20 classes. always: choose in any case.",
    )
    refit: bool = Field(
        default=False,
        description="After the best epoch is chosen, train on all images, the held-out ones included, from "
        "the start for as many epochs. The run that chose is kept in the folder choice of the run.",
    )
    folds: int = Field(
        default=0,
        ge=0,
        description="Cross-validation: deal the classes (or the images of every class) into this many folds "
        "and hold one out, in place of split.validation. 0: off, else 2 or more.",
    )
    fold: int = Field(default=0, ge=0, description="Index of the fold to hold out, from 0.")

    @model_validator(mode="after")
    def _check_folds(self) -> SplitConfig:
        if self.folds == 1:
            raise InputError("split.folds: expected 0 (none), or 2 or more, got 1")
        if self.folds and self.fold >= self.folds:
            raise InputError(f"split.fold: expected less than split.folds, got {self.fold}")
        return self

    @model_validator(mode="after")
    def _check_refit(self) -> SplitConfig:
        if self.refit and not (self.validation or self.folds):
            raise InputError(
                "split.refit: no images are held out to choose the number of epochs on; set split.validation"
            )
        return self

    @property
    def choice_of_papers(self) -> Mapping[str, Any]:
        """The values of `CHOICE_OF_PAPERS` for the settings that were left at their default."""
        return {key: value for key, value in CHOICE_OF_PAPERS.items() if key not in self.model_fields_set}


class NoiseConfig(StrictModel):
    """Label noise in the training images (never in held-out images), recorded in noise.csv."""

    kind: Literal["symmetric", "asymmetric"] = Field(
        default="symmetric",
        description="symmetric (any other class) or asymmetric (the class that this one is mistaken for: "
        "defined for cifar10, cifar100 and stl10, see `lookalike datasets info`; on other data the next "
        "class in sorted order).",
    )
    rate: float = Field(
        default=0.0, ge=0, lt=1, description="Share of the training images whose label is replaced."
    )
    include_true: bool = Field(
        default=False,
        description="symmetric: draw the new label among all classes, the true one included, so that of C "
        "classes a share of rate (C - 1) / C is wrong. false: every new label is wrong.",
    )

    @model_validator(mode="after")
    def _check_include_true(self) -> NoiseConfig:
        if self.include_true and self.kind == "asymmetric":
            raise InputError(
                "noise.include_true: asymmetric noise has one wrong class for each class; leave it out, or "
                "set noise.kind=symmetric"
            )
        return self


# Initializations of the embedding layer that are computed from the features of the training images.
FITTED_INITS = ("pca", "pca-half-whitened", "pca-whitened", "lda", "teacher")


class ModelConfig(StrictModel):
    """Network: backbone, pooling, and a head that maps the pooled features to the embedding."""

    backbone: str = Field(
        default="conv4",
        description="conv4, vgg9 (without batch norm: embeddings begin as nearly one point), vgg9-bn (with "
        "it), bn-inception, the name of a torchvision classifier, or timm:NAME "
        "(timm:NAME:key=value,... passes options to the architecture).",
    )
    weights: str | None = Field(
        default=None,
        description="null (random), imagenet (downloaded by torchvision or timm), torchvision's name of "
        "certain weights, such as imagenet1k_v1, lite0 (of timm:tf_efficientnet_lite0, in the extra demo), "
        "or a .safetensors file with the parameter names of the library's classifier (for bn-inception, of "
        "the published file).",
    )
    embedding_dim: int = Field(
        default=64,
        ge=1,
        description="Embedding dimension D. auto: that of the backbone's published embedding.",
    )
    pooling: Pooling = Field(
        default="mean",
        description="mean, gem (generalized mean with a learned power), cls (class token of a transformer), "
        "spatial (a separate linear map for each location, for aligned images of one object), native (the "
        "backbone's own pooling and projection: its published embedding), or auto (the class token of a "
        "transformer that was trained with it, else mean).",
    )
    hidden: int | None = Field(
        default=None,
        ge=1,
        description="Width of a hidden layer with ReLU before the embedding layer (an MLP head). null: none.",
    )
    init: Literal[
        "default",
        "uniform",
        "xavier",
        "kaiming",
        "pca",
        "pca-half-whitened",
        "pca-whitened",
        "lda",
        "teacher",
    ] = Field(
        default="default",
        description="Initialization of the embedding layer: default (torch's), uniform, xavier, kaiming; or "
        "from the features of the training images: pca (their principal components), pca-half-whitened (with "
        "variances that differ less, for any number of images), pca-whitened (with equal variances, for many "
        "images), lda (the directions that separate the training classes best) or teacher (ridge "
        "regression to the vectors of distill.teacher).",
    )
    dropout: float = Field(default=0.0, ge=0, lt=1, description="Dropout rate before the embedding layer.")
    drop_path: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="Stochastic depth (Huang et al. 2016): rate at which the last block of the backbone is "
        "skipped in training, rising linearly from the first. null: the library's default.",
    )
    grad_checkpointing: bool = Field(
        default=False,
        description="Compute the backbone's activations again in the backward pass instead of keeping them: "
        "a fraction of the memory, for one more forward pass.",
    )
    batch_norm: Literal["train", "frozen", "sync"] = Field(
        default="train",
        description="train, frozen (statistics and affine parameters stay fixed), or sync (synchronized "
        "over all processes).",
    )
    trainable: int | None = Field(
        default=None,
        ge=0,
        description="Number of backbone stages to train, counted from the last. null: all; 0: only the "
        "head, on features that are computed once if augmentation allows it (see loader.features).",
    )

    lora_rank: int | None = Field(
        default=None,
        ge=1,
        description="LoRA (Hu et al. 2022): train updates of this rank of the attention and MLP layers of a "
        "transformer instead of its weights; they are merged into the weights afterwards. Needs peft. null: "
        "train the weights.",
    )
    lora_alpha: float | None = Field(
        default=None,
        gt=0,
        description="Scale of the updates times model.lora_rank. null: twice the rank, a scale of 2.",
    )

    @model_validator(mode="after")
    def _check_lora(self) -> ModelConfig:
        if self.lora_rank is None and self.lora_alpha is not None:
            raise InputError("model.lora_alpha: has no effect without model.lora_rank; leave it out")
        if self.lora_rank is not None and self.trainable is not None:
            raise InputError("model.lora_rank: trains updates of all stages; leave model.trainable out")
        return self

    @model_validator(mode="after")
    def _check_init(self) -> ModelConfig:
        if self.init in FITTED_INITS and self.hidden is not None:
            raise InputError(
                f"model.init: {self.init} is for a linear head; leave model.hidden out, or use init=default"
            )
        return self


class PreprocessConfig(StrictModel):
    """Preprocessing in training and at inference: the settings of `retrieval.Preprocess`.

    The default of each is auto: as published with the pretrained weights (`train.pretrained_configs`), or the
    default here for random weights.
    """

    size: int = Field(
        default=64,
        ge=1,
        description="Side of the square that the model sees, in pixels. auto: as published with "
        "model.weights (for a file of weights: with the library's weights of this backbone), or 64 for "
        "random weights.",
    )
    resize: int | None = Field(
        default=Preprocess.resize,
        ge=1,
        description="Length of the shorter side (with fit=pad, of the longer one) before the crop, in "
        "pixels. null: preprocess.size, so that no margin is cropped. auto: the published multiple of it, or "
        "null for random weights.",
    )
    fit: Literal["crop", "squeeze", "pad"] = Field(
        default="crop",
        description="crop (keep proportions, take the center), squeeze (scale the image to a square) or pad "
        "(keep proportions and the full image, on a square of the mean color). auto: as published, or crop.",
    )
    interpolation: Literal["bilinear", "bicubic"] = Field(
        default="bicubic",
        description="bilinear or bicubic; both antialiased. auto: as published, or bicubic.",
    )
    mean: tuple[float, ...] = Field(
        default=Preprocess.mean,
        strict=False,
        description="Mean of each RGB channel, for pixel values in 0..1. auto: as published, or ImageNet's.",
    )
    std: tuple[float, ...] = Field(
        default=Preprocess.std,
        strict=False,
        description="Standard deviation of each RGB channel, for pixel values in 0..1. auto: as published, "
        "or ImageNet's.",
    )


def _build_preprocess(value: Any) -> Any:
    return Preprocess(**dict(PreprocessConfig.model_validate(value))) if isinstance(value, Mapping) else value


class AugmentConfig(StrictModel):
    """Random augmentation of the training images."""

    crop: Literal["center", "random", "resized"] = Field(
        default="center",
        description="center; random (a square of preprocess.size out of the image scaled to augment.resize); "
        "or resized (a random part of the image, scaled to preprocess.size).",
    )
    resize: int | None = Field(
        default=None,
        description="Length of the shorter side before the crop, in pixels. null: preprocess.resize.",
    )
    padding: int = Field(default=0, ge=0, description="Pixels of padding on each side before a random crop.")
    min_area: float = Field(
        default=0.2, gt=0, le=1, description="Smallest area of a resized crop, as a share of the image."
    )
    flip: bool = Field(default=True, description="Mirror half of the images.")
    color: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Largest change of brightness, contrast and saturation, as a share.",
    )
    rotate: float = Field(default=10.0, description="Largest rotation in degrees, either way.")
    scale: float = Field(default=0.1, ge=0, lt=1, description="Largest change of scale, as a share.")
    shear: float = Field(default=0.0, description="Largest shear, as a share of the height.")
    shift: float = Field(
        default=0.1, description="Largest translation in x and in y, as a share of the side."
    )
    symmetries: Literal[1, 4, 8] = Field(
        default=1,
        description="1, or 4: rotations by 90, 180 and 270 degrees become three more classes (Santoro et al. "
        "2016), or 8: their mirror images too.",
    )
    views: int | None = Field(
        default=None,
        ge=1,
        description="Number of fixed random views of each image, the same in all runs: every use of an image "
        "takes one of them. null: a new random view at every use.",
    )

    @model_validator(mode="after")
    def _check_views(self) -> AugmentConfig:
        if self.views is not None and self.symmetries > 1:
            raise InputError("augment.views: cannot be combined with augment.symmetries; leave one out")
        return self

    @property
    def is_random(self) -> bool:
        """Whether two uses of an image can differ."""
        varied = (self.flip, self.color, self.rotate, self.scale, self.shear, self.shift)
        return self.crop != "center" or self.symmetries > 1 or any(varied)


class DistillConfig(StrictModel):
    """Distillation: the network learns to embed the training images as a larger model, the teacher, does."""

    teacher: str | None = Field(
        default=None,
        description="Model file of the teacher, as written by `lookalike export`. It embeds every training "
        "image once, before training; the vectors are cached where features are (see loader.cache). With its "
        "dimension as model.embedding_dim, the cosine of the two embeddings of each image is learned, and "
        "the network's queries can search a gallery of the teacher; with another dimension, the cosines "
        "between the images of a batch. null: no distillation.",
    )
    weight: float = Field(
        default=1.0, gt=0, description="Weight of the distillation in a sum with the loss, if there is one."
    )


class MicConfig(StrictModel):
    """MIC (Roth et al. 2019): an auxiliary encoder learns what images of different classes have in common.

    Its surrogate classes are clusters of the training images, whose features are standardized within each
    class. A batch has as many images again, batch.classes clusters of batch.per_class images.
    """

    clusters: int | None = Field(
        default=None,
        ge=2,
        description="Number of clusters, the surrogate classes. null: off.",
    )
    weight: float = Field(
        default=500.0,
        ge=0,
        description="Weight of the adversarial term that keeps the two encoders independent. The released "
        "code has 2500 for CUB-200-2011, 500 for Cars196 and 250 for Stanford Online Products.",
    )
    dim: int | None = Field(
        default=None, ge=1, description="Dimension of the auxiliary embedding. null: model.embedding_dim."
    )
    width: int = Field(
        default=512,
        ge=1,
        description="Width of the hidden layer that predicts the embedding from the auxiliary one.",
    )
    every: int = Field(
        default=3,
        ge=1,
        description="Epochs between clusterings. The first is made from the pooled features before training, "
        "the others from the auxiliary embeddings.",
    )


class BatchConfig(StrictModel):
    """Batches of P classes x K images."""

    classes: int = Field(default=16, ge=2, description="Classes in a batch, P.")
    per_class: int = Field(default=4, ge=2, description="Images of each class, K; 2 makes pairs.")
    layout: Literal["exact", "at-least"] = Field(
        default="exact",
        description="exact (P classes, K images of each) or at-least (P x K images in the data's class "
        "frequencies, with at least K of every class that occurs).",
    )
    hard_classes: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the classes of a batch that are drawn in groups which the network confuses: a "
        "class and those that its training images are nearest to, measured before training and after every "
        "epoch. The others are drawn at random. 0: all of them.",
    )
    group: int = Field(default=4, ge=2, description="hard_classes: classes in a group.")
    categories: int | None = Field(
        default=None,
        ge=1,
        description="Categories (coarse labels of the data) that a batch takes its classes from, as many of "
        "each; all categories are drawn equally often. A few: batches of related classes. As many as there "
        "are: balanced batches. null: classes are drawn alike, whatever their category.",
    )
    per_epoch: int | None = Field(
        default=None, ge=1, description="Batches in an epoch. null: as many whole batches as the images fill."
    )
    chunk: int | None = Field(
        default=None,
        ge=1,
        description="Images that go through the network at once, by gradient caching (Gao et al. 2021): a "
        "batch of any size fits in memory, at the cost of a second forward pass. null: the whole batch.",
    )

    @model_validator(mode="after")
    def _check_hard_classes(self) -> BatchConfig:
        if self.hard_classes and self.layout == "at-least":
            raise InputError(
                "batch.hard_classes: classes are drawn in batch.layout=exact only; leave one out"
            )
        return self

    @model_validator(mode="after")
    def _check_categories(self) -> BatchConfig:
        if self.categories is None:
            return self
        if self.layout == "at-least":
            raise InputError("batch.categories: classes are drawn in batch.layout=exact only; leave one out")
        if self.hard_classes:
            raise InputError("batch.categories, batch.hard_classes: both choose the classes; leave one out")
        if self.categories > self.classes:
            raise InputError(
                f"batch.categories: expected batch.classes ({self.classes}) or less, got {self.categories}"
            )
        return self


class OptimizerConfig(StrictModel):
    """Optimizer and learning rates."""

    name: Literal["adamw", "adam", "sgd"] = Field(
        default="adamw", description="adamw (decoupled weight decay), adam or sgd."
    )
    lr: float = Field(
        default=1e-3,
        gt=0,
        description="Learning rate. auto: 1e-4 for pretrained weights with batch norm (ResNet, MobileNet), "
        "3e-5 for those without (transformers, ConvNeXt), 1e-3 for random weights.",
    )
    head_lr: float | None = Field(
        default=None,
        gt=0,
        description="Learning rate of the embedding layer. null: optimizer.lr. auto: 3e-4 for pretrained "
        "weights without batch norm, else 1e-3.",
    )
    loss_lr: float | None = Field(
        default=None,
        gt=0,
        description="Learning rate of the loss's own parameters (proxies, boundaries). null: optimizer.lr.",
    )
    layer_decay: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Learning rate of a backbone stage, as a share of the next stage's.",
    )
    weight_decay: float = Field(
        default=1e-4, ge=0, description="Weight decay of all parameters except those of the loss."
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Momentum of sgd.")
    clip: float | None = Field(
        default=None,
        gt=0,
        description="Gradient clipping: largest norm of the gradient of all weights together. null: none.",
    )


class ScheduleConfig(StrictModel):
    """Learning rate schedule."""

    name: Literal["cosine", "constant", "step"] = Field(
        default="cosine", description="cosine (half a cosine, down to 0), constant or step."
    )
    warmup: float = Field(default=0.0, ge=0, description="Epochs of linear warm-up from 0.")
    at: tuple[int, ...] = Field(
        default=(),
        strict=False,
        description="step: epochs after which the rates are multiplied by schedule.gamma.",
    )
    gamma: float = Field(default=0.1, gt=0, description="step: factor of the learning rates.")


class LoaderConfig(StrictModel):
    """Loading and decoding of the training images."""

    workers: int | None = Field(
        default=None,
        ge=0,
        description="Processes that decode and crop. null: on a CPU 1 if files are decoded in every epoch, "
        "else 0; with a GPU all cores but one (at most 8 if decoded images are cached).",
    )
    cache: str | None = Field(
        default=None,
        description="Folder for decoded, resized images: built once for each set of files and scale, shared "
        "by all runs, never deleted automatically. null: images that take less than a quarter of the free "
        "memory and disk space are decoded once into a temporary file in the run's folder; more are decoded "
        "in every epoch. Features are cached there, too (null: in ~/.cache/lookalike/features).",
    )
    features: Literal["auto", "never"] = Field(
        default="auto",
        description="auto: if only the head learns (model.trainable=0, pooling other than gem) and each "
        "image has one view or augment.views of them, run the backbone once per view, keep the features in "
        "the cache and train on them. never: run the backbone in every step.",
    )


class CheckpointsConfig(StrictModel):
    """Checkpoints to keep for figures over training, besides the best and the last one."""

    at: tuple[int, ...] = Field(
        default=(),
        strict=False,
        description="Steps after which the network is kept, without the state of the optimizer; 0 is before "
        "the first. Commands take it by --which STEP.",
    )
    every: int | None = Field(
        default=None, ge=1, description="Also keep step 0 and every multiple of this. null: none."
    )

    @model_validator(mode="after")
    def _check_steps(self) -> CheckpointsConfig:
        if min(self.at, default=0) < 0:
            raise InputError(f"checkpoints.at: expected steps from 0, got {min(self.at)}")
        return self

    def keeps(self, step: int) -> bool:
        """Return whether the network after a step is kept."""
        return step in self.at or (self.every is not None and step % self.every == 0)


class WatchConfig(StrictModel):
    """Images whose Recall@K is recorded during training; it never influences the choice of the best epoch."""

    split: Literal["train", "held-out", "test"] | None = Field(
        default=None,
        description="Images to watch: train (with their true labels), held-out, or test (to draw curves as "
        "papers do; not to be selected on). null: none.",
    )
    every: int | None = Field(
        default=None,
        ge=1,
        description="Steps between evaluations; the untrained and the final network are evaluated too. "
        "null: once an epoch.",
    )
    limit: int | None = Field(
        default=None,
        ge=8,
        description="Largest number of images, as many of each class and at least 4, drawn with the seed. "
        "Recall@K among fewer images differs from that among all. null: all.",
    )
    ks: tuple[int, ...] = Field(
        default=(1, 2, 4, 8), strict=False, description="Values of K; 1 is always recorded."
    )

    @model_validator(mode="after")
    def _check_ks(self) -> WatchConfig:
        if min(self.ks, default=1) < 1:
            raise InputError(f"watch.ks: expected 1 or more, got {min(self.ks)}")
        return self


class Published(StrictModel):
    """Results that a paper reports for this experiment, in percent."""

    source: str = Field(description="Paper and table.")
    recall: dict[int, float] = Field(default={}, description="K: Recall@K.")
    coarse_recall: dict[int, float] = Field(
        default={}, description="K: Recall@K by the coarse labels, such as hotel chains."
    )
    nmi: float | None = Field(default=None, description="NMI of k-means clusters.")
    f1: float | None = Field(default=None, description="F1 of k-means clusters.")
    accuracy: float | None = Field(default=None, description="Accuracy of a linear classifier.")
    note: str | None = Field(default=None, description="Known differences from the paper.")

    def percents(self, *, coarse: bool = False) -> dict[str, float]:
        """Return the values in percent by their key in `retrieval.metrics.table`, such as "recall_at_1".

        Args:
            coarse: Return those by the coarse labels.
        """
        recall = self.coarse_recall if coarse else self.recall
        found = {f"recall_at_{k}": value for k, value in recall.items()}
        if not coarse:
            named = {"nmi": self.nmi, "f1": self.f1, "linear_probe": self.accuracy}
            found |= {key: value for key, value in named.items() if value is not None}
        return found


def _named_compile(value: Any) -> Any:
    """Return the name of what older configurations give as true or false."""
    return {True: "network", False: "none"}[value] if isinstance(value, bool) else value


class Config(StrictModel):
    """All settings of a training run; repeating a run with them reproduces it."""

    data: str = Field(description="Training data, in the same form as --data.")
    split: SplitConfig = SplitConfig()
    noise: NoiseConfig = NoiseConfig()
    model: ModelConfig = ModelConfig()
    preprocess: Annotated[Preprocess, BeforeValidator(_build_preprocess)] = _build_preprocess({})
    augment: AugmentConfig = AugmentConfig()
    loss: dict[str, Any] = Field(
        default={"name": "multi-similarity"},
        description="Loss and its parameters; see `lookalike losses`. {}, the default with distill.teacher: "
        "distillation alone, on batches of different images whatever their classes.",
    )
    distill: DistillConfig = DistillConfig()
    mic: MicConfig = MicConfig()
    batch: BatchConfig = BatchConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    loader: LoaderConfig = LoaderConfig()
    epochs: int = Field(default=20, ge=0, description="Number of epochs, of batch.per_epoch batches each.")
    patience: int | None = Field(
        default=None,
        ge=1,
        description="Early stopping: epochs without a better split.metric on the held-out images. null: off.",
    )
    ema: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Decay of an exponential moving average of the weights, which is then validated and "
        "exported. 0: off.",
    )
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = Field(
        default="auto",
        description="Precision of the network; losses are always computed in fp32. auto (bf16 on GPUs from "
        "Ampere on, else fp32), fp32, tf32 (fp32 whose products and convolutions a GPU rounds to 10 bits; "
        "torch allows this for the convolutions of fp32, too), bf16 or fp16 (with loss scaling).",
    )
    deterministic: bool = Field(
        default=False,
        description="Use deterministic kernels alone, so that a GPU repeats a run to the bit: slower, and an "
        "error if a setting has none. A CPU repeats runs to the bit in any case.",
    )
    compile: Annotated[
        Literal["auto", "none", "network", "loss", "all", "graph"], BeforeValidator(_named_compile)
    ] = Field(
        default="auto",
        description="What to speed up with torch.compile: auto (the loss on a GPU, and in runs of 20,000 "
        "steps or more the network), none, network (the first step takes up to minutes), loss, all, or graph "
        "(the loss, replayed from CUDA graphs on an NVIDIA GPU). What cannot be compiled runs without. In "
        "older runs true is network, false none.",
    )
    linear_probe: ProbeLabels | None = Field(
        default=None,
        description="Also measure the accuracy of a linear classifier learnt on the embeddings of the "
        "training images: from their true labels (clean), or from those of the run, wrong ones included "
        "(noisy). For closed sets, whose test classes are those of training. null: off.",
    )
    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N.")
    seed: int = Field(default=0, description="Seed of all random numbers.")
    save_every: int = Field(
        default=1000,
        ge=1,
        description="Steps between checkpoints within an epoch; every epoch also ends with a checkpoint.",
    )
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    watch: WatchConfig = WatchConfig()
    wandb: str | None = Field(default=None, description="Weights & Biases project to log to. null: none.")
    published: Published | None = Field(
        default=None, description="Published results of a recipe, shown beside the measured ones."
    )

    @model_validator(mode="before")
    @classmethod
    def _distill_alone(cls, values: Any) -> Any:
        """With a teacher, a loss has to be asked for."""
        given = values.get("distill") if isinstance(values, Mapping) else None
        if isinstance(given, Mapping) and given.get("teacher") is not None and "loss" not in values:
            return {**values, "loss": {}}
        return values

    @model_validator(mode="after")
    def _check_distill(self) -> Config:
        if self.distill.teacher is None:
            if self.model.init == "teacher":
                raise InputError("model.init: there is no teacher; set distill.teacher, or use init=pca")
            if not self.loss:
                raise InputError("loss: nothing to learn; name a loss, or set distill.teacher")
            return self
        if self.augment.symmetries > 1:
            raise InputError(
                "augment.symmetries: rotated images become other classes, but the teacher has one vector of "
                "an image; leave it out, or distill.teacher"
            )
        for setting, is_set in (
            ("batch.layout=at-least", self.batch.layout == "at-least"),
            ("batch.hard_classes", self.batch.hard_classes > 0),
            ("batch.categories", self.batch.categories is not None),
        ):
            if is_set and not self.loss:
                raise InputError(
                    f"{setting}: has no effect on distillation alone; leave it out, or name a loss"
                )
        return self

    def needing_classes(self) -> dict[str, bool]:
        """Return the settings that need classes, and whether each is set."""
        return {
            "split.by=images": self.split.by == "images",
            "noise.rate": self.noise.rate > 0,
            "linear_probe": self.linear_probe is not None,
            "watch.split": self.watch.split is not None,
            "model.init=lda": self.model.init == "lda",
            "mic.clusters": self.mic.clusters is not None,
        }

    @model_validator(mode="after")
    def _check_mic(self) -> Config:
        if self.mic.clusters is None:
            return self
        if "name" not in self.loss:
            raise InputError("mic.clusters: clusters are learned with the loss; name one, or leave it out")
        if self.augment.symmetries > 1:
            raise InputError(
                "mic.clusters: rotated images become other classes, but an image is in one cluster; leave it "
                "out, or augment.symmetries"
            )
        return self

    @model_validator(mode="after")
    def _check_probe(self) -> Config:
        if self.linear_probe == "noisy" and not self.noise.rate:
            raise InputError("linear_probe: noisy labels need noise.rate above 0; set it, or take clean")
        return self

    @model_validator(mode="after")
    def _check_resize(self) -> Config:
        if self.augment.resize is not None and self.augment.resize < self.preprocess.size:
            raise InputError(f"augment.resize: expected preprocess.size or more, got {self.augment.resize}")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, for YAML and JSON."""
        plain: dict[str, Any] = _plain(self.model_dump())
        return plain

    def to_yaml(self) -> str:
        """Return the content of config.yaml."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
