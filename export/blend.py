"""Blend of the start and the end of a run: WiSE-FT (Wortsman et al. 2022, Robust Fine-Tuning, eq. 1)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from retrieval.errors import InputError
from retrieval.progress import Progress
from train import data
from train.loop.choice import Score
from train.loop.process_group import join_process_group
from train.loop.run_folder import Run
from train.loop.shared_images import ImageSource
from train.loop.training_data import TrainingData
from train.loop.validation import Validator
from train.models.embedding_model import EmbeddingModel
from train.models.pretrained_weights import digest_of_weights

_STEPS = 10  # of the curve


@dataclass(frozen=True)
class Blend:
    """Share of the end in the weights of a backbone, with the scores that it was chosen by.

    Attributes:
        alpha: Share of the end: 0 is the pretrained backbone, 1 that of the run.
        checked: Whether the start is proved to be that of the run; versions before did not record it.
        scores: Share -> score of the held-out images; empty if the share was given.
    """

    alpha: float
    checked: bool
    scores: dict[float, Score]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        curve = [{"alpha": alpha, **score.record()} for alpha, score in self.scores.items()]
        return {"alpha": self.alpha, "start_checked": self.checked, "curve": curve}

    def to_text(self) -> str:
        """Return lines for a terminal: the curve, and the share."""
        lines = [f"alpha {alpha:.1f}: {score}" for alpha, score in self.scores.items()]
        note = "" if self.checked else "; the run did not record its start, which could not be checked"
        return "\n".join([*lines, f"blended with alpha {self.alpha:g} (1: the run alone){note}"])


def blend_with_start(
    run: Run, model: EmbeddingModel, alpha: float | None, *, show_progress: bool = False
) -> Blend:
    """Blend a network of a run with the pretrained backbone that the run began with, in place.

    All weights and batch norm statistics of the backbone become (1 - alpha) start + alpha end. The head,
    which had no pretrained weights, and the power of generalized mean pooling are those of the run.

    Args:
        run: Training run.
        model: Network of one of its checkpoints, on the CPU, in evaluation mode.
        alpha: Share of the end in 0..1; `None` to take the share with the best `split.metric` on the held-out
            images of the run, of equals the largest.
        show_progress: Report progress on stderr.

    Raises:
        InputError: The run did not begin with pretrained weights or did not change them, the weights are not
            those that it began with, or there are no held-out images to choose on.
    """
    config = run.config
    if config.model.weights is None:
        raise InputError(f"--blend: {run.folder} began with random weights; export it without --blend")
    if model.is_frozen_below_head:
        raise InputError(f"--blend: only the head of {run.folder} learned; export it without --blend")
    start = run.untrained().cpu()
    recorded = run.checkpoint_state("last").get("start_sha256")
    if recorded is not None and digest_of_weights(start.backbone) != recorded:
        raise InputError(
            f"--blend: {config.model.weights} are not the weights that {run.folder} began with; restore them"
        )
    before, after = start.backbone.state_dict(), model.backbone.state_dict()
    if all(torch.equal(before[name], value) for name, value in after.items()):
        raise InputError(
            f"--blend: the backbone of this checkpoint of {run.folder} is still the pretrained one; "
            "choose another, as with --checkpoint last"
        )
    after = {name: value.clone() for name, value in after.items()}

    def blend(share: float) -> None:
        for name, value in model.backbone.state_dict().items():
            if value.is_floating_point():
                value.copy_(torch.lerp(before[name], after[name], share))

    scores: dict[float, Score] = {}
    if alpha is None:
        with TemporaryDirectory() as folder:
            validator = _validator(run, Path(folder), show_progress)
            with Progress("blending", _STEPS + 1, show=show_progress) as progress:
                for step in range(_STEPS + 1):
                    blend(step / _STEPS)
                    score = validator.score(model)
                    assert score is not None
                    scores[step / _STEPS] = score
                    progress.update(1)
        alpha = max(scores, key=lambda share: (scores[share].value, share))
    blend(alpha)
    return Blend(alpha, recorded is not None, scores)


def _validator(run: Run, folder: Path, show_progress: bool) -> Validator:
    config = run.config
    what = f"--blend auto: {run.folder}"
    if config.split.refit:
        raise InputError(f"{what} was trained on its held-out images, too; give a number")
    group = join_process_group("cpu")
    training = TrainingData(data.load(config.data, unlabelled=True), config, group, folder)
    if not training.validation:
        raise InputError(
            f"{what} has no held-out images to choose on; give a number, or set split.validation"
        )
    return Validator(training, ImageSource(config, group, folder, None, show_progress))
