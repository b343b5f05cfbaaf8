"""References of a sweep that need no training: features of the pretrained backbone, and their projections."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from retrieval.errors import InputError
from retrieval.files import write_texts
from retrieval.metrics.statistics import Summary, summarize
from train.config import Config, ProbeLabels
from train.data import DataSet, class_numbers
from train.experiments.evaluation import evaluate_opened
from train.experiments.isolation import run_isolated
from train.experiments.targets import Candidate, network_target
from train.loop.frozen_backbone import FrozenBackbone
from train.loop.process_group import find_device
from train.loop.run_folder import initial_model
from train.models.embedding_model import EmbeddingModel, pixel_embedder
from train.models.heads import fit_head, fit_projection

FILE = "references.json"
OFF_THE_SHELF = "off-the-shelf"
_FITTED = ("pca", "pca-whitened")


@dataclass(frozen=True)
class Reference:
    """A result on the test split without training.

    Attributes:
        name: The kind, with the settings in which the backbones of a sweep differ, if it has several.
        kind: "off-the-shelf" for the pooled features of the pretrained backbone; "pca" and "pca-whitened" for
            their leading principal components, fitted to the training images, the latter with equal
            variances.
        values: Key of the metric -> value in 0..1.
        settings: What it depends on: backbone, weights, pooling, preprocessing, dimension, labels of a probe.
    """

    name: str
    kind: str
    values: Mapping[str, float]
    settings: Mapping[str, Any]

    def summary(self, metric: str) -> Summary | None:
        """Return a metric in the form of a single run."""
        return summarize([self.values[metric]]) if metric in self.values else None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def find_references(
    folder: Path, configs: Mapping[str, Config], dataset: DataSet, *, show_progress: bool = False
) -> list[Reference]:
    """Return the references of all pretrained backbones of a sweep; they are computed once and kept.

    Args:
        folder: Folder of the sweep, for references.json.
        configs: Settings of each variant; those without pretrained weights have no references.
        dataset: Data set of the sweep.
        show_progress: Report progress on stderr.

    Raises:
        InputError: None of the images could be read.
    """
    wanted: dict[str, dict[str, tuple[dict[str, Any], Config]]] = {}
    for config in configs.values():
        for name in (OFF_THE_SHELF, *_FITTED) if config.model.weights is not None else ():
            found = _settings(name, config)
            wanted.setdefault(name, {}).setdefault(json.dumps(found), (found, config))
    kept = {json.dumps([one.kind, one.settings]): one for one in _load(folder)}
    references = []
    for name, groups in wanted.items():
        for found, config in groups.values():
            known = kept.get(json.dumps([name, found]))
            values = known.values if known else run_isolated(_measure, name, config, dataset, show_progress)
            title = name + _differing(found, [other for other, _ in groups.values()])
            if values is not None:
                references.append(Reference(title, name, values, found))
    if references and references != list(kept.values()):
        write_texts(folder, {FILE: json.dumps([one.to_dict() for one in references], indent=2)})
    return references


def _measure(kind: str, config: Config, dataset: DataSet, show_progress: bool) -> Mapping[str, float] | None:
    return evaluate_reference(kind, config, dataset, show_progress=show_progress)


def _settings(name: str, config: Config) -> dict[str, Any]:
    """Return what a reference of a variant depends on, as JSON values."""
    model, every = config.model, config.to_dict()
    found: dict[str, Any] = {
        "backbone": model.backbone,
        "weights": model.weights,
        "pooling": model.pooling,
    }
    found |= {f"preprocess.{key}": value for key, value in every["preprocess"].items()}
    if name != OFF_THE_SHELF:
        found["embedding_dim"] = model.embedding_dim
    if config.linear_probe is not None:
        found |= {key: every[key] for key in ("linear_probe", "split", "noise")}
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def _differing(own: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> str:
    """Return the settings in which backbones differ, in parentheses; empty for a single one."""
    keys = [key for key, value in own.items() if any(other.get(key) != value for other in groups)]
    return f" ({', '.join(f'{key} {own[key]}' for key in keys)})" if keys else ""


def _load(folder: Path) -> list[Reference]:
    file = folder / FILE
    if not file.is_file():
        return []
    try:
        return [Reference(**fields) for fields in json.loads(file.read_text())]
    except (ValueError, TypeError):  # computed again
        return []


def evaluate_reference(
    kind: str,
    config: Config,
    dataset: DataSet,
    *,
    linear_probe: ProbeLabels | None = None,
    show_progress: bool = False,
) -> Mapping[str, float] | None:
    """Return the metrics of a reference on the test split.

    Args:
        kind: "off-the-shelf", or the name of a fitted projection: "pca", "pca-whitened" or "lda".
        config: Settings of a run with the backbone.
        dataset: Its data set.
        linear_probe: Labels for a linear probe; `None` for those that the settings choose.
        show_progress: Report progress on stderr.

    Returns:
        Key of the metric -> value in 0..1; `None` for a projection that cannot be fitted to the images.

    Raises:
        InputError: None of the images could be read, or a linear probe cannot be measured on them.
    """
    model = _pretrained(config)
    backbone = FrozenBackbone(model, config, show_progress=show_progress)
    try:
        model.head = nn.Identity() if kind == OFF_THE_SHELF else _fit(kind, model, backbone, dataset)
    except InputError:  # fewer images or features than dimensions, or a huge matrix
        return None
    embed = partial(backbone.embed, model)
    candidate = Candidate(kind, config.preprocess, pixel_embedder(model), embed)
    target = network_target([candidate], config, model.mean.device)
    report = evaluate_opened(target, dataset, linear_probe=linear_probe, show_progress=show_progress)
    return report.headline.known


def _pretrained(config: Config) -> EmbeddingModel:
    """Return the network with its pretrained backbone, on its device."""
    network = config.model.model_copy(update={"init": "default", "hidden": None})
    model = initial_model(config.model_copy(update={"model": network}))
    return model.to(find_device(config.device)).eval()


def _fit(name: str, model: EmbeddingModel, backbone: FrozenBackbone, dataset: DataSet) -> nn.Module:
    """Return a projection fitted to the training images that are no test images.

    Raises:
        InputError: They cannot be projected to the dimension of the embedding.
    """
    searched = {image.path for image in (*dataset.test, *(dataset.gallery or ()))}
    images = [image for image in dataset.train if image.path not in searched]
    found = backbone.features([image.path for image in dataset.train])
    rows = found.rows([image.path for image in images])
    readable = [place for place, row in enumerate(rows.tolist()) if row not in found.bad]
    head = nn.Linear(found.vectors.shape[1], model.config.embedding_dim).to(model.mean.device)
    features, labels = found.vectors[rows[readable]], class_numbers(images)[readable]
    fit_head(head, *fit_projection(name, features, labels, head.out_features))
    return head
