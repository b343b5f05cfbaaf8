"""Metric tracking of a run: metrics.jsonl, TensorBoard and Weights & Biases; training throughput."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from torch.utils.tensorboard import SummaryWriter

from retrieval.errors import InputError
from retrieval.machine.extras import needs
from train.config import Config
from train.loop.run_folder import Run

_T = TypeVar("_T")
_TOO_LONG = 0.2  # share of the time
_SLOW_RECORDS = 3  # in a row: the first batch of a run always takes a while
WATCHED = {
    "train": "training images",
    "held-out": "held-out images",
    "test": "test images, not to be selected on",
}


class Tracker:
    """Logs records of metrics; a context manager.

    Args:
        run: Run folder.
        config: Configuration of the run.
        step: Number of steps done; records of later steps are dropped.
        active: False logs nothing, for all processes but the main one.

    Raises:
        InputError: `wandb` is set and Weights & Biases is not installed.
    """

    def __init__(self, run: Run, config: Config, step: int, *, active: bool = True) -> None:
        self._run = run
        self._board: SummaryWriter | None = None
        self._wandb: Any = None
        if not active:
            return
        run.drop_metrics_after(step)
        # TensorBoard drops earlier events from this step on; the records of `step` itself stay in the file.
        self._board = SummaryWriter(str(run.folder), purge_step=step + 1 if step else 0)
        if config.wandb:
            try:
                import wandb
            except ModuleNotFoundError as error:
                raise InputError(f"wandb: {needs('wandb')}, or set wandb=null") from error
            self._wandb = wandb.init(
                project=config.wandb,
                name=run.folder.name,
                dir=str(run.folder),
                config=config.to_dict(),
                resume="auto",
            )

    def log(self, record: Mapping[str, Any]) -> None:
        """Log one record under its `step`; numbers of watched images get a name of their own."""
        if self._board is None:
            return
        self._run.log(record)
        group = f"watched {WATCHED[record['watched']]}/" if "watched" in record else ""
        names = record.keys() - {"step", "watched"}
        numbers = {f"{group}{name}": value for name, value in record.items() if name in names}
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


class WaitingHint:
    """Advice, given once, for a run that keeps waiting for its images to be decoded.

    Args:
        cacheable: Bytes that a cache of the decoded images would take; `None` if they are cached.
    """

    def __init__(self, cacheable: int | None) -> None:
        self._cacheable, self._slow = cacheable, 0

    def advice(self, waiting: float) -> str | None:
        """Return the advice if more than 20% of the time since the last records went to waiting.

        Args:
            waiting: Share of the time since the last record.
        """
        if self._cacheable is None:
            return None
        self._slow = self._slow + 1 if waiting > _TOO_LONG else 0
        if self._slow < _SLOW_RECORDS:
            return None
        size, self._cacheable = self._cacheable / 1e9, None
        return (
            f"waiting for data {100 * waiting:.0f}% of the time: set loader.cache=DIR to decode each image "
            f"once ({size:.1f} GB), or raise loader.workers if cores are idle"
        )


class Throughput:
    """Images per second, and the share of time spent waiting for the loader.

    Attributes:
        images: Images since the last reading; the training loop adds to it.
    """

    def __init__(self) -> None:
        self.images, self._began, self._waited = 0, time.monotonic(), 0.0

    def timed(self, loader: Iterable[_T]) -> Iterator[_T]:
        """Iterate over a loader and measure the time that each batch takes to arrive."""
        batches = iter(loader)
        while True:
            began = time.monotonic()
            try:
                batch = next(batches)
            except StopIteration:
                return
            self._waited += time.monotonic() - began
            yield batch

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of an evaluation between two steps."""
        began = time.monotonic()
        yield
        self._began += time.monotonic() - began

    def read(self, steps: int) -> dict[str, float]:
        """Return `images_per_second`, `seconds_per_step` and `waiting` since the last reading, and reset.

        Args:
            steps: Training steps since the last reading.
        """
        now = time.monotonic()
        seconds = max(now - self._began, 1e-9)
        numbers = {
            "images_per_second": round(self.images / seconds, 1),
            "seconds_per_step": round(seconds / steps, 6),
            "waiting": round(self._waited / seconds, 4),
        }
        self.images, self._began, self._waited = 0, now, 0.0
        return numbers
