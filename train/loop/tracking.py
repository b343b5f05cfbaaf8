"""Where the numbers of a run go while it trains: metrics.jsonl, TensorBoard, and Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from retrieval.errors import InputError
from train.config import Config
from train.loop.run_folder import Run


class Tracker:
    """Keeps records of numbers; a context manager.

    Args:
        step: how far the run has come; what was recorded after that is forgotten.
        active: False keeps nothing, for processes that do not lead.

    Raises:
        InputError: Weights & Biases is asked for and not installed.
    """

    def __init__(self, run: Run, config: Config, step: int, *, active: bool = True) -> None:
        self._run, self._board, self._wandb = run, None, None
        if not active:
            return
        run.drop_metrics_after(step)
        self._board = SummaryWriter(str(run.folder), purge_step=step)
        if config.wandb:
            try:
                import wandb
            except ModuleNotFoundError as error:
                raise InputError(
                    "wandb: it is not installed: pip install wandb, or set wandb=null"
                ) from error
            self._wandb = wandb.init(
                project=config.wandb,
                name=run.folder.name,
                dir=str(run.folder),
                config=config.to_dict(),
                resume="auto",
            )

    def log(self, record: Mapping[str, Any]) -> None:
        """Keep one record; its `step` says when it was."""
        if self._board is None:
            return
        self._run.log(record)
        numbers = {name: value for name, value in record.items() if name != "step"}
        for name, value in numbers.items():
            self._board.add_scalar(name, value, record["step"])
        if self._wandb is not None:
            self._wandb.log(numbers, step=record["step"])

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish(exit_code=0 if error is None else 1)
