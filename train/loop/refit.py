"""Refit: a first run chooses the number of epochs on held-out images, the second one trains on all images.

    RUN/choice    the run that chooses; a complete run folder, with the same settings but `split.refit`
    RUN           the run on all images, from the same start and with the same learning rates, for the chosen
                  number of epochs; it is what commands evaluate and export

Each of the two is resumed from its last checkpoint.
"""

from __future__ import annotations

import gc
from typing import Any

from retrieval.errors import InputError
from train.config import CheckpointsConfig, Config, WatchConfig
from train.data import DataSet
from train.loop.interruption import Interrupted
from train.loop.process_group import join_process_group
from train.loop.run_copies import update_copies
from train.loop.run_folder import Run
from train.loop.trainer import Trainer


def train_run(
    run: Run, dataset: DataSet, *, resume: bool = False, show_progress: bool = False
) -> tuple[Trainer, dict[str, Any]]:
    """Train a run as its settings say, with `split.refit` after the run that chooses the number of epochs.

    Args:
        run: Run folder.
        dataset: Data set; see `Trainer`.
        resume: Continue from the last checkpoint.
        show_progress: Report progress on stderr.

    Returns:
        The trainer of the network in the run folder, and the facts of `Trainer.train`; with `split.refit`
        they have `chosen`, the best epoch of the first run with its Recall@1, or why the last one was taken.

    Raises:
        InputError: Settings or data that cannot be used.
        LookalikeError: See `Trainer.train`.
        Interrupted: Ctrl-C or SIGTERM, after a checkpoint was saved.
    """
    if not run.config.split.refit:
        trainer = Trainer(run, dataset, show_progress=show_progress)
        return trainer, trainer.train(resume=resume)
    if not run.has_checkpoint("last"):
        _choose(run, dataset, show_progress)
        update_copies(run.choice.folder, join_process_group(run.config.device))
        gc.collect()  # frees the memory of the first network on a device
    best = run.choice.checkpoint_state("best")
    chosen = {"epoch": best["epoch"], "recall_at_1": best["recall_at_1"], "refused": best["refusal"]}
    trainer = Trainer(run, dataset, epochs=best["epoch"], show_progress=show_progress)
    facts = trainer.train(resume=run.has_checkpoint("last"))
    return trainer, {**facts, "chosen": chosen}


def _choose(run: Run, dataset: DataSet, show_progress: bool) -> None:
    """Train or resume the run that chooses."""
    choice, config = run.choice, _config_of_choice(run.config)
    begun = choice.has_checkpoint("last")
    group = join_process_group(config.device)
    if group.is_main and not begun:
        Run.start(choice.folder, config)
    update_copies(choice.folder, group)
    trainer = Trainer(choice, dataset, show_progress=show_progress)
    if not trainer.data.validation:
        raise InputError("split.refit: no images are held out to choose on; raise split.validation")
    try:
        trainer.train(resume=begun)
    except Interrupted as error:
        raise Interrupted(
            f"{run.folder}: interrupted while the number of epochs was being chosen, checkpoint saved; "
            "--resume continues the run"
        ) from error


def _config_of_choice(config: Config) -> Config:
    """Return the settings of the run that chooses; nothing is watched, kept or measured but the choice."""
    split = config.split.model_copy(update={"refit": False})
    quiet = {"watch": WatchConfig(), "checkpoints": CheckpointsConfig(), "wandb": None, "published": None}
    return config.model_copy(update={"split": split, "linear_probe": None, **quiet})
