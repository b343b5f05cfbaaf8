"""Network of a run: the model with its loss and moving average, as training begins or resumes."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import nn

from train.config import FITTED_INITS
from train.loop.frozen_backbone import FrozenBackbone, fit_initial_head, trains_on_features
from train.loop.process_group import ProcessGroup
from train.loop.run_folder import (
    Run,
    initial_auxiliary,
    initial_loss,
    initial_mic_loss,
    initial_model,
    pair_loss,
)
from train.loop.training_data import TrainingData
from train.loop.twin_encoder import AuxiliaryEncoder, TwinEncoder
from train.losses.labelled_pairs import PairObjective
from train.losses.mic import MicObjective
from train.losses.objective import Objective
from train.models.embedding_model import EmbeddingModel, synchronise_batch_norm
from train.models.pretrained_weights import digest_of_weights


@dataclass
class Network:
    """The model that a run trains, with its loss.

    Attributes:
        model: The model.
        loss: Its loss, which may learn as well.
        ema: Moving average of the model, if there is one.
        auxiliary: Auxiliary encoder of MIC, if it is trained.
        backbone: Frozen backbone, if the head learns on its features, which are computed once.
        start_digest: SHA-256 of the backbone's weights at the start, if they come from a file and learn.
    """

    model: EmbeddingModel
    loss: Objective | MicObjective | PairObjective
    ema: EmbeddingModel | None
    backbone: FrozenBackbone | None
    start_digest: str | None = None
    auxiliary: AuxiliaryEncoder | None = None

    @property
    def on_features(self) -> bool:
        """Whether the head learns on features."""
        return self.backbone is not None

    @property
    def trained(self) -> nn.Module:
        """What a training step runs: the model or its head alone, and the auxiliary encoder."""
        if self.auxiliary is not None:
            return TwinEncoder(self.model, self.auxiliary, on_features=self.on_features)
        return self.model.projection if self.on_features else self.model

    @property
    def validated_model(self) -> EmbeddingModel:
        """The model that is evaluated and exported: the moving average if there is one."""
        return self.model if self.ema is None else self.ema

    def modules(self, run: Run) -> dict[str, nn.Module]:
        """Return what a checkpoint of the run has, by name."""
        modules: dict[str, nn.Module] = {"model": run.checkpointed(self.model), "loss": self.loss}
        others: dict[str, nn.Module] = {}
        if self.ema is not None:
            others["average"] = run.checkpointed(self.ema)
        if self.auxiliary is not None:
            others["auxiliary"] = self.auxiliary
        return modules | others


def build_network(run: Run, data: TrainingData, group: ProcessGroup, *, show_progress: bool) -> Network:
    """Build the network of a run; unless the run is resumed, fit its head.

    Args:
        run: Run folder with the configuration.
        data: Images that it is trained on.
        group: Processes that train it; all get the same weights.
        show_progress: Report the progress of fitting on stderr.

    Raises:
        InputError: The model or the loss cannot be built.
    """
    config = run.config
    objective = initial_loss(config, data.classes).to(group.device)
    loss: Objective | MicObjective | PairObjective = objective
    if data.pairs is not None:
        loss = pair_loss(objective, data.pairs).to(group.device)
    model = initial_model(config).to(group.device)
    auxiliary = None
    if config.mic.clusters is not None:
        size = data.sampler.classes * data.sampler.per_class
        loss = initial_mic_loss(config, objective, size).to(group.device)
        auxiliary = initial_auxiliary(config, model).to(group.device)
    if config.model.batch_norm == "sync":
        synchronise_batch_norm(model)
    run.restore_backbone(model)  # a resumed run; the file of `model.weights` may have changed
    group.broadcast(model.state_dict().values())  # pretrained weights may differ between machines
    backbone = FrozenBackbone(model, config, show_progress=show_progress)
    begins, digest = not run.has_checkpoint("last"), None
    if begins and config.model.init in FITTED_INITS:
        fit_initial_head(model, backbone, data)
        group.broadcast(model.head.state_dict().values())  # rounding differs between CPUs
    if begins and group.is_main and model.is_frozen_below_head:
        run.keep_backbone(backbone.weights())
    elif begins and group.is_main and config.model.weights is not None:
        digest = digest_of_weights(model.backbone)
    ema = copy.deepcopy(model).requires_grad_(False) if config.ema else None
    on_features = backbone if trains_on_features(config, model) else None
    return Network(model, loss, ema, on_features, digest, auxiliary)
